package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/control/statustext"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

func newStacks(log *logging) *cobra.Command {
	var q statusQuery
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stacks ENDPOINT",
		Short: "Show the stack of each worker of a job, equal ones grouped",
		Long: `Show where the workers of a job are at this moment: the stack of each rank's main
thread. Ranks with equal stacks form a group; the smallest group comes first, and ">"
marks the user's own code. If most ranks are in one group, the ranks of groups with at
most a quarter of the ranks are suspects.

It changes nothing and stops no worker. A worker can show its stack if the job runs
with --warm or its script imports rallypoint, with Python 3.11 or newer. For any other
worker py-spy shows it, if its node has py-spy; otherwise its kernel state is shown.

ENDPOINT is the job's --rdzv-endpoint, as for "status". The request goes through the
store of the job's round, which this machine must be able to reach. With a token, name
its file with --token-file.`,
		Example: `  rallypoint stacks host0:29400
  rallypoint stacks file:///shared/dir --rdzv-id job7
  rallypoint stacks host0 --json | jq .suspects`,
		Args: wantArgs("ENDPOINT"),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	q.addFlags(cmd, onlyRunID, "longest `TIME` to wait for the answers")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := q.reach(args[0], log); err != nil {
			return err
		}
		return q.showStacks(cmd, asJSON)
	}
	return cmd
}

func (s statusQuery) showStacks(cmd *cobra.Command, asJSON bool) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), s.Timeout)
	defer cancel()
	run, err := s.fetchRun(ctx)
	if err != nil {
		return err
	}
	r, err := backend.AskStacks(ctx, run, s.Token)
	if err != nil {
		return failure{err}
	}
	return printAnswer(cmd, "the stacks", r, stacksText(r), asJSON)
}

func (s *statusQuery) reach(endpoint string, log *logging) (err error) {
	if s.At, err = backend.Locate(endpoint); err == nil {
		err = positive("--timeout", s.Timeout)
	}
	if err == nil {
		s.Token, err = s.file.open(log)
	}
	return err
}

func printAnswer(cmd *cobra.Command, what string, answer any, text string, asJSON bool) error {
	if asJSON {
		b, err := json.MarshalIndent(answer, "", "  ")
		if err != nil {
			return failure{err}
		}
		text = string(printable.JSON(b)) + "\n"
	}
	return printTo(cmd.OutOrStdout(), what, text)
}

// fetchRun returns the run that is asked for, or the only one. It blocks as fetch does.
func (s statusQuery) fetchRun(ctx context.Context) (*control.RunStatus, error) {
	_, st, err := s.fetch(ctx)
	if err != nil {
		return nil, failure{err}
	}
	return onlyRun(st)
}

// onlyRun is the run of a status that was asked for, or the only one.
func onlyRun(st control.Status) (*control.RunStatus, error) {
	run, err := backend.OnlyRun(st.Runs, "--rdzv-id")
	if err != nil {
		return nil, failure{err}
	}
	return run, nil
}

// workersText shows the processes of the workers, each with its step and its place in the code.
func workersText(run *control.RunStatus, r *backend.Stacks, term statustext.Terminal) string {
	called := statustext.NamesOf([]control.RunStatus{*run})
	where := make(map[int]string)
	for _, g := range r.Groups {
		for _, rank := range g.Ranks {
			where[rank] = g.Where()
		}
	}
	t := statustext.Table{Columns: []statustext.Column{{Head: "NODE"}, {Head: "RANK", Right: true}, {Head: "PID", Right: true}, {Head: "STEP", Right: true}, {Head: "STATE"}, {Head: "WHERE"}}, StyledColumn: 4}
	for _, w := range r.Workers {
		step := ""
		if w.Step != nil {
			step = statustext.Grouped(*w.Step)
		}
		if len(w.State) > 0 && where[w.Rank] == w.State {
			where[w.Rank] = ""
		}
		t.Add(statustext.Plain, statustext.NodeText(called.Of(w.Node), term.Most(statustext.MaxNode)), fmt.Sprint(w.Rank), fmt.Sprint(w.Pid), step, printable.Text(w.State), printable.Text(where[w.Rank]))
	}
	var b strings.Builder
	b.WriteString("\nWorkers\n")
	t.Write(&b, term)
	writeSilent(&b, r.Silent)
	return b.String()
}

// stacksText formats the answers, whose texts are all printable.
func stacksText(r *backend.Stacks) string {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s, round %d: %s on %s\n%s\n", wording.RunName(printable.Text(r.RunID)), r.Round, wording.Count(r.Ranks, "rank", "ranks"),
		wording.Count(r.Nodes, "node", "nodes"), r.Verdict)
	if r.NCCL != "" {
		fmt.Fprintln(&b, r.NCCL)
	}
	writeSilent(&b, r.Silent)
	if len(r.Groups) > 0 {
		b.WriteByte('\n')
		b.WriteString(r.Text())
	}
	return b.String()
}
