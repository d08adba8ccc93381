package conformance

import (
	"testing"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/trace"
)

// script makes a history by driving a machine: what a control plane would record.
type script struct {
	t       *testing.T
	m       *r.Machine
	records []trace.Record
	number  map[string]uint64
	timers  map[r.TimerKind]r.SetTimer
	now     time.Duration
	join    map[string]r.Join
}

func newScript(t *testing.T, p r.Policy) *script {
	s := &script{t: t, m: r.New(r.Config{RunID: "job", Generation: "g", Uptime: -1}), number: map[string]uint64{},
		timers: map[r.TimerKind]r.SetTimer{}, join: map[string]r.Join{}, now: time.Second}
	s.records = append(s.records, trace.Record{Run: "job", Seconds: 1, State: s.m.Snapshot()})
	return s
}

func (s *script) do(ev r.Event) []r.Effect {
	effects := s.m.Apply(ev)
	for _, e := range effects {
		if set, ok := e.(r.SetTimer); ok {
			s.timers[set.Timer.Kind] = set
		}
	}
	s.now += time.Millisecond
	s.records = append(s.records, trace.Record{
		Run: "job", Number: s.records[len(s.records)-1].Number + 1, Seconds: s.now.Seconds(), Event: ev, Effects: effects,
	})
	return effects
}

func policy(least, most int) r.Policy {
	p := r.DefaultPolicy()
	p.Min, p.Max = least, most
	return p
}

func (s *script) hello(p r.Policy, nodes ...string) {
	for _, node := range nodes {
		s.do(r.Hello{Session: r.SessionID("s" + node), Node: node, Policy: p, SeenAddr: "10.0.0.1", LastRound: r.LastRound{HostRank: -1}})
	}
}

func (s *script) request(node string) r.Request {
	s.number[node]++
	return r.Request{Session: r.SessionID("s" + node), Number: s.number[node]}
}

func (s *script) joins(nodes ...string) {
	for _, node := range nodes {
		j := r.Join{Request: s.request(node), NodeRank: -1, RankHint: -1, StoreAddr: "10.0.0." + node, StorePort: 1000 + len(s.records)}
		s.join[node] = j
		s.do(j)
	}
}

// fire lets the newest timer of a kind run out when it is due.
func (s *script) fire(kind r.TimerKind) {
	s.now += s.timers[kind].After
	s.do(r.TimerFired{Timer: s.timers[kind].Timer})
}

func (s *script) add(node string, round uint64, key string) {
	s.do(r.KeyRequest{Request: s.request(node), Round: round, Op: store.OpAdd, Keys: []string{key}, Amount: 1})
}

func (s *script) await(node string, round uint64, key string) {
	s.do(r.KeyRequest{Request: s.request(node), Round: round, Op: store.OpWait, Keys: []string{key}})
}

// life is a run with something of everything: a first round by last call, a spare,
// a loss and a regroup with a replacement, a node that is late for a regroup, a
// withdrawal, a repeated request, an eviction, the end, and who comes too late.
func life(t *testing.T) []trace.Record {
	p := policy(2, 3)
	s := newScript(t, p)
	s.hello(p, "1", "2")
	s.joins("1", "2")
	s.do(s.join["1"]) // repeated while it is pending
	s.fire(r.TimerLastCall)
	s.do(s.join["1"]) // repeated: the outcome is delivered again
	s.add("1", 1, "sum")
	s.add("2", 1, "sum")
	s.hello(p, "3", "4") // a newcomer and a spare
	s.joins("3", "4")
	s.fire(r.TimerAdmit)
	s.joins("2", "1")
	s.hello(policy(2, 9), "5")
	s.do(r.Hello{Session: "other", Node: "1", Policy: p, LastRound: r.LastRound{HostRank: -1}})
	s.do(r.Disconnect{Session: "s3"})
	s.fire(r.TimerGrace)
	s.joins("1")
	s.fire(r.TimerRegroup)                                    // 2 is late
	s.add("2", 2, "sum")                                      // and its round is over
	s.do(r.Evict{Node: "4", By: "admin", Reason: "its disk"}) // a member: 1 is alone
	s.joins("1", "2")
	s.fire(r.TimerLastCall)
	s.hello(p, "6")
	s.joins("6")
	s.do(r.Withdraw{Request: s.request("6"), Join: s.join["6"].Number})
	s.do(r.Withdraw{Request: s.request("1"), Join: s.join["1"].Number})
	s.add("1", 4, barrierCount)
	s.await("1", 4, barrierLast)
	s.add("2", 4, barrierCount)
	s.await("2", 4, barrierLast)
	s.do(r.Leave{Request: s.request("1"), Ending: r.EndSuccess, Reason: "all done"})
	s.joins("6")
	s.do(r.Leave{Request: s.request("2"), Ending: r.EndSuccess, Reason: "all done"})
	return s.records
}

