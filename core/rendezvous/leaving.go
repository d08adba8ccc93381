package rendezvous

import "rallypoint/internal/printable"

// lose takes a node out because it is dead, silent or unwanted. Its node, should
// it live, learns it at its next hello.
func (m *Machine) lose(n *node, cause string) {
	if n.ended {
		m.nodes.remove(n)
		return
	}
	m.out.note("node %s %s", m.names.of(n.id), cause)
	m.part(n, cause)
	m.out.emit(Drop{n.session, Errorf(CodeEvicted, "run %q: node %s was dropped: %s", m.runID, m.names.of(n.id), cause)})
	m.nodes.remove(n)
}

// part ends a node's share in the run: its join, its membership, its waits.
func (m *Machine) part(n *node, cause string) {
	m.forming.dropJoin(n)
	for number := range n.waits {
		m.nodes.dropWait(n, number)
	}
	if s := m.round.participantOf(n); s != nil && s.live() {
		m.round.set(s, participantLost, cause)
		m.assistRanks()
	}
	m.nodes.part(n.id)
	n.ended = true
}

func (m *Machine) evict(ev Evict) {
	for _, n := range m.nodes.named(ev.Node) {
		m.lose(n, "evicted by "+printable.Text(ev.By)+": "+printable.Text(ev.Reason))
	}
}

func (m *Machine) leave(n *node, ev Leave) {
	if n.ended {
		m.nodes.answer(n, ev.Number, nil)
		return
	}
	ev.Reason = printable.Text(ev.Reason)
	m.forming.dropJoin(n)
	s := m.round.participantOf(n)
	belongs := s != nil
	cause := "left"
	if ev.Reason != "" {
		cause = "left: " + ev.Reason
	}
	switch {
	case belongs && ev.Ending == EndSuccess:
		m.finish(n)
		m.close(Closing{Kind: ClosedSuccess, By: m.names.of(n.id), Reason: ev.Reason, At: ev.At})
	case belongs && ev.Ending == EndFailed:
		m.round.set(s, participantLost, cause)
		m.close(Closing{Kind: ClosedFailed, By: m.names.of(n.id), Reason: ev.Reason, At: ev.At})
	default:
		m.out.note("node %s %s", m.names.of(n.id), cause)
	}
	m.part(n, cause)
	m.nodes.answer(n, ev.Number, nil)
}
