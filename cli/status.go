package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/control/statustext"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

const watchEvery = time.Second

type statusCommand struct {
	query         statusQuery
	json, watched bool
	workers       bool
}

func newStatus(log *logging) *cobra.Command {
	var c statusCommand
	cmd := &cobra.Command{
		Use:   "status ENDPOINT",
		Short: "Show who takes part in a job, who is missing, and why",
		Long: `Show the runs of a control plane. For one run: its members with rank, address and
last sign of life, which nodes wait and for how long, which are missing or finished,
the last changes with their reasons, and why the run has not started.

ENDPOINT is the job's --rdzv-endpoint (HOST, HOST:PORT, a list of them, or a PORT of this
machine): a node of the job, or "rallypoint serve". If it has several runs, --rdzv-id selects the
one to show in full. For file:///DIR and etcd://HOST the command reads there which node
leads each run, and asks that one.

HEARD is the time since the node's last sign of life; a node is lost when that reaches
the run's lease timeout. A question mark after a state means that the connection broke
and the node may still return. A newcomer waits for a seat; a spare waits until one is
free; an idle node is connected but does not ask for a seat.

With a token, one line lists its fingerprints and the connected nodes that have not
proven that they know it.

--workers also asks the agents of the run, as "stacks" does, and shows the pid, state
and step of each worker, and where it is in its code.

--json prints the document of GET /status on that port (docs/status.md).`,
		Example: `  rallypoint status host0:29400
  rallypoint status host0:29400 --rdzv-id job7 --watch
  rallypoint status file:///shared/dir
  rallypoint status host0 --json | jq '.runs[].missing'`,
		Args: wantArgs("ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd, args[0], log) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&c.json, "json", false, "print JSON; with --watch one document a line")
	flags.BoolVarP(&c.watched, "watch", "w", false, "repeat every second until interrupted")
	flags.BoolVar(&c.workers, "workers", false, "also show the workers' processes; for JSON use \"stacks --json\"")
	c.query.addFlags(cmd, "show only the run `ID`", "longest `TIME` to wait for an answer")
	return cmd
}

// run shows the status once, or repeatedly until the command is interrupted.
func (s *statusCommand) run(cmd *cobra.Command, endpoint string, log *logging) error {
	q := &s.query
	if s.workers && (s.json || s.watched) {
		return errors.New(`--workers goes with neither --json nor --watch: "rallypoint stacks --json" has the workers, too`)
	}
	if err := q.reach(endpoint, log); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	show := &statusPrinter{out: out, json: s.json, compact: s.watched, terminal: statustext.TerminalOf(out)}
	if s.watched {
		ticker := time.NewTicker(watchEvery)
		defer ticker.Stop()
		return watch(cmd.Context(), *q, show, ticker.C)
	}
	raw, st, err := q.fetch(cmd.Context())
	if err != nil {
		return failure{err}
	}
	if err := printTo(out, "the status", string(show.text(raw, st))); err != nil || !s.workers {
		return err
	}
	run, err := onlyRun(st)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), q.Timeout)
	defer cancel()
	r, err := backend.AskStacks(ctx, run, q.Token)
	if err != nil {
		return failure{err}
	}
	return printTo(out, "the status", workersText(run, r, show.terminal))
}

type statusPrinter struct {
	out      io.Writer
	json     bool
	compact  bool // one line of JSON each
	terminal statustext.Terminal
}

func (s *statusPrinter) text(raw []byte, st control.Status) []byte {
	if !s.json {
		return []byte(statustext.Render(st, s.terminal))
	}
	var b bytes.Buffer
	if s.compact || json.Indent(&b, raw, "", "  ") != nil {
		b.Reset()
		b.Write(raw)
	}
	b.WriteByte('\n')
	return printable.JSON(b.Bytes())
}

// checkControl says what to do about a control plane that does not answer.
const checkControl = `check that the job's first node or "rallypoint serve" runs, and that this is the job's --rdzv-endpoint; where that node has died, ask another node of the job: one of them hosts`

// statusQuery says whom to ask about which runs; RunID "" means all.
type statusQuery struct {
	backend.Admin
	file tokenFlag
}

// onlyRunID is the help of --rdzv-id where one run is meant.
const onlyRunID = "the run `ID`; optional if there is only one run"

