package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/election"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/printable"
	"rallypoint/internal/promtext"
)

var errRedirected = errors.New("it was sent to the server that hosts")

// admit says whether a node's hello is served here: nil. A server in waiting sends the
// node to the server that hosts. One that hosts steps down before a node that has followed a server
// of a later term.
func (sc *serverConn) admit(h wire.Hello) error {
	s := sc.server
	if !s.elected(h.RunID) {
		return nil
	}
	if s.cfg.Group != nil && h.Node != s.cfg.Group.Identity().Node {
		s.cfg.Group.Came(h.Group == "")
	}
	for {
		to, serve, err := s.awaitHost(context.Background(), h.RunID)
		switch {
		case err != nil:
			return err
		case !serve:
			return sc.redirect(to)
		case s.cfg.Group != nil && s.cfg.Peers == nil && h.Group == to.Group && h.Term > to.Term && succession.Believable(h.Term):
			s.StepDown(wire.Redirect{Group: h.Group, Term: h.Term, Servers: h.Servers},
				fmt.Sprintf("node %s has followed a server of term %d", printable.Text(h.Node), h.Term))
		case s.cfg.Group == nil && h.Group == to.Group && h.Term > to.Term:
			return sc.redirect(wire.Redirect{Group: to.Group, Term: to.Term}) // the register knows who leads
		default:
			return nil
		}
	}
}

// awaitHost returns whether this server hosts a run, else the one that does, without its address if that
// does not turn out within a moment.
func (s *Server) awaitHost(ctx context.Context, run string) (to wire.Redirect, hosts bool, err error) {
	if !s.elected(run) {
		return to, true, nil
	}
	patience := time.NewTimer(standby.HoldHello)
	defer patience.Stop()
	for {
		changed := s.cfg.Elector.Changed()
		to, hosts, known := s.cfg.Elector.Admit()
		if hosts || known {
			return to, hosts, nil
		}
		select {
		case <-changed:
		case <-patience.C:
			to.Host = ""
			return to, false, nil
		case <-s.stop:
			return to, false, net.ErrClosed
		case <-ctx.Done():
			return to, false, ctx.Err()
		}
	}
}

// elected reports whether others than this server may lead a run.
func (s *Server) elected(run string) bool { return s.cfg.Elector != nil && s.cfg.Elector.Serves(run) }

// redirect ends a connection. A node that does not know the frame has to find the host on its
// own.
func (sc *serverConn) redirect(to wire.Redirect) error {
	if sc.arrival.Follows {
		sc.out.Send(to)
	}
	sc.drain()
	return errRedirected
}

// noteFollows notes a hello's fields about succession, before the hello is applied.
func (sc *serverConn) noteFollows(h wire.Hello) {
	sc.arrival = standby.Arrival{
		Session: h.Session, Node: h.Node, Label: sc.label, Machine: h.Machine, Out: sc.out,
		Follows: slices.Contains(h.Features, wire.FeatureSuccession),
		Stands:  slices.Contains(h.Features, wire.FeatureStandby) && !h.InHost,
		Remote:  sc.from().Unmap().WithZone(""),
	}
	if e := sc.server.cfg.Elector; e != nil {
		sc.arrival.Follower = h.Group != "" && h.Group == e.Current().Group
	}
}

// localAddr is the server's own address on a connection.
func localAddr(conn net.Conn) string {
	tcp, ok := conn.LocalAddr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	return standby.PlainAddr(tcp.AddrPort()).String()
}

// standbyListens takes a node's message about its listener.
func (r *run) standbyListens(p *serverConn, f wire.Standby) {
	r.mu.Lock()
	wrong := ""
	if r.standbys != nil && r.conns[p.session] == p {
		wrong = r.standbys.Listens(p.session, f)
	}
	r.mu.Unlock()
	if wrong != "" && r.server.sampleRefusal(refusedStandby, p.conn.RemoteAddr(), p.node) {
		r.log.Warn("ignored a node that would stand by: "+wrong, "node", p.node, "address", p.conn.RemoteAddr().String())
	}
}

