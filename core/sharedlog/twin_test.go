package sharedlog

import (
	"bytes"
	"log/slog"
	"testing"

	"pgregory.net/rapid"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// drawEvent draws any event that a node may append, of a few nodes in any state.
func drawEvent(t *rapid.T) rendezvous.Event {
	session := rapid.SampledFrom([]rendezvous.SessionID{"a1", "b1", "c1", "c2", "d1"}).Draw(t, "session")
	request := rendezvous.Request{Session: session, Number: rapid.Uint64Range(1, 12).Draw(t, "number")}
	if rapid.Bool().Draw(t, "acknowledges") {
		request.Acked = request.Number - 1
	}
	round := rapid.Uint64Range(1, 3).Draw(t, "round")
	key := rapid.SampledFrom([]string{"k", "torchelastic/agent/terminal_state/num_members", "torchelastic/agent/terminal_state/last_member"}).Draw(t, "key")
	keys := func(op store.Op, values ...[]byte) rendezvous.Event {
		return rendezvous.KeyRequest{Request: request, Round: round, Op: op, Keys: []string{key}, Values: values, Amount: 1}
	}
	switch rapid.IntRange(0, 15).Draw(t, "event") {
	case 0, 1, 2:
		p := params.Default().Policy
		p.Min, p.Max = 2, 3
		return rendezvous.Hello{
			Session: session, Node: string(session[0]), Incarnation: uint64(session[1]), Policy: p,
			SeenAddr: "10.0.0.1", LastRound: rendezvous.LastRound{HostRank: -1},
		}
	case 3, 4, 5, 6:
		return rendezvous.Join{Request: request, NodeRank: rapid.IntRange(-1, 2).Draw(t, "rank"), RankHint: -1, StorePort: 1}
	case 7:
		return rendezvous.Disconnect{Session: session}
	case 8:
		return rendezvous.LeaseExpired{Session: session}
	case 9:
		return rendezvous.Withdraw{Request: request, Join: request.Number - 1}
	case 10:
		return rendezvous.TimerFired{Timer: rendezvous.Timer{
			Kind: rendezvous.TimerKind(rapid.IntRange(1, 6).Draw(t, "timer")), Session: session, Seq: rapid.Uint64Range(1, 20).Draw(t, "seq"),
		}}
	case 11:
		return rendezvous.Leave{Request: request, Ending: rendezvous.Ending(rapid.IntRange(0, 2).Draw(t, "ending")), Reason: "why"}
	case 12:
		return rendezvous.AwaitPeers{Request: request}
	case 13:
		return keys(store.OpAdd)
	case 14:
		return keys(store.OpGet)
	}
	return keys(store.OpSet, []byte("v"))
}

// A node that reads the log in any pieces, and one that continues from a snapshot in
// the middle, come to the state, answers included, of a control plane that applies
// the same events itself: to the byte.
func TestFoldIsTheHostedMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosted := newMachine("job", "g")
		begin := func() *applier {
			p := New(nodeParams("me", 2, 3), ignoringObserver{}, nil, slog.New(slog.DiscardHandler))
			p.info.fill()
			p.info.Generation = "g"
			p.applier = newApplier(p)
			return p.applier
		}
		whole, late := begin(), begin()
		var pieces []Entry
		read := func() {
			for _, f := range []*applier{whole, late} {
				if f == late && f.index == 0 {
					continue // it begins with the snapshot
				}
				if err := (Batch{Entries: pieces}).handle(f); err != nil {
					t.Fatal(err)
				}
			}
			pieces = nil
		}
		count := rapid.IntRange(1, 60).Draw(t, "events")
		start := rapid.IntRange(0, count-1).Draw(t, "snapshot after")
		for i := range count {
			ev := drawEvent(t)
			hosted.Apply(ev)
			data, err := rendezvous.EncodeEvent(ev)
			if err != nil {
				t.Fatal(err)
			}
			pieces = append(pieces, Entry{Index: uint64(3*i + 1), Data: data})
			if rapid.Bool().Draw(t, "piece ends") {
				read()
			}
			if i == start {
				read()
				if err := (Snapshot{whole.index, whole.machine.Snapshot()}).handle(late); err != nil {
					t.Fatal(err)
				}
			}
		}
		read()
		want := hosted.Snapshot()
		for name, f := range map[string]*applier{"in pieces": whole, "from a snapshot": late} {
			if !bytes.Equal(f.machine.Snapshot(), want) {
				t.Fatalf("%s: another state", name)
			}
		}
	})
}

type ignoringObserver struct{}

func (ignoringObserver) Updated(rendezvous.MembershipUpdate) {}
func (ignoringObserver) Progressed(rendezvous.Progress)      {}
func (ignoringObserver) Dropped(*rendezvous.Error)           {}
func (ignoringObserver) ConnectionChanged(error)             {}
