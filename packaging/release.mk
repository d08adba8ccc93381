# make release: what is published, in dist/release. The same commit gives the same bytes on
# every machine: Go is the version of .go-version, C is compiled by the pinned zig, times are
# the commit's, and every archive is compressed by packaging/release.

RELEASE := dist/release
MACHINES := x86_64 aarch64
GOARCH_x86_64 := amd64
GOARCH_aarch64 := arm64
RELEASE_TOOL := build/release/tool
RELEASE_PYTHON := .venvs/release/bin/python

release wheels binaries: export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null))
release wheels binaries: export VERSION := $(VERSION)

##@ Build

# zig is the C compiler, since a plain gcc binds the library to the glibc of the machine that
# built it. What it adds to each library names its cache in debug information, which is stripped.
build/release/%/librallypoint.so: FORCE | $(RELEASE_STAMP)
	$(call say,building $@)
	@mkdir -p $(@D); tmp=$$(mktemp -d build/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=1 CGO_CFLAGS="-O2 -g0" CGO_LDFLAGS="-Wl,--strip-all" GOOS=linux GOARCH=$(GOARCH_$*) CC="$(CURDIR)/$(RELEASE_PYTHON) -m ziglang cc -target $*-linux-gnu.2.17" \
	$(GO_BUILD) -buildmode=c-shared -ldflags $(LIB_LDFLAGS) -o "$$tmp/librallypoint.so" ./capi; \
	$(call replace_if_changed,$$tmp/librallypoint.so)

build/release/%/rallypoint build/release/%/rallypoint-audit: FORCE
	$(call say,building $(@D))
	@mkdir -p $(@D); tmp=$$(mktemp -d build/.tmp.XXXXXX); trap 'rm -rf "$$tmp"' EXIT; \
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH_$*) $(GO_BUILD) -ldflags '-s -w -buildid=' -o "$$tmp/" ./cmd/rallypoint ./cmd/rallypoint-audit; \
	for f in rallypoint rallypoint-audit; do cmp -s "$$tmp/$$f" $(@D)/$$f || { mv -f "$$tmp/$$f" $(@D)/$$f; echo "    $(@D)/$$f: $$(stat -c %s $(@D)/$$f) bytes"; }; done

$(RELEASE_TOOL): FORCE
	@got=$$($(GO) env GOVERSION); [ "$$got" = "go$$(cat .go-version)" ] || \
	{ echo "a release is built with Go $$(cat .go-version), this is $${got#go}: other versions give other bytes" >&2; exit 1; }
	@mkdir -p $(@D); CGO_ENABLED=0 $(GO_BUILD) -o $@ ./packaging/release

# A wheel per machine that runs on any glibc since 2.17, one with the static command for musl,
# and the sources.
.PHONY: wheels
wheels: $(RELEASE_TOOL) $(MACHINES:%=build/release/%/librallypoint.so) $(MACHINES:%=build/release/%/rallypoint)  ## Build dist/release: the wheels for x86-64 and arm64, and the sdist
	$(call say,building the wheels)
	@mkdir -p $(RELEASE); rm -f $(RELEASE)/*.whl $(RELEASE)/rallypoint-$(VERSION).tar.gz; for m in $(MACHINES); do \
	GO=$(GO) RALLYPOINT_LIB=build/release/$$m/librallypoint.so $(RELEASE_PYTHON) -m hatchling build -t wheel -d $(RELEASE); \
	GO=$(GO) RALLYPOINT_COMMAND=build/release/$$m/rallypoint $(RELEASE_PYTHON) -m hatchling build -t wheel -d $(RELEASE); done
	@$(RELEASE_PYTHON) -m hatchling build -t sdist -d $(RELEASE)
	@$(RELEASE_TOOL) pack $(RELEASE)/*.whl $(RELEASE)/rallypoint-$(VERSION).tar.gz

# Links of the notes are those of the repository: only their texts are kept.
NOTES := build/release/NOTES.md
$(NOTES): CHANGELOG.md VERSION
	@mkdir -p $(@D)
	@awk '/^## / {on = index($$0, "## $(VERSION) ") == 1 || $$0 == "## $(VERSION)"; next} on' CHANGELOG.md | sed '1{/^$$/d}; s/\[\([^]]*\)\]([^):]*)/\1/g' >$@
	@[ -s $@ ] || { echo "CHANGELOG.md has no section $(VERSION)" >&2; exit 1; }

# The notes in the form of Debian's changelogs: lines of 80 characters at most, a signature.
debian_changelog = { printf 'rallypoint ($(VERSION)) stable; urgency=medium\n\n'; \
	sed '1s/^/  * /; s/^- \*\*\([^*]*\)\*\*/  * \1/' $(NOTES) | fold -s -w 76 | sed 's/^\([^ ]\)/    \1/; s/ *$$//'; \
	printf '\n -- %s  %s\n' "$$(sed -n 's/^maintainer: //p' packaging/deb/nfpm.yaml)" "$$(LC_ALL=C date -u -R -d @$$SOURCE_DATE_EPOCH)"; }