// StepDown makes a server that hosts one in waiting: all nodes are sent on, and the run is
// forgotten. It does not wait until they have read where to go; the text says why, for the log.
func (s *Server) StepDown(to wire.Redirect, why string) {
	s.sending.Lock()
	defer s.sending.Unlock()
	justBegun := s.cfg.Group != nil && s.cfg.Peers == nil && !s.cfg.Group.Identity().Round
	if s.cfg.Elector == nil || !s.cfg.Elector.StepDown(to) {
		return
	}
	if justBegun { // the node that hosted the run before was started again, and its run goes on elsewhere
		s.log.Info(why+": this process joins it", "host", to.Host, "term", to.Term)
	} else {
		s.log.Warn("this process does not host the control plane any more: "+why, "host", to.Host, "term", to.Term)
	}
	for _, r := range s.takeRuns() {
		r.sendAway(to)
	}
}

// awaitSentOn returns when all nodes that were sent on have read where to go, or have had
// drainTime to; also those that the next host's probe had sent on.
func (s *Server) awaitSentOn() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, p := range conns {
		if !p.sentOn.Load() {
			continue
		}
		select {
		case <-p.gone:
		case <-s.stop:
			return
		}
	}
}

// sendAway stops serving a run whose control plane is elsewhere.
func (r *run) sendAway(to wire.Redirect) {
	r.mu.Lock()
	defer r.unlock()
	r.retire()
	for _, p := range r.conns {
		r.unbind(p)
		delete(r.latest, p.session)
		if p.arrival.Follows {
			p.out.Send(to)
		}
		p.sentOn.Store(true)
		p.drain()
	}
}

// probed answers another server that asks who this one is.
func (sc *serverConn) probed(f wire.Probe) error {
	s, g := sc.server, sc.server.cfg.Group
	switch {
	case g == nil || !s.elected(f.RunID), s.cfg.Peers != nil && f.Target.Group != g.Identity().Group:
		sc.out.Send(wire.Probed{Err: rendezvous.Errorf(rendezvous.CodeTenant, "the control plane at %s (%s) does not serve run %q", s.Addr(), s.process, f.RunID)})
		sc.drain()
		return errServed
	case f.Target.Group == "" || !succession.Believable(f.Target.Term):
		return fmt.Errorf("%w: a probe of term %d", wire.ErrMalformed, f.Target.Term)
	}
	if err := s.samePolicy(f); err != nil && s.cfg.Peers == nil {
		s.log.Warn("another control plane of this run does not yield, nor does this one: "+err.Text, "address", sc.conn.RemoteAddr().String())
		sc.out.Send(wire.Probed{Err: err})
		sc.drain()
		return errServed
	}
	mine := g.Identity()
	if s.cfg.Peers != nil { // a node asks who hosts
		sc.out.Send(wire.Probed{Node: mine.Node, Target: sc.ownTarget()})
		sc.drain()
		return errServed
	}
	// One that asks who hosts is no host itself, and may name this one.
	theirs := succession.Identity{Group: f.Target.Group, Term: f.Target.Term, Node: cmp.Or(f.Target.Node, f.Node), Round: f.Round}
	if g.Hosting() && mine != theirs && succession.Yields(mine, theirs) {
		s.StepDown(f.Target, fmt.Sprintf("node %s hosts this run at %s, in term %d", theirs.Node, f.Target.Host, f.Target.Term))
	}
	if !g.Hosting() && mine.Group == theirs.Group && (mine.Term < theirs.Term || mine.Term == theirs.Term && f.Target.Host != "" && g.Current().Host == "") {
		g.StepDown(f.Target) // it hosts: the server that this process follows is gone, or not known
	}
	sc.out.Send(wire.Probed{Yields: !g.Hosting(), Round: mine.Round, Node: mine.Node, Target: sc.ownTarget()})
	return sc.awaitEnd()
}

