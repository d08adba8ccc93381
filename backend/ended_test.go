package backend

import (
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"

	"rallypoint/core/control"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// endings are how a run ends that stays closed, and what a node gets that comes late.
var endings = map[string]struct {
	end  func(t *testing.T, nodes []*member.Member)
	want error
}{
	"after a success": {func(t *testing.T, nodes []*member.Member) { leaveAll(t, nodes, rendezvous.EndSuccess) }, rendezvous.ErrGraceful},
	"after set_closed": {func(t *testing.T, nodes []*member.Member) {
		if err := nodes[0].SetClosed(t.Context(), "enough"); err != nil {
			t.Fatal(err)
		}
		leaveAll(t, nodes, rendezvous.EndLeave)
	}, rendezvous.ErrClosed},
}

func leaveAll(t *testing.T, nodes []*member.Member, ending rendezvous.Ending) {
	t.Helper()
	errs := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { errs <- n.Shutdown(t.Context(), ending, "done") }()
	}
	for range nodes {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// closedRun is a run of two nodes that has ended; what follows concerns the places that keep it.
func closedRun(t *testing.T, r *run, end func(*testing.T, []*member.Member), options ...string) {
	t.Helper()
	if strings.HasSuffix(t.Name(), "/blob") {
		t.Skip("a value that a program brings has no clock: see OpenRegister")
	}
	nodes := r.nodes(2, 1, 3, append(options, "target=2")...)
	round(t, nodes...)
	end(t, nodes)
}

// Guarantee 9: "all future attempts to re-rendezvous (within the same job) will fail", also
// when no node of the run lives any more, until a node is told to begin it again.
func TestAllFutureAttemptsToReRendezvousWillFail(t *testing.T) {
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, r *run) {
				closedRun(t, r, ending.end)
				for _, late := range []string{"late", "later", "n0"} {
					n := r.node(late, 1, 3, "target=2")
					if _, err := n.Next(t.Context()); !errors.Is(err, ending.want) || !strings.Contains(err.Error(), "begin_again=1") {
						t.Fatalf("node %s got %v", late, err)
					}
					leaveAll(t, []*member.Member{n}, rendezvous.EndLeave)
				}
				round(t, r.node("again", 1, 1, "begin_again=1"))
			})
		})
	}
}

// Guarantee 9: a closed run begins again when its time is over, although no node of it has
// lived to see that.
func TestClosedRunBeginsAgainWhenItsTimeIsOver(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		closedRun(t, r, endings["after a success"].end, "closed_for=0.2")
		testkit.Eventually(t, "it begins again", func() bool {
			n := r.node("late", 1, 1, "closed_for=0.2")
			_, err := n.Next(t.Context())
			if err != nil && !errors.Is(err, rendezvous.ErrGraceful) {
				t.Fatal(err)
			}
			leaveAll(t, []*member.Member{n}, rendezvous.EndLeave)
			return err == nil
		})
	})
}

// Guarantee 9: a run without an id of its own begins again at once, and its first node says so in
// one line: people repeat a command. A value that a program brings keeps no end.
func TestRunWithoutAnIDBeginsAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		log, written := testkit.NewLog(t)
		open := r.open
		opened := 0
		r.open = func(p params.Params, _ *slog.Logger) (*member.Member, error) {
			p.RunID = rendezvous.NoRunID
			opened++
			return open(p, log.With("process", opened))
		}
		closedRun(t, r, endings["after a success"].end)
		if said := written.With("begins again"); len(said) > 0 {
			t.Errorf("before it had ended: %q", said)
		}
		again := r.nodes(2, 1, 3, "target=2")
		round(t, again...)
		again3, again4 := written.With("level=INFO", "the run begins again; it ended successfully by n", "process=3"), written.With("level=INFO", "the run begins again; it ended successfully by n", "process=4")
		if len(again3) > 1 || len(again4) > 1 || len(again3)+len(again4) == 0 { // the first node, and the one that leads
			t.Errorf("these lines say that the run begins again: %q, %q", again3, again4)
		}
	})
}

// Guarantee 9: a failed run begins again at once.
func TestFailedRunBeginsAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(2, 1, 3, "target=2")
		round(t, nodes...)
		leaveAll(t, nodes, rendezvous.EndFailed)
		round(t, r.node("late", 1, 1))
	})
}

// Guarantee 9: an administrator has a closed run begin again.
func TestForget(t *testing.T) {
	forget := func(t *testing.T, endpoint string) {
		t.Helper()
		r := &run{t, at(endpoint)}
		closedRun(t, r, endings["after a success"].end)
		a := Admin{At: testkit.Must(Locate(endpoint))(t), RunID: "job", Timeout: patience}
		for i, want := range []error{nil, rendezvous.ErrInvalid} {
			if answer, err := a.Ask(t.Context(), rendezvous.Forget{Reason: "once more"}); !errors.Is(err, want) {
				t.Fatalf("try %d: %+v, %v", i, answer, err)
			}
		}
		round(t, r.node("again", 1, 1))
	}
	t.Run("hosted", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := control.Start(control.Config{}, l)
		t.Cleanup(func() { s.Close() })
		forget(t, l.Addr().String())
	})
	t.Run("file", func(t *testing.T) {
		endpoint := "file://" + t.TempDir()
		forget(t, endpoint)
	})
	t.Run("etcd", func(t *testing.T) {
		endpoint := "etcd://" + etcd.Endpoint(t) + "?key_prefix=" + url.QueryEscape("/"+t.Name())
		forget(t, endpoint)
	})
}
