package agent

import (
	"context"
	"testing"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// late is a rendezvous whose first round is over before this node could exchange
// ranks in it: the others have taken it for lost meanwhile.
type late struct{ *rounds }

func (l late) Keys(round uint64) store.Store {
	if round == 1 {
		return over{l.rounds.Keys(round)}
	}
	return l.rounds.Keys(round)
}

// over is the store of a round that is over.
type over struct{ store.Store }

func (over) Set(context.Context, string, []byte) error {
	return rendezvous.Errorf(rendezvous.CodeRoundOver, "round 1 is over")
}

// TestRoundOverBeforeRanks regroups, and does not fail: nothing is wrong here.
func TestRoundOverBeforeRanks(t *testing.T) {
	s := newHarness(t, 1, "exit 0")
	a, err := New(s.spec, "test", late{s.rdzv}, discard())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err != nil || s.rdzv.round != 2 {
		t.Errorf("the run ended with %v in round %d", err, s.rdzv.round)
	}
}
