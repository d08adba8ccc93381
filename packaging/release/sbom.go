package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// object is a part of an SPDX 2.3 document.
type object map[string]any

const goModule = "Go standard library and runtime"

// writeSBOM describes the artefacts, and the modules that are linked into the binary of
// each, read from the binary itself; their licences are those of DEPENDENCIES.md.
func writeSBOM(name string, artefacts []string, at time.Time) error {
	licences, err := readLicences("DEPENDENCIES.md")
	if err != nil {
		return err
	}
	version := os.Getenv("VERSION")
	const document = "SPDXRef-DOCUMENT"
	var packages, relationships []object
	relate := func(from, kind, to string) {
		relationships = append(relationships, object{"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
	}
	describe := func(name, id, version, licence string, more object) {
		c := object{"name": name, "SPDXID": id, "versionInfo": version, "licenseDeclared": licence, "filesAnalyzed": false,
			"downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION"}
		maps.Copy(c, more)
		packages = append(packages, c)
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
		path := module
		if module == goModule {
			path = "stdlib"
		}
		describe(module, id, version, licence, object{"externalRefs": []object{
			{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:golang/" + path + "@" + version}}})
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
		describe(base, id, version, "Apache-2.0", object{
			"packageFileName": base, "checksums": []object{{"algorithm": "SHA256", "checksumValue": sum(text)}}})
		relate(document, "DESCRIBES", id)
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
	text, err := json.MarshalIndent(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": document, "name": "rallypoint-" + version,
		// The name of a document is a URI that no other document has: here, one for each content.
		"documentNamespace": "urn:spdx:rallypoint-" + version + "-" + sum([]byte(sums.String())),
		"creationInfo":      object{"created": at.Format(time.RFC3339), "creators": []string{"Tool: rallypoint-release-" + version}},
		"packages":          packages, "relationships": relationships,
	}, "", " ")
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
