package rendezvous

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"rallypoint/core/store"
)

// tester is the part of testing.TB that *rapid.T has too.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// rig drives a machine as a hosted server would, by hand: nothing happens but
// what a test says, and time passes only when it fires a timer.
type rig struct {
	t       tester
	m       *Machine
	nodes   map[string]*rigNode
	timers  map[Timer]time.Duration
	changes []string
	effects []Effect // of the last event
	checker Checker
	steps   map[string]int64  // agreed, by directive and round
	hosts   map[string]string // generation -> node in whose process that control plane ran
}

// Checker holds what the rig records against the guarantees. conformance has it, and
// that imports this package: NewChecker is set by checker_test.go.
type Checker interface {
	Apply(ev Event, effects []Effect)
	Restarted()
	TookOver(host string, s Succession)
	Found() []string
}

// NewChecker returns a checker of a run from its first event on.
var NewChecker func(runID string) Checker

// rigNode is one node as its client sees it.
type rigNode struct {
	id       string
	session  SessionID
	number   uint64
	joinNo   uint64
	replies  map[uint64]Reply
	notice   MembershipUpdate
	welcomed bool
	refused  *Error
	dropped  *Error
	claim    LastRound
	inHost   bool
	topology string
	seenAddr string
	facts    Facts    // told last
	seen     []belief // what it was told before, oldest first
	moved    bool     // it has to follow the control plane to its next host
	lied     bool     // its round was not believed for a false report, and it has had no other since
}

// belief is what a node knows of its run at a time.
type belief struct {
	claim  LastRound
	facts  Facts
	answer uint64 // the reply that came last; 0: none
}

func newRig(t tester, uptime time.Duration) *rig {
	return &rig{
		t: t, nodes: map[string]*rigNode{}, timers: map[Timer]time.Duration{}, checker: NewChecker("job"), steps: map[string]int64{}, hosts: map[string]string{},
		m: New(Config{RunID: "job", Generation: fmt.Sprintf("g%p", t), Uptime: uptime}),
	}
}

// policy is min:max with the default durations.
func policy(min, max int) Policy {
	p := DefaultPolicy()
	p.Min, p.Max = min, max
	return p
}

// apply applies an event, hands its effects to the nodes and checks the machine.
func (r *rig) apply(ev Event) []Effect {
	r.t.Helper()
	r.effects = r.m.Apply(ev)
	for _, e := range r.effects {
		r.deliver(e)
	}
	r.m.check(r.t)
	r.checker.Apply(ev, r.effects)
	if found := r.checker.Found(); len(found) > 0 {
		r.t.Fatalf("after %T %+v: %q\n%+v", ev, ev, found, r.effects)
	}
	return r.effects
}

func (r *rig) deliver(e Effect) {
	switch e := e.(type) {
	case Welcome:
		n := r.bySession(e.Session)
		n.welcomed, n.notice, n.dropped = true, e.Update, nil
		r.noteStep(n, e.Update)
		n.facts, n.seen = e.Update.Facts, nil
	case Refuse:
		r.bySession(e.Session).refused = e.Err
	case Reply:
		if n := r.bySession(e.Session); n != nil {
			if was, ok := n.replies[e.Number]; ok {
				if fmt.Sprint(was) != fmt.Sprint(e) {
					r.t.Fatalf("request %d of %s was answered twice: %+v, then %+v", e.Number, n.id, was, e)
				}
				break // it has the answer
			}
			n.remember(e.Number)
			n.replies[e.Number] = e
			if o, ok := e.Result.(Outcome); ok {
				n.claim, n.facts, n.lied = o.LastRound(), o.Facts(), false
			}
		}
	case Notify:
		n := r.bySession(e.Session)
		r.noteStep(n, e.Update)
		n.remember(0)
		n.notice, n.facts = e.Update, e.Update.Facts
	case Drop:
		r.bySession(e.Session).dropped = e.Err
	case SetTimer:
		maps.DeleteFunc(r.timers, func(t Timer, _ time.Duration) bool { return t.Kind == e.Timer.Kind && t.Session == e.Timer.Session })
		r.timers[e.Timer] = e.After
	case StopTimer:
		if _, ok := r.timers[e.Timer]; !ok {
			r.t.Fatalf("stopped a timer that does not run: %+v", e.Timer)
		}
		delete(r.timers, e.Timer)
	case HistoryEntry:
		r.changes = append(r.changes, e.Text)
	}
}

