# Rallypoint: build, check and test. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
.SUFFIXES:

# What may be changed on the command line: `make test-long FUZZTIME=5m`.
GO ?= go
PYTHON ?= python3
PYTEST_ARGS ?=
GOTEST_ARGS ?=
FUZZTIME ?= 30s
TORCH_VERSIONS ?= 2.4.1 2.8.0
SANITIZE ?=

STATICCHECK_VERSION := v0.8.2
GOTESTSUM_VERSION := v1.13.0
SOVERSION := 0

# Containers set this to keep their images small. Each of the hundreds of interpreters that
# the tests start would compile torch and the tests again.
unexport PYTHONDONTWRITEBYTECODE

# uv never fetches an interpreter: the one named by PYTHON is used.
export UV_PYTHON_DOWNLOADS := never
UV := .tools/uv/bin/uv
STATICCHECK := .tools/staticcheck-$(STATICCHECK_VERSION)/staticcheck
GOTESTSUM := .tools/gotestsum-$(GOTESTSUM_VERSION)/gotestsum
ETCD = .tools/etcd-$(call hash,requirements/etcd/go.mod requirements/etcd/go.sum)/etcd
ETCD_3_5 = .tools/etcd3.5-$(call hash,requirements/etcd-3.5/go.mod requirements/etcd-3.5/go.sum)/etcd
HELM = .tools/helm-$(call hash,requirements/helm/go.mod requirements/helm/go.sum)/helm
PROMQL = .tools/promql-$(call hash,requirements/promql/go.mod requirements/promql/go.sum requirements/promql/main.go)/promql
BIN := .venv/bin

# A recipe line that takes longer than a second is announced by one line.
say = @printf '%s\n' '==> $(1)'

hash = $(shell cat $(1) 2>/dev/null | sha256sum | cut -c1-16)
UV_STAMP := .tools/.uv-$(call hash,requirements/uv.txt)
DOCS_STAMP := .venvs/docs/.requirements-$(call hash,requirements/uv.txt requirements/docs.txt)
BUILD_STAMP := .venvs/build/.requirements-$(call hash,requirements/build.txt)
RELEASE_STAMP := .venvs/release/.requirements-$(call hash,requirements/uv.txt requirements/release.txt)
LIBRARIES_STAMP := .venvs/libraries/.requirements-$(call hash,requirements/uv.txt requirements/libraries.txt)
VENV_STAMP := .venv/.requirements-$(call hash,requirements/uv.txt requirements/dev.txt)

