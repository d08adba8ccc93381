package rendezvous

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rallypoint/core/store"
)

// TestGuarantees feeds random histories to the machine: joins, losses, reconnects,
// finishes, ends, closes, evictions, retries, late and duplicate messages, timers
// in any order. rig checks after every event what must always hold; sim checks
// what must hold over time.
func TestGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t)
		actions := map[string]func(*rapid.T){
			"hello": s.hello, "join": s.join, "disconnect": s.disconnect, "reconnect": s.reconnect,
			"timer": s.timer, "withdraw": s.withdraw, "finish": s.finish, "leave": s.leave,
			"duplicate": s.duplicate, "add": s.add, "role info": s.roleInfo, "lease": s.lease,
			"close": s.close, "evict": s.evict, "restart": s.restart, "recover": s.recover, "restore": s.restore,
			"keys": s.keys, "linger": s.linger, "stranger": s.stranger, "takeover": s.takeover, "announce": s.announceAny, "unfit": s.unfitAny, "direct": s.directAny, "undirect": s.undirectAny, "report": s.reportAny, "report 2": s.reportAny, "report 3": s.reportAny, "": func(*rapid.T) {},
		}
		if rapid.IntRange(0, 3).Draw(t, "begin with a round") > 0 {
			s.formRound(t)
		}
		t.Repeat(actions)
		t.Repeat(actions)
	})
}

// sim is a random history and what it has shown so far.
type sim struct {
	*rig
	twin     *Machine // fed with the same events, and never restored: same inputs, same outcome
	lean     *Machine // fed only with what it cannot answer without a change
	policy   Policy
	commands bool // nodes say what they run
	labels   bool // nodes name the domains of their topology
	count    int
	rounds   map[string]map[int]string // generation and round -> rank -> node
	shape    map[string]Outcome
	last     uint64 // highest round seen
	sent     []Event
	added    map[uint64]int64 // round -> sum of the distinct adds applied
	kills    int

	waited bool // the present host has waited for members for long enough

	host string // node whose process hosts the control plane; "": it is a server
	term uint64
}

func newSim(t *rapid.T) *sim {
	segment := rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "segment")
	unit := max(segment, rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "unit"))
	low := unit * rapid.IntRange(1, 3).Draw(t, "min")
	more := unit * rapid.IntRange(0, 3).Draw(t, "more")
	if rapid.IntRange(0, 5).Draw(t, "wide") == 0 { // two nodes may be out at their own request
		more += 2 * ownWordShare
	}
	p := policy(low, low+more)
	p.NodeUnit, p.Segment = unit, segment
	if segment == unit && rapid.Bool().Draw(t, "segments alone") {
		p.NodeUnit = 1
	}
	if rapid.Bool().Draw(t, "has target") {
		p.Target = low + unit*rapid.IntRange(0, more/unit).Draw(t, "target")
	}
	if rapid.Bool().Draw(t, "quiet") {
		p.QuietPeriod = time.Second
	}
	if rapid.IntRange(0, 4).Draw(t, "no grace") == 0 {
		p.ReconnectGrace = 0
	}
	uptime := time.Duration(rapid.IntRange(-1, 1).Draw(t, "uptime"))
	s := &sim{
		rig: newRig(t, uptime), policy: p, labels: segment > 1 || rapid.Bool().Draw(t, "labels"), commands: rapid.Bool().Draw(t, "commands"),
		rounds: map[string]map[int]string{}, shape: map[string]Outcome{}, added: map[uint64]int64{},
	}
	s.twin = New(Config{RunID: "job", Generation: s.m.generation, Uptime: uptime})
	s.lean = New(Config{RunID: "job", Generation: s.m.generation, Uptime: uptime})
	if rapid.IntRange(0, 3).Draw(t, "server") > 0 {
		s.isHosted()
	}
	return s
}

// simNodes is how many nodes there are in properties.
const simNodes = 12

// hostOf is the machine of a node in properties: that of n0 and n1 is one, n3's is not known.
func hostOf(node string) string {
	return map[byte]string{'0': "h0", '1': "h0", '2': "h1", '4': "h1"}[node[len(node)-1]]
}

// domainOf is the domain of a node in properties. n2 changes its own with each start.
func domainOf(h Hello) string {
	switch h.Node[len(h.Node)-1] {
	case '0', '1', '4':
		return "r0"
	case '2':
		return fmt.Sprint("r", h.Incarnation%2)
	}
	return "r1"
}

