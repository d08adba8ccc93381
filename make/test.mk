# The tests: those of `make test`, and the longer ones.

##@ Test

# Neither torch nor etcd, no environment, no race detector: the command, and the tests
# of the packages that need little time. SLOW are the others.
SLOW := capi|cli|etcdstore|backend|bench|examples|cmd|packaging|agent|core/control

.PHONY: quick
quick: build/rallypoint  ## In a minute: gofmt, the command, the fast packages' tests
	$(call say,gofmt)
	@out=$$(gofmt -l $(GO_FILES) </dev/null); \
	if [ -n "$$out" ]; then echo "not formatted (make fmt):" >&2; echo "$$out" >&2; exit 1; fi
	$(call say,go test of the fast packages)
	@$(GO) test -timeout 2m $(GOTEST_ARGS) $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -vE '^rallypoint/($(SLOW))(/|$$)')

# Those that wait longest come first.
.PHONY: test
test: test-go test-python-regroup test-python-files-2 test-python-files-1 test-python-jobs test-python-torchrun test-install test-c test-free-threaded  ## All quick tests

# The tests start hundreds of interpreters. python3 may be a shim that starts a shell (pyenv), and
# what is installed there may have files of paths that each interpreter reads; so one with nothing
# installed comes first on PATH.
bare_python = export PATH="$(CURDIR)/build/python/bin:$$PATH";

build/python: FORCE
	@$$($(PYTHON) -c 'import sys; print(sys.executable)') -m venv --without-pip --clear $@

# FREE_THREADED names the interpreter, FETCH=1 lets uv fetch one.
.PHONY: test-free-threaded
test-free-threaded: build/.wheel | $(UV_STAMP)  ## The wheel in a Python without a global lock, if there is one
	$(call say,packaging/tests/free-threaded)
	@packaging/tests/free-threaded "$$(echo dist/rallypoint-*.whl)"

.PHONY: test-conda
test-conda:  ## A build of the conda recipe, if rattler-build is there
	$(call say,packaging/tests/conda)
	@packaging/tests/conda

PYTHON_TESTS := test-python test-python-torchrun test-python-jobs test-python-regroup test-python-files-1 test-python-files-2

# Beside check, no test begins before the packages are compiled: else the shorter ones would come first.
test-go test-install test-c $(PYTHON_TESTS): | $(if $(filter check,$(MAKECMDGOALS)),check-vet)

test-helm: export RALLYPOINT_TEST_HELM = $(CURDIR)/$(HELM)

test-go test-c test-asan test-valgrind test-run-long $(PYTHON_TESTS) test-python-long: export RALLYPOINT_TEST_ETCD = $(ETCD)

bench: export RALLYPOINT_TEST_ETCD = $(ETCD_3_6)

# A program with the race detector sleeps for a second before it ends, unless told: the
# tests start and end hundreds. make check runs all of vet, of which go test has a part.
test-go test-go-long test-etcd-versions test-mounts test-run-long: export GORACE ?= atexit_sleep_ms=20

# Tests that run processes wait for them most of the time: of one package six at a time run,
# where Go's own number is that of the processors. What fails, a few tests at most, is run once
# more when all else has ended; packaging/again.py says what is final.
GO_TEST = -race -vet=off -ldflags=-s -p 3 -parallel 6 -timeout 8m $(GOTEST_ARGS)
.PHONY: test-go
test-go: FORCE $(GOTESTSUM) $(ETCD) | build/python  ## go test -race ./...
	$(call say,go test -race ./...)
	@mkdir -p build; rm -f build/go-test.json; export CGO_ENABLED=1; $(bare_python) $(GOTESTSUM) --format standard-quiet --hide-summary=skipped --jsonfile=build/go-test.json --packages=./... -- $(GO_TEST) || \
	$(PYTHON) packaging/again.py build/go-test.json $(FLAKY) -- $(GO) test $(GO_TEST)

# The names of tests that were run once more, a line each time.
FLAKY := build/flaky.txt
note_flaky = { mkdir -p build; cat >>$(FLAKY); }

