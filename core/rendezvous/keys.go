package rendezvous

import (
	"maps"
	"slices"

	"rallypoint/core/store"
)

// serveWoken carries on the waits that a write ended. Serving one can end
// others (a pop, a barrier), so it repeats until none is left.
func (m *Machine) serveWoken(space *agentStore) {
	for len(space.woken) > 0 {
		w := space.woken[0]
		space.woken = space.woken[1:]
		m.nodes.dropWait(w.node, w.req.Number)
		if w.req.Op == store.OpWait || w.req.Op == store.OpBarrier { // a count-down, not a recheck
			m.nodes.answer(w.node, w.req.Number, KeyResult{Ready: true})
		} else if err := m.room(w.req); err != nil {
			m.nodes.fail(w.node, w.req.Number, err)
		} else {
			m.nodes.applyKey(space, w)
		}
	}
}

// applyKey does the operation, or leaves it waiting; ok is false if it failed.
func (ns *nodes) applyKey(space *agentStore, w *keyWait) (ok bool) {
	space.register(w)
	result, done, err := space.engine.Apply(w.req.onStore(), &w.waiter)
	switch {
	case err != nil:
		ns.fail(w.node, w.req.Number, keyError(ns.run.runID, w.req, err))
	case done:
		ns.answer(w.node, w.req.Number, KeyResult(result))
	default:
		ns.addWait(w)
	}
	return err == nil
}

// cancelWait ends a wait of the node; the wait itself is answered too, so that
// each request has one answer.
func (ns *nodes) cancelWait(n *node, r KeyRequest) {
	number := uint64(r.Amount)
	_, ok := n.waits[number]
	if ok {
		ns.dropWait(n, number)
		ns.fail(n, number, Errorf(CodeCanceled, "the wait was canceled"))
	}
	ns.answer(n, r.Number, KeyResult{Ready: ok})
}

func (m *Machine) endWaits(n *node) {
	for _, number := range slices.Sorted(maps.Keys(n.waits)) {
		m.nodes.dropWait(n, number)
		m.nodes.fail(n, number, Errorf(CodeRoundOver, "run %q: node %s is not a member of round %d any more", m.runID, m.names.of(n.id), m.round.number))
	}
}

func (m *Machine) dropKeys(round uint64) {
	if m.keys == nil {
		return
	}
	for _, n := range m.nodes.sessions {
		for number := range n.waits {
			m.nodes.dropWait(n, number)
			m.nodes.fail(n, number, Errorf(CodeRoundOver, "run %q: round %d is over", m.runID, round))
		}
	}
	m.keys = nil
}
