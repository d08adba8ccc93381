package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"rallypoint/internal/wording"
)

// join registers a pending join; settle completes the round when it is due.
func (m *Machine) join(n *node, j Join) {
	if n.ended {
		m.nodes.fail(n, j.Number, Errorf(CodeInvalid, "run %q: node %s has already left", m.runID, n.id))
		return
	}
	if m.closed != nil {
		m.nodes.fail(n, j.Number, m.endedError(n))
		return
	}
	if row := m.rowOf(n.id, n.hostName); row != nil { // it left as unfit, or was cordoned while its workers ran
		m.nodes.fail(n, j.Number, m.drainedError(n.id, row))
		return
	}
	s := m.round.participantOf(n)
	if s != nil && m.round.finishing() {
		m.nodes.fail(n, j.Number, m.finishedError())
		return
	}
	if n.join != nil {
		m.nodes.fail(n, n.join.Number, Errorf(CodeCanceled, "run %q: node %s asked again to join", m.runID, n.id))
		m.dropJoin(n)
	}
	m.joinSeq++
	n.seq = m.joinSeq
	n.join = &j
	n.stale = ""
	m.countJoin(n)
	if s != nil {
		m.round.set(s, participantRejoined, "")
		return
	}
	m.arrived()
}

// arrived restarts the clocks that wait for quiet.
func (m *Machine) arrived() {
	m.out.disarm(&m.quiet, TimerQuiet)
	if m.admit.armed && !m.admit.due {
		m.out.disarm(&m.admit, TimerAdmit)
	}
}

// withdraw takes a join back. The join is answered, too, so that a node which comes
// back with it does not join again.
func (m *Machine) withdraw(n *node, ev Withdraw) {
	if n.join == nil || n.join.Number != ev.Join {
		m.nodes.answer(n, ev.Number, Withdrawn{Completed: true})
		return
	}
	progress := m.progressOf(n)
	m.nodes.fail(n, n.join.Number, Errorf(CodeCanceled, "run %q: node %s withdrew", m.runID, n.id))
	m.dropJoin(n)
	m.nodes.touch(n)
	if s := m.round.participantOf(n); s != nil {
		m.round.set(s, participantLost, "gave up waiting for the next round")
		m.out.note("node %s gave up waiting for the next round", n.id)
	}
	m.nodes.answer(n, ev.Number, Withdrawn{Progress: progress})
}

func (m *Machine) dropJoin(n *node) {
	m.uncountJoin(n)
	n.join = nil
}

// countJoin and uncountJoin keep the counters of pending joins. A node's place
// must not change between the two.
func (m *Machine) countJoin(n *node)   { m.addJoin(n, 1) }
func (m *Machine) uncountJoin(n *node) { m.addJoin(n, -1) }

func (m *Machine) addJoin(n *node, by int) {
	if n.join == nil {
		return
	}
	m.joined += by
	switch {
	case n.grace:
		m.joinedGrace += by
	case m.round.participantOf(n) == nil:
		m.newcomers += by
	}
}

// candidates returns the nodes with a pending join, members of the last round
// first and by rank, then the others in order of arrival.
func (m *Machine) candidates() []*node {
	list := make([]*node, 0, m.joined)
	for _, n := range m.nodes.live {
		if n.join != nil {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *node) int {
		return cmp.Or(cmp.Compare(m.round.priority(a), m.round.priority(b)), cmp.Compare(a.seq, b.seq))
	})
	return list
}

// finishedError tells a member that the round cannot be formed again.
func (m *Machine) finishedError() *Error {
	text := fmt.Sprintf("run %q cannot regroup after round %d: finished: %s", m.runID, m.round.number, m.round.finishedNames())
	if m.round.tally[participantLost] > 0 {
		text += "; lost: " + m.round.inState(participantLost)
	}
	return &Error{CodeClosed, text}
}

func describePolicy(p Policy) string {
	parts := []string{fmt.Sprintf("nnodes=%d:%d", p.Min, p.Max)}
	if p.Min == p.Max {
		parts[0] = fmt.Sprintf("nnodes=%d", p.Max)
	}
	if p.NodeUnit != 1 {
		parts = append(parts, fmt.Sprintf("node_unit=%d", p.NodeUnit))
	}
	if p.Target != 0 {
		parts = append(parts, fmt.Sprintf("target=%d", p.Target))
	}
	return strings.Join(parts, " ")
}

// Progress says what a pending join waits for, human-readable.
type Progress struct {
	Headline string // "2 of 4 nodes here"
	Detail   string // "here: …; missing: …"
	Spare    bool   // the round runs without this node and has no place for it: its join has no deadline
}