.PHONY: flaky
flaky:  ## The tests that were run once more here, and how often: two times are one too many
	@[ -s $(FLAKY) ] || { echo "no test was run once more since the last make clean"; exit; }; \
	sort $(FLAKY) | uniq -c | sort -rn | awk '{print ($$1 > 1 ? "mend or remove" : "once          ") "  " $$0}'

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
	-DROUNDS=600 -Iinclude -Icapi/tests -o $$bin $$t -Wl,--as-needed $< -pthread; \
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
test-install: | build/python build/librallypoint.so build/rallypoint  ## make install, and programs built against it with pkg-config and CMake
	$(call say,packaging/tests/run)
	@$(bare_python) MAKEFLAGS= packaging/tests/run

.PHONY: $(PYTHON_TESTS)
$(PYTHON_TESTS): .venv/.wheel build/rallypoint build/rallypoint-audit $(ETCD) | build/python

# $(1): folders and options. What fails is run once more when all else has ended: the second
# run decides, unless it was more than a failed test (exit code 1; 8 is a broken guarantee).
define pytest
@$(bare_python) $(BIN)/python -m pytest $(1) -o cache_dir=.pytest_cache/$@ $(PYTEST_ARGS) || { code=$$?; [ $$code = 1 ] || exit $$code; \
	echo "==> once more what failed (passed only when run again, if it passes)"; \
	grep -o '[^"]*::[^"]*' .pytest_cache/$@/v/cache/lastfailed | $(note_flaky); \
	$(BIN)/python -m pytest $(1) -o cache_dir=.pytest_cache/$@ --last-failed --last-failed-no-failures=none --maxfail=1 $(PYTEST_ARGS); }
endef

test-python:  ## pytest against the installed wheel
	$(call say,pytest)
	$(call pytest,python/tests)

# Its parts, which test runs side by side, each of some minutes: jobs under torchrun, jobs that
# regroup in place, other whole jobs, and all other folders in halves.
PYTHON_TORCHRUN := python/tests/torchrun
PYTHON_JOBS := $(addprefix python/tests/,chaos launch)
PYTHON_REGROUP := $(addprefix python/tests/,regroup survive)
python_files = $(filter-out $(PYTHON_TORCHRUN) $(PYTHON_JOBS) $(PYTHON_REGROUP),$(patsubst %/,%,$(wildcard python/tests/[$(1)]*/)))

test-python-torchrun:
	$(call say,pytest of jobs under torchrun)
	$(call pytest,$(PYTHON_TORCHRUN))

test-python-jobs:
	$(call say,pytest of other jobs)
	$(call pytest,$(PYTHON_JOBS))

test-python-regroup:
	$(call say,pytest of jobs that regroup in place)
	$(call pytest,$(PYTHON_REGROUP))

test-python-files-1:
	$(call say,pytest of all else: a to l)
	$(call pytest,$(call python_files,a-l))

test-python-files-2:
	$(call say,pytest of all else: m to z)
	$(call pytest,$(call python_files,m-z))

.PHONY: test-helm
test-helm: .venv/.wheel build/rallypoint $(HELM)  ## The Helm chart, rendered by helm
	$(call say,pytest of the chart)
	@$(BIN)/python -m pytest python/tests/deploy/test_helm.py $(PYTEST_ARGS)

# One piece after the other, the rest also when one fails; the last lines name what has failed.
LONG := fuzz test-go-long test-etcd-versions test-mounts test-helm test-asan test-valgrind test-run-long campaign \
	test-python-long test-conda test-libraries test-torch-suites test-prove $(TORCH_VERSIONS:%=test-torch-%)

.PHONY: test-long
test-long:  ## Fuzzing, long tests, older torch versions: an hour or two
	@$(MAKE) -k $(LONG)

# Go tests that show a dot for each that has passed, and what has failed at the end. Their
# time-outs are for tests that hang: on a machine with much else to do all take longer.
LONG_GO_TEST = CGO_ENABLED=1 $(GOTESTSUM) --format dots --hide-summary=skipped -- -race -count=1

