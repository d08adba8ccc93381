package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/agent/stacks"
	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/backoff"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

func newLogs(log *logging) *cobra.Command {
	var q statusQuery
	var rank int
	var culprit, follow, asJSON bool
	cmd := &cobra.Command{
		Use:   "logs ENDPOINT",
		Short: "Show the last output of a job's workers, on any node",
		Long: `Show the end of the stdout and stderr of a job's workers: the last 64 KiB of each stream
with --rank and --culprit, less per stream if all ranks are shown.

For a stream that goes to a file (-r, -t, or the agent's own stdout is a file), this is
the end of the file. Streams that pass through the agent (stderr, and all with
--fold-logs) are kept in memory. A stdout that goes to the agent's terminal or pipe is
not kept: run the job with -t, -r or --fold-logs.

ENDPOINT is the job's --rdzv-endpoint, as for "status". The request goes through the
store of the job's round, which this machine must be able to reach. With a token, name
its file with --token-file.`,
		Example: `  rallypoint logs host0:29400 --rank 3
  rallypoint logs host0:29400 --culprit
  rallypoint logs file:///shared/dir --rdzv-id job7 -f`,
		Args: wantArgs("ENDPOINT"),
	}
	flags := cmd.Flags()
	flags.IntVar(&rank, "rank", -1, "only this `RANK`")
	flags.BoolVar(&culprit, "culprit", false, "only the worker that failed first in the most recent failure")
	flags.BoolVarP(&follow, "follow", "f", false, "show the last lines, then each new line, in this round and all later ones")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	q.addFlags(cmd, onlyRunID, "longest `TIME` to wait for the answers")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case culprit && rank >= 0, cmd.Flags().Changed("rank") && rank < 0, follow && (culprit || asJSON):
			return errors.New("--rank takes a rank, 0 or above, and cannot be combined with --culprit, nor --follow with --culprit or --json")
		case culprit:
			rank = backend.LogsCulprit
		}
		if err := q.reach(args[0], log); err != nil {
			return err
		}
		if follow {
			return q.followLogs(cmd, rank)
		}
		return q.showLogs(cmd, rank, asJSON)
	}
	return cmd
}

func (s statusQuery) showLogs(cmd *cobra.Command, rank int, asJSON bool) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), s.Timeout)
	defer cancel()
	run, err := s.fetchRun(ctx)
	if err != nil {
		return err
	}
	r, err := backend.AskLogs(ctx, run, s.Token, rank)
	if err != nil {
		return failure{err}
	}
	return printAnswer(cmd, "the output", r, logsText(r), asJSON)
}

// logsText formats the answers, whose texts are all printable.
func logsText(r *backend.Logs) string {
	var b, notes strings.Builder
	fmt.Fprintf(&b, "run %s, round %d", wording.RunName(printable.Text(r.RunID)), r.Round)
	if r.Failure != "" {
		b.WriteString(": " + printable.Text(r.Failure))
	}
	b.WriteByte('\n')
	unknown := make(map[string][]int) // by what is said of them, in their order
	var order []string
	for _, s := range r.Streams {
		why := s.Why
		if why == "" && s.Text == "" && s.Before == 0 {
			why = "nothing was written"
		}
		if why != "" {
			key := s.Stream + "\x00" + why
			if unknown[key] == nil {
				order = append(order, key)
			}
			unknown[key] = append(unknown[key], s.Ranks...)
			continue
		}
		head := stacks.RanksText(s.Ranks) + " on " + s.Host + ": " + s.Stream
		if len(s.Ranks) > 1 {
			head += ", one file"
		}
		if s.Before > 0 {
			head += ", after " + wording.Count(int(s.Before), "byte", "bytes")
		}
		fmt.Fprintf(&b, "\n==> %s <==\n%s\n", head, strings.TrimSuffix(s.Text, "\n"))
	}
	for _, key := range order {
		stream, why, _ := strings.Cut(key, "\x00")
		fmt.Fprintf(&notes, "%s of %s: %s\n", stream, stacks.RanksText(unknown[key]), why)
	}
	writeSilent(&notes, r.Silent)
	if notes.Len() > 0 {
		b.WriteString("\n" + notes.String())
	}
	return b.String()
}

func writeSilent(w io.Writer, nodes []backend.SilentNode) {
	for _, n := range nodes {
		fmt.Fprintf(w, "node %d (%s) did not answer\n", n.Rank, printable.Text(n.Label))
	}
}

// followLogs prints new output of a run's workers, in this round and the following ones, until
// the run has ended or the user interrupts it.
func (s statusQuery) followLogs(cmd *cobra.Command, rank int) error {
	out, notes := cmd.OutOrStdout(), cmd.ErrOrStderr()
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	round := uint64(0)
	for {
		run, err := s.nextRound(ctx, round, notes)
		if run == nil || err != nil {
			return err
		}
		round = run.Round
		err = backend.FollowLogs(ctx, run, s.Token, rank, func(r *backend.Logs) {
			fmt.Fprintf(notes, "run %s, round %d\n", wording.RunName(printable.Text(r.RunID)), r.Round)
			writeSilent(notes, r.Silent)
		}, func(l backend.LogLine) {
			if _, err := fmt.Fprintf(out, "[%s] %s\n", stacks.RankList(l.Ranks), l.Text); err != nil {
				cancel(err)
			}
		})
		switch {
		case err != nil:
			return failure{err}
		case cmd.Context().Err() != nil:
			return nil
		case ctx.Err() != nil:
			return failed("printing the output: %w", context.Cause(ctx))
		}
	}
}

// followPause is how often a run is looked at that forms its next round. Only tests change it.
var followPause = time.Second

const (
	// followTries is how often the control plane may name a round whose store has ended.
	followTries = 10
	// followSilent is how often it may not answer at all: another node may take over, or the job has ended.
	followSilent = 5
)

// nextRound waits for a round of the run after the given one, after 0 for any. It returns nil if
// the run has ended. notes are for the user.
func (s statusQuery) nextRound(ctx context.Context, after uint64, notes io.Writer) (*control.RunStatus, error) {
	for same, silent := 0, 0; ; same++ {
		limited, cancel := context.WithTimeout(ctx, s.Timeout)
		run, err := s.fetchRun(limited)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, nil
		case err != nil && after > 0: // its control plane ends with the job
			switch silent++; silent {
			case 1:
				fmt.Fprintf(notes, "the control plane does not answer, as at the end of the job: %s\n", printable.Text(err.Error()))
			case followSilent:
				fmt.Fprintln(notes, "the control plane stays silent: the job has ended, or another node hosts it, which has to be named then")
				return nil, nil
			}
		case err != nil:
			return nil, err
		case run.Closed != nil:
			return nil, nil
		case run.Round > after && run.Phase == rendezvous.PhaseRunning:
			return run, nil
		case run.Round > after || run.Phase != rendezvous.PhaseRunning:
			same = 0
		case same == followTries:
			return nil, failed("the store of round %d at %s no longer answers, though the round runs; try again", run.Round, printable.Text(run.RoundStore))
		}
		if !backoff.Sleep(ctx, followPause) {
			return nil, nil
		}
	}
}
