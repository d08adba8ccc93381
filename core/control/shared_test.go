package control

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

// patience is how long a test waits for what must happen; nothing is asserted
// about it but that it ends.
const patience = 20 * time.Second

// logLines collects log lines for tests.
type logLines struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
}

func newLogLines() *logLines { return &logLines{more: make(chan struct{}, 1)} }

// newLog makes a log whose lines the test shows if it fails.
func newLog(t *testing.T) (*slog.Logger, *logLines) {
	t.Helper()
	l := newLogLines()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", strings.Join(l.all(), ""))
		}
	})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})), l
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	l.lines = append(l.lines, string(b))
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (l *logLines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// await waits until the lines that contain text are n.
func (l *logLines) await(t *testing.T, text string, n int) []string {
	t.Helper()
	deadline := time.After(patience)
	for {
		var found []string
		for _, line := range l.all() {
			if strings.Contains(line, text) {
				found = append(found, line)
			}
		}
		if len(found) >= n {
			return found
		}
		select {
		case <-l.more:
		case <-deadline:
			t.Fatalf("%d lines with %q, want %d; log:\n%s", len(found), text, n, strings.Join(l.all(), ""))
		}
	}
}

// seen is an Observer that keeps what it is told, in order.
type seen struct {
	mu     sync.Mutex
	events []any
	more   chan struct{}
}

type connectionEvent struct{ err error }

func newSeen() *seen { return &seen{more: make(chan struct{}, 1)} }

func (s *seen) add(e any) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *seen) Updated(n rendezvous.MembershipUpdate) { s.add(n) }
func (s *seen) Progressed(p rendezvous.Progress)      { s.add(p) }
func (s *seen) Dropped(err *rendezvous.Error)         { s.add(err) }
func (s *seen) ConnectionChanged(err error)           { s.add(connectionEvent{err}) }

func (s *seen) all() []any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// await waits for an event that fits.
func (s *seen) await(t *testing.T, what string, fits func(any) bool) any {
	t.Helper()
	deadline := time.After(patience)
	for {
		for _, e := range s.all() {
			if fits(e) {
				return e
			}
		}
		select {
		case <-s.more:
		case <-deadline:
			t.Fatalf("the observer was never told %s; it saw %v", what, s.all())
		}
	}
}

// testParams are parameters of a run of n nodes at an endpoint.
func testParams(endpoint string, n int) rendezvous.Params {
	p := rendezvous.DefaultParams()
	p.RunID, p.Endpoint, p.Min, p.Max = "run", endpoint, n, n
	return p
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// expiringContext is a context whose deadline passes when a test says so.
type expiringContext struct {
	context.Context
	done chan struct{}
}

func expiring() (ctx context.Context, expire func()) {
	e := &expiringContext{context.Background(), make(chan struct{})}
	return e, sync.OnceFunc(func() { close(e.done) })
}

func (e *expiringContext) Done() <-chan struct{} { return e.done }

func (e *expiringContext) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func join() rendezvous.Join { return rendezvous.Join{NodeRank: -1, RankHint: -1, StorePort: 1} }

// outcome waits for the answer to a join.
func outcome(t *testing.T, call *member.Call) rendezvous.Outcome {
	t.Helper()
	o, err := awaitOutcome(testContext(t), call)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func awaitOutcome(ctx context.Context, call *member.Call) (rendezvous.Outcome, error) {
	result, err := call.Wait(ctx)
	if err != nil {
		return rendezvous.Outcome{}, err
	}
	o, ok := result.(rendezvous.Outcome)
	if !ok {
		return o, fmt.Errorf("the answer is a %T", result)
	}
	return o, nil
}

// claimOf is what a node says of itself after an outcome.
func claimOf(o rendezvous.Outcome) rendezvous.LastRound {
	return rendezvous.LastRound{Generation: o.Generation, Round: o.Round, Rank: o.Rank, World: o.World, HostRank: o.HostRank}
}

func wantCode(t *testing.T, err error, code rendezvous.Code, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want code %d", code)
	}
	if got := rendezvous.CodeOf(err); got != code {
		t.Errorf("code %d, want %d: %v", got, code, err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// freePort returns a port that nobody listens on. It is below those that the
// system gives to others, so that it stays free.
func freePort(t testing.TB) int {
	t.Helper()
	for {
		port := 12000 + rand.IntN(18000)
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			l.Close()
			return port
		}
	}
}

// guest makes parameters of a node that never hosts.
func guest(endpoint string, n int) rendezvous.Params {
	p := testParams(endpoint, n)
	no := false
	p.IsHost = &no
	return p
}

func isDropped(e any) bool {
	err, ok := e.(*rendezvous.Error)
	return ok && err != nil
}

func isLost(e any) bool {
	c, ok := e.(connectionEvent)
	return ok && c.err != nil
}

func isBack(e any) bool {
	c, ok := e.(connectionEvent)
	return ok && c.err == nil
}
