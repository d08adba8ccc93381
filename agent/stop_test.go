package agent

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/core/rendezvous"
)

// announcing is a rendezvous of several nodes that the test steers, by which they announce
// stops.
type announcing struct {
	*rounds
	announced func(leaving bool, reason string) error // called by AnnounceStop; nil: nothing
	asked     func(rendezvous.AnnounceStop) error     // the same, if it is not nil
	stop      rendezvous.RoundStop                    // guarded by mu
}

func newAnnouncing(world int) *announcing {
	return &announcing{rounds: newRounds(world)}
}

func (an *announcing) AnnounceStop(_ context.Context, stop rendezvous.AnnounceStop) error {
	if an.asked != nil {
		return an.asked(stop)
	}
	if an.announced == nil {
		return nil
	}
	return an.announced(stop.Leaving, stop.Reason)
}

func (an *announcing) Stopped(round uint64) rendezvous.RoundStop {
	an.mu.Lock()
	defer an.mu.Unlock()
	if an.stop.Round != round {
		return rendezvous.RoundStop{}
	}
	return an.stop
}

// tell lets another node announce the stop of the present round.
func (an *announcing) tell(stop rendezvous.RoundStop) {
	an.mu.Lock()
	stop.Round = an.round
	an.stop, an.waiting = stop, 1
	an.mu.Unlock()
	an.news.Set()
}

// use prepares the harness's agent with the rendezvous, of which every node has one worker.
func (an *announcing) use(t *testing.T, s *harness) {
	t.Helper()
	s.rdzv, s.spec.Identical = an.rounds, true
	a, err := New(s.spec, "test", an, discard())
	if err != nil {
		t.Fatal(err)
	}
	s.agent = a
}

// TestAnnouncedBeforeStop: when the others learn of it, the workers run and have received no signal,
// both after a failure and after a signal to the agent.
func TestAnnouncedBeforeStop(t *testing.T) {
	const script = `echo $$ > $SAY; [ $RANK = 1 ] || exec sleep 100; read go < $GO; exit 7`
	for _, leaving := range []bool{false, true} {
		s := newHarness(t, 2, script)
		goFile := s.goFile()
		r := newAnnouncing(2)
		workers := make(chan []int, 1)
		var reason string
		calls := 0
		r.announced = func(leaves bool, why string) error {
			calls++
			reason = why
			if leaves != leaving {
				t.Errorf("leaving is %v, announced was %v", leaving, leaves)
			}
			running := 0
			for _, pid := range <-workers {
				if state, there := processState(pid); there && state != 'Z' {
					running++
				}
			}
			if want := map[bool]int{false: 1, true: 2}[leaving]; running != want {
				t.Errorf("leaving %v: %d workers run when it is announced, want %d", leaving, running, want)
			}
			return nil
		}
		r.use(t, s)
		s.start()
		workers <- s.hearPids(2)
		if leaving {
			s.agent.Signal(unix.SIGTERM)
			expectSignal(t, s.wait(), unix.SIGTERM)
			if !strings.Contains(reason, "got signal: 15") {
				t.Errorf("the reason is %q", reason)
			}
		} else {
			if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
				t.Fatal(err)
			}
			if failures := s.failed(s.wait()); failures[0].ExitCode != 7 || !strings.Contains(reason, "worker of rank 1 (local rank 1, pid ") {
				t.Errorf("%+v, announced as %q", failures[0], reason)
			}
		}
		if calls != 1 {
			t.Errorf("it was announced %d times", calls)
		}
	}
}

