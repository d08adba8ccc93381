package rendezvous

import (
	"fmt"
	"net/netip"
	"slices"

	"rallypoint/internal/wording"
)

// join registers a pending join; settle completes the round when it is due.
func (m *Machine) join(n *node, j Join) {
	if n.ended {
		m.nodes.fail(n, j.Number, Errorf(CodeInvalid, "run %q: node %s has already left", m.runID, m.names.of(n.id)))
		return
	}
	if m.closed != nil {
		m.nodes.fail(n, j.Number, m.round.endedError(n))
		return
	}
	if row := m.directives.rowOf(n.id, n.hostName); row != nil { // it left as unfit, or was cordoned while its workers ran
		m.nodes.fail(n, j.Number, m.directives.drainedError(n.id, row))
		return
	}
	s := m.round.participantOf(n)
	if s != nil && m.round.finishing() {
		m.nodes.fail(n, j.Number, m.round.finishedError())
		return
	}
	if n.join != nil {
		m.nodes.fail(n, n.join.Number, Errorf(CodeCanceled, "run %q: node %s asked again to join", m.runID, m.names.of(n.id)))
		m.forming.dropJoin(n)
	}
	m.forming.joinSeq++
	n.seq = m.forming.joinSeq
	n.join = &j
	n.stale = ""
	m.forming.countJoin(n)
	if s != nil {
		m.round.set(s, participantRejoined, "")
		return
	}
	if other := m.forming.strange(n); other != nil {
		m.forming.refuseJoin(n, m.forming.strangeError(n, other), "")
		return
	}
	m.forming.arrived()
}

// refuseKeptOut answers the joins of nodes that had asked for a place before it was known that they
// are kept out.
func (m *Machine) refuseKeptOut() {
	for _, n := range m.forming.candidates() {
		if row := m.directives.rowOf(n.id, n.hostName); row != nil {
			m.forming.refuseJoin(n, m.directives.drainedError(n.id, row), "is kept out by "+row.By+": "+row.Reason)
		}
	}
}

// withdraw takes a join back. The join is answered, too, so that a node which comes
// back with it does not join again.
func (f *forming) withdraw(n *node, ev Withdraw) {
	if n.join == nil || n.join.Number != ev.Join {
		f.nodes.answer(n, ev.Number, Withdrawn{Completed: true})
		return
	}
	progress := f.waitsFor()
	if f.round.participantOf(n) != nil {
		f.out.note("node %s gave up waiting for the next round", f.nodes.names.of(n.id))
	}
	f.refuseJoin(n, Errorf(CodeCanceled, "run %q: node %s withdrew", f.round.run.runID, f.nodes.names.of(n.id)), "gave up waiting for the next round")
	f.nodes.answer(n, ev.Number, Withdrawn{Progress: progress})
}

// refuseJoin answers a pending join by an error. A member is lost to the regroup: its workers are
// stopped already.
func (f *forming) refuseJoin(n *node, err *Error, cause string) {
	f.nodes.fail(n, n.join.Number, err)
	f.dropJoin(n)
	f.nodes.touch(n)
	if s := f.round.participantOf(n); s != nil {
		f.round.set(s, participantLost, cause)
	}
}

func (r *round) finishedError() *Error {
	text := fmt.Sprintf("run %q cannot regroup after round %d: finished: %s", r.run.runID, r.number, r.finishedNames())
	if r.tally[participantLost] > 0 {
		text += "; lost: " + r.inState(participantLost)
	}
	return &Error{CodeClosed, text}
}

// Progress describes what the pending joins wait for: those that the next round
// is being formed of, and those that wait beside a running round. Names are
// bounded, so the cost does not grow with the texts.
func (m *Machine) Progress() (forming, waiting Progress) {
	return m.forming.progress(), m.forming.waitingProgress()
}

