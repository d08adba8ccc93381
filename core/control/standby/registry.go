package standby

import (
	"net/netip"
	"slices"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/host"
)

// Arrival is a node that has said hello to the host.
type Arrival struct {
	Session rendezvous.SessionID
	Node    string
	Label   string
	Machine string
	Remote  netip.Addr // the node's address
	Follows bool       // it knows the frames of succession
	Stands  bool       // it can stand by
	Out     Outbox

	// Follower tells that its process has followed a server of this group, and may have a
	// listener since.
	Follower bool
}

// entry is a node of a Registry.
type entry struct {
	Arrival
	addr string // of its listener
	why  string // it does not listen
}

// Registry is the host's list of standbys. Its user's lock guards it. Most nodes that come and go
// cost it a constant amount of work.
type Registry struct {
	group   *Group
	nodes   map[rendezvous.SessionID]*entry
	arrived []*entry // those that can stand by, in order
	chosen  []*entry // in the order of succession
	afar    int      // nodes that are not reached by loopback
	voters  []string // as the nodes were told
}

// NewRegistry makes the list of a host.
func NewRegistry(g *Group) *Registry {
	return &Registry{group: g, nodes: map[rendezvous.SessionID]*entry{}}
}

// Arrive notes a node whose hello was accepted, possibly again on another connection.
func (r *Registry) Arrive(a Arrival) {
	if old := r.nodes[a.Session]; old != nil {
		r.count(old, -1)
		moved := old.Remote != a.Remote
		old.Arrival = a
		if moved {
			old.addr = ""
		}
		r.count(old, 1)
		r.choose()
		r.send(old)
		return
	}
	e := &entry{Arrival: a}
	if a.Stands && a.Follower {
		e.addr = r.group.addrBefore(a.Node, a.Remote)
	}
	r.nodes[a.Session] = e
	r.count(e, 1)
	if a.Stands {
		r.arrived = append(r.arrived, e)
	}
	first := r.afar == 1 && !e.Remote.IsLoopback()
	if !first && !(a.Stands && r.wanted(e)) || !r.choose() {
		r.send(e)
	}
}

// wanted reports whether a node that arrives may be chosen.
func (r *Registry) wanted(e *entry) bool {
	if len(r.chosen) < succession.MaxStandbys {
		return true
	}
	beside := func(e *entry) bool { return e.Machine == "" || e.Machine == host.Boot() }
	return !beside(e) && slices.ContainsFunc(r.chosen, beside)
}

func (r *Registry) count(e *entry, n int) {
	if !e.Remote.IsLoopback() {
		r.afar += n
	}
}

// Gone notes that a node has left or is lost.
func (r *Registry) Gone(session rendezvous.SessionID) {
	e := r.nodes[session]
	if e == nil {
		return
	}
	delete(r.nodes, session)
	r.count(e, -1)
	if i := slices.Index(r.arrived, e); i >= 0 {
		r.arrived = slices.Delete(r.arrived, i, i+1)
	}
	if slices.Contains(r.chosen, e) || r.afar == 0 && !e.Remote.IsLoopback() {
		r.choose()
	}
}

// Sessions returns those of a node.
func (r *Registry) Sessions(node string) (sessions []rendezvous.SessionID) {
	for session, e := range r.nodes {
		if e.Node == node {
			sessions = append(sessions, session)
		}
	}
	return sessions
}

// Listens notes where an invited node listens, or why it does not. The result says what is wrong
// with its message; "" if nothing is.
func (r *Registry) Listens(session rendezvous.SessionID, f wire.Standby) (wrong string) {
	e := r.nodes[session]
	switch addr, err := netip.ParseAddrPort(f.Addr); {
	case e == nil || !slices.Contains(r.chosen, e):
		return "it was not asked to stand by"
	case f.Addr == "":
		e.addr, e.why = "", f.Why
	case err != nil:
		return "the address of its listener is none"
	case addr.Addr().Unmap() != e.Remote || addr.Port() == 0:
		return "the address of its listener, " + f.Addr + ", is not its own"
	default:
		e.addr, e.why = f.Addr, ""
	}
	r.push()
	return ""
}

// First returns the first standby that listens, and that votes if any does; out is nil if there
// is none.
func (r *Registry) First() (session rendezvous.SessionID, out Outbox, node string) {
	voters := r.group.Voters()
	for _, e := range r.chosen {
		if e.addr != "" && e.Out != nil && (voters == nil || slices.Contains(voters, e.Node)) {
			return e.Session, e.Out, e.Node
		}
	}
	return "", nil, ""
}

// Whys returns, for each node that was asked to be a standby and is not, the reason.
func (r *Registry) Whys() (list []string) {
	for _, e := range r.chosen {
		if e.addr == "" && e.why != "" {
			list = append(list, e.Node+": "+e.why)
		}
	}
	return list
}

// choose brings the list up to date and reports whether it has changed.
func (r *Registry) choose() (changed bool) {
	candidates := make([]succession.Candidate, len(r.arrived))
	for i, e := range r.arrived {
		candidates[i] = succession.Candidate{Machine: e.Machine, Loopback: e.Remote.IsLoopback()}
	}
	places := succession.Choose(candidates, host.Boot(), r.afar > 0)
	chosen := make([]*entry, len(places))
	for i, place := range places {
		chosen[i] = r.arrived[place]
	}
	if slices.Equal(chosen, r.chosen) {
		return false
	}
	old := r.chosen
	r.chosen = chosen
	for _, e := range old {
		if !slices.Contains(chosen, e) {
			e.addr = ""
		}
	}
	r.push()
	return true
}

// list are the standbys that listen.
func (r *Registry) list() []wire.StandbyNode {
	list := []wire.StandbyNode{}
	for _, e := range r.chosen {
		if e.addr != "" {
			list = append(list, wire.StandbyNode{Node: e.Node, Label: e.Label, Addr: e.addr, Votes: slices.Contains(r.voters, e.Node)})
		}
	}
	return list
}

// eligible are the nodes that may vote.
func (r *Registry) eligible() (nodes []string) {
	var listen []*entry
	var candidates []succession.Candidate
	for _, e := range r.chosen {
		if e.addr != "" {
			listen, candidates = append(listen, e), append(candidates, succession.Candidate{Machine: e.Machine})
		}
	}
	for _, place := range succession.Electors(candidates, host.Boot()) {
		nodes = append(nodes, listen[place].Node)
	}
	return nodes
}

// Refresh tells the nodes which of them vote, if that has changed.
func (r *Registry) Refresh() {
	if !slices.Equal(r.group.Voters(), r.voters) {
		r.push()
	}
}

// push sends the list to all nodes.
func (r *Registry) push() {
	r.group.SetEligible(r.eligible())
	r.voters = r.group.Voters()
	r.group.SetList(r.list())
	for _, e := range r.nodes {
		r.send(e)
	}
}

func (r *Registry) send(e *entry) {
	if e.Follows && e.Out != nil {
		e.Out.Send(wire.Standbys{List: r.list(), Invited: slices.Contains(r.chosen, e)})
	}
}
