package main

import (
	"context"
	"testing"
	"time"

	"rallypoint/backend"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
	"rallypoint/internal/wake"
)

// roundsOf is a node in rounds of two, whose keys the test has.
type roundsOf struct {
	backend.Node
	keys    []*store.Memory
	changed wake.Signal
}

func (r *roundsOf) Next(context.Context) (rendezvous.Outcome, error) {
	if len(r.keys) == 3 {
		return rendezvous.Outcome{}, rendezvous.ErrClosed
	}
	r.keys = append(r.keys, store.NewMemory(store.NewEngine(store.Limits{})))
	return rendezvous.Outcome{Round: uint64(len(r.keys)), World: 2}, nil
}

func (r *roundsOf) Keys(round uint64) store.Store { return r.keys[round-1] }
func (r *roundsOf) Changed() <-chan struct{}      { return r.changed }
func (r *roundsOf) Close() error                  { return nil }

// TestMemberAnswersBarriers: an agent of another kind, as torch's, knows nothing of them. Its
// node says that it is there in the round that it is in, until the next one has begun.
func TestMemberAnswersBarriers(t *testing.T) {
	n := &roundsOf{changed: wake.New()}
	m := newMember(n)
	for round := range 2 {
		if _, err := m.next(t.Context()); err != nil {
			t.Fatal(err)
		}
		keys := n.keys[round]
		testkit.Check(t, keys.Set(t.Context(), "rallypoint/roll_call", []byte("1"))) // by an agent of ours
		testkit.Check(t, keys.Wait(testkit.Within(t, time.Minute), []string{"rallypoint/roll_call/present"}))
		if count, err := keys.Add(t.Context(), "rallypoint/roll_call/present", 0); err != nil || count != 1 {
			t.Errorf("%d answers of a node, %v", count, err)
		}
	}
	_ = testkit.Must(m.next(t.Context()))(t) // nobody asks in this round before it is over
	if _, err := m.next(t.Context()); rendezvous.CodeOf(err) != rendezvous.CodeClosed {
		t.Error(err)
	}
	testkit.Check(t, n.keys[2].Set(t.Context(), "rallypoint/roll_call", []byte("1")))
	if count, err := n.keys[2].Add(t.Context(), "rallypoint/roll_call/present", 0); err != nil || count != 0 {
		t.Errorf("it answers in a round that is over: %d, %v", count, err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
