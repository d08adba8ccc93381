package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rallypoint/internal/wording"
)

var commandGroups = []struct {
	title    string
	commands []string
}{
	{"Jobs", []string{"run", "launch", "status", "stacks", "logs", "admin"}},
	{"Serving jobs", []string{"serve", "token"}},
	{"Looking closer", []string{"store", "check", "prove"}},
	{"More", []string{"completion", "version", "help", "rdzv-conf"}},
}

// helpOf writes the help of a command: its purpose, usage and options, and last, where a terminal
// still shows them, the examples.
func helpOf(cmd *cobra.Command, _ []string) {
	out := cmd.OutOrStdout()
	text := cmp.Or(cmd.Long, cmd.Short)
	fmt.Fprintf(out, "%s\n\n", reflow(text))
	writeUsage(out, cmd)
}

func writeUsage(out io.Writer, cmd *cobra.Command) {
	use := cmd.UseLine()
	if cmd.HasAvailableSubCommands() {
		use = cmd.CommandPath() + " COMMAND"
	}
	fmt.Fprintf(out, "Usage:\n  %s\n", wording.Wrap(use, wording.HelpWidth, 4))
	if cmd.HasParent() {
		writeCommands(out, "Commands", cmd.Commands())
	} else {
		for _, group := range commandGroups {
			writeCommands(out, group.title, named(cmd, group.commands))
		}
	}
	writeFlags(out, "Options", cmd.LocalFlags())
	writeFlags(out, "Global options", cmd.InheritedFlags())
	if cmd.HasExample() {
		fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(out, "\n\"%s COMMAND --help\" describes a command.\n", cmd.CommandPath())
	}
}

func named(root *cobra.Command, names []string) []*cobra.Command {
	var found []*cobra.Command
	for _, name := range names {
		if c, _, err := root.Find([]string{name}); err == nil {
			found = append(found, c)
		}
	}
	return found
}

func writeCommands(out io.Writer, title string, commands []*cobra.Command) {
	if len(commands) == 0 {
		return
	}
	const indent = len("  completion  ")
	fmt.Fprintf(out, "\n%s:\n", title)
	for _, c := range commands {
		fmt.Fprintf(out, "  %-*s%s\n", indent-2, c.Name(), wording.Wrap(c.Short, wording.HelpWidth, indent))
	}
}

func writeFlags(out io.Writer, title string, flags *pflag.FlagSet) {
	if flags.HasAvailableFlags() {
		fmt.Fprintf(out, "\n%s:\n%s", title, flags.FlagUsagesWrapped(wording.HelpWidth))
	}
}

// reflow breaks the paragraphs of a text into lines for a terminal. A paragraph with an
// indented line stays as it is.
func reflow(text string) string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, p := range paragraphs {
		if !strings.Contains("\n"+p, "\n ") && !strings.Contains("\n"+p, "\n\t") {
			paragraphs[i] = wording.Wrap(p, wording.HelpWidth, 0)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}
