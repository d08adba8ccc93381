# What reads the sources, and what writes them in their form.

##@ Check (no test is run)

.PHONY: check
check: check-go check-abi check-c check-python site  ## Formatting, vet, linters, types, headers, the site's links

# vet and staticcheck read packages as they are compiled for the tests, with the race
# detector: else all of them, and Go's own, would be compiled once more.
.PHONY: check-vet
check-vet: FORCE
	$(call say,gofmt)
	@out=$$(gofmt -l $(GO_FILES) </dev/null); \
	if [ -n "$$out" ]; then echo "not formatted (make fmt):" >&2; echo "$$out" >&2; exit 1; fi
	$(call say,go vet)
	@CGO_ENABLED=1 $(GO) vet -race -tags long ./...
	@CGO_ENABLED=1 $(GO) list -race -test -export ./... >/dev/null # which compiles the tests

# GOGC: staticcheck prefers little memory to time, and what it saves is a tenth.
.PHONY: check-go
check-go: check-vet $(STATICCHECK)  ## gofmt, go vet, staticcheck, imports, go mod tidy
	$(call say,staticcheck)
	@GOGC=400 CGO_ENABLED=1 GOFLAGS="$$($(GO) env GOFLAGS) -race" $(STATICCHECK) ./...
	$(call say,who imports what)
	@CGO_ENABLED=1 $(GO) test -race -vet=off .
	$(call say,go mod tidy -diff)
	@$(GO) mod tidy -diff

.PHONY: check-c
check-c: $(VENV_STAMP)  ## clang-format; the header as C99 and as C++17
ifneq ($(HEADERS),)
	$(call say,headers as C99 and C++17)
	@for h in $(notdir $(HEADERS)); do \
	printf '#include "%s"\n#include "%s"\nint main(void) { return 0; }\n' $$h $$h | $(CC) -std=c99 -Wall -Wextra -Werror -pedantic -Iinclude -fsyntax-only -x c -; \
	printf '#include "%s"\n#include "%s"\nint main() { return 0; }\n' $$h $$h | $(CXX) -std=c++17 -Wall -Wextra -Werror -pedantic -Iinclude -fsyntax-only -x c++ -; \
	done
	@printf '#include "rallypoint.hpp"\n#include "rallypoint.hpp"\nint main() { return 0; }\n' | $(CXX) -std=c++17 -Wall -Wextra -Werror -pedantic -Iinclude -fsyntax-only -x c++ -
endif
ifneq ($(strip $(C_FILES)),)
	$(call say,clang-format)
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)
endif

# abidiff reads what the compiler knows about the functions that are there;
# python/tests/library/test_abi_stable.py reads the header, and needs no tool.
.PHONY: check-abi
check-abi: build/install/librallypoint.so  ## The library against the recorded interface
	$(call say,abidiff)
	@if command -v abidiff >/dev/null; then capi/abi/check $<; else \
	echo "abidiff is missing (Debian: abigail-tools), so only the header is compared, by the tests" >&2; fi

.PHONY: abi-baseline
abi-baseline: build/install/librallypoint.so  ## Record the present interface: for a release
	@capi/abi/check --record $<
	@PYTHONPATH=packaging $(PYTHON) python/tests/library/test_abi_stable.py

.PHONY: check-python
check-python: $(VENV_STAMP) python/rallypoint/_native/abi.py  ## ruff check, ruff format, mypy
	$(call say,ruff check; ruff format --check)
	@$(BIN)/ruff check --quiet $(PY_DIRS)
	@$(BIN)/ruff format --quiet --check $(PY_DIRS) || { echo "not formatted (make fmt)" >&2; exit 1; }
	$(call say,mypy)
	@$(BIN)/mypy

# Each wheel has its own (python/hatch_build.py); this one is for mypy.
python/rallypoint/_native/abi.py: $(HEADER_READERS)
	@$(PYTHON) packaging/python_bindings.py

# Not in check: it needs a network, and other hosts.
.PHONY: check-links
check-links:  ## What the pages link to on other hosts is there (fetches each page)
	$(call say,links to other hosts)
	@$(PYTHON) packaging/links.py

.PHONY: fmt
fmt: $(VENV_STAMP)  ## Format everything
	@gofmt -w $(GO_FILES) </dev/null
ifneq ($(strip $(C_FILES)),)
	@$(BIN)/clang-format -i $(C_FILES)
endif
	@$(BIN)/ruff check --quiet --fix $(PY_DIRS) || true
	@$(BIN)/ruff format $(PY_DIRS)