# Folders that hold no sources of ours.
NOT_OURS := .git .tools .venv .venvs build dist
find_sources = $(shell find . $(foreach d,$(NOT_OURS),-path ./$(d) -prune -o) -type f \( $(1) \) -print | sort)
GO_FILES = $(call find_sources,-name '*.go')
C_FILES = $(call find_sources,-name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp')
HEADERS := $(wildcard include/*.h)
C_TESTS := $(wildcard capi/tests/*.c)
PY_DIRS := $(wildcard python bench examples packaging docs/pictures)
WHEEL_FILES := pyproject.toml VERSION LICENSE $(wildcard README.md) \
	$(shell find python \( -name __pycache__ -o -path python/tests \) -prune -o -type f -print)

##@ Build

.PHONY: all
all: build/librallypoint.so build/rallypoint  ## Build the library and the command (the default)

.PHONY: wheel
wheel: build/.wheel  ## Build dist/rallypoint-*.whl, which carries the library: needs Go, gcc and Python

.PHONY: venv
venv: $(VENV_STAMP)  ## Make .venv with the pinned development tools and torch

.PHONY: dev-install
dev-install: .venv/.wheel  ## Install the wheel into .venv (done by test, demo and bench)

# The library and the command. The go command decides what is stale; the file
# is replaced only if its bytes differ, so that nothing downstream is rebuilt.
.PHONY: FORCE
FORCE:

# The same source gives the same bytes, in whatever folder it lies. grpcnotrace leaves
# out pages of gRPC that no process serves, and with them what the linker must keep for them.
GO_BUILD := $(GO) build -trimpath -buildvcs=false -tags grpcnotrace
LIB_LDFLAGS := "-s -w -buildid= -extldflags '-Wl,-z,relro,-z,now -Wl,-soname,librallypoint.so.$(SOVERSION) -Wl,--version-script=$(CURDIR)/capi/exports.map'"
replace_if_changed = if cmp -s "$(1)" $@; then :; else mv -f "$(1)" $@; echo "    $@: $$(stat -c %s $@) bytes"; fi

# The header that cgo writes beside the library is not ours to ship
# (include/rallypoint.h is the contract): it dies with the temporary folder.
build/librallypoint.so: FORCE
	$(call say,building $@)
	@mkdir -p build; tmp=$$(mktemp -d build/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=1 $(GO_BUILD) -buildmode=c-shared -ldflags $(LIB_LDFLAGS) -o "$$tmp/librallypoint.so" ./capi; \
	$(call replace_if_changed,$$tmp/librallypoint.so)

build/rallypoint: FORCE
	$(call say,building $@)
	@mkdir -p build; tmp=$$(mktemp -d build/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w -buildid=' -o "$$tmp/rallypoint" ./cmd/rallypoint; \
	$(call replace_if_changed,$$tmp/rallypoint)

build/swarm: FORCE
	@mkdir -p build; $(GO_BUILD) -o $@ ./bench/swarm

build/.wheel: build/librallypoint.so $(WHEEL_FILES) | $(BUILD_STAMP)
	$(call say,building the wheel)
	@rm -f dist/*.whl
	@GO=$(GO) RALLYPOINT_LIB=build/librallypoint.so .venvs/build/bin/python -m hatchling build -t wheel -d dist
	@touch $@

# The build backend alone, by pip: a wheel is had without uv and without torch.
$(BUILD_STAMP):
	$(call say,making .venvs/build)
	@mkdir -p .venvs; rm -rf .venvs/build; $(PYTHON) -m venv .venvs/build
	@.venvs/build/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/build.txt
	@touch $@

.venv/.wheel: build/.wheel $(VENV_STAMP)
	$(call say,installing the wheel into .venv)
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --reinstall dist/rallypoint-*.whl
	@touch $@

# What is published: a wheel per machine that runs on any glibc since 2.17, and
# the sources. zig is the C compiler, since a plain gcc binds the library to the
# glibc of the machine that built it.
.PHONY: wheels
wheels: $(RELEASE_STAMP)  ## Build dist/release: the wheels for x86-64 and arm64, and the sdist
	@rm -f dist/release/*.whl dist/release/rallypoint-$(VERSION).tar.gz; for m in amd64:x86_64 arm64:aarch64; do \
	lib=build/release/$${m#*:}/librallypoint.so; mkdir -p $$(dirname $$lib); \
	echo "==> building $$lib and its wheel"; \
	CGO_ENABLED=1 GOOS=linux GOARCH=$${m%:*} \
	CC="$(CURDIR)/.venvs/release/bin/python -m ziglang cc -target $${m#*:}-linux-gnu.2.17" \
	$(GO_BUILD) -buildmode=c-shared -ldflags $(LIB_LDFLAGS) -o $$lib ./capi; \
	rm -f build/release/$${m#*:}/librallypoint.h; \
	GO=$(GO) RALLYPOINT_LIB=$$lib .venvs/release/bin/python -m hatchling build -t wheel -d dist/release; done
	@.venvs/release/bin/python -m hatchling build -t sdist -d dist/release
	@ls -l dist/release

# The command as one static file for any Linux, with its manual pages and completions.
.PHONY: binaries
binaries: build/install/man build/install/completion  ## Build dist/release: the static command for x86-64 and arm64
	@mkdir -p dist/release; rm -f dist/release/*-linux-*.tar.gz; for m in amd64:x86_64 arm64:aarch64; do \
	name=rallypoint-$(VERSION)-linux-$${m#*:}; dir=build/release/$$name; rm -rf $$dir; mkdir -p $$dir/man/man1; \
	echo "==> building dist/release/$$name.tar.gz"; \
	CGO_ENABLED=0 GOOS=linux GOARCH=$${m%:*} $(GO_BUILD) -ldflags '-s -w -buildid=' -o $$dir/rallypoint ./cmd/rallypoint; \
	GO=$(GO) $(PYTHON) python/licences.py $$dir/rallypoint >$$dir/THIRD_PARTY_LICENSES; \
	cp LICENSE packaging/serve.env $$dir; cp build/install/man/*.1 $$dir/man/man1; cp -r build/install/completion $$dir; \
	tar -C build/release --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=go=rX,u+rw,a-s -cf - $$name | gzip -9n >dist/release/$$name.tar.gz; done
	@ls -l dist/release/*-linux-*.tar.gz

.PHONY: release
release: wheels binaries  ## What is published: wheels, binaries

# Each wheel in an environment that holds nothing else, the arm64 library under qemu,
# the sdist with and without Go.
.PHONY: test-wheels
test-wheels: release  ## What release built, with every Python that is here
	$(call say,packaging/tests/wheels)
	@packaging/tests/wheels dist/release

$(RELEASE_STAMP): | $(UV_STAMP)
	$(call say,making .venvs/release)
	@mkdir -p .venvs
	$(call make_venv,.venvs/release,requirements/release.txt)

# Environments. A stamp carries the hash of what was asked for, so that a
# changed requirement rebuilds and a fresh checkout's file times do not.
# $(1): folder, $(2): requirements file
define make_venv
@ver=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.version_info >= (3, 11))'); \
	case "$$ver" in *True) ;; *) echo "$(PYTHON) is Python $${ver% *}; the pinned requirements need 3.11 or newer (set PYTHON)" >&2; exit 1;; esac
@$(UV) venv --quiet --allow-existing --python "$$(command -v $(PYTHON))" $(1)
@$(UV) pip sync --quiet --python $(1)/bin/python $(2)
@rm -f $(1)/.requirements-* $(1)/.wheel
@touch $@
endef

$(UV_STAMP):
	$(call say,installing uv into .tools)
	@mkdir -p .tools; rm -rf .tools/uv .tools/.uv-*
	@$(PYTHON) -m venv .tools/uv
	@.tools/uv/bin/pip install --quiet --disable-pip-version-check -r requirements/uv.txt
	@touch $@

$(VENV_STAMP): | $(UV_STAMP)
	$(call say,making .venv from requirements/dev.txt (the first time this downloads about 3 GB))
	$(call make_venv,.venv,requirements/dev.txt)

# Older torch versions: .venvs/torch-2.4.1 and so on.
.PHONY: venvs
venvs: $(TORCH_VERSIONS:%=venv-torch-%)  ## Make .venvs/torch-* for TORCH_VERSIONS

define torch_rules
TORCH_STAMP_$(1) := .venvs/torch-$(1)/.requirements-$$(call hash,requirements/uv.txt requirements/torch-$(1).txt)

.PHONY: venv-torch-$(1)
venv-torch-$(1): $$(TORCH_STAMP_$(1))

$$(TORCH_STAMP_$(1)): | $$(UV_STAMP)
	$$(call say,making .venvs/torch-$(1))
	@mkdir -p .venvs
	$$(call make_venv,.venvs/torch-$(1),requirements/torch-$(1).txt)

.venvs/torch-$(1)/.wheel: build/.wheel $$(TORCH_STAMP_$(1))
	$$(call say,installing the wheel into .venvs/torch-$(1))
	@$$(UV) pip install --quiet --python .venvs/torch-$(1)/bin/python --no-deps --reinstall dist/rallypoint-*.whl
	@touch $$@

.PHONY: test-torch-$(1)
test-torch-$(1): .venvs/torch-$(1)/.wheel
	$$(call say,pytest with torch $(1))
	@.venvs/torch-$(1)/bin/python -m pytest python/tests $(PYTEST_ARGS)
endef
$(foreach v,$(TORCH_VERSIONS),$(eval $(call torch_rules,$(v))))

include packaging/install.mk

##@ Check (no test is run)

# Two at a time, as test: while one links, the other compiles.
.PHONY: check
check:  ## Formatting, vet, linters, types, headers
	@$(MAKE) -j2 check-go check-abi check-c check-python

# vet and staticcheck read packages as they are compiled for the tests, with the race
# detector: else all of them, and Go's own, would be compiled once more. GOGC: staticcheck
# prefers little memory to time, and what it saves is 5 %.
.PHONY: check-go
check-go: $(STATICCHECK)  ## gofmt, go vet, staticcheck, imports, go mod tidy
	$(call say,gofmt)
	@out=$$(gofmt -l $(GO_FILES) </dev/null); \
	if [ -n "$$out" ]; then echo "not formatted (make fmt):" >&2; echo "$$out" >&2; exit 1; fi
	$(call say,go vet)
	@CGO_ENABLED=1 $(GO) vet -race ./...
	@CGO_ENABLED=1 $(GO) vet -race -tags long $(sort $(dir $(shell grep -l '^//go:build long' $(GO_FILES))))
	$(call say,staticcheck)
	@GOGC=200 CGO_ENABLED=1 GOFLAGS="$$($(GO) env GOFLAGS) -race" $(STATICCHECK) ./...
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
# python/tests/test_abi_stable.py reads the header, and needs no tool.
.PHONY: check-abi
check-abi: build/install/librallypoint.so  ## The library against the recorded interface
	$(call say,abidiff)
	@if command -v abidiff >/dev/null; then capi/abi/check $<; else \
	echo "abidiff is missing (Debian: abigail-tools), so only the header is compared, by the tests" >&2; fi

.PHONY: abi-baseline
abi-baseline: build/install/librallypoint.so  ## Record the present interface: for a release
	@capi/abi/check --record $<
	@PYTHONPATH=packaging $(PYTHON) python/tests/test_abi_stable.py

.PHONY: check-python
check-python: $(VENV_STAMP)  ## ruff check, ruff format, mypy
	$(call say,ruff check; ruff format --check)
	@$(BIN)/ruff check --quiet $(PY_DIRS)
	@$(BIN)/ruff format --quiet --check $(PY_DIRS) || { echo "not formatted (make fmt)" >&2; exit 1; }
	$(call say,mypy)
	@$(BIN)/mypy

$(STATICCHECK):
	$(call say,building staticcheck $(STATICCHECK_VERSION))
	@CGO_ENABLED=0 GOBIN=$(CURDIR)/$(dir $@) $(GO) install -trimpath honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)

$(GOTESTSUM):
	$(call say,building gotestsum $(GOTESTSUM_VERSION))
	@CGO_ENABLED=0 GOBIN=$(CURDIR)/$(dir $@) $(GO) install -trimpath gotest.tools/gotestsum@$(GOTESTSUM_VERSION)

.PHONY: fmt
fmt: $(VENV_STAMP)  ## Format everything
	@gofmt -w $(GO_FILES) </dev/null
ifneq ($(strip $(C_FILES)),)
	@$(BIN)/clang-format -i $(C_FILES)
endif
	@$(BIN)/ruff check --quiet --fix $(PY_DIRS) || true
	@$(BIN)/ruff format $(PY_DIRS)

##@ Test

# Neither torch nor etcd, no environment, no race detector: the command, and the tests
# of the packages that need little time. SLOW are the others.
SLOW := capi|cli|etcdstore|backend|bench|examples|cmd|packaging|agent|core/control|core/sharedlog

.PHONY: quick
quick: build/rallypoint  ## In a minute: gofmt, the command, the fast packages' tests
	$(call say,gofmt)
	@out=$$(gofmt -l $(GO_FILES) </dev/null); \
	if [ -n "$$out" ]; then echo "not formatted (make fmt):" >&2; echo "$$out" >&2; exit 1; fi
	$(call say,go test of the fast packages)
	@$(GO) test -timeout 2m $(GOTEST_ARGS) $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -vE '^rallypoint/($(SLOW))(/|$$)')

# Three at a time, the longest first: most tests wait for other processes, not for a processor.
.PHONY: test
test:  ## All quick tests
	@$(MAKE) -j3 test-python-torchrun test-go test-python-jobs test-python-files test-c test-install test-free-threaded

# FREE_THREADED names the interpreter, FETCH=1 lets uv fetch one.
.PHONY: test-free-threaded
test-free-threaded: build/.wheel | $(UV_STAMP)  ## The wheel in a Python without a global lock, if there is one
	$(call say,packaging/tests/free-threaded)
	@packaging/tests/free-threaded "$$(echo dist/rallypoint-*.whl)"

.PHONY: test-conda
test-conda:  ## A build of the conda recipe, if rattler-build is there
	$(call say,packaging/tests/conda)
	@packaging/tests/conda

# The etcd that the tests start.
.PHONY: etcd
etcd: $(ETCD)  ## Build the etcd server of requirements/etcd into .tools

$(ETCD):
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO) build -C requirements/etcd -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ go.etcd.io/etcd/server/v3

$(ETCD_3_5):
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO) build -C requirements/etcd-3.5 -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ go.etcd.io/etcd/server/v3

$(HELM):
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO) build -C requirements/helm -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ helm.sh/helm/v3/cmd/helm

$(PROMQL):
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO) build -C requirements/promql -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ .

# Without a registry that has its modules those tests are skipped with the reason.
.PHONY: promql
promql:
	@$(MAKE) -s $(PROMQL) || echo "no parser of Prometheus's expressions: its tests are skipped" >&2

PYTHON_TESTS := test-python test-python-torchrun test-python-jobs test-python-files

$(PYTHON_TESTS) test-python-long: export RALLYPOINT_TEST_PROMQL = $(wildcard $(CURDIR)/$(PROMQL))

test-helm: export RALLYPOINT_TEST_HELM = $(CURDIR)/$(HELM)

test-go test-c test-asan test-valgrind test-install test-run-long $(PYTHON_TESTS) test-python-long bench: export RALLYPOINT_TEST_ETCD = $(CURDIR)/$(ETCD)

# A program with the race detector sleeps for a second before it ends, unless told: the
# tests start and end hundreds. make check runs all of vet, of which go test has a part.
test-go test-go-long test-etcd-versions test-mounts test-run-long: export GORACE ?= atexit_sleep_ms=20

# What fails, a few tests at most, is run once more when all else has ended. A data race, a
# panic and a goroutine that is left are final.
.PHONY: test-go
test-go: $(GOTESTSUM) $(ETCD)  ## go test -race ./...
	$(call say,go test -race ./...)
	@rm -f build/again.txt; mkdir -p build
	@CGO_ENABLED=1 $(GOTESTSUM) --format standard-quiet --hide-summary=skipped --rerun-fails=1 --rerun-fails-max-failures=5 \
	--rerun-fails-abort-on-data-race --rerun-fails-report=build/again.txt --packages=./... -- -race -vet=off -p 3 -timeout 5m $(GOTEST_ARGS)
	@[ ! -s build/again.txt ] || { echo "==> passed only when run again:"; cat build/again.txt; }

# Each capi/tests/*.c is one program: exit code 0 is a pass.
# SANITIZE=address,undefined builds them with those sanitizers.
C_TEST_BINS := $(C_TESTS:capi/tests/%.c=build/ctest/%)

build/ctest/%: capi/tests/%.c $(wildcard capi/tests/*.h) $(HEADERS) build/librallypoint.so
	@mkdir -p $(@D)
	@$(CC) -std=c11 -D_GNU_SOURCE -g -O1 -Wall -Wextra -Werror $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer) \
	-Iinclude -Icapi/tests -o $@ $< -Wl,--as-needed $(CURDIR)/build/librallypoint.so -Wl,-rpath,$(CURDIR)/build/ctest/lib -pthread

.PHONY: test-c
test-c: build/librallypoint.so $(C_TEST_BINS) $(ETCD)  ## The exported symbols, and the C programs in capi/tests
	$(call say,exported symbols)
	@bad=$$(nm -D --defined-only build/librallypoint.so | awk '$$2 != "A" {print $$3}' | grep -v '^rp_' || true); \
	if [ -n "$$bad" ]; then echo "exported, but not rp_*:" >&2; echo "$$bad" >&2; exit 1; fi
	@mkdir -p build/ctest/lib; ln -sf ../../librallypoint.so build/ctest/lib/librallypoint.so.$(SOVERSION)
	@ok=0; for t in $(C_TEST_BINS); do \
	if LD_LIBRARY_PATH=build/ctest/lib timeout 120 $$t; then echo "ok    $$t"; ok=$$((ok+1)); else echo "FAIL  $$t (exit $$?)"; exit 1; fi; done; \
	echo "C tests: $$ok passed"

# Both the C programs and the library, Go code included, under AddressSanitizer, which
# also looks for leaks.
build/asan/librallypoint.so.$(SOVERSION): FORCE
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=1 $(GO_BUILD) -asan -buildmode=c-shared -ldflags $(subst -s -w ,,$(LIB_LDFLAGS)) -o $@ ./capi; rm -f $(@D)/*.h

.PHONY: test-asan
test-asan: build/asan/librallypoint.so.$(SOVERSION) $(ETCD)  ## The C tests and the library under AddressSanitizer
	$(call say,C tests with AddressSanitizer)
	@for t in $(C_TESTS); do bin=build/asan/$$(basename $$t .c); \
	$(CC) -std=c11 -D_GNU_SOURCE -g -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -fno-omit-frame-pointer \
	-Iinclude -Icapi/tests -o $$bin $$t -Wl,--as-needed $< -pthread; \
	LD_LIBRARY_PATH=build/asan timeout 300 $$bin || { echo "FAIL  $$bin (exit $$?)"; exit 1; }; echo "ok    $$bin"; done

# memcheck sees leaks and wrong accesses of the program; not what Go does with its own
# memory (capi/tests/valgrind.supp; uninitialised values are off for the same reason).
# cycles, stress and signals are about time and threads, which it changes.
VALGRIND_TESTS := $(filter-out cycles stress signals,$(C_TESTS:capi/tests/%.c=%))

.PHONY: test-valgrind
test-valgrind: build/librallypoint.so $(C_TEST_BINS) $(ETCD)  ## The C tests under valgrind
	$(call say,C tests with valgrind)
	@command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed (Debian: valgrind)" >&2; exit 0; }; \
	mkdir -p build/ctest/lib; ln -sf ../../librallypoint.so build/ctest/lib/librallypoint.so.$(SOVERSION); \
	for t in $(VALGRIND_TESTS); do log=build/ctest/$$t.valgrind; \
	LD_LIBRARY_PATH=build/ctest/lib timeout 600 valgrind --log-file=$$log --suppressions=capi/tests/valgrind.supp \
	--undef-value-errors=no --leak-check=full --show-leak-kinds=definite build/ctest/$$t || { echo "FAIL  $$t (exit $$?)"; exit 1; }; \
	if grep -B1 -A12 -E 'definitely lost in loss record|Invalid (read|write|free)|Mismatched free' $$log; then exit 1; fi; \
	grep -q 'HEAP SUMMARY' $$log; echo "ok    $$t"; done

.PHONY: test-install
test-install: $(ETCD)  ## make install, and programs built against it with pkg-config and CMake
	$(call say,packaging/tests/run)
	@packaging/tests/run

.PHONY: $(PYTHON_TESTS)
$(PYTHON_TESTS): .venv/.wheel build/rallypoint $(ETCD) promql

# $(1): folders and options. What fails is run once more when all else has ended: the second
# run decides, unless it was more than a failed test (exit code 1; 8 is a broken guarantee).
define pytest
@$(BIN)/python -m pytest $(1) -o cache_dir=.pytest_cache/$@ $(PYTEST_ARGS) || { code=$$?; [ $$code = 1 ] || exit $$code; \
	echo "==> once more what failed (passed only when run again, if it passes)"; \
	$(BIN)/python -m pytest $(1) -o cache_dir=.pytest_cache/$@ --last-failed --last-failed-no-failures=none --maxfail=1 $(PYTEST_ARGS); }
endef

test-python:  ## pytest against the installed wheel
	$(call say,pytest)
	$(call pytest,python/tests)

# Its parts, which test runs side by side: jobs under torchrun, other whole jobs, each in
# folders, and all else.
PYTHON_JOBS := $(patsubst %/,%,$(sort $(dir $(wildcard python/tests/*/test_*.py))))
PYTHON_TORCHRUN := python/tests/torchrun