// remember keeps what the node knew before it was told more.
func (r *rigNode) remember(answer uint64) {
	r.seen = append(r.seen, belief{r.claim, r.facts, answer})
}

// reports is what the node says of itself in a hello.
func (r *rigNode) reports() LastRound {
	c := r.claim
	c.Facts = r.facts
	return c
}

func (r *rig) bySession(s SessionID) *rigNode {
	for _, n := range r.nodes {
		if n.session == s {
			return n
		}
	}
	return nil
}

// fire lets every running timer of a kind run out.
func (r *rig) fire(kind TimerKind) {
	r.t.Helper()
	fired := false
	for timer := range r.timers {
		if timer.Kind == kind {
			delete(r.timers, timer)
			r.apply(TimerFired{timer})
			fired = true
			break
		}
	}
	if !fired {
		r.t.Fatalf("no timer of kind %d runs; running: %v", kind, r.timers)
	}
}

func (r *rig) runs(kind TimerKind) bool {
	for timer := range r.timers {
		if timer.Kind == kind {
			return true
		}
	}
	return false
}

// hello makes a node (or a new process under a known name) say hello.
func (r *rig) hello(id string, p Policy, change ...func(*Hello)) *rigNode {
	r.t.Helper()
	n := &rigNode{id: id, session: SessionID(fmt.Sprintf("%s/%d", id, len(r.nodes))), replies: map[uint64]Reply{}, seenAddr: "10.0.0." + fmt.Sprint(len(r.nodes)+1)}
	if old := r.nodes[id]; old != nil {
		r.nodes["was "+string(old.session)] = old
	}
	r.nodes[id] = n
	h := Hello{Session: n.session, Node: id, Label: id, Policy: p, SeenAddr: n.seenAddr, ServerAddr: "10.0.0.99", LastRound: LastRound{HostRank: -1}}
	for _, f := range change {
		f(&h)
	}
	n.inHost, n.topology = h.InHost, h.Topology
	r.apply(h)
	return n
}

// again says hello on a new connection of the same process.
func (r *rig) again(n *rigNode, p Policy) {
	r.t.Helper()
	n.welcomed = false
	r.apply(Hello{Session: n.session, Node: n.id, Label: n.id, Policy: p, Topology: n.topology, LastRound: n.reports(), InHost: n.inHost, SeenAddr: n.seenAddr})
}

func (r *rigNode) request() Request {
	r.number++
	return Request{Session: r.session, Number: r.number}
}

func (r *rig) join(n *rigNode, change ...func(*Join)) {
	r.t.Helper()
	j := Join{Request: n.request(), NodeRank: -1, RankHint: -1, StorePort: 1000}
	for _, f := range change {
		f(&j)
	}
	n.joinNo = j.Number
	r.apply(j)
}

// outcome is the answer to the node's last join; ok is false while it is pending.
func (r *rigNode) outcome() (o Outcome, err *Error, ok bool) {
	reply, ok := r.replies[r.joinNo]
	if !ok || r.joinNo == 0 {
		return Outcome{}, nil, false
	}
	if reply.Err != nil {
		return Outcome{}, reply.Err, true
	}
	return reply.Result.(Outcome), nil, true
}

func (r *rig) key(n *rigNode, op store.Op, amount int64, key string, values ...string) Reply {
	r.t.Helper()
	req := KeyRequest{Request: n.request(), Round: n.claim.Round, Op: op, Amount: amount}
	if key != "" {
		req.Keys = []string{key}
	}
	for _, v := range values {
		req.Values = append(req.Values, []byte(v))
	}
	r.apply(req)
	return n.replies[req.Number]
}

// group starts a round of the named nodes.
func (r *rig) group(p Policy, ids ...string) []*rigNode {
	r.t.Helper()
	var nodes []*rigNode
	for _, id := range ids {
		nodes = append(nodes, r.hello(id, p))
	}
	for _, n := range nodes {
		r.join(n)
	}
	if _, _, ok := nodes[0].outcome(); !ok {
		if r.runs(TimerHold) {
			r.fire(TimerHold)
		}
		r.fire(TimerLastCall)
	}
	r.wantRound(nodes...)
	return nodes
}

