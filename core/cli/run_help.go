package cli

import (
	"fmt"
	"strings"
)

// helpColumn is where the explanations of options begin.
const helpColumn = 34

// runHelp is the text of `rallypoint run --help`.
func runHelp() string {
	var b strings.Builder
	b.WriteString("usage: rallypoint run [options] SCRIPT [ARGS...]\n\n" +
		"Run SCRIPT in one or more workers on this node, as a part of a job of one or\n" +
		"more nodes. The options are torchrun's; each may also be written with\n" +
		"underscores, or get its default from PET_<NAME>.\n")
	for _, group := range runGroups {
		fmt.Fprintf(&b, "\n%s:\n", group)
		for _, f := range runFlags {
			if f.group != group || f.legacy {
				continue
			}
			name := "      --" + f.name
			if f.short != 0 {
				name = fmt.Sprintf("  -%c, --%s", f.short, f.name)
			}
			switch {
			case f.choices != nil:
				name += " " + strings.Join(f.choices, "|")
			case f.meta != "":
				name += " " + f.meta
			}
			if len(name) >= helpColumn {
				b.WriteString(name + "\n")
				name = ""
			}
			fmt.Fprintf(&b, "%-*s%s\n", helpColumn, name, f.help)
		}
	}
	return b.String()
}