test-python-torchrun:
	$(call say,pytest of torchrun)
	$(call pytest,$(PYTHON_TORCHRUN))

test-python-jobs:
	$(call say,pytest of other jobs)
	$(call pytest,$(filter-out $(PYTHON_TORCHRUN),$(PYTHON_JOBS)))

test-python-files:
	$(call say,pytest of all else)
	$(call pytest,python/tests $(PYTHON_JOBS:%=--ignore=%))

.PHONY: test-helm
test-helm: .venv/.wheel build/rallypoint $(HELM)  ## The Helm chart, rendered by helm
	$(call say,pytest of the chart)
	@$(BIN)/python -m pytest python/tests/test_helm.py $(PYTEST_ARGS)

# One piece after the other, the rest also when one fails; the last lines name what has failed.
LONG := fuzz test-go-long test-etcd-versions test-mounts test-helm test-asan test-valgrind test-run-long \
	test-python-long test-conda test-libraries test-torch-suites $(TORCH_VERSIONS:%=test-torch-%)

.PHONY: test-long
test-long:  ## Fuzzing, long tests, older torch versions: an hour or two
	@$(MAKE) -k $(LONG)

# Go tests that show a dot for each that has passed, and what has failed at the end. Their
# time-outs are for tests that hang: on a machine with much else to do all take longer.
LONG_GO_TEST = CGO_ENABLED=1 $(GOTESTSUM) --format dots --hide-summary=skipped -- -race -count=1

