package run

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagGroup is the annotation of a launcher's flag that names its group in the help.
const FlagGroup = "rallypoint_group"

// Describe gives a launcher, which parses its own command line, the text and the
// flags that its manual page shows.
func Describe(launcher *cobra.Command, legacy bool) {
	_, intro, _ := strings.Cut(helpIntro, "\n\n")
	launcher.Long = strings.TrimSpace(intro) + "\n\n```" + variablesText() + helpCodes + "```"
	launcher.Example = strings.TrimRight(helpExamples, "\n")
	flags := launcher.Flags()
	flags.SortFlags = false
	for _, f := range offeredOptions(legacy) {
		flag := flags.Lookup(f.name)
		if flag == nil {
			flag = &pflag.Flag{Name: f.name, Value: described{}}
			if f.short != 0 {
				flag.Shorthand = string(f.short)
			}
			flags.AddFlag(flag)
		}
		flag.Usage, flag.DefValue, flag.Hidden = f.help, f.meta, false
		flag.Annotations = map[string][]string{FlagGroup: {f.group}}
		if f.choices != nil {
			flag.DefValue = strings.Join(f.choices, "|")
		}
	}
}

// HideInherited hides the flags of the whole command from a launcher, which refuses them.
func HideInherited(launcher *cobra.Command, inherited *pflag.FlagSet) {
	inherited.VisitAll(func(f *pflag.Flag) {
		launcher.Flags().AddFlag(&pflag.Flag{Name: f.Name, Value: described{}, Hidden: true})
	})
}

// described is the value of a flag in the manual, which is never set.
type described struct{}

func (described) String() string   { return "" }
func (described) Set(string) error { return nil }
func (described) Type() string     { return "value" }
