package standby

import (
	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
)

// maxPiece is how much of a message is sent at once. The receiver asks for the rest, piece by piece: one that reads
// slowly is not cut off because all of it waits for it, and what else is said comes between.
const maxPiece = 1 << 20

// pieces are the messages to and from other voters that are sent in pieces: snapshots of all runs. A connection
// that ends loses them; raft sends another one. Group.mu guards them.
type pieces struct {
	most     int64 // bytes of a message that is believed
	number   uint64
	sending  map[raft.Voter]wire.Vote // the last one to each voter, until its last piece was sent
	arriving map[raft.Voter]wire.Vote // as much of it as has come
}

func newPieces(most int64) pieces {
	return pieces{most: most, sending: map[raft.Voter]wire.Vote{}, arriving: map[raft.Voter]wire.Vote{}}
}

// first returns what is sent of a message before the receiver asks for more.
func (p *pieces) first(f wire.Vote) wire.Vote {
	if len(f.Data) <= wire.MaxVote {
		return f
	}
	p.number++
	f.Piece = wire.Piece{Number: p.number, Whole: uint64(len(f.Data))}
	if len(p.sending) > 2*raft.MaxVoters {
		clear(p.sending) // of processes that are gone
	}
	p.sending[f.To] = f
	f.Data = f.Data[:maxPiece]
	return f
}

// drop forgets the messages that are under way to and from a voter.
func (p *pieces) drop(voter raft.Voter) {
	delete(p.sending, voter)
	delete(p.arriving, voter)
}

// asked returns the piece that the receiver has asked for. It reports false if there is none.
func (p *pieces) asked(f wire.Vote) (wire.Vote, bool) {
	m, has := p.sending[f.From]
	if at := f.Piece.From; has && m.Piece.Number == f.Piece.Number && m.To == f.From && m.From == f.To && at < m.Piece.Whole {
		m.Piece.From = at
		m.Data = m.Data[at:min(at+maxPiece, m.Piece.Whole)]
		if at+maxPiece >= m.Piece.Whole {
			delete(p.sending, f.From) // it may be all that is known of all runs
		}
		return m, true
	}
	return f, false
}

// take adds a piece to what has come. It returns the message once that is whole, and until then the question for
// the next piece. It reports false for a piece that cannot be.
func (p *pieces) take(f wire.Vote) (next wire.Vote, whole, possible bool) {
	m := p.arriving[f.From]
	if f.Piece.From == 0 {
		if len(p.arriving) > 2*raft.MaxVoters {
			clear(p.arriving)
		}
		m = wire.Vote{Group: f.Group, Message: f.Message, Piece: f.Piece}
		m.Data = nil
	}
	have := uint64(len(m.Data))
	if f.Piece.Whole > uint64(p.most) || len(f.Data) == 0 || have+uint64(len(f.Data)) > f.Piece.Whole {
		return f, false, false
	}
	if f.Piece.Number != m.Piece.Number || f.Piece.Whole != m.Piece.Whole || f.Piece.From != have || f.To != m.To || f.Cluster != m.Cluster {
		return f, false, true // of a message that was sent again meanwhile
	}
	m.Data = append(m.Data, f.Data...)
	p.arriving[f.From] = m
	if uint64(len(m.Data)) == m.Piece.Whole {
		delete(p.arriving, f.From)
		return m, true, true
	}
	next = wire.Vote{Group: f.Group, Message: raft.Message{Cluster: f.Cluster, From: f.To, To: f.From}, Piece: wire.Piece{Number: f.Piece.Number, From: uint64(len(m.Data))}}
	return next, false, true
}

// assembleLocked takes a frame of a message that comes in pieces, and answers questions for them. It returns the
// message when it is whole. It reports false for what cannot be.
func (p *Peers) assembleLocked(l *Link, f wire.Vote) (m raft.Message, whole, possible bool) {
	switch {
	case f.Piece == wire.Piece{}:
		return f.Message, true, true
	case f.Piece.Whole == 0:
		if piece, has := p.pieces.asked(f); has && l.out != nil {
			p.vote.node.Sent(f.From)
			l.out.Send(piece)
		}
		return m, false, true
	}
	next, whole, possible := p.pieces.take(f)
	if possible && !whole && next.Piece.Whole == 0 && l.out != nil {
		l.out.Send(next)
	}
	return next.Message, whole, possible
}
