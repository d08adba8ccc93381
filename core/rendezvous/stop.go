package rendezvous

import (
	"fmt"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// AnnounceStop tells that a node is about to stop the workers of its round, before it
// does: every other member of the round begins to stop its own at once, instead of when
// this node has finished (docs/decisions/0045). The first announcement of a round counts
// and stands until the next round is complete. One that comes again, or for another round
// than the running one, changes nothing.
type AnnounceStop struct {
	Request
	Generation string // of the round
	Round      uint64
	Leaving    bool   // the node was asked to end and will not rejoin; else its workers failed
	Reason     string // human-readable: who failed, or who asked
}

func (AnnounceStop) event() {}

// RoundStop says that the members of a round stop their workers, because one of them
// announced it. It belongs to that round alone.
type RoundStop struct {
	Round   uint64 // 0: no stop is announced
	Rank    int    // of the node that announced it first
	Leaving bool   // that node ends its part; else its workers failed
	Reason  string // why it stops
	Lost    bool   // a member of the round is lost: a failure may follow from that
}

// roundStop is the announced stop of the last round.
type roundStop struct {
	rank    int
	leaving bool
	reason  string
}

// announceStop records the stop, unless another node has announced one before. A node
// that leaves is lost to its round from now on, so that the others regroup without it
// while it stops its workers.
func (m *Machine) announceStop(n *node, ev AnnounceStop) {
	s := m.participantOf(n)
	if s == nil || s.state != participantRunning || ev.Round != m.round || ev.Generation != m.origin || m.disowned() {
		return
	}
	ev.Reason = printable.Text(ev.Reason)
	if m.stop == nil {
		m.stop = &roundStop{rank: s.rank, leaving: ev.Leaving, reason: ev.Reason}
		m.note("round %d stops: %s", m.round, m.stopReason())
	}
	if ev.Leaving {
		m.setParticipant(s, participantLost, "is leaving: "+ev.Reason)
		m.touched = append(m.touched, n)
		m.assistRanks()
	}
}

// stopReason says who stops the round and why.
func (m *Machine) stopReason() string {
	verb := "failed"
	if m.stop.leaving {
		verb = "is leaving"
	}
	return fmt.Sprintf("node %s %s: %s", m.participants[m.stop.rank].name(), verb, m.stop.reason)
}

// lossInStop reports whether a stop is announced in a round that has also lost a member.
func (m *Machine) lossInStop() bool {
	return m.stop != nil && (m.tally[participantLost] > 0 || m.overtaken != "")
}

// stopFor is the announced stop as a node is to see it: members whose workers may run.
func (m *Machine) stopFor(n *node) RoundStop {
	s := m.participantOf(n)
	if m.stop == nil || s == nil || s.state != participantRunning {
		return RoundStop{}
	}
	return RoundStop{Round: m.round, Rank: m.stop.rank, Leaving: m.stop.leaving, Reason: m.stop.reason, Lost: m.lossInStop()}
}

// packRoundStop writes an announced stop; none is nil.
func packRoundStop(p *pack.Packer, v RoundStop) {
	if v.Round == 0 {
		p.None()
		return
	}
	p.List(5)
	p.Uint(v.Round)
	p.Int(v.Rank)
	p.Bool(v.Leaving)
	p.Text(v.Reason)
	p.Bool(v.Lost)
}

func unpackRoundStop(u *pack.Unpacker) (v RoundStop) {
	if u.Open() > 0 {
		v = RoundStop{Round: u.Uint(), Rank: u.Int(), Leaving: u.Bool(), Reason: u.Text(maxText), Lost: u.Bool()}
	}
	u.Close()
	return v
}

// packStop writes the announced stop of the last round into a snapshot.
func (m *Machine) packStop(p *pack.Packer) {
	if m.stop == nil {
		p.None()
		return
	}
	p.List(3)
	p.Int(m.stop.rank)
	p.Bool(m.stop.leaving)
	p.Text(m.stop.reason)
}

func (m *Machine) unpackStop(u *pack.Unpacker) {
	if u.Open() > 0 {
		m.stop = &roundStop{rank: u.Int(), leaving: u.Bool(), reason: u.Text(maxText)}
		if rank := m.stop.rank; u.Err() == nil && (rank < 0 || rank >= len(m.participants)) {
			u.Fail("rank %d stops a round of %d nodes", rank, len(m.participants))
		}
	}
	u.Close()
}