// ownTarget is who hosts, as this server knows, for a peer that has no address of it.
func (sc *serverConn) ownTarget() wire.Redirect {
	g := sc.server.cfg.Group
	to := g.Current()
	if g.Hosting() {
		to.Host = localAddr(sc.conn)
	}
	return to
}

// samePolicy compares the settings of two control planes of one run.
func (s *Server) samePolicy(f wire.Probe) *rendezvous.Error {
	r := s.lookUp(s.cfg.RunID)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	mine := r.machine.Policy()
	r.mu.Unlock()
	theirs := f.Policy
	if mine.Min == 0 || mine.Agrees(&theirs) {
		return nil
	}
	return rendezvous.Errorf(rendezvous.CodeMismatch,
		"run %q: the nodes at %s want %d to %d nodes, those of node %s %d to %d: start all with the same --nnodes and options, and end one of the two jobs",
		f.RunID, s.Addr(), mine.Min, mine.Max, f.Node, theirs.Min, theirs.Max)
}

// awaitEnd keeps a connection that has nothing more to say until its peer ends it.
func (sc *serverConn) awaitEnd() error {
	for {
		if _, err := sc.frames.NextFrame(wire.MaxProofFrame); err != nil {
			if errors.Is(err, wire.ErrMalformed) {
				return err
			}
			return errServed
		}
	}
}

// liveness serves the connection of another standby.
func (sc *serverConn) liveness(f wire.Liveness) error {
	s, g := sc.server, sc.server.cfg.Group
	if g == nil {
		return fmt.Errorf("%w: a frame %q, but this control plane has no standbys", wire.ErrMalformed, wire.NameOf(f))
	}
	sc.node = f.Node
	link := g.Accept(f, sc.out)
	if link == nil { // of another group, or one too many
		sc.drain()
		return sc.awaitEnd()
	}
	defer g.Drop(link)
	for {
		f, err := sc.frames.NextFrame(g.MaxFrame())
		if err != nil {
			if errors.Is(err, wire.ErrMalformed) {
				return err
			}
			return errServed
		}
		switch f := f.(type) {
		case wire.Liveness:
			if to, superseded := g.Hear(link, f); superseded {
				s.StepDown(to, fmt.Sprintf("node %s hosts in term %d", f.Node, f.Term))
			}
		case wire.Vote:
			if !g.HearVote(link, f) && s.sampleRefusal(refusedStandby, sc.conn.RemoteAddr(), sc.node) {
				s.log.Warn("ignored a message of the vote: it is of another group or voter, or cannot be", "node", sc.node, "address", sc.conn.RemoteAddr().String())
			}
		case wire.Beat, wire.Unknown:
		default:
			return fmt.Errorf("%w: a frame %q from a standby", wire.ErrMalformed, wire.NameOf(f))
		}
	}
}

// noteStandbys notes what succession needs from an event that was applied.
func (r *run) noteStandbys(ev rendezvous.Event) {
	if r.standbys == nil { // nor do servers of many runs need to know which nodes have a round
		return
	}
	if ev, left := ev.(rendezvous.Leave); left {
		r.standbys.Gone(ev.Session)
	}
	if r.machine.Round() > 0 {
		r.server.cfg.Group.SetRound()
	}
}

// succession returns the succession with which a run begins.
func (s *Server) succession() (begin rendezvous.Succession) {
	if s.cfg.Elector != nil {
		begin, _, _ = s.cfg.Elector.Began()
	}
	return begin
}