# More kills and more runs, and the control plane's tests with a disk below.
.PHONY: test-go-long
test-go-long: $(GOTESTSUM)  ## Long tests of the control plane and of elections
	$(call say,go test -tags long ./core/control)
	@$(LONG_GO_TEST) -tags long -timeout 1h ./core/control
	$(call say,go test ./core/election/register: 5000 histories)
	@RALLYPOINT_HISTORIES=5000 $(LONG_GO_TEST) -timeout 1h ./core/election/register
	$(call say,go test -tags long ./roundstore)
	@$(LONG_GO_TEST) -tags long -timeout 10m ./roundstore -run TestPortOfAnother
	$(call say,go test -tags long ./core/election/raft: 100 000 histories; mistakes that they find)
	@RALLYPOINT_HISTORIES=100000 $(LONG_GO_TEST) -timeout 2h ./core/election/raft -run TestHistories
	@$(LONG_GO_TEST) -tags long -timeout 1h ./core/election/raft -run TestMutants
	$(call say,go test ./core/control with a data directory)
	@RALLYPOINT_TEST_DURABLY=1 $(LONG_GO_TEST) -timeout 30m ./core/control
	$(call say,go test ./core/rendezvous: 5000 histories of each property)
	@$(LONG_GO_TEST) -timeout 30m ./core/rendezvous -run TestGuarantees -rapid.checks=5000 -rapid.steps=100
	$(call say,go test ./core/rendezvous ./tcpstore: 2000 checks of the other properties)
	@$(LONG_GO_TEST) -timeout 30m ./core/rendezvous -rapid.checks=2000
	@$(LONG_GO_TEST) -timeout 30m ./tcpstore -run TestAnySchedule -rapid.checks=2000

# The tests that need an etcd, the long ones too, with each release: the distribution's is
# that of the quick tests. RALLYPOINT_TEST_ETCD names the one that is tested.
.PHONY: test-etcd-versions
test-etcd-versions: .venv/.wheel build/rallypoint $(GOTESTSUM) $(ETCD_3_6) $(ETCD_3_5)  ## Everything about etcd with the distribution's etcd, 3.5 and 3.6
	@others="$(ETCD_3_5) $(ETCD_3_6)"; if own=$$(command -v etcd); then others="$$own $$others"; else \
	echo "skipped: the distribution's etcd, which is not installed (Debian: etcd-server)" >&2; fi; \
	for etcd in $$others; do echo "==> $$($$etcd --version | head -n 1): go test, pytest"; export RALLYPOINT_TEST_ETCD=$$etcd; \
	$(LONG_GO_TEST) -tags long -timeout 1h ./etcdstore/... ./internal/etcdclient ./internal/etcdserver; \
	$(LONG_GO_TEST) -timeout 30m ./backend -run '/^etcd$$'; \
	$(BIN)/python -m pytest python/tests/stores/test_etcd.py python/tests/launch -k etcd $(PYTEST_ARGS); done

# Everything about files on a file system that other processes see by another mount.
.PHONY: test-mounts
test-mounts: .venv/.wheel build/rallypoint  ## FileStore and shared directories over two FUSE mounts of one folder
	$(call say,go test and pytest over two mounts)
	@over=filestore/testdata/two-mounts; $$over true || { [ $$? = 77 ]; exit 0; }; \
	CGO_ENABLED=1 $$over $(GO) test -race -count=1 -timeout 5m ./filestore/...; \
	CGO_ENABLED=1 $$over $(GO) test -race -count=1 -timeout 5m ./backend -run '/file$$|TestFile'; \
	$$over $(BIN)/python -m pytest python/tests/torchrun/test_guarantees.py -k 'not hosted' $(PYTEST_ARGS)

