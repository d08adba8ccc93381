package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// TestEveryFlagIsDescribed by the page for those who come from torchrun.
func TestEveryFlagIsDescribed(t *testing.T) {
	page := string(testkit.Must(os.ReadFile(filepath.Join("..", "..", "docs", "torchrun.md")))(t))
	_, section, _ := strings.Cut(page, "\n## Every flag of `rallypoint run`\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, name := range OptionNames(false) {
		if name != "help" && !strings.Contains(section, "`--"+name+"`") && !strings.Contains(section, "`--"+name+" ") {
			t.Errorf("docs/torchrun.md does not name --%s", name)
		}
	}
}
