# make install: the library for programs in C and every language that calls C,
# the command with its manual pages, completions and systemd unit, as a distribution
# lays them out.

PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
INCLUDEDIR ?= $(PREFIX)/include
LIBDIR ?= $(PREFIX)/lib
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/rallypoint
UNITDIR ?= $(PREFIX)/lib/systemd/system
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d

VERSION := $(shell cat VERSION)
OBJCOPY ?= objcopy
LD ?= ld
NM ?= nm

##@ Install

# With symbols for debuggers, which the installed library has in a file of its own.
build/install/librallypoint.so: FORCE
	$(call say,building $@)
	@mkdir -p build/install; tmp=$$(mktemp -d build/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=1 $(GO_BUILD) -buildmode=c-shared -ldflags $(subst -s -w ,,$(LIB_LDFLAGS)) -o "$$tmp/librallypoint.so" ./capi; \
	$(call replace_if_changed,$$tmp/librallypoint.so)

# One object, in which all but the functions of the header are local: what the
# program or another Go library in it defines cannot get mixed up with it.
build/install/librallypoint.a: FORCE
	$(call say,building $@)
	@mkdir -p build/install; tmp=$$(mktemp -d build/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=1 $(GO_BUILD) -buildmode=c-archive -ldflags '-s -w -buildid=' -o "$$tmp/all.a" ./capi; \
	$(LD) -r -d -o "$$tmp/rallypoint.o" --whole-archive "$$tmp/all.a"; \
	$(OBJCOPY) --wildcard --keep-global-symbol='rp_*' "$$tmp/rallypoint.o"; \
	$(AR) rcsD "$$tmp/librallypoint.a" "$$tmp/rallypoint.o"; \
	$(call replace_if_changed,$$tmp/librallypoint.a)

# Built as the command is, with which it shares all but one package.
build/rallypoint-docs: build/rallypoint FORCE
	@CGO_ENABLED=0 $(GO_BUILD) -ldflags '-s -w -buildid=' -o $@ ./cmd/rallypoint-docs

build/install/man: build/rallypoint-docs
	$(call say,writing the manual pages)
	@rm -rf $@; mkdir -p $@; build/rallypoint-docs man $@

build/install/completion: build/rallypoint
	@rm -rf $@; mkdir -p $@; for shell in bash zsh fish; do build/rallypoint completion $$shell >$@/$$shell; done

fill_in = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@BINDIR@|$(BINDIR)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@SOVERSION@|$(SOVERSION)|' \
	-e 's|@INCLUDEDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(INCLUDEDIR))|' \
	-e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|'

.PHONY: install
install: build/install/librallypoint.so build/install/librallypoint.a build/install/man build/install/completion build/rallypoint  ## Install library, header and command under DESTDIR and PREFIX (/usr/local)
	$(call say,installing under $(DESTDIR)$(PREFIX))
	@install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(INCLUDEDIR)" "$(DESTDIR)$(LIBDIR)/.debug" \
	"$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(LIBDIR)/cmake/rallypoint" "$(DESTDIR)$(MANDIR)/man1" "$(DESTDIR)$(DOCDIR)" \
	"$(DESTDIR)$(UNITDIR)" "$(DESTDIR)$(BASHDIR)" "$(DESTDIR)$(ZSHDIR)" "$(DESTDIR)$(FISHDIR)"
	@install -m 755 build/rallypoint "$(DESTDIR)$(BINDIR)/rallypoint"
	@install -m 644 include/rallypoint.h include/rallypoint.hpp "$(DESTDIR)$(INCLUDEDIR)"
	@cd "$(DESTDIR)$(LIBDIR)"; real=librallypoint.so.$(VERSION); \
	$(OBJCOPY) --only-keep-debug --compress-debug-sections $(CURDIR)/build/install/librallypoint.so .debug/$$real.debug; \
	$(OBJCOPY) --strip-all --add-gnu-debuglink=.debug/$$real.debug $(CURDIR)/build/install/librallypoint.so $$real; \
	chmod 755 $$real; chmod 644 .debug/$$real.debug; \
	ln -sf $$real librallypoint.so.$(SOVERSION); ln -sf librallypoint.so.$(SOVERSION) librallypoint.so
	@install -m 644 build/install/librallypoint.a "$(DESTDIR)$(LIBDIR)/librallypoint.a"
	@$(fill_in) packaging/rallypoint.pc.in >"$(DESTDIR)$(LIBDIR)/pkgconfig/rallypoint.pc"
	@for f in rallypoint-config rallypoint-config-version; do \
	$(fill_in) packaging/$$f.cmake >"$(DESTDIR)$(LIBDIR)/cmake/rallypoint/$$f.cmake"; done
	@install -m 644 build/install/man/*.1 "$(DESTDIR)$(MANDIR)/man1"
	@install -m 644 build/install/completion/bash "$(DESTDIR)$(BASHDIR)/rallypoint"
	@install -m 644 build/install/completion/zsh "$(DESTDIR)$(ZSHDIR)/_rallypoint"
	@install -m 644 build/install/completion/fish "$(DESTDIR)$(FISHDIR)/rallypoint.fish"
	@$(fill_in) packaging/rallypoint.service >"$(DESTDIR)$(UNITDIR)/rallypoint.service"
	@install -m 644 packaging/serve.env "$(DESTDIR)$(DOCDIR)/serve.env"
	@$(PYTHON) python/licences.py build/install/librallypoint.so >"$(DESTDIR)$(DOCDIR)/THIRD_PARTY_LICENSES"
	@install -m 644 LICENSE "$(DESTDIR)$(DOCDIR)/LICENSE"

.PHONY: uninstall
uninstall:  ## Remove what install put there, with the same variables
	@rm -f "$(DESTDIR)$(BINDIR)/rallypoint" "$(DESTDIR)$(INCLUDEDIR)"/rallypoint.h "$(DESTDIR)$(INCLUDEDIR)"/rallypoint.hpp \
	"$(DESTDIR)$(LIBDIR)"/librallypoint.* "$(DESTDIR)$(LIBDIR)"/.debug/librallypoint.* \
	"$(DESTDIR)$(LIBDIR)/pkgconfig/rallypoint.pc" "$(DESTDIR)$(MANDIR)"/man1/rallypoint.1 "$(DESTDIR)$(MANDIR)"/man1/rallypoint-*.1 \
	"$(DESTDIR)$(UNITDIR)/rallypoint.service" "$(DESTDIR)$(BASHDIR)/rallypoint" "$(DESTDIR)$(ZSHDIR)/_rallypoint" "$(DESTDIR)$(FISHDIR)/rallypoint.fish"
	@rm -rf "$(DESTDIR)$(LIBDIR)/cmake/rallypoint" "$(DESTDIR)$(DOCDIR)"

# What is long of this area.
test-long: test-wheels

##@ Documentation

.PHONY: docs
docs:  ## Write from the header: docs/c.md, the declarations for Python and Rust
	@$(PYTHON) packaging/c_reference.py
	@$(PYTHON) packaging/python_bindings.py
	@$(PYTHON) packaging/rust_bindings.py

##@ Build

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
