package run

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestCompletion asks each installed shell whether it understands its script.
func TestCompletion(t *testing.T) {
	root := &cobra.Command{Use: "rallypoint"}
	root.AddCommand(New(), NewLaunch(), &cobra.Command{Use: "store", Run: func(*cobra.Command, []string) {}})
	for _, shell := range completionShells {
		text, err := completion(root, shell)
		if err != nil || !strings.Contains(text, "rallypoint") {
			t.Errorf("%s: %v\n%s", shell, err, text)
		}
		if strings.Contains(text, "use-env") {
			t.Errorf("%s: an option of another command", shell)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		cmd := exec.Command(path, "-n")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
	}
	text, _ := completion(root, "tcsh")
	for _, word := range []string{"nproc-per-node", "standalone", "core-complex", "store"} {
		if !strings.Contains(text, word) {
			t.Errorf("tcsh: no %s", word)
		}
	}
}