# More kills and more runs, and the control plane's tests with a disk below.
.PHONY: test-go-long
test-go-long: $(GOTESTSUM)  ## Long tests of the control plane and of the shared log
	$(call say,go test -tags long ./core/control)
	@$(LONG_GO_TEST) -tags long -timeout 1h ./core/control
	$(call say,go test -tags long ./core/sharedlog)
	@$(LONG_GO_TEST) -tags long -timeout 1h ./core/sharedlog
	$(call say,go test -tags long ./roundstore)
	@$(LONG_GO_TEST) -tags long -timeout 10m ./roundstore -run TestPortOfAnother
	$(call say,go test ./core/control with a data directory)
	@RALLYPOINT_TEST_DURABLY=1 $(LONG_GO_TEST) -timeout 30m ./core/control
	$(call say,go test ./core/rendezvous: 5000 histories of each property)
	@$(LONG_GO_TEST) -timeout 30m ./core/rendezvous -run TestGuarantees -rapid.checks=5000 -rapid.steps=100

# The tests that need an etcd, the long ones too, with the one of the quick tests, with
# 3.5, and with the distribution's, of which those run a few already. A version that is
# tested takes the place of the etcd that RALLYPOINT_TEST_ETCD names.
.PHONY: test-etcd-versions
test-etcd-versions: .venv/.wheel build/rallypoint $(GOTESTSUM) $(ETCD) $(ETCD_3_5)  ## Everything about etcd with the distribution's etcd, 3.5 and 3.6
	@others="$(CURDIR)/$(ETCD_3_5) $(CURDIR)/$(ETCD)"; if own=$$(command -v etcd); then others="$$own $$others"; else \
	echo "skipped: the distribution's etcd, which is not installed (Debian: etcd-server)" >&2; fi; \
	for etcd in $$others; do echo "==> $$($$etcd --version | head -n 1): go test, pytest"; export RALLYPOINT_TEST_ETCD=$$etcd; \
	$(LONG_GO_TEST) -tags long -timeout 1h ./etcdstore/... ./internal/etcdclient ./internal/etcdserver; \
	$(LONG_GO_TEST) -timeout 30m ./backend -run '/^etcd$$'; \
	$(BIN)/python -m pytest python/tests/test_etcd.py python/tests/launch python/tests/torchrun/test_demo.py -k etcd $(PYTEST_ARGS); done

