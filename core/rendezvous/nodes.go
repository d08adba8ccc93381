package rendezvous

import (
	"cmp"
	"slices"

	"rallypoint/core/store"
)

// nodes are the nodes that live, the sessions by which they ask, and what is kept for each:
// answers until it has them, and waits for keys.
type nodes struct {
	out   *output
	names *names
	run   *run

	live     map[string]*node    // by id: those that have not ended
	sessions map[SessionID]*node // the same, and those that ended and await their peers

	awaitingPeers []*node // that wait for the others to end
	touched       []*node // whose own view of the run has changed
	usage         Usage   // but for Keys
}

func newNodes(out *output, names *names, run *run) *nodes {
	return &nodes{out: out, names: names, run: run, live: map[string]*node{}, sessions: map[SessionID]*node{}}
}

// enter adds a live node, and part takes it out.
func (ns *nodes) enter(n *node) {
	ns.live[n.id] = n
	ns.names.add(n.id)
}

func (ns *nodes) part(id string) {
	if ns.live[id] != nil {
		delete(ns.live, id)
		ns.names.drop(id)
	}
}

// touch has the node's view of the run computed again.
func (ns *nodes) touch(n *node) { ns.touched = append(ns.touched, n) }

// node is one live process that said hello.
type node struct {
	id          string
	label       string
	hostName    string
	domain      string // of the topology; "": none
	command     Command
	session     SessionID
	incarnation uint64
	inHost      bool
	seenAddr    string
	serverAddr  string

	grace      bool // its connection broke; TimerGrace runs
	recovering bool // it did so when the control plane was restarted

	ended  bool   // it left, in which case only its session lives on, to await its peers, or is lost
	member bool   // it was in a round
	stale  string // why it must rejoin though no node waits: it was dropped from its round

	join *Join  // pending join
	seq  uint64 // order of its arrival

	acked    uint64              // answers up to this number have arrived
	answered map[uint64]Reply    // answers that may not have arrived
	held     int                 // bytes of keys and values in them
	waits    map[uint64]*keyWait // pending key waits
	answers  int64               // about what answered takes, in bytes
	waiting  int64               // about what waits take
	linger   []uint64            // requests of AwaitPeers not answered yet
	update   MembershipUpdate    // last one sent
}

type keyWait struct {
	node   *node
	req    KeyRequest
	engine *store.Engine
	waiter store.Waiter
	seq    uint64 // order of registration
}

func (k *keyWait) forget() { k.engine.Cancel(&k.waiter) }

