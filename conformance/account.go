package conformance

import (
	"cmp"
	"slices"
	"strings"
	"time"

	r "rallypoint/core/rendezvous"
)

// Keys of the agents' exit barrier (docs/spec/agent.md A51).
const (
	barrierCount = "torchelastic/agent/terminal_state/num_members"
	barrierLast  = "torchelastic/agent/terminal_state/last_member"
)

// account is a checker's knowledge of a run.
type account struct {
	policy     r.Policy
	policyBy   string
	generation string      // of the control plane; "" until it has completed a round
	origin     string      // generation of the last round
	round      uint64      // of the participants
	floor      uint64      // highest round reported
	stored     bool        // the last round was completed before the control plane was restarted
	reserve    string      // generation of the next round of a restarted control plane
	overtaken  bool        // the round is over though no member is lost
	stop       r.RoundStop // announced in the round; Round is 0 if none is
	standing   *standing
	directed   []string // ids of the last ones that have ended
	drained    map[string]drain
	leaving    map[string]bool // nodes that are drained at this event
	target     int             // of the last scale; 0: there was none
	endedRound uint64          // the last one that a drain or a scale has ended
	own        bool            // directives were changed here
	learned    uint64          // change of them that the control plane before has told
	fresh      bool            // no round was completed by this control plane
	begun      bool            // it has had its first node
	recovery   time.Duration   // how long nodes have to come back after a restart; 0: the lease

	succession     r.Succession
	hostRank       int   // member whose process hosts the control plane; -1: none
	finishedHosts  []int // members that host or hosted it, and have finished
	finishReported bool  // a member has finished, as an earlier control plane told
	tellsFacts     bool  // an update had facts

	participants []*participant
	domains      string // of these, as facts tell them; "": they do not
	byNode       map[string]*participant
	sessions     map[r.SessionID]*session
	seen         map[string]bool // nodes that were part of the run
	arrivals     int
	closing      closing
	rest         time.Duration // for how long the run stays closed, from its closing on; 0: not at all
	sums         map[string]*sum

	timers map[r.Timer]timer
	due    map[r.TimerKind]bool
	now    time.Duration // the present event came then, at the earliest
	held   bool          // at the beginning of the event, or since: only a full round may be completed
	errs   []failure
}

// session is a process's life with the control plane.
type session struct {
	id          r.SessionID
	node        string
	hostName    string
	domain      string // of the topology
	incarnation uint64
	command     string // its digest; "": not told
	member      bool   // it was in a round
	inHost      bool
	grace       bool
	recovering  bool
	ended       bool // it left, and may await its peers
	stale       bool // it has to rejoin, whatever others do
	join        *r.Join
	order       int
	round       uint64 // last one that it was told of
	acked       uint64
	asked       map[uint64]struct{}
	answers     map[uint64]r.Reply
	barrier     map[uint64]struct{} // its waits at the exit barrier
	awaiting    []uint64
	update      r.MembershipUpdate
	heard       time.Duration // when it said something last, at the earliest; 0: not known
	back        time.Duration // when it did so after a silence
}

type state int

const (
	running state = iota
	unknown
	rejoined
	finished
	lost
)

type participant struct {
	rank  int
	node  string
	state state

	domain  string // of the node's topology; "": none, or not known
	command string // its digest; "": not told
}

func (p *participant) live() bool { return p.state != finished && p.state != lost }

// closing is how a run was closed; the kinds are in the order in which one
// overrules another.
type closing struct {
	kind   closedKind
	by     string
	reason string

	commands string // digests of what the members ran; "": not told
}

type closedKind int

const (
	open closedKind = iota
	admission
	success
	failed
	requeued
)

type timer struct {
	running bool
	seq     uint64
	after   time.Duration
	set     time.Duration
}

// sum is the value of a key that was only changed by additions.
type sum struct {
	value int64
	known bool
}

// failure is an error that a node was told.
type failure struct {
	err     *r.Error
	ev      r.Event
	session *session
	number  uint64
}

func newAccount() account {
	return account{
		fresh: true, hostRank: -1, byNode: map[string]*participant{}, sessions: map[r.SessionID]*session{}, seen: map[string]bool{},
		sums: map[string]*sum{}, timers: map[r.Timer]timer{}, due: map[r.TimerKind]bool{}, drained: map[string]drain{}, leaving: map[string]bool{},
	}
}

func nameOf(t r.Timer) r.Timer { t.Seq = 0; return t }

func (a *account) ended() bool { return a.closing.kind != open }

func (a *account) count(states ...state) int {
	n := 0
	for _, s := range a.participants {
		if slices.Contains(states, s.state) {
			n++
		}
	}
	return n
}

func (a *account) awaited() int { return a.count(running, unknown) }
func (a *account) live() int    { return a.count(running, unknown, rejoined) }