// ending reports whether the server is being closed.
func (s *Server) ending() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// Remains says what is left of the run of this server without the node of a session.
func (s *Server) Remains(own rendezvous.SessionID) (rest election.Remains) {
	r := s.lookUp(s.cfg.RunID)
	if r == nil {
		return election.Remains{Over: true}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.broken != nil {
		return election.Remains{Over: r.broken != nil}
	}
	others, connected := r.machine.Live(), len(r.conns)
	if r.machine.Has(own) {
		others--
	}
	if r.conns[own] != nil {
		connected--
	}
	rest.Open = connected > 0 && !r.endedLocked()
	rest.Over = others <= 0 && !r.machine.Awaits()
	if ended, kept := r.machine.Kept(); kept && rest.Over {
		rest.Ended, rest.Rests = &ended, r.machine.Round() == 0
	}
	return rest
}

// endedLocked reports whether the run has ended, so that nobody needs another leader.
func (r *run) endedLocked() bool {
	return r.gone || r.broken != nil || r.stats.census.Ended != "" && r.stats.census.Ended != "closed"
}

// endedBefore closes a run that has begun just now as it was closed before.
func (r *run) endedBefore(ended rendezvous.Ended) {
	r.mu.Lock()
	defer r.unlock()
	r.submitLocked(ended, nil)
}

// SendOn makes this server lead no more, and returns when all nodes have read that. Before, it sends them what the
// voters have accepted: their next leader knows it, and would wait for nodes that do not.
func (s *Server) SendOn(to wire.Redirect, why string) {
	s.Confirmed()
	s.StepDown(to, why)
	s.awaitSentOn()
}

// transferPatience is how long the first standby may take to host when it is asked to.
const transferPatience = 2 * time.Second

// transfer is a leadership transfer under way.
type transfer struct {
	mu   sync.Mutex
	term uint64 // that was asked for; 0: none
	to   rendezvous.SessionID
	done chan wire.Redirect // has room for one
}

// Transfer makes the first standby host in the next term, waits until it does, and sends
// all nodes there. It reports false, and changes nothing, if no other node is connected,
// no standby listens or answers, or the run has ended.
func (s *Server) Transfer(ctx context.Context) bool {
	g := s.cfg.Group
	r := s.lookUp(s.cfg.RunID)
	if g == nil || r == nil || r.standbys == nil || !g.Hosting() {
		return false
	}
	r.mu.Lock()
	ended := r.endedLocked()
	session, out, node := r.standbys.First()
	said := r.saidLocked() // else the next host knows a round of which no node was told
	r.mu.Unlock()
	mine := g.Identity()
	if ended || out == nil || !succession.Believable(mine.Term+1) {
		return false
	}
	t := &s.handover
	t.mu.Lock()
	t.term, t.to, t.done = mine.Term+1, session, make(chan wire.Redirect, 1)
	done := t.done
	t.mu.Unlock()
	patience := time.NewTimer(transferPatience)
	defer patience.Stop()
	defer g.EndTransfer()
	asked := false
	for {
		changed := g.Changed()
		if said == nil && !asked && g.BeginTransfer(node) {
			if asked = out.Send(wire.Transfer{Group: mine.Group, Term: mine.Term + 1}); !asked {
				return false
			}
		}
		if !g.Hosting() { // it was elected, and its word of that came first
			s.awaitSentOn()
			return true
		}
		select {
		case to := <-done:
			s.SendOn(to, "this node leaves: node "+to.Node+" hosts it")
			return true
		case <-said:
			said = nil
			continue
		case <-changed:
			continue
		case <-patience.C:
			s.log.Warn("the first standby does not answer: the control plane is not handed on")
		case <-ctx.Done():
		case <-s.stop:
		}
		return false
	}
}

// transferred takes the word of the standby that was asked to host that it does.
func (s *Server) transferred(p *serverConn, f wire.Transfer) {
	t := &s.handover
	t.mu.Lock()
	asked := t.term != 0 && f.Term >= t.term && p.session == t.to && f.Group == s.cfg.Group.Identity().Group
	if asked {
		t.term = 0
		t.done <- wire.Redirect{Group: f.Group, Term: f.Term, Host: f.Addr, Node: p.node}
	}
	t.mu.Unlock()
	if !asked && s.sampleRefusal(refusedStandby, p.conn.RemoteAddr(), p.node) {
		s.log.Warn("ignored a node that says it hosts: it was not asked to", "node", p.node, "address", p.conn.RemoteAddr().String())
	}
}

// successionStatus describes who leads and who is next; nil: nobody else can lead.
func (s *Server) successionStatus() *SuccessionStatus {
	e, g := s.cfg.Elector, s.cfg.Group
	if e == nil {
		return nil
	}
	to := e.Current()
	start, since, took := e.Began()
	st := &SuccessionStatus{
		Role: RoleWaiting, Group: to.Group, Term: to.Term, Host: to.Host, HostNode: to.Node, Register: g == nil,
		Standbys: []StandbyStatus{}, NotBy: []string{}, Voters: []VoterStatus{}, Peers: []string{}, Missing: e.NoMajority(), Elected: start.Silent,
	}
	if e.Hosting() {
		st.Role, st.Since, st.TookOver, st.TookOverS = RoleHosting, rendezvous.StatusTime(since), start.From, rendezvous.StatusSeconds(took)
	}
	if g != nil {
		s.describeGroup(st, g)
	}
	return st
}

// describeGroup adds what a group of servers knows that succeed each other.
func (s *Server) describeGroup(st *SuccessionStatus, g *standby.Group) {
	r, v := g.Report(), g.VoteReport()
	st.Elections, st.Elected = v.Elections, v.Silent
	if r.Hosting {
		st.TookOver = r.Takeover.From
	}
	for _, n := range v.Voters {
		st.Voters = append(st.Voters, VoterStatus{n.Node, n.Reachable, rendezvous.StatusSeconds(n.Heard)})
	}
	if v.Hosting && len(v.Voters) > 0 {
		st.Majority = &v.Majority
	}
	for _, n := range r.Standbys {
		if s.cfg.Peers != nil {
			if st.Peers = append(st.Peers, n.Node); n.Node == r.Node {
				continue
			}
		}
		st.Standbys = append(st.Standbys, StandbyStatus{n.Node, n.Label, n.Addr, slices.Contains(r.Connected, n.Node)})
	}
	if r.Why != "" {
		st.NotBy = append(st.NotBy, r.Node+": "+r.Why)
	}
	if run := s.lookUp(s.cfg.RunID); run != nil {
		run.mu.Lock()
		st.NotBy = append(st.NotBy, run.standbys.Whys()...)
		run.mu.Unlock()
	}
}

// exposeSuccession writes the metrics of a server that has a group.
func (s *Server) exposeSuccession(e *promtext.Buffer) {
	g := s.cfg.Group
	if g == nil {
		return
	}
	r := g.Report()
	e.Single("rallypoint_hosting", "gauge", "1 if the server of this process hosts the run, 0 if it stands by.", oneIf(r.Hosting))
	e.Single("rallypoint_term", "gauge", "The term of the server that hosts, as far as this process knows.", float64(r.Term))
	e.Single("rallypoint_standbys", "gauge", "Nodes that stand by to host.", float64(len(r.Standbys)))
	e.Single("rallypoint_liveness_connections", "gauge", "Liveness connections between this process and other standbys.", float64(len(r.Connected)))
	v := g.VoteReport()
	reachable := 0
	for _, n := range v.Voters {
		if n.Reachable {
			reachable++
		}
	}
	e.Single("rallypoint_voters", "gauge", "Nodes beside the host whose votes count when it is silent.", float64(len(v.Voters)))
	e.Single("rallypoint_voters_reachable", "gauge", "Of these, as this process hears them while it hosts, those that have answered within a quarter of lease_timeout.", float64(reachable))
	e.Single("rallypoint_majority", "gauge", "1 if the server of this process hosts and hears a majority of the voters, else 0.", oneIf(v.Majority))
	e.Single("rallypoint_elections_total", "counter", "Elections that this process has won.", float64(v.Elections))
	e.Single("rallypoint_confirm_seconds", "gauge", "How long the voters took to accept the last change.", v.Confirm.Seconds())
	e.Single("rallypoint_takeovers_total", "counter", "Times that this process has become the host in the place of another.", float64(r.Takeover.Total))
	e.Single("rallypoint_takeover_seconds_total", "counter", "How long the run was without a host before these.", r.Takeover.Spent.Seconds())
}
