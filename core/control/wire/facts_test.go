package wire

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

func sampleFacts() rendezvous.Facts {
	return rendezvous.Facts{
		Generation: "g2", Origin: "g1", Round: 7, World: 4, HostRank: -1, Finished: true, FinishedHosts: []int{0, 3},
		Closed: rendezvous.Closing{Kind: rendezvous.ClosedFailed, By: "n (host pid 1)", Reason: "why", At: time.Unix(1700000000, 5).UTC()},
	}
}

// TestFactsTravel has facts in each frame that carries them.
func TestFactsTravel(t *testing.T) {
	update := rendezvous.MembershipUpdate{Waiting: 1, Reason: "lost: b", Facts: sampleFacts()}
	last := rendezvous.LastRound{Generation: "g1", Round: 7, Rank: 1, World: 4, HostRank: 0, Facts: sampleFacts()}
	for _, want := range []Frame{
		Notice{update}, Notice{rendezvous.MembershipUpdate{Waiting: 1}},
		Hello{Version: 1, LastRound: last}, Hello{Version: 1, LastRound: rendezvous.LastRound{Round: 1, World: 1, HostRank: -1}},
		Welcome{Version: 1, Notice: update},
	} {
		r := FrameReader{In: newBufio(AppendFrame(nil, want))}
		got, err := r.NextFrame(MaxFrame)
		if h, is := got.(Hello); is { // fields that are not there are empty, not nil
			h.Features, h.Servers = nil, nil
			got = h
		}
		if w, is := got.(Welcome); is {
			w.Features, w.Servers = nil, nil
			got = w
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
	}
}

// TestOldPeersTellNoFacts reads what a release without facts has written, and writes what
// it reads: its fields come first.
func TestOldPeersTellNoFacts(t *testing.T) {
	old := pack.Append(nil, func(p *packer) {
		p.List(3)
		p.Int(1)
		p.Bool(true)
		p.Text("why")
	})
	u := pack.NewUnpacker(old)
	var got rendezvous.MembershipUpdate
	got.Code(pack.Coder{In: u})
	if want := (rendezvous.MembershipUpdate{Waiting: 1, Closed: true, Reason: "why"}); u.Err() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, u.Err())
	}
	u.Release()
	for _, facts := range []rendezvous.Facts{{}, sampleFacts()} {
		last := rendezvous.LastRound{Round: 9, Rank: 2, Facts: facts}
		b := pack.Append(nil, func(p *packer) { last.Code(pack.Coder{Out: p}) })
		u = pack.NewUnpacker(b)
		u.Open()
		generation, round, rank := u.Text(MaxName), u.Uint(), u.Int()
		u.Close()
		u.End()
		if generation != "" || round != 9 || rank != 2 || u.Err() != nil {
			t.Errorf("an old peer reads %q, %d, %d, %v", generation, round, rank, u.Err())
		}
		u.Release()
	}
}

func TestFactsAreBounded(t *testing.T) {
	f := sampleFacts()
	f.FinishedHosts = slices.Repeat([]int{1}, 65)
	r := FrameReader{In: newBufio(AppendFrame(nil, Notice{rendezvous.MembershipUpdate{Facts: f}}))}
	if got, err := r.NextFrame(MaxFrame); !errors.Is(err, ErrMalformed) {
		t.Errorf("65 finished hosts are read as %+v, %v", got, err)
	}
	f = sampleFacts()
	f.Closed.By, f.Closed.Reason = string(bytes.Repeat([]byte("b"), 1<<20)), string(bytes.Repeat([]byte("r"), 1<<20))
	hello := AppendFrame(nil, Hello{LastRound: rendezvous.LastRound{Facts: f}})
	if len(hello) > MaxHelloFrame {
		t.Errorf("a hello of %d bytes", len(hello))
	}
	r = FrameReader{In: newBufio(hello)}
	if _, err := r.NextFrame(MaxHelloFrame); err != nil {
		t.Errorf("cut texts: %v", err)
	}
}