// nodes are the live nodes in the order of their joins.
func (a *account) nodes() []*session {
	var list []*session
	for _, s := range a.sessions {
		if !s.ended {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(x, y *session) int { return cmp.Or(x.order-y.order, cmp.Compare(x.id, y.id)) })
	return list
}

func (a *account) nodeOf(id string) *session {
	for _, s := range a.sessions {
		if !s.ended && s.node == id {
			return s
		}
	}
	return nil
}

func (a *account) joiners() []*session {
	return slices.DeleteFunc(a.nodes(), func(s *session) bool { return s.join == nil })
}

func (a *account) joinersInGrace() int {
	n := 0
	for _, s := range a.joiners() {
		if s.grace {
			n++
		}
	}
	return n
}

// participantOf is a live node's place in the last round, nil if it has none any more.
func (a *account) participantOf(s *session) *participant {
	t := a.byNode[s.node]
	if t == nil || t.state == lost || s.ended || a.sessions[s.id] != s {
		return nil
	}
	return t
}

// fits is how many of n nodes a round has room for.
func (a *account) fits(n int) int {
	n = min(n, a.policy.Max)
	if a.target > 0 {
		n = min(n, a.target)
	}
	for n > 0 && a.policy.NodeUnit > 0 && n%a.policy.NodeUnit != 0 {
		n--
	}
	return n
}

// full is how many nodes complete a round at once.
func (a *account) full() int {
	if a.target != 0 {
		return a.target
	}
	if a.policy.Target != 0 {
		return a.policy.Target
	}
	return a.policy.Max
}

// growth is how many nodes a regroup now would add.
func (a *account) growth() int {
	domains, newcomers := a.next()
	if newcomers == 0 {
		return 0
	}
	return max(0, a.fits(a.inSegments(domains))-len(a.participants))
}

// oversized reports whether the round has more members than the target of a scale.
func (a *account) oversized() bool {
	return a.target > 0 && len(a.participants) > a.target && a.live() > a.target && !a.finishing()
}

// strange reports whether a node that joins is a spare of another job, which guarantee 4 refuses:
// the round has all the members that it may have, and some are known to run other commands and none
// this node's.
func (a *account) strange(s *session) bool {
	n, places := len(a.participants), cmp.Or(a.target, a.policy.Max)
	whole := n > 0 && n >= places && a.count(running) == n && !a.overtaken
	if s.member || s.command == "" || !whole && !a.finishing() {
		return false
	}
	others := false
	for _, t := range a.participants {
		if t.command == s.command {
			return false
		}
		others = others || t.command != ""
	}
	return others
}

// commands are the digests of what the members ran, if all are known and few.
func (a *account) commands() string {
	var list []string
	for _, t := range a.participants {
		if t.command == "" {
			return ""
		}
		if !slices.Contains(list, t.command) {
			list = append(list, t.command)
		}
	}
	if len(list) > 16 {
		return ""
	}
	return strings.Join(list, " ")
}

// unjoin ends a pending join that got no place; a member that rejoined is lost by
// it.
func (a *account) unjoin(s *session) {
	s.join = nil
	if t := a.participantOf(s); t != nil && t.state == rejoined {
		t.state = lost
	}
}

func (a *account) part(s *session) {
	if t := a.participantOf(s); t != nil && t.live() {
		t.state = lost
	}
	s.join = nil
	clear(s.barrier)
}

func (a *account) close(c closing) {
	if c.kind > a.closing.kind {
		if c.commands == "" && (c.kind == success || c.kind == admission) {
			c.commands = a.commands()
		}
		a.closing, a.rest = c, 0
		if c.kind == success || c.kind == admission {
			a.rest = a.policy.ClosedFor
		}
		a.endDirective()
	}
}

func (a *account) setTimer(e r.SetTimer) {
	name := nameOf(e.Timer)
	a.timers[name] = timer{true, e.Timer.Seq, e.After, a.now}
	switch e.Timer.Kind {
	case r.TimerGrace:
	case r.TimerHold:
		a.held = true
	default:
		a.due[e.Timer.Kind] = false
	}
}

func (a *account) runs(kind r.TimerKind) bool { return a.timers[r.Timer{Kind: kind}].running }

// settle lets a timer that has run out count only as long as there is a reason
// for it.
func (a *account) settle() {
	forming := !a.ended() && !a.finishing()
	first := forming && a.live() == 0 && a.waiting() >= a.policy.Min && a.policy.Min > 0
	if !first {
		a.due[r.TimerLastCall], a.due[r.TimerQuiet] = false, false
	}
	if !forming || a.live() == 0 || a.count(rejoined) == 0 {
		a.due[r.TimerRegroup] = false
	}
	if !forming || a.live() == 0 || a.growth() == 0 {
		a.due[r.TimerAdmit] = false
	}
}
