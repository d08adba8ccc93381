package roundstore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/core/control"
	"rallypoint/core/control/controltest"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/trace"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen; nothing is asserted
// about it but that it ends.
const patience = 20 * time.Second

// logTo returns a logger that writes to the test's log.
func logTo(t *testing.T, name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t, name}, nil))
}

type testWriter struct {
	t    *testing.T
	name string
}

func (tw testWriter) Write(b []byte) (int, error) {
	tw.t.Logf("%s: %s", tw.name, strings.TrimSpace(string(b)))
	return len(b), nil
}

// serve starts a control plane and returns its endpoint.
func serve(t *testing.T) (endpoint string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := control.Start(control.Config{}, l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// open opens a member that is closed with the test.
func open(t *testing.T, name, endpoint string, min, max int, options map[string]string) *member.Member {
	t.Helper()
	p := params.Default()
	p.RunID, p.NodeID, p.Min, p.Max = "job", name, min, max
	controltest.MeetAt(&p, endpoint)
	p.JoinTimeout = patience
	if _, err := p.SetOptions(options); err != nil {
		t.Fatal(err)
	}
	m, err := Open(p, logTo(t, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
	})
	return m
}

// next lets all members join at once and returns their outcomes.
func next(t *testing.T, members ...*member.Member) []rendezvous.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	outcomes := make([]rendezvous.Outcome, len(members))
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { outcomes[i], errs[i] = m.Next(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	ranks := map[int]bool{}
	for _, o := range outcomes {
		ranks[o.Rank] = true
		if o.Round != outcomes[0].Round || o.World != len(members) || o.StoreAddr != outcomes[0].StoreAddr || o.StorePort != outcomes[0].StorePort {
			t.Fatalf("outcomes differ: %+v", outcomes)
		}
	}
	if len(ranks) != len(members) {
		t.Fatalf("ranks are not distinct: %+v", outcomes)
	}
	return outcomes
}

// dial connects to the store of a round as a worker does.
func dial(t *testing.T, o rendezvous.Outcome) *tcpstore.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := tcpstore.Dial(ctx, net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort)), tcpstore.ClientOptions{})
	if err != nil {
		t.Fatalf("round %d: %v", o.Round, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOpenTouchesNoNetwork(t *testing.T) {
	m := open(t, "a", "host.invalid:1", 1, 1, nil)
	if err := m.Shutdown(t.Context(), rendezvous.EndSuccess, ""); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	good := params.Default()
	good.RunID, good.Min, good.Max = "job", 1, 2
	controltest.MeetAt(&good, "host0")
	for name, change := range map[string]func(*params.Params){
		"run id":   func(p *params.Params) { p.RunID = "" },
		"minimum":  func(p *params.Params) { p.Min = 0 },
		"endpoint": func(p *params.Params) { p.Servers = nil },
		"local":    func(p *params.Params) { p.LocalAddr = "0.0.0.0" },
	} {
		p := good
		change(&p)
		m, err := Open(p, nil)
		if !errors.Is(err, rendezvous.ErrInvalid) || m != nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := Open(good, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestRoundsOfThree(t *testing.T) {
	endpoint := serve(t)
	a, b, c := open(t, "a", endpoint, 2, 3, nil), open(t, "b", endpoint, 2, 3, nil), open(t, "c", endpoint, 2, 3, nil)
	members := []*member.Member{a, b, c}
	first := next(t, members...)
	worker := dial(t, first[0])
	for i, o := range first {
		if err := dial(t, o).Set(t.Context(), strconv.Itoa(i), []byte("here")); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := worker.NumKeys(t.Context()); err != nil || n < 3 {
		t.Errorf("%d keys, %v", n, err)
	}
	for i, m := range members {
		if n, err := m.Keys(first[i].Round).Add(t.Context(), "count", 1); err != nil || n != int64(i+1) {
			t.Errorf("the agents' keys: %d, %v", n, err)
		}
	}

	// One leaves, and waits for the others if it has the store; they regroup
	// around a new, empty one.
	stay := []*member.Member{a, b}
	gone := make(chan error, 1)
	go func() { gone <- c.Shutdown(t.Context(), rendezvous.EndLeave, "had enough") }()
	for _, m := range stay {
		testkit.Eventually(t, "the leave is announced", func() bool { return m.NodesWaiting() > 0 })
		if !strings.Contains(m.Reason(), "had enough") {
			t.Errorf("reason %q", m.Reason())
		}
	}
	second := next(t, stay...)
	if err := <-gone; err != nil {
		t.Error(err)
	}
	if second[0].Round != 2 {
		t.Errorf("got %+v", second[0])
	}
	if stay[0].NodesWaiting() != 0 || stay[1].NodesWaiting() != 0 {
		t.Error("waiting in the new round")
	}
	if ok, err := dial(t, second[0]).Check(t.Context(), []string{"0"}); err != nil || ok {
		t.Errorf("the new store holds the old keys: %v, %v", ok, err)
	}
	if _, err := stay[0].Keys(1).Get(t.Context(), "count"); !errors.Is(err, rendezvous.ErrRoundOver) {
		t.Errorf("the agents' keys of the old round: %v", err)
	}

	// Both end well; the one with the store waits for the other.
	errs := make([]error, len(stay))
	var wg sync.WaitGroup
	for i, m := range stay {
		wg.Go(func() { errs[i] = m.Shutdown(t.Context(), rendezvous.EndSuccess, "") })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// The node that hosts the control plane is one of the members.
func TestEmbeddedControlPlane(t *testing.T) {
	endpoint := net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t)))
	members := []*member.Member{open(t, "a", endpoint, 2, 2, nil), open(t, "b", endpoint, 2, 2, nil)}
	outcomes := next(t, members...)
	if err := dial(t, outcomes[0]).Set(t.Context(), "k", nil); err != nil {
		t.Error(err)
	}
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			keys := m.Keys(outcomes[i].Round)
			if errs[i] = store.GenericBarrier(t.Context(), keys, "torchelastic/agent/terminal_state", 2); errs[i] == nil {
				errs[i] = m.Shutdown(t.Context(), rendezvous.EndSuccess, "done")
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	for _, m := range members {
		if m.NodesWaiting() != 0 {
			t.Errorf("a successful end makes the others regroup: %s", m.Reason())
		}
	}
}

func TestStandalone(t *testing.T) {
	m := open(t, "", "localhost:0", 1, 1, nil)
	o := next(t, m)[0]
	if err := dial(t, o).Set(t.Context(), "k", nil); err != nil {
		t.Error(err)
	}
	if err := m.Shutdown(t.Context(), rendezvous.EndSuccess, ""); err != nil {
		t.Error(err)
	}
}

func TestFixedStorePort(t *testing.T) {
	endpoint := serve(t)
	port := testkit.FreePort(t)
	a := open(t, "a", endpoint, 1, 2, map[string]string{"store_port": strconv.Itoa(port), "quiet_period": "0.001"})
	first := next(t, a)[0]
	if first.StorePort != port {
		t.Fatalf("got %+v; want port %d", first, port)
	}
	old := dial(t, first)
	if err := old.Set(t.Context(), "k", []byte("old")); err != nil {
		t.Fatal(err)
	}
	second := next(t, a)[0]
	if second.StorePort != port || second.Round != 2 {
		t.Fatalf("got %+v; want round 2 on port %d", second, port)
	}
	if ok, err := dial(t, second).Check(t.Context(), []string{"k"}); err != nil || ok {
		t.Errorf("the new round's store holds the old key: %v, %v", ok, err)
	}
	if v, err := old.Get(t.Context(), "k"); err != nil || string(v) != "old" {
		t.Errorf("an old connection lost its store: %q, %v", v, err)
	}
}

func TestNoControlPlane(t *testing.T) {
	endpoint := net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t)))
	m := open(t, "a", endpoint, 2, 2, map[string]string{"is_host": "0", "join_timeout": "0.2"})
	_, err := m.Next(t.Context())
	if !errors.Is(err, rendezvous.ErrConnection) || !strings.Contains(err.Error(), endpoint) || !strings.Contains(err.Error(), "is_host=0") {
		t.Errorf("got %v", err)
	}
}

func TestAnotherRunOnThePort(t *testing.T) {
	endpoint := net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t)))
	next(t, open(t, "a", endpoint, 1, 1, nil))
	p := params.Default()
	p.RunID, p.Min, p.Max = "other", 1, 1
	controltest.MeetAt(&p, endpoint)
	m, err := Open(p, logTo(t, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.Next(t.Context()); !errors.Is(err, rendezvous.ErrTenant) {
		t.Errorf("got %v", err)
	}
}

// TestHostRecords has the process that hosts write down what it did, and no other.
func TestHostRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	endpoint := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
	options := map[string]string{"record": path}
	a, b := open(t, "a/1", endpoint, 2, 2, options), open(t, "b", endpoint, 2, 2, options)
	o := next(t, a, b)[0]
	for _, m := range []*member.Member{b, a} {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var records []trace.Record
	files, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			rec, err := trace.Decode(line)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			records = append(records, rec)
		}
	}
	if len(records) == 0 {
		t.Fatalf("%d files, and no record", len(files))
	}
	first := records[0]
	if first.State == nil || first.Host != "a/1" && first.Host != "b" || first.Succession == nil || first.Succession.Term != 1 {
		t.Errorf("it begins with host %q, succession %+v", first.Host, first.Succession)
	}
	if n := len(records) - 1; o.World != 2 || records[n].Number < 4 {
		t.Errorf("%d records, the last one is of event %d", n+1, records[n].Number)
	}
}