# Everything about files on a file system that other processes see by another mount.
.PHONY: test-mounts
test-mounts: .venv/.wheel build/rallypoint  ## FileStore and shared directories over two FUSE mounts of one folder
	$(call say,go test and pytest over two mounts)
	@over=filestore/testdata/two-mounts; $$over true || { [ $$? = 77 ]; exit 0; }; \
	CGO_ENABLED=1 $$over $(GO) test -race -count=1 -timeout 5m ./filestore/...; \
	CGO_ENABLED=1 $$over $(GO) test -race -count=1 -timeout 5m ./backend -run '/file$$|TestFile'; \
	$$over $(BIN)/python -m pytest python/tests/torchrun/test_guarantees.py -k file $(PYTEST_ARGS)

# `rallypoint run` against torchrun itself, not its recordings, and two minutes of
# killing and stopping.
.PHONY: test-run-long
test-run-long: $(VENV_STAMP) $(GOTESTSUM) $(ETCD)  ## rallypoint run beside torchrun itself; chaos
	$(call say,recording torchrun)
	@rm -rf build/torchrun; $(BIN)/python agent/testdata/torchrun/record.py $(BIN)/torchrun --into build/torchrun
	$(call say,go test: rallypoint run beside torchrun; chaos)
	@RALLYPOINT_RECORDED=$(CURDIR)/build/torchrun RALLYPOINT_CHAOS=2m RALLYPOINT_LOG_SETTINGS=300 $(LONG_GO_TEST) -timeout 1h ./cli -run 'TestRunAsTorchrun|TestChaos|TestLogSettings'
	$(call say,go test: rallypoint run in network namespaces)
	@$(LONG_GO_TEST) -tags long -timeout 1h ./cli -run 'TestNetwork|TestHost'

