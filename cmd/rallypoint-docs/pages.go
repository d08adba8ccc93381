package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rallypoint/cli"
	"rallypoint/cli/run"
	"rallypoint/core/params"
)

const notice = "<!-- Written by `make reference` from the tables of options. Do not edit. -->\n"

// writePages writes the pages of the commands into docs/commands, and the table of options
// into docs/options.md, where a comment marks its place.
func writePages(docs string) error {
	for name, text := range commandPages() {
		if err := os.WriteFile(filepath.Join(docs, "commands", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	path := filepath.Join(docs, "options.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := withOptions(string(page))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

func commandPages() map[string]string {
	pages := map[string]string{}
	var add func(c *cobra.Command)
	add = func(c *cobra.Command) {
		if c.IsAvailableCommand() && c.Name() != "help" {
			pages[fileName(c)] = commandPage(c)
			if c.Name() == "completion" {
				return // its commands differ by the shell alone
			}
			for _, sub := range c.Commands() {
				add(sub)
			}
		}
	}
	for _, c := range cli.Command().Commands() {
		add(c)
	}
	return pages
}

// fileName is the name of a command's page: admin-drain.md of `rallypoint admin drain`.
func fileName(c *cobra.Command) string {
	_, path, _ := strings.Cut(c.CommandPath(), " ")
	return strings.ReplaceAll(path, " ", "-") + ".md"
}

func commandPage(c *cobra.Command) string {
	var b strings.Builder
	use := c.UseLine()
	if c.HasAvailableSubCommands() {
		use = c.CommandPath() + " COMMAND"
	}
	fmt.Fprintf(&b, "# %s\n\n%s\n%s.\n\n```sh\n%s\n```\n", c.CommandPath(), notice, c.Short, use)
	if c.Long != "" {
		b.WriteString("\n" + paragraphs(c.Long))
	}
	if c.HasExample() {
		fmt.Fprintf(&b, "\n## Examples\n\n```sh\n%s\n```\n", unindented(c.Example))
	}
	if c.HasAvailableSubCommands() && c.Name() != "completion" {
		b.WriteString("\n## Commands\n\n| command | what it does |\n| --- | --- |\n")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, "| [`%s`](%s) | %s |\n", sub.Name(), fileName(sub), cell(sub.Short))
			}
		}
	}
	writeFlags(&b, c.LocalFlags())
	return b.String()
}

// writeFlags writes a table of the options, or one for each group of a launcher's.
func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	rows := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			rows[group(f)] += fmt.Sprintf("| `%s` | %s |\n", heading(f), cell(usage(f)))
		}
	})
	for _, title := range append([]string{""}, run.OptionGroups...) {
		if rows[title] != "" {
			fmt.Fprintf(b, "\n## %s\n\n| option | meaning |\n| --- | --- |\n%s", cmp.Or(title, "Options"), rows[title])
		}
	}
}

// group is the group of a launcher's option; "" of other commands' ones.
func group(f *pflag.Flag) string { return strings.Join(f.Annotations[run.FlagGroup], "") }

func heading(f *pflag.Flag) string {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	value, _ := pflag.UnquoteUsage(f)
	if group(f) != "" {
		value = f.DefValue // as run.Describe has it
	}
	return strings.TrimSpace(name + " " + strings.ReplaceAll(value, "|", "\\|"))
}

func usage(f *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(f)
	if group(f) != "" || slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
		return text
	}
	return text + " (default " + f.DefValue + ")"
}

// paragraphs are those of a command's description. Indented text and text between fences stay as
// they are.
func paragraphs(text string) string {
	var b strings.Builder
	fenced := false
	for i, p := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b.WriteString("\n\n")
		}
		switch fences := strings.Count(p, "```"); {
		case fenced || fences > 0:
			b.WriteString(p)
			fenced = fenced != (fences%2 == 1)
		case strings.Contains("\n"+p, "\n  "):
			b.WriteString("```text\n" + unindented(p) + "\n```")
		default:
			b.WriteString(strings.ReplaceAll(p, "<", "&lt;"))
		}
	}
	return b.String() + "\n"
}

// unindented takes from each line of a text the blanks that all of them begin with.
func unindented(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	least := len(text)
	for _, line := range lines {
		if trimmed := strings.TrimLeft(line, " "); trimmed != "" {
			least = min(least, len(line)-len(trimmed))
		}
	}
	for i, line := range lines {
		lines[i] = line[min(least, len(line)):]
	}
	return strings.Join(lines, "\n")
}

func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(text)
}

// The table of options stands between these lines.
const (
	optionsBegin = "<!-- Options: written by `make reference` from core/params/options.go. -->\n"
	optionsEnd   = "<!-- End of the options. -->\n"
)

func withOptions(page string) (string, error) {
	before, rest, found := strings.Cut(page, optionsBegin)
	_, after, ended := strings.Cut(rest, optionsEnd)
	if !found || !ended {
		return "", errors.New("docs/options.md has no place for the table of options")
	}
	table := "| name | default | values | meaning |\n| --- | --- | --- | --- |\n"
	for _, o := range params.Options() {
		fallback := cmp.Or(o.Default, "none")
		table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", o.Name, cell(fallback), cell(o.Takes), cell(o.Help))
	}
	return before + optionsBegin + table + optionsEnd + after, nil
}