// commandOf is what a node of properties runs. n2 runs something else after each start, n5 does not
// say it.
func commandOf(h Hello) Command {
	switch h.Node[len(h.Node)-1] {
	case '2':
		return Command{Digest: fmt.Sprintf("%02x", h.Incarnation%2), Text: "train.py"}
	case '3', '4':
		return Command{Digest: "b0", Text: "other.py"}
	case '5':
		return Command{}
	}
	return Command{Digest: "00", Text: "train.py"}
}

// do applies an event to both machines and checks what came of it.
func (s *sim) do(ev Event) {
	if h, ok := ev.(Hello); ok {
		h.HostName = hostOf(h.Node)
		if s.labels {
			h.Topology = domainOf(h)
		}
		if s.commands {
			h.Command = commandOf(h)
		}
		ev = h
	}
	before := s.m.round.number
	closed, finished := s.m.closed, s.m.round.tally[participantFinished]
	grace := s.m.forming.joinedGrace
	missing := s.mayStillCome(ev)
	effects := s.apply(ev)
	s.hosts[s.m.generation] = s.host
	logged, err := EncodeEvent(ev)
	if err != nil {
		s.t.Fatalf("%+v: %v", ev, err)
	}
	read, err := DecodeEvent(logged)
	if err != nil {
		s.t.Fatalf("%+v: %v", ev, err)
	}
	if twin := s.twin.Apply(read); !sameEffects(effects, twin) {
		s.t.Fatalf("two machines differ after %+v:\n%v\n%v", ev, effects, twin)
	}
	s.doLeanly(ev, effects)
	var fresh []Outcome
	for _, e := range effects {
		reply, ok := e.(Reply)
		if !ok {
			continue
		}
		if reply.Err != nil && reply.Err.Text == "" {
			s.t.Fatalf("an error without words: %+v", reply)
		}
		if o, ok := reply.Result.(Outcome); ok {
			if s.m.round.number > before {
				fresh = append(fresh, o)
			}
			s.compare(reply.Session, o)
		}
	}
	if s.m.round.number < s.last {
		s.t.Fatalf("the round went back from %d to %d", s.last, s.m.round.number)
	}
	s.last = s.m.round.number
	if len(fresh) == 0 {
		return
	}
	if closed != nil || finished > 0 {
		s.t.Fatalf("a round was completed though closed=%v finished=%d", closed, finished)
	}
	if _, resumed := ev.(Hello); grace > 0 && !resumed && s.m.forming.joinedGrace > 0 {
		s.t.Fatalf("a round was completed inside a grace by %+v", ev)
	}
	if missing != "" && len(fresh[0].Dropped) == 0 {
		s.t.Fatalf("round %d was completed at the next host without %s, which is alive, was in round %d, and had time to come", s.m.round.number, missing, before)
	}
	if n := fresh[0].World; len(fresh) != n || n < s.policy.Min || n > s.policy.Max || n%s.policy.NodeUnit != 0 || n%s.policy.segment() != 0 {
		s.t.Fatalf("%d outcomes of a world of %d under %+v", len(fresh), n, s.policy)
	}
}

// doLeanly has a machine answer what it can without applying it: no node may see the difference.
func (s *sim) doLeanly(ev Event, want []Effect) {
	state := s.lean.Snapshot()
	effects, ok := s.lean.TryRead(ev)
	if !bytes.Equal(state, s.lean.Snapshot()) {
		s.t.Fatalf("the answer to %+v has changed the state", ev)
	}
	if !ok {
		effects = s.lean.Apply(ev)
	}
	if !sameEffects(effects, want) {
		s.t.Fatalf("answered without a change: %v; %+v\n%v\n%v", ok, ev, effects, want)
	}
	r, _ := RequestOf(ev)
	if k, is := ev.(KeyRequest); is && ok && k.Op.Reads() && s.lean.nodes.sessions[r.Session].answered[r.Number].Number == 0 {
		// A node that has the answer does not ask again; another one might be right by then.
		s.sent = slices.DeleteFunc(s.sent, func(ev Event) bool { q, _ := RequestOf(ev); return q == r })
	}
}