.PHONY: test-python-long
test-python-long: .venv/.wheel build/rallypoint $(ETCD)  ## pytest -m long
	$(call say,pytest -m long)
	@$(BIN)/python -m pytest python/tests -m long --timeout 1800 -o faulthandler_timeout=1860 $(PYTEST_ARGS)

# The pages in docs/libraries, with the libraries that they are about.
.PHONY: test-libraries
test-libraries: .venvs/libraries/.wheel  ## The programs of docs/libraries: accelerate, Lightning, Ray and others
	$(call say,pytest of docs/libraries)
	@.venvs/libraries/bin/python -m pytest python/tests/test_libraries.py -m 'long or not long' --timeout 1000 -o faulthandler_timeout=1060 $(PYTEST_ARGS)

.venvs/libraries/.wheel: build/.wheel $(LIBRARIES_STAMP)
	$(call say,installing the wheel into .venvs/libraries)
	@$(UV) pip install --quiet --python .venvs/libraries/bin/python --no-deps --reinstall dist/rallypoint-*.whl
	@touch $@

$(LIBRARIES_STAMP): | $(UV_STAMP)
	$(call say,making .venvs/libraries)
	@mkdir -p .venvs
	$(call make_venv,.venvs/libraries,requirements/libraries.txt)

# Their texts come from Debian's archive; where there is none the target says so.
.PHONY: test-torch-suites
test-torch-suites: .venv/.wheel  ## PyTorch's own tests of its agent and launcher, over Rallypoint
	$(call say,the tests of PyTorch itself)
	@$(UV) pip install --quiet --python $(BIN)/python --target build/torch-suites/site -r requirements/torch-suites.txt
	@PYTHONPATH=$(CURDIR)/build/torch-suites/site $(BIN)/python packaging/torch_suites.py build/torch-suites

