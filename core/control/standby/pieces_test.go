package standby

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/succession"
)

// voteOf is a message of a length from one voter to another.
func voteOf(n int) wire.Vote {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.Uint())
	}
	return wire.Vote{Group: "g", Message: raft.Message{Cluster: "e", From: 1, To: 3, Data: data}}
}

// TestPieces: a long message comes whole, at the receiver's pace, also where another one was begun before.
func TestPieces(t *testing.T) {
	sender, receiver := newPieces(1<<30), newPieces(1<<30)
	if short := voteOf(wire.MaxVote); sender.first(short).Piece != (wire.Piece{}) {
		t.Error("a message that a frame takes was cut")
	}
	begun := sender.first(voteOf(5 << 20))
	if _, whole, possible := receiver.take(begun); whole || !possible {
		t.Error("a first piece is not the whole")
	}
	long := voteOf(3*maxPiece + 17)
	f, pieces := sender.first(long), 1
	for {
		if len(f.Data) > maxPiece {
			t.Fatalf("a piece of %d bytes", len(f.Data))
		}
		next, whole, possible := receiver.take(f)
		if !possible {
			t.Fatal("a piece is refused")
		}
		if whole {
			if !bytes.Equal(next.Data, long.Data) || next.From != 1 || next.To != 3 || next.Cluster != "e" {
				t.Errorf("%d bytes from %v to %v", len(next.Data), next.From, next.To)
			}
			break
		}
		if _, had := sender.asked(wire.Vote{Message: next.Message, Piece: wire.Piece{Number: begun.Piece.Number, From: 0}}); had {
			t.Error("a message is sent that another one has replaced")
		}
		var has bool
		if f, has = sender.asked(next); !has {
			t.Fatalf("no piece at %d", next.Piece.From)
		}
		pieces++
	}
	if pieces != 4 || len(receiver.arriving) > 0 || len(sender.sending) > 0 {
		t.Errorf("%d pieces, %d messages under way at the receiver, %d at the sender", pieces, len(receiver.arriving), len(sender.sending))
	}
}

// TestPiecesOfAPeerThatIsGone: what is under way to and from a peer goes with the last connection to it.
func TestPiecesOfAPeerThatIsGone(t *testing.T) {
	p, voters := firstOfThree(t)
	l := voters.links["b:1"]
	to, from := voteOf(5<<20), voteOf(maxPiece)
	to.To, from.From, from.Piece = l.voter, l.voter, wire.Piece{Number: 1, Whole: 5 << 20}
	p.pieces.first(to)
	p.pieces.take(from)
	other := p.Accept(wire.Liveness{RunID: p.runID, Group: p.inside, Node: l.node, Voter: l.voter.String()}, &inbox{})
	p.Ended(l, succession.Unconnected)
	if p.Redial(l); len(p.pieces.sending) != 1 || len(p.pieces.arriving) != 1 {
		t.Errorf("%d and %d messages are kept, which go on by the other connection", len(p.pieces.sending), len(p.pieces.arriving))
	}
	p.Drop(other)
	if p.Redial(l); len(p.pieces.sending)+len(p.pieces.arriving) > 0 {
		t.Errorf("%d and %d messages are kept", len(p.pieces.sending), len(p.pieces.arriving))
	}
}

// TestPiecesThatCannotBe are refused, or ignored where the sender may have begun another message.
func TestPiecesThatCannotBe(t *testing.T) {
	sender := newPieces(1 << 30)
	first := sender.first(voteOf(3 * maxPiece))
	for name, c := range map[string]struct {
		spoil    func(*wire.Vote)
		possible bool
	}{
		"longer than is believed": {func(f *wire.Vote) { f.Piece.Whole = 1<<30 + 1 }, false},
		"empty":                   {func(f *wire.Vote) { f.Data = nil }, false},
		"beyond its end":          {func(f *wire.Vote) { f.Piece.Whole = maxPiece - 1 }, false},
		"of another message":      {func(f *wire.Vote) { f.Piece.From, f.Piece.Number = maxPiece, 99 }, true},
		"not the next":            {func(f *wire.Vote) { f.Piece.From = 2 * maxPiece }, true},
		"to another":              {func(f *wire.Vote) { f.Piece.From, f.To = maxPiece, 5 }, true},
	} {
		receiver := newPieces(1 << 30)
		if c.possible {
			receiver.take(first)
		}
		f := first
		c.spoil(&f)
		if next, whole, possible := receiver.take(f); whole || possible != c.possible || possible && next.Piece.Whole == 0 {
			t.Errorf("%s: %v %v, asks for %+v", name, whole, possible, next.Piece)
		}
	}
	for _, ask := range []wire.Piece{{Number: 99}, {Number: first.Piece.Number, From: 3 * maxPiece}, {Number: first.Piece.Number, From: 1 << 63}} {
		if _, has := sender.asked(wire.Vote{Message: raft.Message{From: 3, To: 1}, Piece: ask}); has {
			t.Errorf("there is a piece %+v", ask)
		}
	}
}
