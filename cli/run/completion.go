package run

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

var completionShells = []string{"bash", "zsh", "fish", "tcsh"}

// completion is the script that makes a shell complete the words of root: that of
// `rallypoint completion`, and one for tcsh, which that does not know.
func completion(root *cobra.Command, shell string) (string, error) {
	var b bytes.Buffer
	var err error
	switch shell {
	case "bash":
		err = root.GenBashCompletionV2(&b, true)
	case "zsh":
		err = root.GenZshCompletion(&b)
	case "fish":
		err = root.GenFishCompletion(&b, true)
	default:
		b.WriteString(tcshCompletion(root))
	}
	return b.String(), err
}

// tcshCompletion is fixed text: the commands, the options of `run` and their choices.
func tcshCompletion(root *cobra.Command) string {
	var b strings.Builder
	var commands []string
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			commands = append(commands, c.Name())
		}
	}
	b.WriteString("# tcsh completion of `rallypoint`\ncomplete rallypoint 'p/1/(" + strings.Join(commands, " ") + ")/' \\\n")
	for _, f := range offeredOptions(false) {
		if f.choices != nil {
			fmt.Fprintf(&b, "\t'n/--%s/(%s)/' \\\n", f.name, strings.Join(f.choices, " "))
		}
	}
	b.WriteString("\t'c/--/(" + strings.Join(OptionNames(false), " ") + ")/'\n")
	return b.String()
}

func offeredOptions(legacy bool) []option {
	return slices.DeleteFunc(slices.Clone(optionTable), func(f option) bool { return f.legacy && !legacy })
}

// OptionNames are the long names of the options of `rallypoint run`, or of
// `rallypoint launch`, without their hyphens.
func OptionNames(legacy bool) (names []string) {
	for _, f := range offeredOptions(legacy) {
		names = append(names, f.name)
	}
	return names
}

// complete offers options, and choices where an option wants one; the shell completes
// everything else as a file.
func complete(args []string, word string, legacy bool) ([]string, cobra.ShellCompDirective) {
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" || !looksLikeOption(arg) {
			return nil, cobra.ShellCompDirectiveDefault // the script is given: the rest is its own
		}
		f, glued := namedOption(arg, legacy)
		args = args[1:]
		if f == nil || f.on != nil || glued {
			continue
		}
		if len(args) == 0 {
			return choices(f, word)
		}
		args = args[1:]
	}
	if f, glued := namedOption(word, legacy); f != nil && glued {
		_, value, _ := strings.Cut(word, "=")
		return choices(f, value)
	}
	if !strings.HasPrefix(word, "-") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var words []string
	for _, f := range offeredOptions(legacy) {
		if name := "--" + f.name; strings.HasPrefix(name, word) {
			words = append(words, name+"\t"+f.help)
		}
		if name := "-" + string(f.short); f.short != 0 && strings.HasPrefix(name, word) {
			words = append(words, name+"\t"+f.help)
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

func choices(f *option, word string) ([]string, cobra.ShellCompDirective) {
	if f.choices == nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return slices.DeleteFunc(slices.Clone(f.choices), func(c string) bool { return !strings.HasPrefix(c, word) }), cobra.ShellCompDirectiveNoFileComp
}

// namedOption is the option that a word names, and whether its value is in the same word.
func namedOption(word string, legacy bool) (f *option, glued bool) {
	if name, long := strings.CutPrefix(word, "--"); long {
		name, _, glued = strings.Cut(name, "=")
		f, _ = findOption(name, legacy)
		return f, glued
	}
	if len(word) < 2 || word[0] != '-' {
		return nil, false
	}
	return shortOption(word[1]), len(word) > 2
}
