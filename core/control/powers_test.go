package control

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// TestPowersOverOtherJobs tries each cell of the table in SECURITY.md: what a process with the
// server's token, with that of another run, and with none can do to a job.
func TestPowersOverOtherJobs(t *testing.T) {
	tokens := []string{goodToken, runKey(t, goodToken, "mine"), ""}
	ctx := controltest.Context(t)
	// begin starts a server with the job "theirs", whose node stays.
	begin := func(t *testing.T, cfg Config) (addr string, far *pipes) {
		cfg.Token = openToken(t, goodToken)
		near, far := testkit.Must(wire.Listen(ctx, "127.0.0.1:0"))(t), newPipes()
		s := Start(cfg, near, far)
		t.Cleanup(func() { s.Close() })
		join(t, near.Addr().String(), "theirs", runKey(t, goodToken, "theirs"), nil)
		return near.Addr().String(), far
	}
	// page reports whether a page can be read from another machine.
	page := func(path string, open bool) func(*testing.T, string) bool {
		return func(t *testing.T, token string) bool {
			addr, far := begin(t, Config{MetricsOpen: open})
			var conn net.Conn = far.dial(t).conn
			if token != "" {
				conn = testkit.Must(client.DialHTTP(ctx, addr, openToken(t, token)))(t)
			}
			defer conn.Close()
			req := testkit.Must(http.NewRequest(http.MethodGet, "http://"+addr+path, nil))(t)
			req.Close = true
			go func() { _ = req.Write(conn) }()
			resp := testkit.Must(http.ReadResponse(bufio.NewReader(conn), req))(t)
			defer resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		}
	}
	enter := func(run string) func(*testing.T, string) bool {
		return func(t *testing.T, token string) bool {
			addr, _ := begin(t, Config{})
			return join(t, addr, run, token, rendezvous.ErrAuth)
		}
	}
	tries := map[string]func(t *testing.T, token string) bool{
		"join it": enter("theirs"),
		"close it, stop it, drain or evict its nodes": func(t *testing.T, token string) bool {
			addr, _ := begin(t, Config{})
			var key *secret.Token
			if token != "" {
				key = openToken(t, token)
			}
			var done []bool
			for _, ev := range []rendezvous.Event{
				rendezvous.Direct{ID: "1", Kind: rendezvous.DirectiveDrain, Nodes: []string{"none"}, Reason: "x"},
				rendezvous.Evict{Node: "none", Reason: "x"},
				rendezvous.Direct{ID: "2", Kind: rendezvous.DirectiveStop, Reason: "x"},
				rendezvous.CloseRun{Reason: "x", Stop: true},
			} {
				_, err := client.Ask(ctx, addr, key, "theirs", ev)
				done = append(done, rendezvous.CodeOf(err) != rendezvous.CodeAuth)
			}
			if len(slices.Compact(slices.Clone(done))) > 1 {
				t.Errorf("some of them: %v", done)
			}
			return done[0]
		},
		"read its status, with the text of exceptions": page("/status?rdzv_id=theirs", false),
		"list the jobs": page("/status", false),
		"read the metrics: names of jobs and nodes, counts":   page("/metrics", false),
		"read the metrics if `serve` has `--http-open`":       page("/metrics", true),
		"see whether the server runs (`/healthz`, `/readyz`)": page("/healthz", false),
		"begin a job of another name":                         enter("new"),
	}
	text := string(testkit.ReadFile(t, "../../SECURITY.md"))
	_, table, _ := strings.Cut(text, "## What each can do to other jobs\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "|\n "), " | ")
		if len(cells) != 4 || cells[1] != "yes" && cells[1] != "no" {
			continue
		}
		rows++
		try := tries[cells[0]]
		if try == nil {
			t.Errorf("nothing tries to %s", cells[0])
			continue
		}
		for i, token := range tokens {
			if can := try(t, token); cells[i+1] != "yes" && can || cells[i+1] != "no" && !can {
				t.Errorf("%s, with token %d: %v, and the page says %s", cells[0], i, can, cells[i+1])
			}
		}
	}
	if rows != len(tries) {
		t.Errorf("the page has %d rows, %d are tried", rows, len(tries))
	}
}

// join has a node join a run of one node, and reports whether it has; the error must be refused.
func join(t *testing.T, addr, run, token string, refused error) bool {
	t.Helper()
	p := controltest.Params(addr, 1)
	p.RunID = run
	if token != "" {
		p.TokenFile = testkit.TokenFile(t, token)
	}
	c := newTestClient(t, p, controltest.NewObserver())
	err := c.Connect(controltest.Context(t))
	if rendezvous.CodeOf(err) == rendezvous.CodeAuth && refused != nil {
		return false
	}
	testkit.Check(t, err)
	return true
}