func (r *rig) lost(n *rigNode) {
	r.t.Helper()
	r.apply(Disconnect{Session: n.session})
	if r.m.forming.policy.ReconnectGrace > 0 {
		r.fire(TimerGrace)
	}
}

// wantRound asserts that exactly these nodes hold the ranks of one round.
func (r *rig) wantRound(nodes ...*rigNode) Outcome {
	r.t.Helper()
	var ranks []int
	var first Outcome
	for i, n := range nodes {
		o, err, ok := n.outcome()
		if !ok || err != nil {
			r.t.Fatalf("node %s has no place: pending %v, error %v; history %q", n.id, !ok, err, r.changes)
		}
		if i == 0 {
			first = o
		}
		ranks = append(ranks, o.Rank)
		o.Rank = first.Rank
		if fmt.Sprint(o) != fmt.Sprint(first) {
			r.t.Fatalf("nodes disagree: %+v and %+v", first, o)
		}
	}
	slices.Sort(ranks)
	for i, rank := range ranks {
		if rank != i || first.World != len(nodes) {
			r.t.Fatalf("ranks %v of a world of %d", ranks, first.World)
		}
	}
	return first
}

// wantChange asserts a line of the run's history.
func (r *rig) wantChange(text string) {
	r.t.Helper()
	if !slices.Contains(r.changes, text) {
		r.t.Fatalf("the history does not say %q: %q", text, r.changes)
	}
}

func (r *rig) wantPending(nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		if o, err, ok := n.outcome(); ok {
			r.t.Fatalf("node %s was answered: %+v, %v", n.id, o, err)
		}
	}
}

func (r *rig) wantError(n *rigNode, code Code) *Error {
	r.t.Helper()
	o, err, ok := n.outcome()
	if !ok || err == nil || err.Code != code {
		r.t.Fatalf("node %s: want code %d, got answered %v, %+v, %v", n.id, code, ok, o, err)
	}
	return err
}

// check asserts what must hold after every event, whatever came before.
func (m *Machine) check(t tester) {
	t.Helper()
	if f := m.Facts(); m.forming.policy.Max > 0 && !f.possible(LastRound{}, m.forming.policy.Max) {
		t.Fatalf("no successor believes these facts: %+v", f)
	}
	joined, grace, newcomers := 0, 0, 0
	var here, next []string // domains of nodes that wait, and of those that a regroup would take
	for id, n := range m.nodes.live {
		if n.id != id || m.nodes.sessions[n.session] != n || n.ended {
			t.Fatalf("node %s is not what its tables say", id)
		}
		if n.join == nil {
			continue
		}
		joined++
		here = append(here, n.domain)
		if n.grace {
			grace++
		} else if m.round.participantOf(n) == nil {
			newcomers++
			next = append(next, n.domain)
		}
	}
	if joined != m.forming.joined.nodes || grace != m.forming.joinedGrace || newcomers != m.forming.newcomers {
		t.Fatalf("counters say %d joined, %d in grace, %d newcomers; there are %d, %d, %d",
			m.forming.joined.nodes, m.forming.joinedGrace, m.forming.newcomers, joined, grace, newcomers)
	}
	var tally [participantStates]int
	for rank, s := range m.round.participants {
		tally[s.state]++
		if s.rank != rank {
			t.Fatalf("seat %d says rank %d", rank, s.rank)
		}
		n := m.nodes.live[s.node]
		switch {
		case s.state == participantRejoined && (n == nil || n.join == nil):
			t.Fatalf("rank %d rejoined without a pending join", rank)
		case s.state == participantRunning && (n == nil || n.join != nil):
			t.Fatalf("rank %d runs, but its node is %v", rank, n)
		}
	}
	nodes, machines := map[string]int{}, map[string]int{}
	for id := range m.nodes.live {
		nodes[id]++
	}
	for id := range m.round.byNode {
		nodes[id]++
	}
	for id := range nodes {
		machines[MachineOf(id)]++
	}
	if !maps.Equal(nodes, m.names.nodes) || !maps.Equal(machines, m.names.machines) {
		t.Fatalf("names are %+v, there are %v on %v", m.names, nodes, machines)
	}
	for _, s := range m.round.participants {
		if s.live() {
			next = append(next, s.domain)
		}
	}
	m.checkHeadcount(t, "joined", &m.forming.joined, here)
	m.checkHeadcount(t, "next", &m.round.next, next)
	if tally != m.round.tally {
		t.Fatalf("tally is %v, seats say %v", m.round.tally, tally)
	}
	if m.closed != nil && m.forming.joined.nodes > 0 {
		t.Fatalf("%d joins are pending in a closed run", m.forming.joined.nodes)
	}
	m.checkUsage(t)
	m.checkDirectives(t)
	if m.closed == nil && m.round.tally[participantFinished] == 0 {
		m.checkNotDue(t)
	}
	for _, n := range m.nodes.live {
		if n.join != nil {
			continue // it is blocked in its join and told with the outcome
		}
		if want := m.updateFor(n, m.forming.waitingReason); (want.Waiting > 0) != (n.update.Waiting > 0) || want.Closed != n.update.Closed || want.Stop != n.update.Stop || want.Directive != n.update.Directive || want.Requeue != n.update.Requeue || !want.Facts.Equal(n.update.Facts) {
			t.Fatalf("node %s was told %+v, it should know %+v", n.id, n.update, want)
		}
	}
}

