package rendezvous

import (
	"cmp"
	"maps"
	"slices"

	"rallypoint/core/store"
	"rallypoint/internal/pack"
)

// Snapshot returns the whole state: whatever decides how the machine answers
// later events. Equal states give equal bytes. It may be called between two
// events only.
func (m *Machine) Snapshot() []byte {
	sessions := slices.Sorted(maps.Keys(m.nodes.sessions))
	return pack.Append(nil, func(p *pack.Packer) {
		c := pack.Coder{Out: p}
		p.List(14)
		p.Uint(StateVersion)
		m.codeRun(c)
		m.forming.packTimers(p)
		m.round.packParticipants(p)
		p.List(len(sessions))
		for _, session := range sessions {
			m.nodes.sessions[session].pack(p)
		}
		p.Texts(slices.Sorted(maps.Keys(m.round.seen)))
		m.closed.pack(p)
		p.List(len(m.nodes.awaitingPeers))
		for _, n := range m.nodes.awaitingPeers {
			p.Text(string(n.session))
		}
		m.viewed.code(c)
		m.keys.pack(p)
		m.nodes.packWaits(p)
		m.round.packStop(p)
		m.codeSuccession(c)
		m.directives.pack(p)
	})
}

func (m *Machine) codeRun(c pack.Coder) {
	policy, by, limits := m.forming.policy, m.forming.policyBy, m.limits
	c.Open(18)
	c.Text(&m.runID, maxText)
	c.Text(&m.generation, maxText)
	policy.Code(c)
	c.Text(&by, maxText)
	c.Text(&m.round.origin, maxText)
	c.Uint(&m.round.number)
	c.Uint(&m.forming.joinSeq)
	c.Bool(&m.round.fresh)
	c.Duration(&m.uptime)
	c.Bool(&m.forming.holding)
	c.Int64(&limits.Keys.MaxBytes)
	c.Int(&limits.Keys.MaxEntries)
	c.Uint(&m.round.floor)
	c.Bool(&m.round.stored)
	c.Text(&m.reserve, maxText)
	c.Text(&m.round.overtaken, maxText)
	c.Int64(&limits.Bytes)
	c.Text(&m.round.store, maxText)
	c.Close()
	if c.In == nil {
		return
	}
	m.forming.setPolicy(policy, by)
	m.limits = limits.withDefaults()
	if err := policy.Validate(); err != nil && policy != (Policy{}) {
		c.In.Fail("%v", err)
	}
}

func (f *forming) packTimers(p *pack.Packer) {
	p.List(3)
	p.Uint(f.out.seq)
	p.List(2 * len(clockKinds))
	for _, kind := range clockKinds {
		p.Bool(f.clocks[kind].armed)
		p.Bool(f.clocks[kind].due)
	}
	timers := f.out.timers()
	p.List(len(timers))
	for _, t := range timers {
		p.List(2)
		t.Timer.code(pack.Coder{Out: p})
		p.Duration(t.After)
	}
}

func (r *round) packParticipants(p *pack.Packer) {
	p.List(len(r.participants))
	for _, s := range r.participants {
		p.List(9)
		p.Text(s.node)
		p.Text(s.label)
		p.Bool(s.host)
		p.Int(int(s.state))
		p.Text(s.cause)
		p.Bool(r.byNode[s.node] == s)
		p.Text(s.domain)
		s.command.Code(pack.Coder{Out: p})
	}
}

func (n *node) pack(p *pack.Packer) {
	p.List(23)
	p.Text(string(n.session))
	p.Text(n.id)
	p.Text(n.label)
	p.Uint(n.incarnation)
	p.Bool(n.inHost)
	p.Text(n.seenAddr)
	p.Text(n.serverAddr)
	p.Bool(n.grace)
	p.Bool(n.recovering)
	p.Bool(n.ended)
	p.Text(n.stale)
	p.Uint(n.seq)
	if n.join == nil {
		p.None()
	} else {
		p.List(2)
		p.Uint(n.join.Number)
		PackArguments(p, *n.join)
	}
	p.Uint(n.acked)
	numbers := slices.Sorted(maps.Keys(n.answered))
	p.List(len(numbers))
	for _, number := range numbers {
		r := n.answered[number]
		p.List(5)
		p.Uint(number)
		PackError(p, r.Err)
		PackResult(p, r.Result)
	}
	p.List(len(n.linger))
	for _, number := range n.linger {
		p.Uint(number)
	}
	n.update.Code(pack.Coder{Out: p})
	p.Uint(0) // retired; its place stays taken
	p.Text(n.hostName)
	p.Text(n.domain)
	n.command.Code(pack.Coder{Out: p})
	p.Bool(n.member)
}