func (s *statusQuery) addFlags(cmd *cobra.Command, runID, timeout string) {
	cmd.Flags().StringVar(&s.RunID, "rdzv-id", "", runID)
	cmd.Flags().DurationVar(&s.Timeout, "timeout", 5*time.Second, timeout)
	s.file.addTo(cmd)
}

// fetch returns the status as it came and decoded. It blocks until the answer has arrived, at most
// for the timeout.
func (s statusQuery) fetch(ctx context.Context) ([]byte, control.Status, error) {
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	addr := s.At.Servers()
	if addr == "" {
		raw, st, err := s.AskLeaders(limited)
		switch {
		case ctx.Err() != nil:
			return nil, st, ctx.Err()
		case err != nil:
			return nil, st, failure{err}
		}
		return raw, st, nil
	}
	var st control.Status
	code, kind, body, err := backend.Get(limited, addr, s.Token, "/status", s.RunID)
	isJSON := strings.HasPrefix(kind, "application/json")
	var none control.NoRun
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, st, ctx.Err()
	case errors.Is(err, rendezvous.ErrAuth), errors.Is(err, rendezvous.ErrState):
		return nil, st, failure{err}
	case code == http.StatusForbidden:
		return nil, st, failed("authentication failed: the control plane at %s requires a token: give its file by --token-file or %s", addr, params.EnvTokenFile)
	case err != nil && (endedEarly(err) || isTimeout(err)) && isTCPStore(ctx, addr):
		return nil, st, failed("what listens at %s is a TCPStore (a MASTER_PORT, or a round's store), not a control plane; "+
			"the control plane's port is that of the job's --rdzv-endpoint, %d by default", addr, params.DefaultPort)
	case err != nil && endedEarly(err):
		return nil, st, failed("what listens at %s is no Rallypoint control plane: %w; %s", addr, err, checkControl)
	case err != nil:
		return nil, st, unreachable(addr, "a control plane", time.Since(start), checkControl, err)
	case code == http.StatusNotFound && isJSON && json.Unmarshal(body, &none) == nil && none.Error != "":
		return nil, st, failed("%s", none.Error)
	case code == http.StatusServiceUnavailable:
		return nil, st, failed("the control plane at %s has too many HTTP connections at this moment; try again", addr)
	case code != http.StatusOK || !isJSON:
		return nil, st, failed("what listens at %s answers HTTP with code %d, but is no Rallypoint control plane, or an older one; %s", addr, code, checkControl)
	}
	if err := json.Unmarshal(body, &st); err != nil || st.Schema < 1 {
		return nil, st, failed("the status at %s is not one that this version understands (schema %d): %v", addr, st.Schema, err)
	}
	return bytes.TrimSpace(body), st, nil
}

// endedEarly reports whether a server answered, but not in HTTP.
func endedEarly(err error) bool {
	text := err.Error()
	for _, sign := range []string{"EOF", "malformed HTTP", "connection reset", "broken pipe"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}

func jsonText(text string) []byte {
	b, _ := json.Marshal(text) // a text cannot fail
	return b
}

// Moves of a terminal's cursor.
const (
	clearScreen = "\x1b[H\x1b[2J"
	moveHome    = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// watch shows the status at once and at each tick until ctx ends. A control plane
// that does not answer is shown as such: it may come, or come back.
func watch(ctx context.Context, q statusQuery, show *statusPrinter, ticks <-chan time.Time) error {
	first := true
	for {
		raw, st, err := q.fetch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		text := ""
		switch {
		case err == nil:
			text = string(show.text(raw, st))
		case show.json:
			text = fmt.Sprintf("{\"error\": %s}\n", jsonText(err.Error()))
		default:
			text = time.Now().In(show.terminal.Zone).Format(time.TimeOnly) + "  " + wording.Wrap(printable.Text(err.Error()), show.terminal.Width, 10) + "\n"
		}
		if err := printTo(show.out, "the status", frameOf(text, first, show)); err != nil {
			return err
		}
		first = false
		select {
		case <-ticks:
		case <-ctx.Done():
			return nil
		}
	}
}

// frameOf puts a status where the last one was: over it on a terminal, after an
// empty line elsewhere.
func frameOf(text string, first bool, show *statusPrinter) string {
	switch {
	case show.json:
		return text
	case !show.terminal.Interactive && first:
		return text
	case !show.terminal.Interactive:
		return "\n" + text
	}
	start := moveHome
	if first {
		start = clearScreen
	}
	return start + strings.ReplaceAll(text, "\n", clearLine+"\n") + clearRest
}
