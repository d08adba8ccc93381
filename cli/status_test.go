package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/statustext"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// ignoringObserver does nothing with what it observes.
type ignoringObserver struct{}

func (ignoringObserver) Updated(rendezvous.MembershipUpdate) {}
func (ignoringObserver) Progressed(rendezvous.Progress)      {}
func (ignoringObserver) Dropped(*rendezvous.Error)           {}
func (ignoringObserver) ConnectionChanged(error)             {}

// joined is a node that has asked for a place in run job at a control plane.
func joined(t *testing.T, addr, node string, least, most int) (*client.Client, *member.Call) {
	t.Helper()
	p := params.Default()
	p.RunID, p.Min, p.Max, p.NodeID = "job", least, most, node
	controltest.MeetAt(&p, addr)
	isHost := false
	p.IsHost = &isHost
	c := client.New(p, ignoringObserver{}, nil, nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.Close(ctx)
	})
	if err := c.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, c.Start(rendezvous.Join{NodeRank: -1, RankHint: -1, StorePort: 1})
}

// round starts a round of two nodes, a and b.
func round(t *testing.T, addr string) (a, b *client.Client) {
	t.Helper()
	a, first := joined(t, addr, "a", 2, 2)
	b, second := joined(t, addr, "b", 2, 2)
	for _, call := range []*member.Call{first, second} {
		if _, err := call.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

func TestStatus(t *testing.T) {
	s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	defer s.end(t)
	if code, stdout, stderr := execute(t, "status", s.addr); code != 0 || !strings.Contains(stdout, "No run is known here yet.") || stderr != "" {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	round(t, s.addr)
	for _, args := range [][]string{{"status", s.addr}, {"status", s.addr, "--rdzv-id", "job"}} {
		code, stdout, stderr := execute(t, args...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Run job: running, round 1") || !strings.Contains(stdout, "NODE") ||
			strings.Contains(stdout, "\x1b") || !strings.Contains(stdout, "round 1 is complete") {
			t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
		}
	}
	code, stdout, _ := execute(t, "status", s.addr, "--json")
	var st control.Status
	if err := json.Unmarshal([]byte(stdout), &st); err != nil || code != 0 || len(st.Runs) != 1 || len(st.Runs[0].Members) != 2 || !strings.Contains(stdout, "\n  ") {
		t.Errorf("%d, %v, %s", code, err, stdout)
	}
	code, stdout, stderr := execute(t, "status", s.addr, "--rdzv-id", "other job")
	if code != 1 || stdout != "" || !strings.Contains(stderr, `knows no run "other job": it knows "job"`) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
}

// talker accepts connections and does something with each.
func talker(t *testing.T, talk func(conn net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				talk(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// answering serves one HTTP answer to whatever is asked.
func answering(code int, contentType, body string) func(net.Conn) {
	return func(conn net.Conn) {
		conn.Read(make([]byte, 4096))
		r := http.Response{
			StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {contentType}},
			Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Close: true,
		}
		r.Write(conn)
	}
}

func TestStatusOfAPortOfThisMachine(t *testing.T) {
	s := serve(t, command("serve", "--listen", "0"))
	defer s.end(t)
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := execute(t, "status", port); code != 0 || !strings.HasPrefix(stdout, "Control plane at "+s.addr) {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
}

// torchsStore is a TCPStore that waits for more, as torch's does, where it takes something else for
// a request.
func torchsStore(t *testing.T) (addr string) {
	return talker(t, func(conn net.Conn) {
		if first := make([]byte, 1); testkit.Must(io.ReadFull(conn, first))(t) == 1 && first[0] == 0 {
			_, _ = conn.Write(make([]byte, 8))
		}
		_, _ = io.Copy(io.Discard, conn)
	})
}

func TestStatusSaysWhatIsThereInstead(t *testing.T) {
	store := serve(t, command("store", "serve", "--listen", "127.0.0.1:0"))
	defer store.end(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	silent := talker(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
	for says, addr := range map[string]string{
		"is a TCPStore (a MASTER_PORT":         torchsStore(t),
		"nothing listens at":                   closed.Addr().String(),
		"is a TCPStore":                        store.addr,
		"no answer from":                       silent,
		"is no Rallypoint control plane: ":     talker(t, func(conn net.Conn) { conn.Write([]byte("SSH-2.0-x\r\n")); io.Copy(io.Discard, conn) }),
		"answers HTTP with code 404":           talker(t, answering(404, "text/plain", "404 page not found")),
		"answers HTTP with code 200":           talker(t, answering(200, "text/html", "<html>")),
		"too many HTTP connections":            talker(t, answering(503, "", "")),
		"not one that this version":            talker(t, answering(200, "application/json", "{}")),
		"knows no run \"x\": it knows \"y\"":   talker(t, answering(404, "application/json", `{"error": "the control plane knows no run \"x\": it knows \"y\"", "runs": ["y"]}`)),
		`cannot resolve "nohost.invalid"`:      "nohost.invalid:1",
		`--rdzv-endpoint, 29400 by default`:    store.addr,
		`"rallypoint serve" runs, and that th`: closed.Addr().String(),
	} {
		code, stdout, stderr := execute(t, "status", addr, "--timeout", "300ms")
		if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, says) {
			t.Errorf("%s: %d, %q, %q", says, code, stdout, stderr)
		}
	}
}

// TestHostileAnswer: an error that a server tells reaches no terminal that would obey it.
func TestHostileAnswer(t *testing.T) {
	addr := talker(t, answering(404, "application/json", `{"error": "x\u001b]0;title\u0007\u009b2J\ny"}`))
	code, _, stderr := execute(t, "status", addr)
	if code != 1 || strings.ContainsAny(stderr, "\x1b\x07\u009b") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("%d, %q", code, stderr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, ended := make(frames), make(chan error)
	q := queryOf(t, addr)
	go func() {
		ended <- watch(ctx, q, &statusPrinter{out: out, terminal: statustext.Terminal{Width: 100, Zone: time.UTC}}, nil)
	}()
	if text := <-out; strings.ContainsAny(text, "\x1b\x07\u009b") {
		t.Errorf("%q", text)
	}
	cancel()
	testkit.Check(t, <-ended)
	addr = talker(t, answering(200, "application/json", `{"schema": 1, "runs": [{"run_id": "x`+"\u009b2J\x7f"+`"}]}`))
	code, stdout, stderr := execute(t, "status", addr, "--json")
	if code != 0 || strings.ContainsAny(stdout, "\x7f\u009b") || !strings.Contains(stdout, `"x\u009b2J\u007f"`) {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
}

// frames collects what watch writes.
type frames chan string

func (f frames) Write(b []byte) (int, error) {
	f <- string(b)
	return len(b), nil
}

func queryOf(t *testing.T, endpoint string) statusQuery {
	t.Helper()
	return statusQuery{Admin: backend.Admin{At: testkit.Must(backend.Locate(endpoint))(t), Timeout: time.Minute}}
}

func TestWatch(t *testing.T) {
	s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	defer s.end(t)
	for name, interactive := range map[string]bool{"file": false, "terminal": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			out, ticks, ended := make(frames), make(chan time.Time), make(chan error)
			show := &statusPrinter{out: out, terminal: statustext.Terminal{Width: 100, Zone: time.UTC, Interactive: interactive}}
			q := queryOf(t, s.addr)
			go func() { ended <- watch(ctx, q, show, ticks) }()
			first := <-out
			ticks <- time.Time{}
			second := <-out
			if !strings.Contains(first, "No run is known") || !strings.Contains(second, "No run is known") {
				t.Errorf("%q, %q", first, second)
			}
			if interactive != strings.HasPrefix(first, clearScreen) || interactive != strings.HasPrefix(second, moveHome) || interactive == strings.HasPrefix(second, "\n") {
				t.Errorf("%q, %q", first, second)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWatchOutlivesTheControlPlane shows its absence and continues.
func TestWatchOutlivesTheControlPlane(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
		ctx, cancel := context.WithCancel(t.Context())
		out, ticks, ended := make(frames), make(chan time.Time), make(chan error)
		show := &statusPrinter{out: out, json: asJSON, compact: true, terminal: statustext.Terminal{Width: 100, Zone: time.UTC}}
		q := queryOf(t, s.addr)
		go func() { ended <- watch(ctx, q, show, ticks) }()
		first := <-out
		s.end(t)
		ticks <- time.Time{}
		second := <-out
		if strings.Contains(first, "nothing listens") || !strings.Contains(strings.ReplaceAll(second, "\n          ", " "), "nothing listens at "+s.addr) {
			t.Errorf("JSON %v: %q, %q", asJSON, first, second)
		}
		if asJSON && (strings.Count(first+second, "\n") != 2 || !json.Valid([]byte(first)) || !json.Valid([]byte(second))) {
			t.Errorf("not one document a line: %q, %q", first, second)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestWatchCommand interrupts the command itself.
func TestWatchCommand(t *testing.T) {
	s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	defer s.end(t)
	ctx, cancel := context.WithCancel(t.Context())
	out, code := make(frames), make(chan int)
	var stderr bytes.Buffer
	go func() { code <- Main(ctx, []string{"rallypoint", "status", s.addr, "--watch"}, out, &stderr) }()
	<-out
	cancel()
	for {
		select {
		case <-out: // a second has passed meanwhile
			continue
		case got := <-code:
			if got != 0 || stderr.Len() > 0 {
				t.Errorf("%d, %s", got, stderr.String())
			}
			return
		}
	}
}

func TestTerminalOf(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	if s := statustext.TerminalOf(w); s.Interactive || s.Colour || s.Width != statustext.Unlimited {
		t.Errorf("%+v", s)
	}
}
