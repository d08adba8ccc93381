package static

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func staticParams(port, nodes, rank int) params.Params {
	p := params.Default()
	p.RunID, p.Min, p.Max, p.NodeRank = "run", nodes, nodes, rank
	p.Endpoint = fmt.Sprintf("%s127.0.0.1:%d", Scheme, port)
	return p
}

func newNode(t *testing.T, p params.Params) *Static {
	t.Helper()
	s, err := NewStatic(p, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

type answer struct {
	rendezvous.Outcome
	err error
}

func next(t *testing.T, s *Static) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		o, err := s.Next(t.Context())
		done <- answer{o, err}
	}()
	return done
}

// TestRounds goes through two rounds of three nodes: each has keys of its own, and
// the node that starts over takes the others with it.
func TestRounds(t *testing.T) {
	port := testkit.FreePort(t)
	var nodes []*Static
	for rank := range 3 {
		nodes = append(nodes, newNode(t, staticParams(port, 3, rank)))
	}
	for round := uint64(1); round <= 2; round++ {
		var joins []<-chan answer
		for i := range nodes {
			joins = append(joins, next(t, nodes[(i+1)%3])) // node 0 is the last
			if round == 2 && i == 0 {
				for _, other := range []*Static{nodes[0], nodes[2]} {
					<-other.Changed()
					if other.NodesWaiting() == 0 || other.Closed() || other.Reason() != "node 1 starts over" {
						t.Errorf("after a restart elsewhere: %d waiting, closed %v, %q", other.NodesWaiting(), other.Closed(), other.Reason())
					}
				}
			}
		}
		for i, join := range joins {
			want := rendezvous.Outcome{Round: round, Rank: (i + 1) % 3, World: 3, HostRank: -1, StoreAddr: "127.0.0.1", StorePort: port, AdvertisedAddr: "127.0.0.1"}
			if got := <-join; got.err != nil || fmt.Sprint(got.Outcome) != fmt.Sprint(want) {
				t.Fatalf("outcome %+v, error %v, want %+v", got.Outcome, got.err, want)
			}
		}
		for _, s := range nodes {
			if n := s.NodesWaiting(); n != 0 {
				t.Errorf("%d nodes wait in a new round", n)
			}
		}
		there, err := nodes[1].Keys(round).Check(t.Context(), []string{"k"})
		if err != nil || there {
			t.Errorf("round %d begins with keys: %v, %v", round, there, err)
		}
		if err := nodes[2].Keys(round).Set(t.Context(), "k", []byte("v")); err != nil {
			t.Error(err)
		}
	}
}