// racks is a run of segments of two nodes: a loss, after which a spare of the rack takes the lost
// rank, and a node that does not say where it is.
func racks(t *testing.T) []trace.Record {
	p := policy(4, 4)
	p.Segment = 2
	s := newScript(t, p)
	in := func(domain string, node string) {
		s.do(r.Hello{Session: r.SessionID("s" + node), Node: node, Topology: domain, Policy: p, SeenAddr: "10.0.0.1", LastRound: r.LastRound{HostRank: -1}})
	}
	in("a", "1")
	in("a", "2")
	in("b", "3")
	in("b", "4")
	s.joins("1", "2", "3")
	s.joins("4")
	in("a", "5")
	s.joins("5")
	s.do(r.Disconnect{Session: "s1"})
	s.fire(r.TimerGrace)
	s.joins("2", "3", "4")
	s.hello(p, "6")
	return s.records
}

// failing is a run that cannot continue after a loss, since others have finished, and is
// closed and then stopped by a person.
func failing(t *testing.T) []trace.Record {
	p := policy(3, 4)
	s := newScript(t, p)
	s.hello(p, "1", "2", "3")
	s.joins("1", "2", "3")
	s.fire(r.TimerLastCall)
	s.do(r.Finish{Request: s.request("1")})
	s.do(r.LeaseExpired{Session: "s2"})
	s.joins("3")
	s.hello(p, "4")
	s.joins("4")
	s.do(r.Hello{Session: "s2b", Node: "2", Policy: p, LastRound: r.LastRound{Generation: "g", Round: 1, Rank: 1, World: 3, HostRank: -1}})
	s.do(r.CloseRun{By: "admin", Reason: "the end"})
	s.do(r.CloseRun{By: "admin", Reason: "stop it", Stop: true})
	return s.records
}

// resumed is a run in which a node's outcome was lost with its connection, and then a
// member of its round.
func resumed(t *testing.T) []trace.Record {
	p := policy(2, 3)
	s := newScript(t, p)
	s.hello(p, "1", "2", "3")
	s.joins("1", "2", "3")
	s.do(r.Disconnect{Session: "s1"})
	s.now += p.LeaseTimeout
	s.do(r.LeaseExpired{Session: "s2"})
	s.hello(p, "1")
	s.do(s.join["1"])
	return s.records
}

// checkedHistory has the records read from what they were written as.
func checkedHistory(t *testing.T, records []trace.Record) *Audit {
	t.Helper()
	var a Audit
	for _, rec := range records {
		b, err := rec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if rec, err = trace.Decode(b); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		a.Add(rec)
	}
	return &a
}

func TestKeptHistories(t *testing.T) {
	for name, records := range map[string][]trace.Record{"life": life(t), "failure": failing(t), "resumed": resumed(t)} {
		if a := checkedHistory(t, records); !a.Kept() {
			t.Errorf("%s: %s", name, a)
		}
	}
}