// checkHeadcount asserts that a headcount is that of nodes in these domains.
func (m *Machine) checkHeadcount(t tester, name string, got *headcount, domains []string) {
	t.Helper()
	segment, nodes, usable := m.forming.policy.segment(), map[string]int{}, 0
	for _, domain := range domains {
		if nodes[domain]++; nodes[domain]%segment == 0 {
			usable += segment
		}
	}
	if got.nodes != len(domains) || got.usable != usable {
		t.Fatalf("%s counts %+v; in segments of %d there are %v", name, *got, segment, nodes)
	}
}

// checkDirectives asserts that what is counted of the directive that stands is right.
func (m *Machine) checkDirectives(t tester) {
	t.Helper()
	d := m.directives.standing
	if d == nil {
		if list := append(m.out.timersOf(TimerDirective), m.out.timersOf(TimerAgree)...); len(list) > 0 {
			t.Fatalf("no directive stands, and these timers run: %+v", list)
		}
		return
	}
	held, saved := 0, 0
	for _, s := range m.round.participants {
		if s.state == participantRunning && m.round.agreement.held.contains(s.rank) {
			held++
		}
		if s.state == participantRunning && m.round.agreement.saved.contains(s.rank) {
			saved++
		}
	}
	if held != m.round.agreement.held.running || saved != m.round.agreement.saved.running {
		t.Fatalf("directive %s counts %d held and %d saved, there are %d and %d", d.ID, m.round.agreement.held.running, m.round.agreement.saved.running, held, saved)
	}
	if _, armed := m.out.running[agreeTimer(d.ID)]; armed != (m.round.agreement.phase == phaseAsking) || len(m.out.timersOf(TimerAgree)) > 1 {
		t.Fatalf("directive %s is in phase %d, and its time to agree runs: %v", d.ID, m.round.agreement.phase, armed)
	}
	if _, armed := m.out.running[directiveTimer(d.ID)]; !armed || len(m.out.timersOf(TimerDirective)) > maxDeadlines {
		t.Fatalf("directive %s has the deadlines %+v", d.ID, m.out.timersOf(TimerDirective))
	}
	if m.round.agreement.phase == phaseWaiting && m.round.canAgree() {
		t.Fatalf("nobody is asked about directive %s", d.ID)
	}
	if m.closed != nil {
		t.Fatalf("directive %s stands in a closed run", d.ID)
	}
}

// checkNotDue asserts that no round is overdue: guarantees 5 and 6, "at once".
func (m *Machine) checkNotDue(t tester) {
	t.Helper()
	if m.forming.joinedGrace > 0 || m.forming.policy.Max == 0 {
		return
	}
	usable := m.forming.joined.usable
	full := usable >= m.forming.enough()
	switch {
	case m.round.live() == 0:
		if full || usable >= m.forming.policy.Min && m.forming.clocks[TimerLastCall].due && !m.forming.holding {
			t.Fatalf("a first round of %d nodes is due and was not completed", usable)
		}
	case m.round.tally[participantRejoined] > 0:
		if m.round.awaited() == 0 && usable >= m.forming.policy.Min && (full || !m.forming.holding) {
			t.Fatalf("a regroup of %d nodes is due and was not completed", usable)
		}
	}
}