# The commands as static files for any Linux, with its manual pages and completions; the
# same as a Debian package; the launcher alone, as an image.
.PHONY: binaries
binaries: $(RELEASE_TOOL) build/install/man build/install/completion $(NOTES) $(MACHINES:%=build/release/%/rallypoint) $(NFPM)  ## Build dist/release: the static command as tar.gz, Debian package and image
	$(call say,packing the command)
	@mkdir -p $(RELEASE); rm -f $(RELEASE)/*-linux-*.tar.gz $(RELEASE)/*.deb $(RELEASE)/*-oci.tar
	@sed "s|@BINDIR@|/usr/bin|" packaging/rallypoint.service >build/release/rallypoint.service
	@rm -rf build/release/deb; mkdir -p build/release/deb/man; cp build/install/man/*.1 build/release/deb/man; \
	$(debian_changelog) >build/release/deb/changelog; $(RELEASE_TOOL) gzip build/release/deb/changelog build/release/deb/man/*.1
	@for m in $(foreach m,$(MACHINES),$(m):$(GOARCH_$(m))); do \
	export MACHINE=$${m%:*} GOARCH=$${m#*:}; name=rallypoint-$(VERSION)-linux-$$MACHINE; dir=build/release/$$MACHINE; \
	rm -rf $$dir/$$name $$dir/image; mkdir -p $$dir/$$name/man/man1 $$dir/image/data; \
	GO=$(GO) $(PYTHON) python/licences.py $$dir/rallypoint >$$dir/$$name/THIRD_PARTY_LICENSES; \
	cp LICENSE packaging/serve.env $$dir/rallypoint $$dir/rallypoint-audit $$dir/$$name; cp build/install/man/*.1 $$dir/$$name/man/man1; \
	cp -r build/install/completion $$dir/$$name; cp LICENSE $$dir/$$name/THIRD_PARTY_LICENSES $$dir/rallypoint $$dir/image; \
	$(RELEASE_TOOL) tar $$dir/$$name $(RELEASE)/$$name.tar.gz; \
	FOLDER=$$dir/$$name $(NFPM) package --config packaging/deb/nfpm.yaml --packager deb --target $(RELEASE)/rallypoint_$(VERSION)_$$GOARCH.deb >/dev/null; done
	@$(RELEASE_TOOL) image $(RELEASE)/rallypoint-$(VERSION)-oci.tar $(foreach m,$(MACHINES),$(GOARCH_$(m))=build/release/$(m)/image)

# The SBOM names each file with the binary that tells which modules are in it.
release_file = $(RELEASE)/rallypoint-$(VERSION)-$(1)
.PHONY: release
release: wheels binaries  ## What is published: wheels, command, packages, image, chart, SBOM, notes, checksums
	@[ -z "$$(git status --porcelain 2>/dev/null)" ] || echo "the working tree differs from its commit: nobody else can build these bytes" >&2
	@rm -f $(RELEASE)/*.tgz $(RELEASE)/*.json $(RELEASE)/NOTES.md $(RELEASE)/SHA256SUMS
	@$(RELEASE_TOOL) tar packaging/helm/rallypoint $(RELEASE)/rallypoint-helm-$(VERSION).tgz
	@cp $(NOTES) $(RELEASE)/NOTES.md
	@$(RELEASE_TOOL) sbom $(RELEASE)/rallypoint-$(VERSION).spdx.json $(RELEASE)/rallypoint-helm-$(VERSION).tgz $(RELEASE)/rallypoint-$(VERSION).tar.gz \
	$(call release_file,oci.tar)=build/release/x86_64/rallypoint $(foreach m,$(MACHINES),\
	$(call release_file,py3-none-manylinux_2_17_$(m).manylinux2014_$(m).whl)=build/release/$(m)/librallypoint.so \
	$(call release_file,py3-none-musllinux_1_1_$(m).whl)=build/release/$(m)/rallypoint \
	$(call release_file,linux-$(m).tar.gz)=build/release/$(m)/rallypoint \
	$(RELEASE)/rallypoint_$(VERSION)_$(GOARCH_$(m)).deb=build/release/$(m)/rallypoint)
	@cd $(RELEASE); LC_ALL=C; sha256sum -- *[!S] >SHA256SUMS
	@ls -l $(RELEASE)

$(RELEASE_STAMP): | $(UV_STAMP)
	$(call say,making .venvs/release)
	@mkdir -p .venvs
	$(call make_venv,.venvs/release,requirements/release.txt)

##@ Test

# Each file as its users install it: see the scripts. The second build is in another folder,
# by another cache, with another umask, time zone and language.
.PHONY: test-release
test-release: release $(HELM)  ## What release built, installed where it can run; built again and compared
	$(call say,packaging/tests/release)
	@packaging/tests/wheels $(RELEASE)
	@HELM=$(CURDIR)/$(HELM) packaging/tests/release $(RELEASE)
	@packaging/tests/reproduce $(RELEASE)

test-long: test-release
