package control

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// patientGuest are parameters of nodes that send no beats and are not given up.
func patientGuest(addr string, n int) params.Params {
	p := controltest.Guest(addr, n)
	p.LeaseTimeout, p.ReconnectGrace = time.Hour, time.Hour
	return p
}

// wireGroup has n nodes complete a round; their next request is number 2.
func wireGroup(t *testing.T, p params.Params, n int) []*wireNode {
	t.Helper()
	nodes := make([]*wireNode, n)
	for i := range nodes {
		nodes[i] = dialNode(t, p.Endpoint)
		nodes[i].enter(testHello(fmt.Sprint("n", i), fmt.Sprint("s", i), p))
		nodes[i].ask(1, controltest.Join())
	}
	for _, node := range nodes {
		node.wantReply(1)
	}
	return nodes
}

func keyOp(op store.Op, keys ...string) rendezvous.KeyRequest {
	return rendezvous.KeyRequest{Round: 1, Op: op, Keys: keys}
}

func setKey(key, value string) rendezvous.KeyRequest {
	r := keyOp(store.OpSet, key)
	r.Values = [][]byte{[]byte(value)}
	return r
}

func addKey(key string) rendezvous.KeyRequest {
	r := keyOp(store.OpAdd, key)
	r.Amount = 1
	return r
}

// wantResult wants the next frame to be the reply to a number, with a result.
func (wn *wireNode) wantResult(number uint64, want string) {
	wn.t.Helper()
	r := wn.wantReply(number)
	k, ok := r.Result.(rendezvous.KeyResult)
	got := fmt.Sprintf("%s %s %d %v", k.Values, k.Keys, k.Number, k.Ready)
	if r.Err != nil || !ok || got != want {
		wn.t.Fatalf("the answer to %d is %+v, want %s", number, r, want)
	}
}

// wantSilence wants what the node has sent to be without an answer once the server
// has read it: that answers frames in their order.
func (wn *wireNode) wantSilence() {
	wn.t.Helper()
	wn.send(wire.Beat{Echo: true})
	if f := wn.next(); f != (wire.Beat{}) {
		wn.t.Fatalf("got %+v, which may not be said yet", f)
	}
}

// TestReadsDoNotWaitForTheDisk holds the commits of one node back and has another
// one read: what is stored at once, what is not when it is, and nothing of that is
// written.
func TestReadsDoNotWaitForTheDisk(t *testing.T) {
	d := newDurable(t, Config{})
	nodes := wireGroup(t, patientGuest(d.addr, 2), 2)
	writer, reader := nodes[0], nodes[1]
	writer.ask(2, setKey("k", "1"))
	writer.wantReply(2)
	push := setKey("q", "item")
	push.Op = store.OpQueuePush
	writer.ask(3, push)
	writer.wantReply(3)

	d.disk.holds.Store(true)
	writer.ask(4, setKey("k", "2"))
	first := d.disk.next(t)
	readWhatIsStored(t, d, reader)

	// A node sees what it has written before, and no sooner than it is stored.
	writer.ask(5, keyOp(store.OpGet, "k"))
	writer.wantSilence()
	// A key that is not there is waited for, and the wait is kept.
	reader.ask(10, keyOp(store.OpGet, "fresh"))
	reader.wantSilence()
	reader.ask(11, keyOp(store.OpGet, "k")) // which does not wait for it
	reader.wantResult(11, "[1] [] 0 false")
	first.store()
	writer.wantReply(4)
	writer.wantResult(5, "[2] [] 0 false")
	second := d.disk.next(t)
	if got := second.keys(t); !slices.Equal(got, []store.Op{store.OpGet}) {
		t.Errorf("%v were stored, want the wait alone", got)
	}
	second.store()
	readWithACommit(t, d, writer, reader)
}

// readWhatIsStored has the reader ask while a commit is held back: the state before it
// is answered at once.
func readWhatIsStored(t *testing.T, d *durable, reader *wireNode) {
	t.Helper()
	for i, x := range []struct {
		ev   rendezvous.KeyRequest
		want string
	}{
		{keyOp(store.OpGet, "k"), "[1] [] 0 false"},
		{keyOp(store.OpMultiGet, "k", "k"), "[1 1] [] 0 false"},
		{keyOp(store.OpCheck, "k", "none"), "[] [] 0 false"},
		{keyOp(store.OpWait, "k", "q"), "[] [] 0 true"},
		{keyOp(store.OpNumKeys), "[] [] 1 false"},
		{keyOp(store.OpListKeys), "[] [k] 0 false"},
		{keyOp(store.OpQueueLen, "q"), "[] [] 1 false"},
	} {
		reader.ask(uint64(2+i), x.ev)
		reader.wantResult(uint64(2+i), x.want)
	}
	reader.ask(1, controltest.Join()) // once more
	if o, ok := reader.wantReply(1).Result.(rendezvous.Outcome); !ok || o.Round != 1 {
		t.Errorf("the outcome is not delivered again: %+v", o)
	}
	over := keyOp(store.OpGet, "k")
	over.Round = 7
	reader.ask(9, over)
	if err := reader.wantReply(9).Err; rendezvous.CodeOf(err) != rendezvous.CodeRoundOver {
		t.Errorf("keys of another round: %v", err)
	}
	if code, _, _ := get(t, d.addr, "/status"); code != 200 {
		t.Errorf("/status: %d", code)
	}
}

