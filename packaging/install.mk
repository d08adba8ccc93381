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
build/install/librallypoint.so: FORCE | build/librallypoint.so
	$(call say,building $@)
	@mkdir -p build/install; tmp=$$(mktemp -d build/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=1 $(GO_BUILD) -buildmode=c-shared -ldflags $(subst -s -w ,,$(LIB_LDFLAGS)) -o "$$tmp/librallypoint.so" ./capi; \
	$(call replace_if_changed,$$tmp/librallypoint.so)

# One object, in which all but the functions of the header are local: what the
# program or another Go library in it defines cannot get mixed up with it.
build/install/librallypoint.a: FORCE | build/librallypoint.so
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
	@rm -rf $@; mkdir -p $@; build/rallypoint-docs man $@; cp packaging/rallypoint-audit.1 $@

build/install/completion: build/rallypoint
	@rm -rf $@; mkdir -p $@; for shell in bash zsh fish; do build/rallypoint completion $$shell >$@/$$shell; done

fill_in = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@BINDIR@|$(BINDIR)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@SOVERSION@|$(SOVERSION)|' \
	-e 's|@INCLUDEDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(INCLUDEDIR))|' \
	-e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|'

.PHONY: install
install: build/install/librallypoint.so build/install/librallypoint.a build/install/man build/install/completion build/rallypoint build/rallypoint-audit  ## Install library, header and commands under DESTDIR and PREFIX (/usr/local)
	$(call say,installing under $(DESTDIR)$(PREFIX))
	@install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(INCLUDEDIR)" "$(DESTDIR)$(LIBDIR)/.debug" \
	"$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(LIBDIR)/cmake/rallypoint" "$(DESTDIR)$(MANDIR)/man1" "$(DESTDIR)$(DOCDIR)" \
	"$(DESTDIR)$(UNITDIR)" "$(DESTDIR)$(BASHDIR)" "$(DESTDIR)$(ZSHDIR)" "$(DESTDIR)$(FISHDIR)"
	@install -m 755 build/rallypoint build/rallypoint-audit "$(DESTDIR)$(BINDIR)"
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
	@rm -f "$(DESTDIR)$(BINDIR)/rallypoint" "$(DESTDIR)$(BINDIR)/rallypoint-audit" "$(DESTDIR)$(INCLUDEDIR)"/rallypoint.h "$(DESTDIR)$(INCLUDEDIR)"/rallypoint.hpp \
	"$(DESTDIR)$(LIBDIR)"/librallypoint.* "$(DESTDIR)$(LIBDIR)"/.debug/librallypoint.* \
	"$(DESTDIR)$(LIBDIR)/pkgconfig/rallypoint.pc" "$(DESTDIR)$(MANDIR)"/man1/rallypoint.1 "$(DESTDIR)$(MANDIR)"/man1/rallypoint-*.1 \
	"$(DESTDIR)$(UNITDIR)/rallypoint.service" "$(DESTDIR)$(BASHDIR)/rallypoint" "$(DESTDIR)$(ZSHDIR)/_rallypoint" "$(DESTDIR)$(FISHDIR)/rallypoint.fish"
	@rm -rf "$(DESTDIR)$(LIBDIR)/cmake/rallypoint" "$(DESTDIR)$(DOCDIR)"

##@ Documentation

.PHONY: docs
docs:  ## Write from the header: docs/c.md, the declarations for Rust
	@$(PYTHON) packaging/c_reference.py
	@$(PYTHON) packaging/rust_bindings.py