// Forming reports whether the session's pending join is a candidate of a round
// that is being formed now; pending is false if it has none.
func (m *Machine) Forming(session SessionID) (forming, pending bool) {
	n := m.nodes.sessions[session]
	if n == nil || n.join == nil {
		return false, false
	}
	return m.forming.forms(), true
}

// complete forms the next round of the candidates: the only place where a round
// number is taken and ranks are given.
func (m *Machine) complete() {
	candidates := m.forming.candidates()
	ranks := m.forming.assign(candidates)
	dropped := m.forming.dropAwaited()
	m.endGone()
	last := m.round.number
	m.round.number = m.nextRound()
	if m.reserve != "" { // what was stored may be a copy, older than rounds of which no node is left to tell
		m.generation, m.reserve = m.reserve, ""
	}
	m.round.origin = m.generation
	m.round.fresh, m.round.stored = false, false
	m.directives.forgetAgreement()
	m.forming.disarm(clockKinds...)
	m.forming.stopHold()

	for _, n := range candidates {
		m.forming.uncountJoin(n)
	}
	chosen := make([]*node, 0, len(candidates))
	for i, n := range candidates {
		if ranks[i] >= 0 {
			chosen = append(chosen, n)
		}
	}
	size := len(chosen)
	m.round.replace(size)
	for i, n := range candidates {
		if ranks[i] >= 0 {
			m.round.seat(ranks[i], n)
		}
	}
	first := candidates[slices.Index(ranks, 0)]
	if m.forming.policy.segment() > 1 && m.succession.canBeSucceeded() {
		m.round.domains = domainsOf(m.round.participants)
	}
	outcome := Outcome{
		Generation: m.generation, Round: m.round.number, World: size, HostRank: m.round.hostRank,
		StoreAddr: storeAddr(first, chosen), StorePort: first.join.StorePort, Dropped: dropped,
		ByDirective: last > 0 && m.directives.endedRound == last, Domains: m.round.domains, Commands: m.forming.commandsDiffer(chosen),
	}
	m.round.store = outcome.store()
	var left []*node
	for i, n := range candidates {
		if ranks[i] < 0 {
			m.forming.countJoin(n)
			left = append(left, n)
			continue
		}
		number := n.join.Number
		n.join = nil
		n.update.Facts = outcome.Facts() // its outcome has them
		o := outcome
		o.Rank = ranks[i]
		m.nodes.answer(n, number, o)
	}
	m.dropKeys(last)
	m.out.note("round %d is complete: %d of %s, %d waiting", m.round.number, size, wording.Count(m.forming.places(), "node", "nodes"), m.forming.joined.nodes)
	if outcome.Commands != "" {
		m.out.note("%s", outcome.Commands)
	}
	m.forming.refuseStrangers(left)
}

// soloGap is the number of which the first round of a control plane that nobody has elected takes the next
// multiple, plus one: more rounds than another control plane forms beside it.
const soloGap = 1000

func (m *Machine) nextRound() uint64 {
	highest := m.round.highest()
	if m.succession.Alone && (m.round.fresh || m.round.stored) {
		highest = (highest/soloGap + 1) * soloGap
	}
	return highest + 1
}

func (f *forming) refuseRejoined() {
	if f.round.tally[participantRejoined] == 0 {
		return
	}
	err := f.round.finishedError()
	for _, s := range f.round.participants {
		if s.state != participantRejoined {
			continue
		}
		f.refuseJoin(f.nodes.live[s.node], err, "could not regroup after others had finished")
	}
}

// storeAddr is the address that the workers are given for the round store of the
// rank-0 node (docs/decisions/0033).
func storeAddr(first *node, chosen []*node) string {
	if first.join.StoreAddr != "" {
		return first.join.StoreAddr
	}
	if !IsLoopback(first.seenAddr) {
		return first.seenAddr
	}
	for _, n := range chosen {
		if !IsLoopback(n.seenAddr) {
			return n.serverAddr
		}
	}
	return first.seenAddr
}

// IsLoopback reports whether host is an address of the loopback interface.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