// readWithACommit asks for what is being written: the answers come with the commit that
// holds it. Request 10 of the reader waits for the key fresh.
func readWithACommit(t *testing.T, d *durable, writer, reader *wireNode) {
	t.Helper()
	// A node that asks for a key while it is written gets it with that commit.
	writer.ask(6, setKey("fresh", "x"))
	third := d.disk.next(t)
	reader.ask(12, keyOp(store.OpGet, "fresh"))
	reader.wantSilence()
	// And so does its writer, also for what is not on its way yet.
	writer.ask(7, addKey("sum"))
	writer.ask(8, keyOp(store.OpMultiGet, "sum", "fresh"))
	writer.wantSilence()
	third.store()
	reader.wantResult(10, "[x] [] 0 false")
	reader.wantResult(12, "[x] [] 0 false")
	writer.wantReply(6)
	fourth := d.disk.next(t)
	if got := slices.Concat(third.keys(t), fourth.keys(t)); !slices.Equal(got, []store.Op{store.OpSet, store.OpAdd}) {
		t.Errorf("%v were stored, want the changes alone", got)
	}
	// A read between two changes of its node stays between them.
	for number, ev := range []rendezvous.Event{addKey("sum"), keyOp(store.OpGet, "sum"), addKey("sum")} {
		writer.ask(uint64(9+number), ev)
	}
	writer.wantSilence()
	fourth.store()
	writer.wantResult(7, "[] [] 1 false")
	fifth := d.disk.next(t)
	writer.wantResult(8, "[1 x] [] 0 false")
	fifth.store()
	writer.wantResult(9, "[] [] 2 false")
	writer.wantResult(10, "[2] [] 0 false")
	writer.wantResult(11, "[] [] 3 false")
}

// TestReadsOnAFullDisk are answered, also those after a join that is refused.
func TestReadsOnAFullDisk(t *testing.T) {
	log, lines := testkit.NewLog(t)
	d := newDurable(t, Config{Log: log})
	nodes := wireGroup(t, patientGuest(d.addr, 2), 2)
	nodes[0].ask(2, setKey("k", "1"))
	nodes[0].wantReply(2)
	d.disk.holds.Store(true)
	nodes[1].ask(2, controltest.Join())
	held := d.disk.next(t)
	nodes[1].ask(3, keyOp(store.OpGet, "k"))
	nodes[1].wantSilence()
	held.goes <- false
	lines.Await(t, "cannot be written", 1)
	if err := nodes[1].wantReply(2).Err; rendezvous.CodeOf(err) != rendezvous.CodeConnection {
		t.Errorf("the join: %v", err)
	}
	nodes[1].wantResult(3, "[1] [] 0 false")
	nodes[0].ask(3, setKey("k", "2"))
	d.disk.next(t)
	nodes[1].ask(4, keyOp(store.OpGet, "k"))
	nodes[1].wantResult(4, "[1] [] 0 false")
}

// tally is a node that adds to a key of its own and reads those of all, and knows
// what it may be told.
type tally struct {
	*wireNode
	hello  wire.Hello
	name   string
	asked  []tallied // without an answer, in order
	number uint64
	added  int64 // by all adds asked for
	stored int64 // what others may read: by those whose commit the test has let through
	shown  int64 // the most that a client has received
}

// tallied is a request of a tally.
type tallied struct {
	number uint64
	ev     rendezvous.KeyRequest
	of     *tally // whose key it is
	want   int64  // an own key: the answer
	least  int64  // that of another one: what was shown when it was asked for
}

// shelf is a durable server whose commits a test holds, with its nodes.
type shelf struct {
	*rapid.T
	d       *durable
	nodes   []*tally
	held    *heldCommit
	batch   []*tally // whose adds are in held
	waiting []*tally // whose adds wait for it
}

func (s *shelf) draw() *tally { return rapid.SampledFrom(s.nodes).Draw(s.T, "node") }

// ask sends a request and returns what is known of it.
func (s *shelf) ask(n, of *tally, op store.Op) tallied {
	n.number++
	q := tallied{number: n.number, ev: keyOp(op, of.name), of: of, want: n.added, least: of.shown}
	if op == store.OpAdd {
		q.ev = addKey(of.name)
	}
	n.asked = append(n.asked, q)
	n.ask(q.number, q.ev)
	return q
}

