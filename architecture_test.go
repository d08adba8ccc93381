package rallypoint_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImportsPointOneWay: a folder imports only folders that stand above it in
// docs/design.md ("Folders"), except core/cli, which wires them, and nothing
// imports capi.
func TestImportsPointOneWay(t *testing.T) {
	order := folders(t)
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	edges := 0
	for line := range strings.Lines(string(out)) {
		packages := strings.Fields(line)
		from, ours := strings.CutPrefix(packages[0], "rallypoint/")
		at := slices.Index(order, from)
		for _, imported := range packages[1:] {
			to, local := strings.CutPrefix(imported, "rallypoint/")
			if !local || !ours {
				continue
			}
			edges++
			switch above := slices.Index(order, to); {
			case above < 0:
				t.Errorf("%s imports %s, which docs/design.md does not name", from, to)
			case to == "capi":
				t.Errorf("%s imports capi", from)
			case to == "core/promises" && from != "cmd/rallypoint":
				t.Errorf("%s imports the checker of histories, which is for the command and for tests", from)
			case at >= 0 && above > at && from != "core/cli":
				t.Errorf("%s imports %s, which stands below it in docs/design.md", from, to)
			}
		}
	}
	if edges < 50 {
		t.Errorf("only %d imports were looked at", edges)
	}
}

// folders returns the folders of docs/design.md in their order.
func folders(t *testing.T) (names []string) {
	page, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Folders\n\n```\n")
	block, _, ok := strings.Cut(section, "```")
	if !ok {
		t.Fatal("docs/design.md has no list of folders")
	}
	for line := range strings.Lines(block) {
		names = append(names, strings.TrimSuffix(strings.Fields(line)[0], "/"))
	}
	return names
}