// compare holds one outcome against all others of its round: guarantees 1 to 3.
func (s *sim) compare(session SessionID, o Outcome) {
	node := s.bySession(session).id
	round := fmt.Sprint(o.Generation, " ", o.Round)
	ranks := s.rounds[round]
	if ranks == nil {
		ranks = map[int]string{}
		s.rounds[round] = ranks
		s.shape[round] = o
	}
	if other, taken := ranks[o.Rank]; taken && other != node {
		s.t.Fatalf("rank %d of round %d belongs to %s and %s", o.Rank, o.Round, other, node)
	}
	for rank, other := range ranks {
		if other == node && rank != o.Rank {
			s.t.Fatalf("%s has ranks %d and %d in round %d", node, rank, o.Rank, o.Round)
		}
	}
	ranks[o.Rank] = node
	if o.Rank < 0 || o.Rank >= o.World {
		s.t.Fatalf("rank %d in a world of %d", o.Rank, o.World)
	}
	shape := s.shape[round]
	shape.Rank = o.Rank
	if fmt.Sprint(shape) != fmt.Sprint(o) {
		s.t.Fatalf("members of round %d disagree: %+v and %+v", o.Round, shape, o)
	}
}

// restore replaces the machine by its snapshot: the twin goes on as it is, and
// both must agree from then on.
func (s *sim) restore(*rapid.T) {
	state := s.m.Snapshot()
	if twin := s.twin.Snapshot(); !bytes.Equal(state, twin) {
		s.t.Fatalf("two machines of one history differ:\n%q\n%q", state, twin)
	}
	m, err := Restore(state)
	if err != nil {
		s.t.Fatalf("restore: %v", err)
	}
	if again := m.Snapshot(); !bytes.Equal(state, again) {
		s.t.Fatalf("a restored machine is another one:\n%q\n%q", state, again)
	}
	s.m = m
	s.m.check(s.t)
	if s.lean, err = Restore(s.lean.Snapshot()); err != nil {
		s.t.Fatalf("restore: %v", err)
	}
	for _, t := range m.Timers() {
		if after, running := s.timers[t.Timer]; !running || after != t.After {
			s.t.Fatalf("timer %+v of %v is restored, it ran for %v", t.Timer, t.After, after)
		}
	}
}

// recover restarts a control plane that has stored what it did.
func (s *sim) recover(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "rarely") > 0 {
		t.Skip("rarely")
	}
	s.restore(t)
	s.count++
	s.do(Recovered{Generation: fmt.Sprint("r", s.count)})
	for _, n := range s.m.nodes.sessions {
		if !n.grace {
			s.t.Fatalf("node %s need not come back", n.id)
		}
	}
}

func (s *sim) linger(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) })
	s.send(AwaitPeers{n.request()})
}

// keys does any operation on a few keys, so that waits of all kinds pile up.
func (s *sim) keys(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) && n.claim.Round > 0 })
	key := rapid.SampledFrom([]string{"a", "b", "c"})
	r := KeyRequest{Request: n.request(), Round: n.claim.Round, Op: rapid.SampledFrom(keyOps).Draw(t, "op"), Amount: int64(rapid.IntRange(0, 3).Draw(t, "amount"))}
	switch r.Op {
	case store.OpNumKeys, store.OpListKeys:
	case store.OpCancelWait:
		r.Amount = int64(n.number) - r.Amount
	case store.OpWait, store.OpMultiGet, store.OpCheck, store.OpMultiSet:
		r.Keys = rapid.SliceOfN(key, 1, 3).Draw(t, "keys")
	default:
		r.Keys = []string{key.Draw(t, "key")}
	}
	switch r.Op {
	case store.OpSet, store.OpAppend, store.OpQueuePush:
		r.Values = [][]byte{[]byte("v")}
	case store.OpCompareSet:
		r.Values = [][]byte{[]byte("v"), []byte("w")}
	case store.OpMultiSet:
		for range r.Keys {
			r.Values = append(r.Values, []byte("1"))
		}
	}
	s.send(r)
}

var keyOps = []store.Op{store.OpSet, store.OpGet, store.OpAdd, store.OpCompareSet, store.OpAppend, store.OpCheck, store.OpWait, store.OpDelete, store.OpNumKeys, store.OpListKeys, store.OpMultiGet,
	store.OpMultiSet, store.OpQueuePush, store.OpQueuePop, store.OpQueueLen, store.OpBarrier, store.OpCancelWait}

