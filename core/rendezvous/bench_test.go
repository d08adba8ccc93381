package rendezvous

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkRound is one whole first round of N nodes: hello, join, outcome; and the same in
// segments of 8, of racks of 40.
func BenchmarkRound(b *testing.B) {
	for _, c := range []struct{ nodes, segment int }{{100, 1}, {1000, 1}, {10000, 1}, {10000, 8}} {
		nodes := c.nodes
		b.Run(fmt.Sprintf("%d/%d", nodes, c.segment), func(b *testing.B) {
			p := policy(nodes, nodes)
			p.Segment = c.segment
			sessions, topology := make([]SessionID, nodes), make([]string, nodes)
			for i := range sessions {
				sessions[i] = SessionID(fmt.Sprint("session", i))
				if c.segment > 1 {
					topology[i] = fmt.Sprint("rack", i%(nodes/40))
				}
			}
			for b.Loop() {
				m := New(Config{RunID: "job", Generation: "g", Uptime: -1})
				for i, s := range sessions {
					m.Apply(Hello{Session: s, Node: fmt.Sprint("node", i), Policy: p, Topology: topology[i], SeenAddr: "10.0.0.1"})
				}
				for _, s := range sessions {
					m.Apply(Join{Request: Request{Session: s, Number: 1}, NodeRank: -1, RankHint: -1})
				}
				if m.Round() != 1 {
					b.Fatal("no round")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(nodes), "ns/node")
		})
	}
}

// BenchmarkRegroup is a loss in a round of N nodes and the round after it.
func BenchmarkRegroup(b *testing.B) {
	const nodes = 1000
	p := policy(1, nodes)
	m := New(Config{RunID: "job", Generation: "g", Uptime: -1})
	number := uint64(0)
	hello := func(i int) {
		m.Apply(Hello{Session: SessionID(fmt.Sprint(i)), Node: fmt.Sprint("n", i), Policy: p, SeenAddr: "10.0.0.1"})
	}
	join := func(i int) {
		m.Apply(Join{Request: Request{Session: SessionID(fmt.Sprint(i)), Number: number, Acked: number - 1}, NodeRank: -1, RankHint: -1})
	}
	for i := range nodes {
		hello(i)
	}
	for b.Loop() {
		number++
		for i := range nodes {
			join(i)
		}
		m.Apply(LeaseExpired{Session: SessionID("0")})
		hello(0)
	}
}

// BenchmarkEvents is what it costs to write and to read one of each event.
func BenchmarkEvents(b *testing.B) {
	var encoded [][]byte
	for _, ev := range sampleEvents() {
		data, err := EncodeEvent(ev)
		if err != nil {
			b.Fatal(err)
		}
		encoded = append(encoded, data)
	}
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		events := sampleEvents()
		for b.Loop() {
			for _, ev := range events {
				if _, err := EncodeEvent(ev); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, data := range encoded {
				if _, err := DecodeEvent(data); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// BenchmarkSnapshot is what it costs to write and to read the state of a run of 1000 nodes.
func BenchmarkSnapshot(b *testing.B) {
	const nodes = 1000
	m := New(Config{RunID: "job", Generation: "g", Uptime: -1})
	for i := range nodes {
		session := SessionID(fmt.Sprint(i))
		m.Apply(Hello{Session: session, Node: fmt.Sprint("n", i), Policy: policy(nodes, nodes), SeenAddr: "10.0.0.1"})
		m.Apply(Join{Request: Request{Session: session, Number: 1}, NodeRank: -1, RankHint: -1})
	}
	data := m.Snapshot()
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			m.Snapshot()
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Restore(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDirective is a save in a round of N nodes: asked, agreed, and over when all have saved.
func BenchmarkDirective(b *testing.B) {
	for _, nodes := range []int{1000, 10000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			p := policy(nodes, nodes)
			m := New(Config{RunID: "job", Generation: "g", Uptime: -1, Succession: Succession{Term: 1}})
			sessions := make([]SessionID, nodes)
			number := uint64(0)
			all := func(ev Event) {
				number++
				for _, s := range sessions {
					m.Apply(Stamp(ev, Request{Session: s, Number: number, Acked: number - 1}))
				}
			}
			for i := range sessions {
				sessions[i] = SessionID(fmt.Sprint("session", i))
				m.Apply(Hello{Session: sessions[i], Node: fmt.Sprint("node", i), Policy: p, SeenAddr: "10.0.0.1"})
			}
			all(Join{NodeRank: -1, RankHint: -1})
			for i := 0; b.Loop(); i++ {
				id := fmt.Sprint("d", i)
				m.Apply(saveOf(id, time.Minute))
				all(ReportDirective{ID: id, Generation: "g", Round: 1, Step: 7})
				all(ReportDirective{ID: id, Generation: "g", Round: 1, Step: -1, Saved: true})
				if m.directives.standing != nil {
					b.Fatal("it is not over")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(nodes), "ns/node")
		})
	}
}

// BenchmarkTakeover is what a successor does until all nodes of a round have said hello, which
// the last rank's has hosted until now.
func BenchmarkTakeover(b *testing.B) {
	for _, nodes := range []int{1000, 10000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			p := policy(nodes-1, nodes)
			for b.Loop() {
				m := New(Config{RunID: "job", Generation: "h", Uptime: 0, Succession: Succession{Term: 2, From: "the host"}})
				for i := range nodes - 1 {
					m.Apply(Hello{
						Session: SessionID(fmt.Sprint("session", i)), Node: fmt.Sprint("node", i), Policy: p, SeenAddr: "10.0.0.1",
						LastRound: LastRound{Generation: "g", Round: 1, Rank: i + 1, World: nodes},
					})
				}
				if m.Live() != nodes-1 {
					b.Fatal("not all are there")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(nodes), "ns/node")
		})
	}
}