.PHONY: fuzz
fuzz:  ## Every fuzz target for FUZZTIME (30s)
	@n=0; for pkg in $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do \
	for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	echo "==> fuzzing $$pkg $$f for $(FUZZTIME)"; \
	$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; n=$$((n+1)); done; done; \
	echo "fuzzing: $$n targets passed"

##@ Run

.PHONY: demo
demo: .venv/.wheel build/rallypoint  ## Train the digits example and lose a node; SECURE=1: with a token, watched and attacked
	@$(BIN)/python examples/digits/demo.py $(if $(SECURE),--secure)

.PHONY: demo-torchrun
demo-torchrun: .venv/.wheel  ## The same job by torch's launcher with our backend, after ours
	@$(BIN)/python examples/digits/demo.py
	@$(BIN)/python examples/digits/demo.py --launcher torchrun

.PHONY: demo-file demo-etcd
demo-file: .venv/.wheel build/rallypoint  ## The same job, which meets in a shared directory
	@$(BIN)/python examples/digits/demo.py --endpoint file

demo-etcd: export TORCHELASTIC_ETCD_BINARY_PATH = $(CURDIR)/$(ETCD)
demo-etcd: .venv/.wheel build/rallypoint $(ETCD)  ## The same job, which meets in an etcd of this machine
	@$(BIN)/python examples/digits/demo.py --endpoint etcd