// sameEffects compares without regard to the order among sessions.
func sameEffects(a, b []Effect) bool {
	text := func(list []Effect) []string {
		var out []string
		for _, e := range list {
			if r, ok := e.(Reply); ok && r.Err != nil {
				out = append(out, fmt.Sprintf("%v %v %v", r.Session, r.Number, r.Err.Text))
				continue
			}
			out = append(out, fmt.Sprintf("%T %+v", e, e))
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(text(a), text(b))
}

// formRound has max nodes join, or as many as there are, which completes a round.
func (s *sim) formRound(t *rapid.T) {
	for i := range min(s.policy.Max, simNodes) {
		n := s.newNode(fmt.Sprint("n", i))
		n.inHost = n.id == s.host
		s.do(Hello{Session: n.session, Node: n.id, Policy: s.policy, SeenAddr: "10.0.0.1", LastRound: LastRound{HostRank: -1}, InHost: n.inHost})
		j := Join{Request: n.request(), StorePort: 1, NodeRank: -1, RankHint: -1}
		n.joinNo = j.Number
		s.send(j)
	}
}

func (s *sim) pick(t *rapid.T, fit func(*rigNode) bool) *rigNode {
	var list []*rigNode
	for _, key := range slices.Sorted(maps.Keys(s.nodes)) {
		if n := s.nodes[key]; n.welcomed && fit(n) {
			list = append(list, n)
		}
	}
	if len(list) == 0 {
		t.Skip("no node fits")
	}
	return rapid.SampledFrom(list).Draw(t, "node")
}

func (s *sim) known(n *rigNode) *node { return s.m.nodes.sessions[n.session] }

func (s *sim) connected(n *rigNode) bool {
	k := s.known(n)
	return k != nil && !k.grace
}

func (s *sim) send(ev Event) {
	s.sent = append(s.sent, ev)
	s.do(ev)
}

func (s *sim) hello(t *rapid.T) {
	n := s.newNode(fmt.Sprint("n", rapid.IntRange(0, simNodes-1).Draw(t, "id")))
	s.do(Hello{
		Session: n.session, Node: n.id, Policy: s.policy, SeenAddr: "10.0.0.1", LastRound: LastRound{HostRank: -1},
		Incarnation: uint64(rapid.IntRange(0, s.count).Draw(t, "incarnation")), BeginAgain: rapid.IntRange(0, 9).Draw(t, "begin again") == 0,
	})
}

func (s *sim) newNode(id string) *rigNode {
	if old := s.nodes[id]; old != nil {
		s.kills++
		s.nodes["was "+string(old.session)] = old
	}
	s.count++
	n := &rigNode{id: id, session: SessionID(fmt.Sprintf("%s/%d", id, s.count)), replies: map[uint64]Reply{}}
	s.nodes[id] = n
	return n
}

func (s *sim) join(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) })
	j := Join{Request: n.request(), StorePort: 1,
		NodeRank: rapid.IntRange(-1, 3).Draw(t, "rank"), RankHint: rapid.IntRange(-1, 3).Draw(t, "hint")}
	n.joinNo = j.Number
	s.send(j)
}

func (s *sim) disconnect(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.known(n) != nil })
	s.do(Disconnect{Session: n.session, Dead: rapid.IntRange(0, 3).Draw(t, "dead") == 0})
}

func (s *sim) reconnect(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.known(n) == nil || s.known(n).grace })
	if n.moved {
		s.follow(t, n)
		return
	}
	if s.known(n) == nil {
		if s.nodes[n.id] != n {
			t.Skip("its name belongs to a newer process")
		}
		n.number, n.joinNo, n.replies = n.number+1, 0, map[uint64]Reply{}
		s.sent = slices.DeleteFunc(s.sent, func(ev Event) bool { return sessionOf(ev) == n.session })
	}
	s.do(Hello{Session: n.session, Node: n.id, Policy: s.policy, SeenAddr: "10.0.0.1", LastRound: n.reports(), InHost: n.inHost})
}

func (s *sim) timer(t *rapid.T) {
	if len(s.timers) == 0 {
		t.Skip("no timer runs")
	}
	list := slices.SortedFunc(maps.Keys(s.timers), func(a, b Timer) int { return int(a.Seq) - int(b.Seq) })
	timer := rapid.SampledFrom(list).Draw(t, "timer")
	delete(s.timers, timer)
	s.do(TimerFired{timer})
	if rapid.Bool().Draw(t, "late duplicate") {
		s.do(TimerFired{timer})
	}
}

func (s *sim) withdraw(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) && n.joinNo > 0 })
	s.send(Withdraw{Request: n.request(), Join: n.joinNo})
}