// add has a node change something. The first change is on its way to the disk at
// once, those after it wait.
func (s *shelf) add(t *rapid.T) {
	n := s.draw()
	n.added++
	s.ask(n, n, store.OpAdd)
	if s.held == nil {
		s.held, s.batch = s.d.disk.next(s.d.t), []*tally{n}
		return
	}
	n.wantSilence() // it has come before what is done next
	s.waiting = append(s.waiting, n)
}

// read has a node read: after a change of its own that is not stored it receives
// nothing, else what is stored, at once.
func (s *shelf) read(t *rapid.T) {
	n, of := s.draw(), s.draw()
	owing := len(n.asked) > 0
	s.ask(n, of, rapid.SampledFrom([]store.Op{store.OpGet, store.OpMultiGet}).Draw(t, "op"))
	if owing {
		n.wantSilence()
		return
	}
	s.answer(n, 1)
}

// answer takes the answers to the next requests of a node, and judges them. They may come in
// another order: a read that waits for a change of its node is answered after that is applied,
// and a read that the server receives in between is answered at once.
func (s *shelf) answer(n *tally, count int) {
	replies := map[uint64]wire.Reply{}
	for range count {
		r := n.nextReply()
		replies[r.Number] = r
	}
	for _, q := range n.asked[:count] {
		r := replies[q.number]
		k, ok := r.Result.(rendezvous.KeyResult)
		got := k.Number
		if len(k.Values) == 1 {
			_, err := fmt.Sscan(string(k.Values[0]), &got)
			ok = ok && err == nil
		}
		switch {
		case !ok:
			s.Fatalf("the answer to %+v is %+v", q, r)
		case n == q.of && got != q.want:
			s.Fatalf("%v of its own key by %s says %d, which has added %d before", q.ev.Op, n.name, got, q.want)
		case n != q.of && (got < q.least || got > q.of.stored):
			s.Fatalf("%v of %s by %s says %d; %d was shown before, %d is stored", q.ev.Op, q.of.name, n.name, got, q.least, q.of.stored)
		}
		q.of.shown = max(q.of.shown, got)
	}
	n.asked = n.asked[count:]
}

// store lets the commit through that is on its way: its changes are answered, and
// all reads up to the next change.
func (s *shelf) store(t *rapid.T) {
	if s.held == nil {
		t.Skip("nothing is on its way")
	}
	for _, n := range s.batch {
		n.stored++
	}
	s.held.store()
	committed := map[*tally]int{}
	for _, n := range s.batch {
		committed[n]++
	}
	s.held, s.batch, s.waiting = nil, s.waiting, nil
	if len(s.batch) > 0 {
		s.held = s.d.disk.next(s.d.t)
	}
	for _, n := range s.nodes {
		if committed[n] == 0 {
			continue
		}
		ready := 0
		for _, q := range n.asked {
			if q.ev.Op == store.OpAdd {
				if committed[n] == 0 {
					break
				}
				committed[n]--
			}
			ready++
		}
		s.answer(n, ready)
	}
}

// crash kills the server at this point and starts another. The nodes come back and
// ask once more for what they were not told.
func (s *shelf) crash(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "rarely") > 0 {
		t.Skip("rarely")
	}
	s.d.crash(s.held, rapid.Bool().Draw(t, "the commit has reached the disk"))
	s.held, s.batch, s.waiting = nil, nil, nil
	for _, n := range s.nodes {
		n.conn.Close()
		n.wireNode = dialNode(s.d.t, s.d.addr)
		if w := n.enter(n.hello); !w.Resumed {
			s.Fatalf("%s is not known any more", n.name)
		}
	}
	for _, n := range s.nodes {
		n.stored = n.added // all of it is asked for again, and nothing is held now
		for _, q := range n.asked {
			n.ask(q.number, q.ev)
		}
	}
	for _, n := range s.nodes {
		s.answer(n, len(n.asked))
	}
	s.d.disk.holds.Store(true)
}

// TestNoAnswerIsContradicted holds every commit of a server back, lets nodes add and
// read in any order, lets commits through, and kills the server at any point with the
// commit on the disk or not. A node receives at once what is stored, and what is not
// when it is; no later answer, of that server or the next one, goes after an earlier
// one.
func TestNoAnswerIsContradicted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &shelf{T: rt, d: newDurable(t, Config{})}
		defer s.d.stop()
		p := patientGuest(s.d.addr, rapid.IntRange(1, 3).Draw(rt, "nodes"))
		for i, node := range wireGroup(t, p, p.Max) {
			name := fmt.Sprint("n", i)
			n := &tally{wireNode: node, name: name, number: 1, hello: testHello(name, fmt.Sprint("s", i), p)}
			s.nodes = append(s.nodes, n)
			n.added, n.stored = 1, 1
			s.ask(n, n, store.OpAdd)
			s.answer(n, 1)
			defer func() { n.conn.Close() }()
		}
		s.d.disk.holds.Store(true)
		rt.Repeat(map[string]func(*rapid.T){"add": s.add, "read": s.read, "store": s.store, "crash": s.crash})
	})
}