func (c *Closing) pack(p *pack.Packer) {
	if c == nil {
		p.None()
		return
	}
	p.List(5)
	p.Int(int(c.Kind))
	p.Text(c.By)
	p.Text(c.Reason)
	p.Time(c.At)
	p.Text(c.Commands)
}

func (v *view) code(c pack.Coder) {
	retired := "" // of version 2
	c.Open(10)
	c.Bool(&v.waiting)
	c.Int((*int)(&v.closed))
	c.Uint(&v.round)
	c.Bool(&v.stop)
	c.Bool(&v.lost)
	c.Text(&retired, maxText)
	c.Uint(&v.directives)
	c.Bool(&v.only)
	c.Bool(&v.domains)
	c.Bool(&v.planned)
	c.Close()
}

func (a *agentStore) pack(p *pack.Packer) {
	if a == nil {
		p.None()
		return
	}
	e := a.engine
	p.List(2)
	p.List(2 * e.NumKeys())
	for key, value := range e.All() {
		p.Text(key)
		p.Bytes(value)
	}
	var names []string
	for name := range e.Queues() {
		names = append(names, name)
	}
	p.List(2 * len(names))
	for name, items := range e.Queues() {
		p.Text(name)
		p.Values(items)
	}
}

// packWaits writes the waits for keys in the order of their registration, which
// is the order in which a key's write ends them.
func (ns *nodes) packWaits(p *pack.Packer) {
	var waits []*keyWait
	for _, n := range ns.sessions {
		waits = slices.AppendSeq(waits, maps.Values(n.waits))
	}
	slices.SortFunc(waits, func(a, b *keyWait) int { return cmp.Compare(a.seq, b.seq) })
	p.List(len(waits))
	for _, w := range waits {
		p.List(4)
		p.Text(string(w.node.session))
		p.Uint(w.req.Number)
		PackArguments(p, w.req)
		p.Texts(w.waiter.Pending())
	}
}

// Restore returns the machine whose Snapshot b is: it answers every later event
// as that one would have. The error is ErrState and says what is wrong: a newer
// version, or bytes that are no state which a machine can be in.
//
// Its timers do not run: the driver carries out Timers, and applies Recovered
// since all connections are gone.
func Restore(b []byte) (*Machine, error) {
	u := pack.NewUnpacker(b)
	defer u.Release()
	u.Open()
	if err := stateVersion(u, "a state"); err != nil {
		return nil, err
	}
	m, c := New(Config{}), pack.Coder{In: u}
	m.codeRun(c)
	m.forming.unpackTimers(u)
	m.round.unpackParticipants(u)
	for range u.Each() {
		m.forming.unpackNode(u)
	}
	for _, id := range unpackTexts(u) {
		m.round.see(id)
	}
	m.closed = unpackClosing(u)
	for range u.Each() {
		n := m.nodes.sessions[SessionID(u.Text(maxText))]
		if n == nil {
			u.Fail("a node lingers that is not there")
			break
		}
		m.nodes.awaitingPeers = append(m.nodes.awaitingPeers, n)
	}
	m.viewed.code(c)
	m.keys = unpackKeys(u, m.out, m.limits.Keys)
	for range u.Each() {
		m.nodes.unpackWait(u, m.keys)
	}
	m.round.unpackStop(u)
	m.codeSuccession(c)
	m.directives.unpack(u)
	u.Close()
	u.End()
	m.forming.checkSeats(u)
	if err := u.Err(); err != nil {
		return nil, Errorf(CodeState, "not a state of a rendezvous: %v", err)
	}
	return m, nil
}

func unpackTexts(u *pack.Unpacker) []string { return u.Texts(maxValue, maxText) }

