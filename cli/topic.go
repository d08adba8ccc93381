package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"rallypoint/core/params"
	"rallypoint/internal/wording"
)

// newOptionsTopic is "rallypoint help rdzv-conf": a page of the help, no command.
func newOptionsTopic() *cobra.Command {
	const indent = 26
	var b strings.Builder
	for _, o := range params.Options() {
		text := strings.ReplaceAll(o.Help, "`", "") + " (" + o.Takes
		if o.Default != "" {
			text += "; default " + o.Default
		}
		text += ")"
		fmt.Fprintf(&b, "%-*s%s\n", indent, "  "+o.Name, wording.Wrap(text, wording.HelpWidth, indent))
	}
	topic := &cobra.Command{
		Use:     "rdzv-conf",
		Short:   "The options of --rdzv-conf",
		Long:    "Options of a rendezvous. Times are seconds; fractions are allowed. true, t,\nyes and y mean 1; false, f, no and n mean 0.\n\n```\n" + b.String() + "```",
		Example: "  rallypoint run --nnodes=2:4 --rdzv-endpoint=host0 --rdzv-conf=join_timeout=900,target=4 train.py",
	}
	topic.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\nExamples:\n%s\n", strings.NewReplacer("```\n", "", "```", "").Replace(cmd.Long), cmd.Example)
	})
	return topic
}
