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
		p.List(14)
		p.Uint(StateVersion)
		m.packRun(p)
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
		m.viewed.pack(p)
		m.keys.pack(p)
		m.nodes.packWaits(p)
		m.round.packStop(p)
		m.packSuccession(p)
		m.directives.pack(p)
	})
}

func (m *Machine) packRun(p *pack.Packer) {
	p.List(18)
	p.Text(m.runID)
	p.Text(m.generation)
	PackPolicy(p, m.forming.policy)
	p.Text(m.forming.policyBy)
	p.Text(m.round.origin)
	p.Uint(m.round.number)
	p.Uint(m.forming.joinSeq)
	p.Bool(m.round.fresh)
	p.Duration(m.uptime)
	p.Bool(m.forming.holding)
	p.Int64(m.limits.Keys.MaxBytes)
	p.Int(m.limits.Keys.MaxEntries)
	p.Uint(m.round.floor)
	p.Bool(m.round.stored)
	p.Text(m.reserve)
	p.Text(m.round.overtaken)
	p.Int64(m.limits.Bytes)
	p.Text(m.round.store)
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
		packTimer(p, t.Timer)
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
		PackCommand(p, s.command)
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
	PackMembershipUpdate(p, n.update)
	p.Uint(0) // retired; its place stays taken
	p.Text(n.hostName)
	p.Text(n.domain)
	PackCommand(p, n.command)
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

func (v *view) pack(p *pack.Packer) {
	p.List(10)
	p.Bool(v.waiting)
	p.Int(int(v.closed))
	p.Uint(v.round)
	p.Bool(v.stop)
	p.Bool(v.lost)
	p.Text("") // of version 2
	p.Uint(v.directives)
	p.Bool(v.only)
	p.Bool(v.domains)
	p.Bool(v.planned)
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
	m := New(Config{})
	m.unpackRun(u)
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
	m.viewed.unpack(u)
	m.keys = unpackKeys(u, m.out, m.limits.Keys)
	for range u.Each() {
		m.nodes.unpackWait(u, m.keys)
	}
	m.round.unpackStop(u)
	m.unpackSuccession(u)
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

func (m *Machine) unpackRun(u *pack.Unpacker) {
	u.Open()
	m.runID, m.generation = u.Text(maxText), u.Text(maxText)
	m.forming.setPolicy(UnpackPolicy(u), u.Text(maxText))
	m.round.origin, m.round.number = u.Text(maxText), u.Uint()
	m.forming.joinSeq = u.Uint()
	m.round.fresh, m.uptime, m.forming.holding = u.Bool(), u.Duration(), u.Bool()
	keys := store.Limits{MaxBytes: u.Int64(), MaxEntries: u.Int()}
	m.round.floor, m.round.stored, m.reserve, m.round.overtaken = u.Uint(), u.Bool(), u.Text(maxText), u.Text(maxText)
	m.limits = Limits{Keys: keys, Bytes: u.Int64()}.withDefaults()
	m.round.store = u.Text(maxText)
	u.Close()
	if err := m.forming.policy.Validate(); err != nil && m.forming.policy != (Policy{}) {
		u.Fail("%v", err)
	}
}

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
		t, after := unpackTimer(u), u.Duration()
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
		s.domain, s.command = u.Text(maxText), UnpackCommand(u)
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
	n.update = UnpackMembershipUpdate(u)
	_, n.hostName, n.domain = u.Uint(), u.Text(maxText), u.Text(maxText)
	n.command, n.member = UnpackCommand(u), u.Bool()
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

func (v *view) unpack(u *pack.Unpacker) {
	u.Open()
	*v = view{waiting: u.Bool(), closed: ClosedKind(u.Int()), round: u.Uint(), stop: u.Bool(), lost: u.Bool()}
	_ = u.Text(maxText)
	v.directives, v.only, v.domains, v.planned = u.Uint(), u.Bool(), u.Bool(), u.Bool()
	u.Close()
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

// packSuccession writes what a successor needs, and what it begins with.
func (m *Machine) packSuccession(p *pack.Packer) {
	p.List(15)
	p.Uint(m.succession.Term)
	p.Text(m.succession.From)
	packFacts(p, m.succession.Facts)
	p.Duration(m.succession.Grace)
	p.Int(m.round.hostRank)
	packRanks(p, m.round.finishedHosts)
	p.Bool(m.round.finishReported)
	p.Text(m.viewed.generation)
	p.Int(m.viewed.host)
	p.Bool(m.viewed.finished)
	p.Int(m.viewed.finishedHosts)
	p.Bool(m.succession.Left)
	p.Text(m.round.domains)
	p.Bool(m.succession.Silent)
	p.Bool(m.succession.Alone)
}

// unpackSuccession reads what packSuccession wrote. A state of version 1 has the host in
// its members only.
func (m *Machine) unpackSuccession(u *pack.Unpacker) {
	version1 := u.Open() == 0
	m.succession = Succession{Term: u.Uint(), From: u.Text(maxText), Facts: unpackFacts(u), Grace: u.Duration()}
	m.round.hostRank, m.round.finishedHosts, m.round.finishReported = u.IntOr(-1), unpackRanks(u), u.Bool()
	m.viewed.generation, m.viewed.host, m.viewed.finished, m.viewed.finishedHosts = u.Text(maxText), u.IntOr(-1), u.Bool(), u.Int()
	m.succession.Left, m.round.domains, m.succession.Silent, m.succession.Alone = u.Bool(), u.Text(maxDomains), u.Bool(), u.Bool()
	u.Close()
	if !version1 {
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