# `rallypoint run` against torchrun itself, not its recordings, and two minutes of
# killing and stopping.
.PHONY: test-run-long
test-run-long: $(VENV_STAMP) $(GOTESTSUM) $(ETCD)  ## rallypoint run beside torchrun itself; chaos
	$(call say,recording torchrun)
	@rm -rf build/torchrun; $(BIN)/python agent/testdata/torchrun/record.py $(BIN)/torchrun --into build/torchrun
	$(call say,go test: rallypoint run beside torchrun; chaos)
	@RALLYPOINT_RECORDED=$(CURDIR)/build/torchrun RALLYPOINT_CHAOS=2m RALLYPOINT_LOG_SETTINGS=300 $(LONG_GO_TEST) -timeout 1h ./cli -run 'TestRunAsTorchrun|TestChaos|TestServeIsKilled|TestLogSettings'
	$(call say,go test: rallypoint run in network namespaces; hosts and servers that fall silent)
	@$(LONG_GO_TEST) -tags long -parallel 4 -timeout 2h ./cli -run 'TestNetwork|TestHost|Silence|TestPeers'

# Drawn faults in network namespaces, of which it needs root; SEED has commas between several.
SEED ?= 1
FAULTS ?= 12
.PHONY: campaign
campaign:  ## Drawn faults on a job of five machines: SEED=1,2 FAULTS=12 (two minutes a seed)
	$(call say,the campaign of seed $(SEED))
	@RALLYPOINT_CAMPAIGN=$(SEED) RALLYPOINT_CAMPAIGN_FAULTS=$(FAULTS) CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 2h ./cli -run '^TestCampaign$$' -v

.PHONY: nightly
nightly:  ## The campaign with five seeds of today
	@$(MAKE) --no-print-directory campaign SEED=$$(date +%Y%m%d | sed 's/.*/&1,&2,&3,&4,&5/')

.PHONY: test-python-long
test-python-long: .venv/.wheel build/rallypoint build/rallypoint-audit $(ETCD)  ## pytest -m long
	$(call say,pytest -m long)
	@$(BIN)/python -m pytest python/tests -m long --timeout 1800 -o faulthandler_timeout=1860 $(PYTEST_ARGS)

.PHONY: fuzz
fuzz:  ## Every fuzz target for FUZZTIME (30s)
	@# Minimising is bounded by tries. By time it takes a minute for each input that is new, in which
	@# nothing is searched, and fails at the end of FUZZTIME.
	@n=0; for pkg in $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do \
	for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	echo "==> fuzzing $$pkg $$f for $(FUZZTIME)"; mkdir -p build; \
	$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$pkg >build/fuzz.log || { cat build/fuzz.log; exit 1; }; \
	tail -3 build/fuzz.log; n=$$((n+1)); \
	execs=$$(sed -n 's/.*execs: \([0-9]*\).*/\1/p' build/fuzz.log | tail -1); \
	[ "$${execs:-0}" -ge $(FUZZLEAST) ] || { echo "fuzzing: $$pkg $$f has tried $$execs inputs only: it searches nothing"; exit 1; }; done; done; \
	echo "fuzzing: $$n targets passed"

.PHONY: fuzz-corpus
fuzz-corpus:  ## Keep some of what fuzzing has found here: testdata/fuzz
	@cache=$$($(GO) env GOCACHE)/fuzz; for pkg in $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do \
	for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	into=$${pkg#rallypoint/}/testdata/fuzz/$$f; mkdir -p $$into; \
	find $$cache/$$pkg/$$f -type f -size -2k -printf '%s %p\n' 2>/dev/null | sort -n | \
	awk -v most=$(FUZZKEPT) '{ all[NR] = $$2 } END { for (i = 1; i <= NR && i <= most; i++) print all[int(i * NR / (NR < most ? NR : most))] }' | \
	xargs -r cp -n -t $$into; rmdir --ignore-fail-on-non-empty $$into; done; done; \
	for pkg in $$(git ls-files --others --exclude-standard '*/testdata/fuzz/*' | sed 's|/testdata/.*||' | sort -u); do $(GO) test -run '^Fuzz' ./$$pkg; done
