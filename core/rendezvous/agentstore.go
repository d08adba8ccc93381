package rendezvous

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"rallypoint/core/store"
	"rallypoint/internal/pack"
)

// Default limits of the agents' keys of one round. They are small: a few hundred
// bytes a node.
const (
	DefaultMaxKeyBytes = 256 << 20
	DefaultMaxKeys     = 1 << 22
)

// agentStore is the agents' keys of one round.
type agentStore struct {
	engine *store.Engine
	woken  []*keyWait // waits ended by the write being applied
}

// keyRequest applies one operation on the agents' keys. Only members of the last
// round have keys, and only those of that round.
func (m *Machine) keyRequest(n *node, r KeyRequest) {
	if err := m.keyRefusal(n, r); err != nil {
		m.nodes.fail(n, r.Number, err)
		return
	}
	if r.Op == opRefuse {
		m.nodes.fail(n, r.Number, Errorf(CodeTooLarge, "%s", pack.CutText(r.Keys[0], maxRefusal)))
		return
	}
	if m.keys == nil {
		m.keys = &agentStore{engine: store.NewEngine(m.limits.Keys)}
	}
	space := m.keys
	if m.ranksLost(space, r) {
		m.round.overtake(fmt.Sprintf("the ranks of round %d were being assigned when the control plane was restarted, and what had been written of them is lost", m.round.number))
		m.nodes.fail(n, r.Number, Errorf(CodeRoundOver, "run %q: round %d is over: %s", m.runID, m.round.number, m.round.overtaken))
		return
	}
	if r.Op == store.OpCancelWait {
		m.cancelWait(n, r)
		return
	}
	if err := m.room(r); err != nil {
		m.nodes.fail(n, r.Number, err)
		return
	}
	if m.applyKey(space, &keyWait{node: n, req: r, engine: space.engine}) {
		m.noteKey(n, r)
	}
	m.serveWoken(space)
}

// keyRefusal returns why the node may not do the operation, nil if it may.
func (m *Machine) keyRefusal(n *node, r KeyRequest) *Error {
	if r.Round != m.round.number || m.round.participantOf(n) == nil || m.round.disowned() {
		return Errorf(CodeRoundOver, "run %q: node %s is not a member of round %d any more", m.runID, n.id, r.Round)
	}
	return checkKeyRequest(r)
}

// endWaits ends the waits of a node that is no member any more.
func (m *Machine) endWaits(n *node) {
	for _, number := range slices.Sorted(maps.Keys(n.waits)) {
		m.nodes.dropWait(n, number)
		m.nodes.fail(n, number, Errorf(CodeRoundOver, "run %q: node %s is not a member of round %d any more", m.runID, n.id, m.round.number))
	}
}

// serveWoken carries on the waits that a write ended. Serving one can end
// others (a pop, a barrier), so it goes on until none is left.
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
			m.applyKey(space, w)
		}
	}
}

// applyKey does the operation, or leaves it waiting; ok is false if it failed.
func (m *Machine) applyKey(space *agentStore, w *keyWait) (ok bool) {
	space.prepare(w)
	result, done, err := space.engine.Apply(w.req.onStore(), &w.waiter)
	switch {
	case err != nil:
		m.nodes.fail(w.node, w.req.Number, keyError(m.runID, w.req, err))
	case done:
		m.nodes.answer(w.node, w.req.Number, KeyResult(result))
	default:
		m.waitSeq++
		w.seq = m.waitSeq
		m.nodes.addWait(w)
	}
	return err == nil
}

// onStore returns the request to the store that holds the keys.
func (k KeyRequest) onStore() store.Request {
	return store.Request{Op: k.Op, Keys: k.Keys, Values: k.Values, Number: k.Amount, Block: k.Amount != 0}
}

// prepare makes w tell the space when it is over.
func (a *agentStore) prepare(w *keyWait) {
	w.waiter.Wake = func() { a.woken = append(a.woken, w) }
}

// checkKeyRequest refuses a request whose lists do not fit its operation.
func checkKeyRequest(r KeyRequest) *Error {
	keys, values := 1, 0
	switch r.Op {
	case store.OpSet, store.OpAppend, store.OpQueuePush:
		values = 1
	case store.OpCompareSet:
		values = 2
	case store.OpNumKeys, store.OpListKeys, store.OpCancelWait:
		keys = 0
	case store.OpCheck, store.OpWait, store.OpMultiGet:
		keys = len(r.Keys)
	case store.OpMultiSet:
		keys, values = len(r.Keys), len(r.Keys)
	case store.OpGet, store.OpAdd, store.OpDelete, store.OpQueuePop, store.OpQueueLen, store.OpBarrier, opRefuse:
	default:
		return Errorf(CodeInvalid, "key operation %d is not known to this version", r.Op)
	}
	if len(r.Keys) != keys || len(r.Values) != values {
		return Errorf(CodeInvalid, "key operation %d with %d keys and %d values", r.Op, len(r.Keys), len(r.Values))
	}
	return nil
}

// cancelWait ends a wait of the node; the wait itself is answered too, so that
// each request has one answer.
func (m *Machine) cancelWait(n *node, r KeyRequest) {
	number := uint64(r.Amount)
	_, ok := n.waits[number]
	if ok {
		m.nodes.dropWait(n, number)
		m.nodes.fail(n, number, Errorf(CodeCanceled, "the wait was canceled"))
	}
	m.nodes.answer(n, r.Number, KeyResult{Ready: ok})
}

// dropKeys forgets the keys of a round that is over.
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

// quotaHint says where the limits of keys come from.
const quotaHint = "; the agents of a job need little, so look what fills it; `rallypoint serve` takes --max-keys and --max-key-bytes"

func keyError(runID string, r KeyRequest, err error) *Error {
	code, hint := CodeInternal, ""
	switch {
	case errors.Is(err, store.ErrQuota):
		code, hint = CodeTooLarge, quotaHint
	case errors.Is(err, store.ErrNotNumber):
		code = CodeNumber
	case errors.Is(err, store.ErrTooLarge):
		code = CodeTooLarge
	case errors.Is(err, store.ErrQueueEmpty):
		code = CodeEmpty
	case errors.Is(err, store.ErrArguments):
		code = CodeInvalid
	}
	return Errorf(code, "run %q, round %d, key %.200q: %v%s", runID, r.Round, r.Keys[0], err, hint)
}
