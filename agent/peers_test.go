package agent

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/core/rendezvous"
)

// inRound makes an agent that is a member of round 1 of a job of some nodes.
func inRound(t *testing.T, r *rounds, rank int) *Agent {
	t.Helper()
	s := newHarness(t, 1, "exit 0")
	a, err := New(s.spec, "test", r, discard())
	if err != nil {
		t.Fatal(err)
	}
	a.assignment = &assignment{Outcome: rendezvous.Outcome{Round: 1}, group: rank, groups: r.world, keys: r.Keys(1)}
	return a
}

// TestExitBarrier holds each agent until all have succeeded.
func TestExitBarrier(t *testing.T) {
	r := newRounds(3)
	var wg sync.WaitGroup
	for rank := range r.world {
		a := inRound(t, r, rank)
		wg.Go(func() {
			if err := a.exitBarrier(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestExitBarrierEnds neither by its limit nor by an error of the store makes a
// success a failure.
func TestExitBarrierEnds(t *testing.T) {
	r := newRounds(2)
	for _, limit := range []time.Duration{0, time.Millisecond} {
		a := inRound(t, r, 0)
		a.spec.ExitBarrierTimeout = limit
		if err := a.exitBarrier(); err != nil {
			t.Errorf("limit %v: %v", limit, err)
		}
	}
	_ = r.Keys(1).Close()
	if err := inRound(t, r, 1).exitBarrier(); err != nil {
		t.Errorf("without a store: %v", err)
	}
}

// TestExitBarrierSignal is not swallowed.
func TestExitBarrierSignal(t *testing.T) {
	a := inRound(t, newRounds(2), 0)
	done := make(chan error)
	go func() { done <- a.exitBarrier() }()
	if err := a.assignment.keys.Wait(t.Context(), []string{rendezvous.ExitBarrierCount}); err != nil {
		t.Fatal(err)
	}
	a.Signal(15)
	expectSignal(t, <-done, 15)
}

// TestPeersFailures tells a node whose workers did not fail who did, in the order
// of the store.
func TestPeersFailures(t *testing.T) {
	r := newRounds(3)
	late := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, f := range []failure.Failure{
		{Rank: 4, Pid: 40, ExitCode: 7, Host: "b", Time: late, Message: "first", ErrorFile: "<N/A>", Stderr: []byte("went wrong\n")},
		{Rank: 2, Pid: 20, ExitCode: 1, Host: "c", Time: late.AddDate(-1, 0, 0), Message: strings.Repeat("é", 16<<10)},
	} {
		inRound(t, r, f.Rank/2).publishFailure(&f)
	}
	s := newHarness(t, 1, "echo up > $SAY; exec sleep 100")
	s.rdzv = r
	s.spec.Identical = true
	s.start()
	s.hear()
	r.set(func() {
		r.closed, r.waiting = true, 1
		r.refusal = rendezvous.Errorf(rendezvous.CodeClosed, "closed by b")
	})
	var peer *PeerError
	if err := s.wait(); !errors.As(err, &peer) || !errors.Is(err, rendezvous.ErrClosed) {
		t.Fatalf("the run ended with %v", err)
	}
	text := peer.Report()
	if len(peer.Failures) != 2 || peer.Failures[0].Rank != 4 || !strings.Contains(text, "Root Cause (first observed failure):\n[0]:") ||
		!strings.Contains(text, "host      : b\n") || !strings.Contains(text, "\n  stderr    :\n    went wrong\n  next      : no restarts left: give --max-restarts\n=") {
		t.Errorf("report:\n%s", text)
	}
	if n := len(peer.Failures[1].Message); n > 512+8 {
		t.Errorf("a message of %d bytes was published", n)
	}
	if s.rdzv.ending != rendezvous.EndLeave {
		t.Errorf("the rendezvous was ended with %v", s.rdzv.ending)
	}
}

// TestLostNode waits, when the budget is spent, until it is known whether a node
// was lost.
func TestLostNode(t *testing.T) {
	t.Run("all are there", func(t *testing.T) {
		r := newRounds(3)
		var there []func()
		for range r.world {
			there = append(there, AnswerBarriers(r.Keys(1), r.world))
		}
		a := inRound(t, r, 0)
		a.spec.LostNodeTimeout = time.Hour
		if a.lostNode() {
			t.Error("a node is taken as lost")
		}
		for _, stop := range there {
			stop()
		}
	})
	t.Run("lost", func(t *testing.T) {
		r := newRounds(2)
		a := inRound(t, r, 0)
		a.spec.LostNodeTimeout = time.Hour
		defer AnswerBarriers(a.assignment.keys, a.assignment.groups)()
		r.set(func() { r.waiting = 1 })
		if !a.lostNode() {
			t.Error("the loss was not seen")
		}
	})
	t.Run("silence", func(t *testing.T) {
		a := inRound(t, newRounds(2), 0)
		a.spec.LostNodeTimeout = time.Millisecond
		if a.lostNode() {
			t.Error("a node is taken as lost")
		}
	})
	t.Run("alone", func(t *testing.T) {
		a := inRound(t, newRounds(1), 0)
		a.spec.LostNodeTimeout = time.Hour
		if a.lostNode() {
			t.Error("a node is taken as lost")
		}
	})
}

// TestCollateral gives a restart's charge back if the next round goes on without
// a lost node.
func TestCollateral(t *testing.T) {
	for want, dropped := range map[string][]string{"1": nil, "0": {"b (lost)"}} {
		s := newHarness(t, 1, "echo $TORCHELASTIC_RESTART_COUNT > $SAY; [ $RALLYPOINT_ROUND = 2 ] && exit 0; exit 1")
		s.spec.MaxRestarts = 1
		s.rdzv.dropped = map[uint64][]string{2: dropped}
		s.start()
		s.hear()
		if got := s.hear(); got != want {
			t.Errorf("without %q the second attempt has count %s", dropped, got)
		}
		if err := s.wait(); err != nil {
			t.Error(err)
		}
	}
}
