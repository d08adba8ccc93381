package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"rallypoint/core/control/journal"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022) // a data directory that a group may write to is refused
	if dir := os.Getenv(serveIn); dir != "" {
		serveUntilKilled(dir, os.Getenv(serveAt))
	}
	if descriptors := os.Getenv(serveWith); descriptors != "" {
		serveCrowd(descriptors)
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen; nothing is asserted
// about it but that it ends.
const patience = 20 * time.Second

// fakeClock is a Clock that a test moves.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*fakeTimer]struct{}
	seq    int
}

type fakeTimer struct {
	clock *fakeClock
	due   time.Time
	seq   int
	f     func()
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Unix(1e9, 0), timers: map[*fakeTimer]struct{}{}}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) Stopper {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	t := &fakeTimer{c, c.now.Add(max(d, 0)), c.seq, f}
	c.timers[t] = struct{}{}
	return t
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	_, running := t.clock.timers[t]
	delete(t.clock.timers, t)
	return running
}

// Advance moves the clock by d and calls what falls due, each at its own time.
func (c *fakeClock) Advance(d time.Duration) {
	c.mu.Lock()
	end := c.now.Add(d)
	c.mu.Unlock()
	for c.fireNext(end, false) {
	}
	c.mu.Lock()
	c.now = end
	c.mu.Unlock()
}

// Jump moves the clock by d at once, as if the process had been stopped, and
// then calls what has fallen due.
func (c *fakeClock) Jump(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	end := c.now
	c.mu.Unlock()
	for c.fireNext(end, true) {
	}
}

func (c *fakeClock) fireNext(end time.Time, late bool) bool {
	c.mu.Lock()
	var next *fakeTimer
	for t := range c.timers {
		if t.due.After(end) {
			continue
		}
		if next == nil || t.due.Before(next.due) || t.due.Equal(next.due) && t.seq < next.seq {
			next = t
		}
	}
	if next == nil {
		c.mu.Unlock()
		return false
	}
	delete(c.timers, next)
	if !late {
		c.now = next.due
	}
	c.mu.Unlock()
	next.f()
	return true
}

// logLines collects log lines for tests.
type logLines struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
}

func newLog(t *testing.T) (*slog.Logger, *logLines) {
	t.Helper()
	l := &logLines{more: make(chan struct{}, 1)}
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

// durably makes all servers of the tests keep their runs on the disk: the same
// must be seen from outside.
var durably = os.Getenv("RALLYPOINT_TEST_DURABLY") != ""

// atOnce skips a test that moves the clock and looks at what has come of it: with
// a disk in between that takes its time.
func atOnce(t *testing.T) {
	if durably {
		t.Skip("events are applied when they are stored")
	}
}

// testServer starts a server on a port of its own.
func testServer(t *testing.T, cfg Config) (*Server, string) {
	t.Helper()
	if durably && cfg.Data == nil {
		cfg.Data = testData(t, t.TempDir())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Start(cfg, l)
	t.Cleanup(func() { s.Close() })
	return s, l.Addr().String()
}

// testData opens a data directory that is closed with the test.
func testData(t *testing.T, dir string) *Data {
	t.Helper()
	d, err := OpenData(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// startHost starts a server as a client's host.
func startHost(cfg HostConfig, listeners ...net.Listener) Host {
	return Start(Config{RunID: cfg.RunID, Fixed: cfg.Fixed, Token: cfg.Token, HTTPNames: cfg.HTTPNames, Log: cfg.Log, Metrics: cfg.Metrics}, listeners...)
}

// newTestClient makes a client that is closed with the test.
func newTestClient(t *testing.T, p rendezvous.Params, obs member.Observer) *Client {
	t.Helper()
	c := NewClient(p, obs, nil, startHost)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.Close(ctx)
	})
	return c
}

// connected makes a client and connects it.
func connected(t *testing.T, p rendezvous.Params, obs member.Observer) *Client {
	t.Helper()
	c := newTestClient(t, p, obs)
	if err := c.Connect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return c
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

// afterDials returns a context whose deadline passes when the client begins to
// dial once more than n times.
func afterDials(t *testing.T, c *Client, n int) context.Context {
	t.Helper()
	ctx, expire := expiring()
	t.Cleanup(expire)
	dial := c.env.dial
	var dials atomic.Int64
	c.env.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		if dials.Add(1) > int64(n) {
			expire()
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return dial(ctx, to)
	}
	return ctx
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

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

var errNoSuchHost = errors.New("no such host")