// TestFailure tells the others, and node 0 stays until they know.
func TestFailure(t *testing.T) {
	port := testkit.FreePort(t)
	host, other := newNode(t, staticParams(port, 2, 0)), newNode(t, staticParams(port, 2, 1))
	a, b := next(t, host), next(t, other)
	if x, y := <-a, <-b; x.err != nil || y.err != nil {
		t.Fatal(x.err, y.err)
	}
	ended := make(chan error, 1)
	go func() { ended <- host.Shutdown(t.Context(), rendezvous.EndFailed, "rank 0 failed") }()
	<-other.Changed()
	if !other.Closed() || other.NodesWaiting() == 0 || other.Reason() != "rank 0 failed" {
		t.Errorf("closed %v, %d waiting, %q", other.Closed(), other.NodesWaiting(), other.Reason())
	}
	if got := <-next(t, other); !errors.Is(got.err, rendezvous.ErrClosed) || !strings.Contains(got.err.Error(), "rank 0 failed") {
		t.Errorf("joining a failed run: %v", got.err)
	}
	if err := other.Shutdown(t.Context(), rendezvous.EndLeave, ""); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestReasonIsText: what another node, or a stranger, wrote as its reason does nothing to
// a terminal, and is short.
func TestReasonIsText(t *testing.T) {
	port := testkit.FreePort(t)
	first, second := newNode(t, staticParams(port, 2, 0)), newNode(t, staticParams(port, 2, 1))
	joins := []<-chan answer{next(t, first), next(t, second)}
	for _, join := range joins {
		if got := <-join; got.err != nil {
			t.Fatal(got.err)
		}
	}
	second.tell(t.Context(), second.client, 1, tellFailed+"\x1b]0;title\x07\r\nroot# \x1b[2J"+strings.Repeat("x", 1<<20))
	<-first.Changed()
	reason := first.Reason()
	if !first.Closed() || strings.ContainsAny(reason, "\x1b\x07\r\n") || len(reason) > 4*maxTold || !strings.Contains(reason, "root# ") {
		t.Errorf("%d bytes: %.200q", len(reason), reason)
	}
	third := newNode(t, staticParams(testkit.FreePort(t), 1, 0))
	if got := <-next(t, third); got.err != nil {
		t.Fatal(got.err)
	}
	// A stranger is not bound to what tell writes.
	if err := third.client.Set(t.Context(), third.key(1, overKey), []byte(tellRegroup+"\x1b[2J"+strings.Repeat("x", 1<<20))); err != nil {
		t.Fatal(err)
	}
	<-third.Changed()
	if reason := third.Reason(); strings.Contains(reason, "\x1b") || len(reason) > 4*maxTold {
		t.Errorf("%d bytes: %.200q", len(reason), reason)
	}
}

// TestMissing says who is not there when the time is over.
func TestMissing(t *testing.T) {
	p := staticParams(testkit.FreePort(t), 3, 0)
	p.JoinTimeout = 50 * time.Millisecond
	got := <-next(t, newNode(t, p))
	if !errors.Is(got.err, rendezvous.ErrTimeout) || !strings.Contains(got.err.Error(), "missing: node rank 1, 2") {
		t.Errorf("error %v", got.err)
	}
	p.NodeRank = 1
	got = <-next(t, newNode(t, p))
	if !errors.Is(got.err, rendezvous.ErrTimeout) || !strings.Contains(got.err.Error(), "node 0 at 127.0.0.1:") {
		t.Errorf("error %v", got.err)
	}
}

// TestEarlierRun leaves a store alone that an earlier run with the same name and
// rank still serves, and takes part once its own is there.
func TestEarlierRun(t *testing.T) {
	port := testkit.FreePort(t)
	earlier := [2]*Static{newNode(t, staticParams(port, 2, 0)), newNode(t, staticParams(port, 2, 1))}
	a, b := next(t, earlier[0]), next(t, earlier[1])
	<-a
	<-b
	joined := next(t, newNode(t, staticParams(port, 2, 1)))
	time.Sleep(retryPause / 4) // so that it most likely meets the earlier run; the outcome is the same if not
	for _, s := range earlier {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	first := next(t, newNode(t, staticParams(port, 2, 0)))
	for _, join := range []<-chan answer{first, joined} {
		if got := <-join; got.err != nil || got.Round != 1 {
			t.Errorf("outcome %+v, error %v", got.Outcome, got.err)
		}
	}
}

// TestCanceled ends a join by its context, and by Close.
func TestCanceled(t *testing.T) {
	s := newNode(t, staticParams(testkit.FreePort(t), 2, 0))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, rendezvous.ErrCanceled) {
		t.Errorf("error %v", err)
	}
	other := newNode(t, staticParams(testkit.FreePort(t), 2, 0))
	second := next(t, other)
	other.Close()
	if got := <-second; !errors.Is(got.err, rendezvous.ErrCanceled) {
		t.Errorf("error %v", got.err)
	}
}

func TestStaticParams(t *testing.T) {
	for want, change := range map[string]func(*params.Params){
		"endpoint":     func(p *params.Params) { p.Endpoint = Scheme },
		"needs a port": func(p *params.Params) { p.Endpoint = Scheme + "host" },
		"port of node": func(p *params.Params) { p.Endpoint = "host:0" },
		"fixed number": func(p *params.Params) { p.Min = 1 },
		"give the option node_rank (--rdzv-conf=node_rank=N) or the variable PET_NODE_RANK=N": func(p *params.Params) { p.NodeRank = -1 },
		"node_rank is": func(p *params.Params) { p.NodeRank = 2 },
		"run id":       func(p *params.Params) { p.RunID = "" },
	} {
		p := staticParams(1, 2, 1)
		change(&p)
		if _, err := NewStatic(p, nil); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that has %q", err, want)
		}
	}
	p := staticParams(1, 2, -1)
	p.RankHint = 1
	if s, err := NewStatic(p, nil); err != nil || s.p.NodeRank != 1 {
		t.Errorf("a scheduler's hint is not taken: %v", err)
	}
}
