package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/backend"
	"rallypoint/core/control"
)

// watchEvery is how often --watch looks.
const watchEvery = time.Second

func newStatus(log *logging) *cobra.Command {
	var token tokenFlag
	var q statusQuery
	var asJSON, watched bool
	cmd := &cobra.Command{
		Use:   "status ENDPOINT",
		Short: "Show who takes part in a job, who is missing, and why",
		Long: `Show what a control plane knows: its runs, and for one run its members with rank,
address and the time since they were last heard, who waits and for how long, who
is missing, who finished, the last changes with their reasons, and why the run has
not started.

ENDPOINT is the job's --rdzv-endpoint (HOST or HOST:PORT), be it a node of the job
or "rallypoint serve". With several runs there, one is shown in full by --rdzv-id.
Where nodes meet without a control plane (file:///DIR, etcd://HOST), it is what they
have written there: without times and changes; nothing is written or held up by it.

HEARD is the time since anything came from a node; a node is lost when that reaches
the run's lease timeout. A state with a question mark: the connection broke, and
the node may still come back. A newcomer waits for a seat, for a spare there is
none now; an idle node is connected and asks for nothing.

--json prints what GET /status on that port answers (docs/status.md).`,
		Example: `  rallypoint status host0:29400
  rallypoint status host0:29400 --rdzv-id job7 --watch
  rallypoint status file:///shared/dir
  rallypoint status host0 --json | jq '.runs[].missing'`,
		Args: wantArgs("ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if q.addr, q.sharedLog, err = backend.Locate(args[0]); err != nil {
				return err
			}
			if err := positive("--timeout", q.timeout); err != nil {
				return err
			}
			if q.token, err = token.open(log, q.sharedLog); err != nil {
				return err
			}
			show := newStatusPrinter(cmd.OutOrStdout(), asJSON, watched)
			if watched {
				ticker := time.NewTicker(watchEvery)
				defer ticker.Stop()
				return watch(cmd.Context(), q, show, ticker.C)
			}
			raw, st, err := q.fetch(cmd.Context())
			if err != nil {
				return failure{err}
			}
			return show.print(raw, st)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.run, "rdzv-id", "", "show only the run `ID`")
	flags.BoolVar(&asJSON, "json", false, "print JSON; with --watch one document a line")
	flags.BoolVarP(&watched, "watch", "w", false, "look again each second, until interrupted")
	flags.DurationVar(&q.timeout, "timeout", 5*time.Second, "longest wait for an answer")
	token.addTo(cmd)
	return cmd
}

// statusPrinter shows statuses on one stream.
type statusPrinter struct {
	out      io.Writer
	json     bool
	compact  bool // one line of JSON each
	terminal terminal
}

func newStatusPrinter(out io.Writer, asJSON, watched bool) *statusPrinter {
	return &statusPrinter{out: out, json: asJSON, compact: watched, terminal: terminalOf(out)}
}

// print writes one status: raw as it came, st decoded.
func (p *statusPrinter) print(raw []byte, st control.Status) error {
	text := p.text(raw, st)
	if _, err := p.out.Write(text); err != nil {
		return failed("printing the status: %w", err)
	}
	return nil
}

func (p *statusPrinter) text(raw []byte, st control.Status) []byte {
	if !p.json {
		return []byte(renderStatus(st, p.terminal))
	}
	var b bytes.Buffer
	if p.compact || json.Indent(&b, raw, "", "  ") != nil {
		b.Reset()
		b.Write(raw)
	}
	b.WriteByte('\n')
	return b.Bytes()
}
