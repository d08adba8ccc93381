package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rallypoint/conformance"
)

func newAudit() *cobra.Command {
	return &cobra.Command{
		Use:   "audit FILE...",
		Short: "Check the recorded history of jobs",
		Long: `Check a history written by "rallypoint serve --record FILE", or by the option record of a job. If
several nodes hosted a job's control plane one after the other, name the files of all of
them, in any order: they are checked as one. Each event, and how the control plane or the
nodes reacted to it, is compared with the guarantees of the design: each rank given once,
the same outcome for all members, no node left out, waited for or lost without a reason,
and so on. The command prints a line for each job and for each violation. It exits with 1
if there is a violation, or if a job could not be checked to its end.

Attach the file to a report of a defect. Look through it first: it contains the messages
between the jobs' agents, and names of nodes.`,
		Example: `  rallypoint audit history.jsonl`,
		Args:    wantArgs("FILE..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			var histories []io.Reader
			for _, name := range args {
				file, err := os.Open(name)
				if err != nil {
					return failed("%w", err)
				}
				defer file.Close()
				histories = append(histories, file)
			}
			audit, err := conformance.ReadAll(histories...)
			fmt.Fprint(cmd.OutOrStdout(), audit)
			switch {
			case err != nil:
				return failed("%s is not a history that this release can read: %w", strings.Join(args, ", "), err)
			case len(audit.Runs()) == 0:
				return failed("%s holds no history", strings.Join(args, ", "))
			case !audit.Kept():
				return failure{errors.New("not all guarantees were kept, or could be checked")}
			}
			return nil
		},
	}
}
