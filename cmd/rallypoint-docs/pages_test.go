package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

const docs = "../../docs"

// Every command has its page, and every page its command.
func TestPagesAreThoseOfTheCommand(t *testing.T) {
	pages := commandPages()
	for name, text := range pages {
		page, err := os.ReadFile(filepath.Join(docs, "commands", name))
		if err != nil || string(page) != text {
			t.Errorf("docs/commands/%s differs from the command's table: make reference (%v)", name, err)
		}
	}
	found := testkit.Must(filepath.Glob(filepath.Join(docs, "commands", "*.md")))(t)
	for _, path := range found {
		if pages[filepath.Base(path)] == "" {
			t.Errorf("%s describes no command", path)
		}
	}
	nav := string(testkit.ReadFile(t, "../../mkdocs.yml"))
	for name := range pages {
		if !strings.Contains(nav, "commands/"+name) {
			t.Errorf("mkdocs.yml does not name commands/%s", name)
		}
	}
}

func TestOptionsAreThoseOfTheTable(t *testing.T) {
	page := string(testkit.ReadFile(t, filepath.Join(docs, "options.md")))
	if text := testkit.Must(withOptions(page))(t); text != page {
		t.Error("the table of docs/options.md differs from core/params/options.go: make reference")
	}
}
