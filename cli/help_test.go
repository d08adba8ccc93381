package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"rallypoint/internal/wording"
)

// TestHelpOfEveryCommand: each command is in the list of its parent; its help fits into a
// terminal, but for examples, and ends with them.
func TestHelpOfEveryCommand(t *testing.T) {
	var visit func(c *cobra.Command, args []string)
	visit = func(c *cobra.Command, args []string) {
		code, help, stderr := execute(t, append(args, "--help")...)
		if code != 0 || stderr != "" {
			t.Errorf("%v: %d, %q", args, code, stderr)
		}
		about, examples, found := strings.Cut(help, "\nExamples:\n")
		if !found && !c.HasSubCommands() && c.Parent().Name() != "completion" && c.Name() != "help" {
			t.Errorf("%v: no examples", args)
		}
		if strings.Contains(examples, "ptions:") {
			t.Errorf("%v: options behind the examples:\n%s", args, help)
		}
		for line := range strings.Lines(about) {
			if n := wording.Columns.StringWidth(strings.TrimRight(line, "\n")); n > wording.HelpWidth && !strings.HasPrefix(line, "\t") {
				t.Errorf("%v: %d columns: %s", args, n, line)
			}
		}
		for _, sub := range c.Commands() {
			if !strings.Contains(about, "\n  "+sub.Name()+" ") {
				t.Errorf("%v: %s is not listed:\n%s", args, sub.Name(), about)
			}
			visit(sub, append(args[:len(args):len(args)], sub.Name()))
		}
	}
	visit(newRoot(&logging{}, io.Discard), nil)
}
