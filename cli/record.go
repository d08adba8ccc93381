package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/control/statustext"
	"rallypoint/core/sharedlog"
	"rallypoint/core/trace"
)

func newRecord(log *logging) *cobra.Command {
	var run string
	cmd := &cobra.Command{
		Use:   "record ENDPOINT FILE",
		Short: "Record a job that has no control plane",
		Long: `Follow the nodes of a job whose endpoint is a shared directory (file:///DIR), and append
every event to FILE, for "rallypoint audit" and for reports of defects. It is not a node of the job, which may start later, and writes only
FILE, which only its owner can read. It ends on SIGTERM or SIGINT. A restarted recorder
continues in the same file.

Start it before the job, or soon after: nodes drop old entries by the thousand, and
without its first entries a job is recorded but cannot be checked.

A control plane records its own jobs: "rallypoint serve --record FILE", or the option
record of the job's nodes.`,
		Example: `  rallypoint record --rdzv-id job7 file:///shared/dir history.jsonl
  rallypoint audit history.jsonl`,
		Args: wantArgs("ENDPOINT", "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, sharedLog, err := backend.Locate(args[0])
			if err != nil {
				return err
			}
			if sharedLog == "" || backend.HasLeader(sharedLog) {
				return fmt.Errorf("%q has a control plane, which records by itself: rallypoint serve --record FILE, or the option record of the job's nodes", args[0])
			}
			if run == "" {
				return errors.New("--rdzv-id is missing: which run?")
			}
			log.serve(cmd)
			f, pause, err := backend.Watch(sharedLog, run)
			if err != nil {
				return failure{err}
			}
			defer f.Close()
			history, err := control.OpenTraceFile(args[1], log.logger())
			if err != nil {
				return failed("%w", err)
			}
			defer history.Close()
			fmt.Fprintf(cmd.OutOrStdout(), "recording run %s\n", statustext.Clean(run))
			if err := sharedlog.Watch(cmd.Context(), f, pause, func(r trace.Record) { history.Record(r); history.Flush() }, log.logger()); err != nil {
				return failure{err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&run, "rdzv-id", "", "the run `ID` (required)")
	return cmd
}