// Progress describes what the pending joins wait for: those that the next round
// is being formed of, and those that wait beside a running round. Names are
// bounded, so the cost does not grow with the texts.
func (m *Machine) Progress() (forming, waiting Progress) {
	return m.formingProgress(), m.waitingProgress()
}

// Forming reports whether the session's pending join is a candidate of a round
// that is being formed now; pending is false if it has none.
func (m *Machine) Forming(session SessionID) (forming, pending bool) {
	n := m.nodes.sessions[session]
	if n == nil || n.join == nil {
		return false, false
	}
	return m.round.live() == 0 && !m.round.finishing() || m.round.tally[participantRejoined] > 0, true
}

// progressOf describes what the node's pending join waits for.
func (m *Machine) progressOf(n *node) Progress {
	if forming, _ := m.Forming(n.session); forming {
		return m.formingProgress()
	}
	return m.waitingProgress()
}

func (m *Machine) formingProgress() Progress {
	p := Progress{Headline: fmt.Sprintf("%d of %s here", m.joined, wording.Count(m.places(), "node", "nodes"))}
	if m.policy.Min < m.places() {
		p.Headline += fmt.Sprintf(" (at least %d needed)", m.policy.Min)
	}
	details := []string{"here: " + m.hereNames()}
	if missing := m.missing(); missing != "" {
		details = append(details, "missing: "+missing)
	}
	if m.blocked() == blockedByHold {
		details = append(details, fmt.Sprintf("the control plane is new: waiting at most %s for nodes of an earlier one", wording.Seconds(m.holdTime())))
	}
	if m.joinedGrace > 0 {
		details = append(details, fmt.Sprintf("%d with a broken connection", m.joinedGrace))
	}
	if m.mismatch != "" {
		details = append(details, "refused: "+m.mismatch)
	}
	p.Detail = strings.Join(details, "; ")
	return p
}

// missing names who the forming round lacks: members of the last round, node
// ranks that no node asks for where nodes ask for ranks at all, else a count.
func (m *Machine) missing() string {
	if m.round.awaited() > 0 {
		parts := []string{}
		for _, state := range []participantState{participantRunning, participantUnknown} {
			if m.round.tally[state] > 0 {
				parts = append(parts, m.round.inState(state))
			}
		}
		return strings.Join(parts, ", ") + fmt.Sprintf(" of round %d", m.round.number)
	}
	lack := m.places() - m.joined
	if lack <= 0 {
		return ""
	}
	var text string
	if ranks := m.unclaimedRanks(lack); ranks != "" {
		text = "node ranks " + ranks
	} else {
		text = fmt.Sprintf("%d", lack)
	}
	if m.round.tally[participantLost] > 0 {
		text += "; lost from round " + fmt.Sprint(m.round.number) + ": " + m.round.inState(participantLost)
	}
	return text
}

// unclaimedRanks lists the node ranks that a round has and no pending join prefers; ""
// if none prefers any.
func (m *Machine) unclaimedRanks(lack int) string {
	claimed := map[int]bool{}
	for _, n := range m.nodes.live {
		if n.join != nil && n.join.NodeRank >= 0 {
			claimed[n.join.NodeRank] = true
		}
	}
	if len(claimed) == 0 {
		return ""
	}
	var ranks []string
	for r := 0; r < m.places() && len(ranks) < lack; r++ {
		if claimed[r] {
			continue
		}
		if len(ranks) == maxNames {
			ranks = append(ranks, "…")
			break
		}
		ranks = append(ranks, fmt.Sprint(r))
	}
	return strings.Join(ranks, ", ")
}

func (m *Machine) hereNames() string {
	if m.joined > 1024 { // sorting all to name a few would not be worth it
		return fmt.Sprintf("%d nodes", m.joined)
	}
	var names []string
	for i, n := range m.candidates() {
		if i == maxNames {
			names = append(names, fmt.Sprintf("and %d more", m.joined-maxNames))
			break
		}
		names = append(names, n.id)
	}
	return strings.Join(names, ", ")
}

func (m *Machine) waitingProgress() Progress {
	p := Progress{Spare: m.gain() == 0 || m.round.finishing()}
	p.Headline = fmt.Sprintf("round %d runs with %d of %s", m.round.number, len(m.round.participants), wording.Count(m.places(), "node", "nodes"))
	switch {
	case m.round.finishing():
		p.Detail = fmt.Sprintf("finished: %s; no more nodes are admitted", m.round.finishedNames())
	case m.gain() > 0:
		p.Detail = "waiting, to be admitted: " + m.waitingNames()
	default:
		p.Detail = "spare until a place falls free: " + m.waitingNames()
	}
	return p
}
