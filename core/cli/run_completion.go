package cli

import (
	"fmt"
	"slices"
	"strings"
)

// completionShells are those that --print-completion knows.
var completionShells = []string{"bash", "zsh", "fish", "tcsh"}

// completion is the script that makes a shell complete the options of `rallypoint
// run` (and their choices); what is no option is completed as a file.
func completion(shell string) string {
	var b strings.Builder
	switch shell {
	case "bash":
		b.WriteString("# bash completion of `rallypoint run`\n_rallypoint_run() {\n" +
			"\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n" +
			"\t[[ ${COMP_WORDS[1]} == run ]] || return 0\n\tcase $before in\n")
		for _, f := range completedFlags() {
			if f.choices != nil {
				fmt.Fprintf(&b, "\t--%s) mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$word\"); return;;\n", f.name, strings.Join(f.choices, " "))
			}
		}
		b.WriteString("\tesac\n\t[[ $word == -* ]] || return 0\n\tmapfile -t COMPREPLY < <(compgen -W '" +
			strings.Join(completionWords(), " ") + "' -- \"$word\")\n}\ncomplete -o default -F _rallypoint_run rallypoint\n")
	case "zsh":
		b.WriteString("#compdef rallypoint\n# zsh completion of `rallypoint run`\n_rallypoint_run() {\n" +
			"\t[[ $words[2] == run ]] || { _files; return }\n\tshift words; (( CURRENT-- ))\n\t_arguments -S \\\n")
		for _, f := range completedFlags() {
			fmt.Fprintf(&b, "\t\t%s \\\n", quoteZsh(f))
		}
		b.WriteString("\t\t'1:script:_files' '*:argument:_files'\n}\ncompdef _rallypoint_run rallypoint\n")
	case "fish":
		b.WriteString("# fish completion of `rallypoint run`\n")
		for _, f := range completedFlags() {
			line := "complete -c rallypoint -n '__fish_seen_subcommand_from run' -l " + f.name
			if f.short != 0 {
				line += " -s " + string(f.short)
			}
			if f.on == nil {
				line += " -r"
			}
			if f.choices != nil {
				line += " -f -a '" + strings.Join(f.choices, " ") + "'"
			}
			fmt.Fprintf(&b, "%s -d '%s'\n", line, strings.ReplaceAll(f.help, "'", `\'`))
		}
	case "tcsh":
		b.WriteString("# tcsh completion of `rallypoint run`\ncomplete rallypoint 'p/1/(run serve status admin store version)/' \\\n")
		for _, f := range completedFlags() {
			if f.choices != nil {
				fmt.Fprintf(&b, "\t'n/--%s/(%s)/' \\\n", f.name, strings.Join(f.choices, " "))
			}
		}
		var names []string
		for _, word := range completionWords() {
			if name, long := strings.CutPrefix(word, "--"); long {
				names = append(names, name)
			}
		}
		b.WriteString("\t'c/--/(" + strings.Join(names, " ") + ")/'\n")
	}
	return b.String()
}

// completedFlags are those that completion offers.
func completedFlags() []runFlag {
	return slices.DeleteFunc(slices.Clone(runFlags), func(f runFlag) bool { return f.legacy })
}

// completionWords are the options as they are written.
func completionWords() (words []string) {
	for _, f := range completedFlags() {
		words = append(words, "--"+f.name)
		if f.short != 0 {
			words = append(words, "-"+string(f.short))
		}
	}
	return words
}

// quoteZsh is an option as _arguments wants it.
func quoteZsh(f runFlag) string {
	help := strings.NewReplacer("'", `'\''`, "[", `\[`, "]", `\]`, ":", `\:`).Replace(f.help)
	value := ""
	switch {
	case f.choices != nil:
		value = ":" + f.name + ":(" + strings.Join(f.choices, " ") + ")"
	case f.on == nil:
		value = ":" + f.name + ":_files"
	}
	names := []string{"--" + f.name}
	if f.short != 0 {
		names = append(names, "-"+string(f.short))
	}
	for i, name := range names {
		equals := ""
		if f.on == nil && strings.HasPrefix(name, "--") {
			equals = "="
		}
		names[i] = "'" + name + equals + "[" + help + "]" + value + "'"
	}
	return strings.Join(names, " ")
}