func (f *forming) unpackTimers(u *pack.Unpacker) {
	u.Open()
	f.out.seq = u.Uint()
	u.Open()
	for _, kind := range clockKinds {
		f.clocks[kind] = deadline{armed: u.Bool(), due: u.Bool()}
	}
	u.Close()
	for range u.Each() {
		u.Open()
		var t Timer
		t.code(pack.Coder{In: u})
		after := u.Duration()
		u.Close()
		running := runningTimer{t.Seq, after}
		t.Seq = 0
		if _, twice := f.out.running[t]; twice || running.seq == 0 || running.seq > f.out.seq {
			u.Fail("a timer that cannot run: %+v", t)
		}
		f.out.running[t] = running
	}
	u.Close()
}

func (r *round) unpackParticipants(u *pack.Unpacker) {
	for rank := range u.Each() {
		if rank == MaxNodes {
			u.Fail("more than %d members", MaxNodes)
			break
		}
		u.Open()
		s := &participant{rank: rank, node: u.Text(maxText), label: u.Text(maxText), host: u.Bool(), state: participantState(u.Int()), cause: u.Text(maxText)}
		current := u.Bool()
		s.domain = u.Text(maxText)
		s.command.Code(pack.Coder{In: u})
		u.Close()
		if s.state < 0 || s.state >= participantStates {
			u.Fail("rank %d is in state %d", rank, s.state)
			break
		}
		r.participants = append(r.participants, s)
		r.tally[s.state]++
		if s.live() {
			r.next.add(s.domain, 1)
		}
		if current {
			if r.byNode[s.node] != nil {
				u.Fail("node %q has two ranks", s.node)
			}
			r.tie(s)
		}
	}
}

func (f *forming) unpackNode(u *pack.Unpacker) {
	u.Open()
	n := &node{
		session: SessionID(u.Text(maxText)), id: u.Text(maxText), label: u.Text(maxText), incarnation: u.Uint(), inHost: u.Bool(),
		seenAddr: u.Text(maxText), serverAddr: u.Text(maxText), grace: u.Bool(), recovering: u.Bool(), ended: u.Bool(),
		stale: u.Text(maxText), seq: u.Uint(), answered: map[uint64]Reply{}, waits: map[uint64]*keyWait{},
	}
	if u.Open() > 0 {
		number := u.Uint()
		j, _ := UnpackArguments(u, OpJoin).(Join)
		j.Request = Request{Session: n.session, Number: number}
		n.join = &j
	}
	u.Close()
	n.acked = u.Uint()
	for range u.Each() {
		u.Open()
		number := u.Uint()
		f.nodes.keep(n, Reply{Session: n.session, Number: number, Err: UnpackError(u), Result: UnpackResult(u)})
		u.Close()
	}
	for range u.Each() {
		f.nodes.addAwait(n, u.Uint())
	}
	n.update.Code(pack.Coder{In: u})
	_, n.hostName, n.domain = u.Uint(), u.Text(maxText), u.Text(maxText)
	n.command.Code(pack.Coder{In: u})
	n.member = u.Bool()
	u.Close()
	switch {
	case f.nodes.sessions[n.session] != nil:
		u.Fail("session %q appears twice", n.session)
	case !n.ended && f.nodes.live[n.id] != nil:
		u.Fail("node %q appears twice", n.id)
	case n.join != nil && n.ended:
		u.Fail("node %q has left but is joining", n.id)
	case f.policy.Max == 0:
		u.Fail("there is node %q, but no policy", n.id)
	}
	if u.Err() != nil {
		return
	}
	f.nodes.addSession(n)
	if !n.ended {
		f.nodes.enter(n)
	}
	f.countJoin(n)
}

func unpackClosing(u *pack.Unpacker) (c *Closing) {
	if u.Open() > 0 {
		c = &Closing{Kind: ClosedKind(u.Int()), By: u.Text(maxText), Reason: u.Text(maxText), At: u.Time(), Commands: u.Text(maxText)}
		if c.Kind < ClosedAdmission || c.Kind > ClosedRequeue {
			u.Fail("closed in the way %d", c.Kind)
		}
	}
	u.Close()
	return c
}

// unpackKeys fills the keys before there is any wait, so that it wakes no waiter.
func unpackKeys(u *pack.Unpacker, out *output, limits store.Limits) (a *agentStore) {
	if u.Open() > 0 {
		a = newAgentStore(out, store.Limits{})
		e := a.engine
		for n := u.Open() / 2; n > 0 && u.Err() == nil; n-- {
			if err := e.Set(u.Text(maxValue), u.Bytes(maxValue)); err != nil {
				u.Fail("%v", err)
			}
		}
		u.Close()
		for n := u.Open() / 2; n > 0 && u.Err() == nil; n-- {
			name := u.Text(maxValue)
			for _, item := range u.Values(maxValue, maxValue) {
				if err := e.QueuePush(name, item); err != nil {
					u.Fail("%v", err)
				}
			}
		}
		u.Close()
		e.Limit(limits)
	}
	u.Close()
	return a
}

