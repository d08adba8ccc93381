package rallypoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestImportsPointOneWay: a folder imports only folders that stand above it in
// docs/design.md ("Folders"), which names every folder. Nothing imports capi, and only
// its command imports the checker of histories.
func TestImportsPointOneWay(t *testing.T) {
	order := folders(t)
	place := func(pkg string) int { // of the longest folder that the package lies in
		for dir := pkg; dir != "."; dir = path.Dir(dir) {
			if i := slices.Index(order, dir); i >= 0 {
				return i
			}
		}
		t.Errorf("docs/design.md does not name a folder of %s", pkg)
		return len(order)
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	edges := 0
	for line := range strings.Lines(string(out)) {
		packages := strings.Fields(line)
		from, ours := strings.CutPrefix(packages[0], "rallypoint/")
		if !ours { // the version, which every package may import
			continue
		}
		at := place(from)
		for _, imported := range packages[1:] {
			to, local := strings.CutPrefix(imported, "rallypoint/")
			if !local {
				continue
			}
			edges++
			switch {
			case to == "capi":
				t.Errorf("%s imports capi", from)
			case to == "conformance" && from != "cmd/rallypoint-audit":
				t.Errorf("%s imports the checker of histories, which is for its command and for tests", from)
			case place(to) > at:
				t.Errorf("%s imports %s, which stands below it in docs/design.md", from, to)
			}
		}
	}
	if edges < 50 {
		t.Errorf("only %d imports were looked at", edges)
	}
}

// TestFoldersExist: docs/design.md names no folder that is gone.
func TestFoldersExist(t *testing.T) {
	for _, dir := range folders(t) {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("docs/design.md names %s, which is no folder: %v", dir, err)
		}
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

// jitter is where a pause is drawn at random: by file and function.
var jitter = []string{
	"internal/backoff/backoff.go Below",
}

// TestCorporaHaveTargets: what fuzzing has found is kept for a target that there is.
func TestCorporaHaveTargets(t *testing.T) {
	kept, err := exec.Command("git", "ls-files", "*testdata/fuzz/*").Output()
	if err != nil {
		t.Skipf("no repository: %v", err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(kept)) {
		corpus := path.Dir(strings.TrimSpace(line))
		if seen[corpus] {
			continue
		}
		seen[corpus] = true
		pkg, target, _ := strings.Cut(corpus, "/testdata/fuzz/")
		files, _ := filepath.Glob(filepath.Join(pkg, "*_test.go"))
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "func "+target+"(")
		}) {
			t.Errorf("%s has no target", corpus)
		}
	}
}

// TestIdentitiesAreDrawnByTheSystem: identities come from crypto/rand.
// math/rand is for pauses alone: processes that load the library after a fork of one
// parent draw the same numbers from it, since the runtime's seed is the kernel's
// auxiliary vector, which a fork copies.
func TestIdentitiesAreDrawnByTheSystem(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .CgoFiles}}{{$d}}/{{.}}
{{end}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	unused := slices.Clone(jitter)
	for _, path := range strings.Fields(string(out)) {
		name, err := filepath.Rel(here, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, user := range usersOfMathRand(t, path) {
			if !slices.Contains(jitter, name+" "+user) {
				t.Errorf("%s: %s uses math/rand; take crypto/rand, or name it in the list if it is jitter", name, user)
			}
			unused = slices.DeleteFunc(unused, func(known string) bool { return known == name+" "+user })
		}
	}
	if len(unused) > 0 {
		t.Errorf("the list names what uses no math/rand: %q", unused)
	}
}

// usersOfMathRand returns the functions of a file that use math/rand, "" for what is
// outside of functions.
func usersOfMathRand(t *testing.T, path string) (users []string) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	local := ""
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		switch {
		case imported != "math/rand" && imported != "math/rand/v2":
		case spec.Name != nil:
			local = spec.Name.Name
		default:
			local = "rand"
		}
	}
	if local == "" {
		return nil
	}
	for _, declared := range file.Decls {
		user := ""
		if f, ok := declared.(*ast.FuncDecl); ok {
			user = f.Name.Name
		}
		ast.Inspect(declared, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == local && !slices.Contains(users, user) {
					users = append(users, user)
				}
			}
			return true
		})
	}
	return users
}