func (s *sim) finish(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) && n.claim.Round > 0 })
	s.send(KeyRequest{Request: n.request(), Round: n.claim.Round, Op: store.OpAdd, Amount: 1, Keys: []string{ExitBarrierCount}})
	if reply, ok := n.replies[n.number]; ok && reply.Err == nil {
		n.claim.Finished = true
	}
	s.send(KeyRequest{Request: n.request(), Round: n.claim.Round, Op: store.OpWait, Keys: []string{ExitBarrierLast}})
	if s.m.round.tally[participantFinished] > 0 && s.m.round.live() == 0 && s.m.closed == nil {
		if reply, ok := n.replies[n.number]; !ok && s.m.round.participantOf(s.known(n)) != nil {
			s.t.Fatalf("everybody has finished and the barrier is shut: %+v", reply)
		}
	}
}

func (s *sim) leave(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) })
	if rapid.IntRange(0, 3).Draw(t, "rarely") > 0 {
		t.Skip("rarely")
	}
	s.send(Leave{Request: n.request(), Ending: Ending(rapid.IntRange(0, 2).Draw(t, "ending")), Reason: "why"})
}

// duplicate sends an old request again.
func (s *sim) duplicate(t *rapid.T) {
	if len(s.sent) == 0 {
		t.Skip("nothing was sent")
	}
	s.do(rapid.SampledFrom(s.sent).Draw(t, "event"))
}

// add counts on a key of the round: guarantee 11, applied exactly once.
func (s *sim) add(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) && n.claim.Round > 0 })
	r := KeyRequest{Request: n.request(), Round: n.claim.Round, Op: store.OpAdd, Amount: 1, Keys: []string{"sum"}}
	if rapid.Bool().Draw(t, "acknowledge") {
		r.Acked = n.acknowledged()
	}
	s.send(r)
	reply, ok := n.replies[r.Request.Number]
	if !ok || reply.Err != nil {
		return
	}
	s.added[r.Round]++
	if got := reply.Result.(KeyResult).Number; got != s.added[r.Round] {
		s.t.Fatalf("the sum is %d after %d distinct adds", got, s.added[r.Round])
	}
}

// acknowledged is the highest number up to which all answers arrived.
func (r *rigNode) acknowledged() uint64 {
	var acked uint64
	for number := uint64(1); number < r.number; number++ {
		if _, ok := r.replies[number]; !ok {
			break
		}
		acked = number
	}
	return acked
}

func (s *sim) roleInfo(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) && n.claim.Round > 0 && n.claim.Round == s.m.round.number })
	s.send(KeyRequest{Request: n.request(), Round: n.claim.Round, Op: store.OpSet, Keys: []string{fmt.Sprint(RoleInfoPrefix, n.claim.Rank)},
		Values: [][]byte{fmt.Appendf(nil, `{"role": "default", "rank": %d, "local_world_size": 1}`, n.claim.Rank)}})
	s.send(KeyRequest{Request: n.request(), Round: n.claim.Round, Op: store.OpGet, Keys: []string{fmt.Sprint(AssignedRanksPrefix, n.claim.Rank)}})
}

func (s *sim) lease(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.known(n) != nil })
	s.do(LeaseExpired{n.session})
}

func (s *sim) close(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "rarely") > 0 {
		t.Skip("rarely")
	}
	s.do(CloseRun{By: "admin", Reason: "why", Stop: rapid.Bool().Draw(t, "stop")})
}

// restart replaces the control plane by a fresh one that knows nothing.
func (s *sim) restart(t *rapid.T) {
	if rapid.IntRange(0, 4).Draw(t, "rarely") > 0 {
		t.Skip("rarely")
	}
	s.checker.Restarted()
	c := Config{Uptime: time.Duration(rapid.IntRange(-1, 1).Draw(t, "uptime"))}
	if s.host != "" {
		c.Succession.Term = 1
	}
	s.replace(c)
}

// replace goes on with a control plane that knows nothing but what it begins with.
func (s *sim) replace(c Config) {
	s.count++
	c.RunID, c.Generation = "job", fmt.Sprint("g", s.count)
	s.m, s.twin, s.lean = New(c), New(c), New(c)
	clear(s.timers)
	clear(s.added)
	s.last, s.sent = 0, nil
}

func (s *sim) evict(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.m.nodes.live[n.id] != nil })
	s.do(Evict{Node: rapid.SampledFrom([]string{n.id, n.id, cmp.Or(hostOf(n.id), n.id)}).Draw(t, "name"), By: "admin", Reason: "why"})
}

func sessionOf(ev Event) SessionID {
	switch ev := ev.(type) {
	case Join:
		return ev.Session
	case Withdraw:
		return ev.Session
	case Leave:
		return ev.Session
	case KeyRequest:
		return ev.Session
	}
	return ""
}