// named returns the live nodes that a name stands for, by id: the one with that id, and those
// on the host of that name.
func (ns *nodes) named(name string) (list []*node) {
	for _, n := range ns.live {
		if name != "" && (n.id == name || n.hostName == name) {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	return list
}

// ids returns the ids of the live nodes that names stand for, each once.
func (ns *nodes) ids(names []string) (ids []string) {
	for _, name := range names {
		for _, n := range ns.named(name) {
			if !slices.Contains(ids, n.id) {
				ids = append(ids, n.id)
			}
		}
	}
	return ids
}

func (ns *nodes) remove(n *node) {
	ns.out.stop(Timer{Kind: TimerGrace, Session: n.session})
	if !n.ended {
		ns.part(n.id)
		n.ended = true
	}
	ns.dropSession(n)
}

// addSession and dropSession count a session with all that it keeps.
func (ns *nodes) addSession(n *node) {
	ns.sessions[n.session] = n
	ns.usage.Sessions += n.cost()
}

func (ns *nodes) dropSession(n *node) {
	if ns.sessions[n.session] != n {
		return
	}
	delete(ns.sessions, n.session)
	for number := range n.waits {
		ns.dropWait(n, number)
	}
	ns.dropAwaits(n)
	ns.usage.Sessions -= n.cost()
	ns.usage.Answers -= n.answers
}

// answer answers a request and keeps the answer until the node has it.
func (ns *nodes) answer(n *node, number uint64, result Result) {
	ns.reply(n, Reply{Session: n.session, Number: number, Result: result})
}

func (ns *nodes) fail(n *node, number uint64, err *Error) {
	ns.reply(n, Reply{Session: n.session, Number: number, Err: err})
}

func (ns *nodes) reply(n *node, r Reply) {
	if ns.sessions[n.session] == n {
		ns.keep(n, r)
	}
	ns.out.emit(r)
}

// owes reports whether the request is applied and its answer still to come.
func (n *node) owes(number uint64) bool {
	return n.join != nil && n.join.Number == number || n.waits[number] != nil || slices.Contains(n.linger, number)
}

// keep keeps an answer until the node acknowledges it.
func (ns *nodes) keep(n *node, r Reply) {
	ns.dropAnswer(n, r.Number)
	n.answered[r.Number] = r
	n.held += r.size()
	n.answers += r.cost()
	ns.usage.Answers += r.cost()
}

func (ns *nodes) dropAnswer(n *node, number uint64) {
	r, ok := n.answered[number]
	if !ok {
		return
	}
	delete(n.answered, number)
	n.held -= r.size()
	n.answers -= r.cost()
	ns.usage.Answers -= r.cost()
}

// addAwait and dropAwaits count the requests of AwaitPeers that have no answer yet.
func (ns *nodes) addAwait(n *node, number uint64) {
	n.linger = append(n.linger, number)
	ns.usage.Answers += awaitCost
}

func (ns *nodes) dropAwaits(n *node) {
	ns.usage.Answers -= awaitCost * int64(len(n.linger))
	n.linger = nil
}

// addWait and dropWait count a wait for keys; the engine counts its own part.
func (ns *nodes) addWait(w *keyWait) {
	w.node.waits[w.req.Number] = w
	w.node.waiting += w.cost()
	ns.usage.Waits += w.cost()
}

func (ns *nodes) dropWait(n *node, number uint64) {
	w := n.waits[number]
	w.forget()
	delete(n.waits, number)
	n.waiting -= w.cost()
	ns.usage.Waits -= w.cost()
}

func (n *node) cost() int64 {
	return sessionCost + int64(len(n.id)+len(n.label)+len(n.hostName)+len(n.domain)+len(n.command.Digest)+len(n.command.Text)+len(n.session)+len(n.seenAddr)+len(n.serverAddr))
}

// holds is what the run could free without the node.
func (n *node) holds() int64 { return n.answers + n.waiting + awaitCost*int64(len(n.linger)) }

func (k *keyWait) cost() int64 { return waitCost + costOf(k.req) }

// size is how many bytes of keys and values a reply holds; the rest of it is small.
func (r Reply) size() (bytes int) {
	if result, ok := r.Result.(KeyResult); ok {
		for _, value := range result.Values {
			bytes += len(value)
		}
		for _, key := range result.Keys {
			bytes += len(key)
		}
	}
	return bytes
}

// cost is about what a reply takes while it is kept.
func (r Reply) cost() int64 {
	cost := int64(answerCost + r.size())
	if r.Err != nil {
		cost += int64(len(r.Err.Text))
	}
	switch result := r.Result.(type) {
	case KeyResult:
		cost += partCost * int64(len(result.Values)+len(result.Keys))
	case Withdrawn:
		cost += int64(len(result.Progress.Headline) + len(result.Progress.Detail))
	}
	return cost
}

// again is an answer that is sent once more. Behind an outcome comes the update, if it
// tells to regroup: while the node had no outcome it took that for one of the round before.
func (n *node) again(reply Reply) []Effect {
	if _, joined := reply.Result.(Outcome); joined && n.update.Waiting > 0 {
		return []Effect{reply, Notify{n.session, n.update}}
	}
	return []Effect{reply}
}

// Bounds of the answers kept for a node and owed to it; a well-behaved one has a
// few. One that asks on without acknowledging any is lost.
const (
	maxAnswers     = 1 << 14
	maxAnswerBytes = 64 << 20
)
