package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// SPDX 2.3, the parts that are used.
type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []component    `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type component struct {
	Name      string      `json:"name"`
	ID        string      `json:"SPDXID"`
	Version   string      `json:"versionInfo"`
	File      string      `json:"packageFileName,omitempty"`
	Location  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Concluded string      `json:"licenseConcluded"`
	Declared  string      `json:"licenseDeclared"`
	Copyright string      `json:"copyrightText"`
	Checksums []checksum  `json:"checksums,omitempty"`
	Refs      []reference `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Kind string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const goModule = "Go standard library and runtime"

// writeSBOM describes the artefacts, and the modules that are linked into the binary of
// each, read from the binary itself; their licences are those of DEPENDENCIES.md.
func writeSBOM(name string, artefacts []string, at time.Time) error {
	licences, err := readLicences("DEPENDENCIES.md")
	if err != nil {
		return err
	}
	version := os.Getenv("VERSION")
	doc := document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "rallypoint-" + version,
		Creation: creation{at.Format(time.RFC3339), []string{"Tool: rallypoint-release-" + version}},
	}
	relate := func(from, kind, to string) {
		doc.Relationships = append(doc.Relationships, relationship{from, kind, to})
	}
	known := map[string]bool{}
	add := func(module, version string) (id string, err error) {
		id = spdxID("Module", module, version)
		if known[id] {
			return id, nil
		}
		known[id] = true
		licence, ok := licences[module]
		if !ok {
			return "", fmt.Errorf("DEPENDENCIES.md does not name %s, which is linked", module)
		}
		c := component{Name: module, ID: id, Version: version, Location: "NOASSERTION", Concluded: "NOASSERTION", Declared: licence, Copyright: "NOASSERTION"}
		path := module
		if module == goModule {
			path = "stdlib"
		}
		c.Refs = []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}}
		doc.Packages = append(doc.Packages, c)
		return id, nil
	}
	var sums strings.Builder
	for _, artefact := range artefacts {
		file, binary, _ := strings.Cut(artefact, "=")
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		base := filepath.Base(file)
		id := spdxID("File", base)
		sums.WriteString(sum(text))
		doc.Packages = append(doc.Packages, component{Name: base, ID: id, Version: version, File: base, Location: "NOASSERTION",
			Concluded: "NOASSERTION", Declared: "Apache-2.0", Copyright: "NOASSERTION", Checksums: []checksum{{"SHA256", sum(text)}}})
		relate(doc.ID, "DESCRIBES", id)
		if binary == "" {
			continue
		}
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			return err
		}
		module, err := add(goModule, strings.TrimPrefix(info.GoVersion, "go"))
		if err != nil {
			return err
		}
		relate(id, "CONTAINS", module)
		for _, dep := range info.Deps {
			if module, err = add(dep.Path, dep.Version); err != nil {
				return err
			}
			relate(id, "CONTAINS", module)
		}
	}
	// The name of a document is a URI that no other document has: here, one for each content.
	doc.Namespace = "urn:spdx:rallypoint-" + version + "-" + sum([]byte(sums.String()))
	text, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func spdxID(parts ...string) string {
	return "SPDXRef-" + notInID.ReplaceAllString(strings.Join(parts, "-"), "-")
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	remark = regexp.MustCompile(`, with .*`) // of a licence, beside its SPDX name
)

// readLicences reads the first table of the page: modules, versions, licences. A row of several
// modules names one licence for all, or one for each.
func readLicences(page string) (map[string]string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	licences := map[string]string{goModule: "BSD-3-Clause"}
	table, _, _ := strings.Cut(string(text), "\n## In Go tests")
	for row := range strings.Lines(table) {
		cells := strings.Split(row, " | ")
		if len(cells) < 4 || !strings.Contains(cells[0], "`") {
			continue
		}
		names := quoted.FindAllStringSubmatch(cells[0], -1)
		expression := strings.ReplaceAll(remark.ReplaceAllString(cells[2], ""), " and ", " AND ")
		each := strings.Split(expression, ", ")
		for i, name := range names {
			licences[name[1]] = each[min(i, len(each)-1)]
		}
	}
	return licences, nil
}