.PHONY: bench
bench: .venv/.wheel build/rallypoint build/swarm $(ETCD)  ## Run the benchmarks
	@$(BIN)/python bench/run.py

.PHONY: bench-store
bench-store: .venv/.wheel  ## Run all benchmarks of the store server (a quarter of an hour)
	@$(BIN)/python bench/run.py --only store --full

##@ Documentation

.PHONY: site
site: $(DOCS_STAMP)  ## Write the documentation as a site to build/site
	@.venvs/docs/bin/zensical build --strict --clean >/dev/null
	@echo "build/site/index.html"

$(DOCS_STAMP): | $(UV_STAMP)
	$(call say,making .venvs/docs)
	@mkdir -p .venvs
	$(call make_venv,.venvs/docs,requirements/docs.txt)

# Packages that torch names but a machine without a GPU never loads: 1.5 GB.
NOT_NEEDED := triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cuda-cccl nvidia-cusolver nvidia-nvjitlink nvidia-nvtx
LOCK = $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --annotation-style line --generate-hashes \
	--custom-compile-command 'make lock' $(NOT_NEEDED:%=--no-emit-package %)

.PHONY: reference
reference: .venv/.wheel  ## Write from the docstrings: docs/python.md
	@$(BIN)/python python/reference.py >build/python.md
	@mv build/python.md docs/python.md

.PHONY: dashboard-picture
dashboard-picture: .venv/.wheel build/rallypoint  ## Draw docs/pictures/dashboard.svg again, from real jobs and a real Prometheus
	@$(BIN)/python docs/pictures/dashboard.py

##@ Other

.PHONY: lock
lock: $(UV_STAMP)  ## Pin again: requirements/*.in -> requirements/*.txt
	@for f in requirements/*.in; do echo "==> pinning $$f"; $(LOCK) "$$f" -o "$${f%.in}.txt"; done

.PHONY: clean
clean:  ## Remove what was built (environments and tools stay)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
	@find python bench examples -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean  ## Remove the environments and tools, too
	@rm -rf .venv .venvs .tools

.PHONY: help
help:  ## List the targets
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {at = substr($$0, 5); if (!(at in text)) title[++n] = at} \
	/^[a-z][a-z-]*:.*##/ {text[at] = text[at] sprintf("  make %-18s %s\n", $$1, $$2)} \
	END {for (i = 1; i <= n; i++) printf "\n%s\n%s", title[i], text[title[i]]}' $(MAKEFILE_LIST)
	@printf '\nVariables: PYTHON=%s GO=%s FUZZTIME=%s TORCH_VERSIONS="%s"\n           PYTEST_ARGS GOTEST_ARGS SANITIZE (address,undefined)\n' \
	'$(PYTHON)' '$(GO)' '$(FUZZTIME)' '$(TORCH_VERSIONS)'