// TestStopsWithOthers: an attempt that ends by an announced stop, or after it, has not failed, costs no
// restart and is announced no further.
func TestStopsWithOthers(t *testing.T) {
	t.Run("signalled", func(t *testing.T) {
		s := newHarness(t, 1, `echo $TORCHELASTIC_RESTART_COUNT > $SAY; [ $RALLYPOINT_ROUND = 2 ] && exit 0
			trap 'exit 9' TERM; while :; do sleep 0.1; done`)
		r := newAnnouncing(2)
		r.announced = func(bool, string) error { t.Error("it announces the stop of another node"); return nil }
		r.use(t, s)
		s.agent.spec.ExitBarrierTimeout = 0
		s.start()
		s.hear()
		r.tell(rendezvous.RoundStop{Rank: 1, Leaving: true, Reason: "got signal"})
		if count := s.hear(); count != "0" {
			t.Errorf("the next attempt has restart count %s", count)
		}
		if err := s.wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("failed before it was noticed", func(t *testing.T) {
		s := newHarness(t, 1, `echo $TORCHELASTIC_RESTART_COUNT > $SAY; [ $RALLYPOINT_ROUND = 2 ] && exit 0; read go < $GO; exit 9`)
		goFile := s.goFile()
		r := newAnnouncing(2)
		r.announced = func(bool, string) error { t.Error("it announces a stop behind that of another node"); return nil }
		r.use(t, s)
		s.agent.spec.ExitBarrierTimeout, s.agent.spec.MaxRestarts = 0, 3
		s.start()
		s.hear()
		r.set(func() { r.stop = rendezvous.RoundStop{Round: 1, Rank: 1, Reason: "failed"} }) // no node waits yet
		if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		if count := s.hear(); count != "0" {
			t.Errorf("the next attempt has restart count %s", count)
		}
		if err := s.wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("failed after it", func(t *testing.T) {
		s := newHarness(t, 1, `echo $TORCHELASTIC_RESTART_COUNT > $SAY; [ $RALLYPOINT_ROUND = 2 ] && exit 0; read go < $GO; exit 9`)
		goFile := s.goFile()
		r := newAnnouncing(2)
		r.announced = func(bool, string) error { // it comes while another node's is on its way
			r.mu.Lock()
			r.stop = rendezvous.RoundStop{Round: 1, Rank: 1, Leaving: true, Reason: "got signal", Lost: true}
			r.mu.Unlock()
			return nil
		}
		r.use(t, s)
		s.agent.spec.ExitBarrierTimeout = 0
		s.start()
		s.hear()
		if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		if count := s.hear(); count != "0" { // and there are no restarts
			t.Errorf("the next attempt has restart count %s", count)
		}
		if err := s.wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestCutOffBeforeAnnouncing: a node that can tell no other stops its workers all the same.
func TestCutOffBeforeAnnouncing(t *testing.T) {
	s := newHarness(t, 2, "[ $RANK = 1 ] && exit 7; exec sleep 100")
	r := newAnnouncing(2)
	r.announced = func(bool, string) error { return errors.New("no route") }
	r.use(t, s)
	if failures := s.failed(s.run()); failures[0].ExitCode != 7 {
		t.Errorf("failures %+v", failures)
	}
}

// TestAnnouncedCulprit is the root cause, also if another node's report came first.
func TestAnnouncedCulprit(t *testing.T) {
	r := newAnnouncing(3)
	for _, f := range []failure.Failure{{Rank: 1, ExitCode: 5, Host: "b"}, {Rank: 2, ExitCode: 7, Host: "c"}} {
		inRound(t, r.rounds, f.Rank).publishFailure(&f)
	}
	s := newHarness(t, 1, "echo up > $SAY; exec sleep 100")
	r.use(t, s)
	s.start()
	s.hear()
	r.set(func() {
		r.closed = true
		r.refusal = rendezvous.Errorf(rendezvous.CodeClosed, "closed by c")
	})
	r.tell(rendezvous.RoundStop{Rank: 2, Reason: "rank 2 failed"})
	var peer *PeerError
	if err := s.wait(); !errors.As(err, &peer) {
		t.Fatalf("the run ended with %v", err)
	}
	ranks := []int{peer.Failures[0].Rank, peer.Failures[1].Rank}
	if root := failure.RootCause(peer.Failures); !slices.Equal(ranks, []int{2, 1}) || root != 0 {
		t.Errorf("failures of ranks %v, the root cause is %d", ranks, root)
	}
}

// TestLostNodeWithAnnouncement: that nodes wait because of this node's own announcement, and
// have regrouped by it, is no loss; a loss beside it is.
func TestLostNodeWithAnnouncement(t *testing.T) {
	for _, lost := range []bool{false, true} {
		r := newAnnouncing(2)
		r.round, r.waiting, r.stop = 1, 1, rendezvous.RoundStop{Round: 1, Rank: 0, Lost: lost}
		s := newHarness(t, 1, "exit 0")
		r.use(t, s)
		a := s.agent
		a.assignment = &assignment{Outcome: rendezvous.Outcome{Round: 1}, groups: 2, keys: r.Keys(1)}
		stopPeer := AnswerBarriers(r.Keys(1), 2)
		stopOwn := AnswerBarriers(a.assignment.keys, a.assignment.groups)
		a.spec.LostNodeTimeout = time.Hour
		if got := a.lostNode(); got != lost {
			t.Errorf("lost %v: %v", lost, got)
		}
		stopPeer()
		stopOwn()
	}
}

// TestRestartDelayInRound: the pause before a restart comes when the node has its place, so
// that no other node waits for it beyond regroup_timeout; a signal and a regroup end it.
func TestRestartDelayInRound(t *testing.T) {
	s := newHarness(t, 1, "echo $RALLYPOINT_ROUND > $SAY; exit 1")
	s.spec.MaxRestarts, s.spec.RestartDelay = 2, 24*time.Hour
	joined := make(chan uint64, 8)
	s.spec.Notify = func(e Event) {
		if e.Kind == EventJoined {
			joined <- e.Round
		}
	}
	s.start()
	s.hear()
	for round := range uint64(2) {
		if got := <-joined; got != round+1 {
			t.Fatalf("joined round %d", got)
		}
	}
	s.rdzv.set(func() { s.rdzv.waiting = 1 })
	if got := <-joined; got != 3 {
		t.Fatalf("joined round %d", got)
	}
	s.agent.Signal(unix.SIGTERM)
	expectSignal(t, s.wait(), unix.SIGTERM)
}