func (ns *nodes) unpackWait(u *pack.Unpacker, keys *agentStore) {
	u.Open()
	session, number := SessionID(u.Text(maxText)), u.Uint()
	req, _ := UnpackArguments(u, OpKey).(KeyRequest)
	pending := unpackTexts(u)
	u.Close()
	n := ns.sessions[session]
	switch {
	case u.Err() != nil:
		return
	case n == nil || n.ended || keys == nil || n.waits[number] != nil || len(pending) == 0:
		u.Fail("a wait of session %q that cannot be", session)
		return
	}
	if err := checkKeyRequest(req); err != nil {
		u.Fail("%v", err)
		return
	}
	req.Request = Request{Session: session, Number: number}
	w := &keyWait{node: n, req: req}
	keys.register(w)
	w.engine.Await(pending, &w.waiter)
	ns.addWait(w)
}

// checkSeats refuses members and joins that contradict each other.
func (f *forming) checkSeats(u *pack.Unpacker) {
	if u.Err() != nil {
		return
	}
	if f.round.hostRank < -1 || f.round.hostRank >= len(f.round.participants) {
		u.Fail("rank %d of %d hosts the control plane", f.round.hostRank, len(f.round.participants))
	}
	for i, rank := range f.round.finishedHosts {
		if rank < 0 || rank >= len(f.round.participants) || i > 0 && rank <= f.round.finishedHosts[i-1] || f.round.participants[rank].state != participantFinished {
			u.Fail("rank %d hosted the control plane and has finished", rank)
			return
		}
	}
	if f.round.run.closed != nil && f.joined.nodes > 0 {
		u.Fail("%d nodes join a closed run", f.joined.nodes)
	}
	for _, s := range f.round.participants {
		n := f.nodes.live[s.node]
		switch {
		case s.state == participantRejoined && (n == nil || n.join == nil || f.round.byNode[s.node] != s):
			u.Fail("rank %d has rejoined, but its node does not join", s.rank)
		case s.state == participantRunning && (n == nil || n.join != nil || f.round.byNode[s.node] != s):
			u.Fail("rank %d runs, but its node does not", s.rank)
		}
	}
}

// codeSuccession codes what a successor needs, and what it begins with. A state of version 1 has the host in
// its members only.
func (m *Machine) codeSuccession(c pack.Coder) {
	since2 := c.Maybe(true, 15)
	c.Uint(&m.succession.Term)
	c.Text(&m.succession.From, maxText)
	m.succession.Facts.code(c)
	c.Duration(&m.succession.Grace)
	c.IntOr(&m.round.hostRank, -1)
	codeRanks(c, &m.round.finishedHosts)
	c.Bool(&m.round.finishReported)
	c.Text(&m.viewed.generation, maxText)
	c.IntOr(&m.viewed.host, -1)
	c.Bool(&m.viewed.finished)
	c.Int(&m.viewed.finishedHosts)
	c.Bool(&m.succession.Left)
	c.Text(&m.round.domains, maxDomains)
	c.Bool(&m.succession.Silent)
	c.Bool(&m.succession.Alone)
	c.Close()
	if since2 {
		return
	}
	for _, s := range m.round.participants {
		if s.host {
			m.round.hostRank = s.rank
		}
	}
}

// packStop writes the announced stop of the last round into a snapshot.
func (r *round) packStop(p *pack.Packer) {
	if r.stop == nil {
		p.None()
		return
	}
	p.List(3)
	p.Int(r.stop.Rank)
	p.Bool(r.stop.Leaving)
	p.Text(r.stop.Reason)
}

func (r *round) unpackStop(u *pack.Unpacker) {
	if u.Open() > 0 {
		r.stop = &RoundStop{Round: r.number, Rank: u.Int(), Leaving: u.Bool(), Reason: u.Text(maxText)}
		if rank := r.stop.Rank; u.Err() == nil && (rank < 0 || rank >= len(r.participants)) {
			u.Fail("rank %d stops a round of %d nodes", rank, len(r.participants))
		}
	}
	u.Close()
}
