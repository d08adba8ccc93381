package wire

import (
	"net/netip"

	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

// The frames of succession (docs/decisions/0040), numbers 15 to 22.
const (
	KindStandby  Kind = 15
	KindStandbys Kind = 16
	KindRedirect Kind = 17
	KindProbe    Kind = 18
	KindProbed   Kind = 19
	KindLiveness Kind = 20
	KindTransfer Kind = 21
	KindVote     Kind = 23 // 22 was the vote of releases before 1.0
)

// FeatureSuccession says that a node follows a Redirect and can be a standby, and that a server
// in a node's process has successors.
const FeatureSuccession = "succession"

// FeatureStandby says that a node can be a standby.
const FeatureStandby = "standby"

// maxStandbys bounds a list of standbys.
const maxStandbys = maxServers

// Standby tells the host where a node that it has invited listens.
type Standby struct {
	Addr string // "ip:port"; "": it cannot
	Why  string // it cannot
}

// Standbys is the list of standbys, in the order of succession. Invited asks the receiver to be a
// standby, whether it is in the list yet or not.
type Standbys struct {
	List    []StandbyNode
	Invited bool
}

// StandbyNode is one node of a list.
type StandbyNode struct {
	Node  string
	Label string
	Addr  string // of its listener
	Votes bool   // its vote counts when the host is silent (docs/decisions/0151)
}

// Redirect sends a node, or an administrator, to the server that hosts. It answers a hello or
// an administrator's request, or ends a connection.
type Redirect struct {
	Group   string
	Term    uint64
	Host    string   // "ip:port"; "": it is not known yet who hosts
	Node    string   // that hosts, human-readable
	Servers []string // listeners of the standbys, in order
}

// Addr returns the host's address; the zero one if Host is none to which a node can connect.
func (r Redirect) Addr() netip.AddrPort {
	addr, err := netip.ParseAddrPort(r.Host)
	if err != nil || addr.Addr().IsUnspecified() || addr.Addr().IsMulticast() || addr.Port() == 0 {
		return netip.AddrPort{}
	}
	return addr
}

// Redirected is the error of a connection on which the server has named another one.
type Redirected struct{ To Redirect }

func (r *Redirected) Error() string {
	if r.To.Host == "" {
		return "it is not known yet which node hosts the control plane"
	}
	node := "another node"
	if r.To.Node != "" {
		node = "node " + r.To.Node
	}
	return node + " hosts the control plane, at " + r.To.Host
}

// MaxRedirects bounds how many servers in a row may redirect a client.
const MaxRedirects = 8

// Probe asks a server at the endpoint of a run who it is. It is the first frame of a
// connection.
type Probe struct {
	Software string
	RunID    string
	Policy   rendezvous.Policy
	Round    bool // the prober's control plane has formed or adopted a round
	Node     string
	Target   Redirect // who hosts, as the prober knows: itself, unless it asks who does
}

// Probed answers a Probe.
type Probed struct {
	Err    *rendezvous.Error // neither yields
	Yields bool              // the answering server steps down, or does not host
	Round  bool
	Node   string
	Target Redirect // who hosts, as the answering server knows
}

// Liveness opens and serves the connection of one standby to another: what its sender
// knows of the host. It is sent again when that changes, and as the answer to Ask.
type Liveness struct {
	RunID   string
	Group   string
	Node    string
	Ask     bool
	State   uint64 // succession.State
	Term    uint64
	Target  Redirect  // who hosts, if State tells that its sender knows
	Voter   string    // the sender's name in Vote frames; "": it never votes
	Votes   bool      // it is one of several that vote now, as far as it knows
	Linked  []string  // nodes to which it has such a connection
	Cluster string    // in which it votes; "": in none yet
	Last    [2]uint64 // the term and the number of the last value that it knows
}

// Vote is a message from one voter to another, on their liveness connection.
type Vote struct {
	Group string
	raft.Message
	Piece Piece // zero: the message is whole
}

// Piece tells which part of a long message a Vote has, or, without its data, asks for.
type Piece struct {
	Number uint64 // of the message, as its sender counts
	Whole  uint64 // bytes of the message; 0: this asks for the piece
	From   uint64 // where the piece begins
}

// MaxVote limits the data of a Vote, and MaxVoteFrame its frame: a request of a node, the longest of which is an entry
// of the log of servers of many runs, with what surrounds it there.
const (
	MaxVote      = MaxFrame + 32<<10
	MaxVoteFrame = MaxFrame + 64<<10
)

// Transfer asks the first standby to host in a term, and is its answer that it does.
type Transfer struct {
	Group string
	Term  uint64
	Addr  string // of the answer: where it listens
}

func (s Standby) pack(p *packer)   { head(p, KindStandby, 2); s.fields(to(p)) }
func (st Standbys) pack(p *packer) { head(p, KindStandbys, 2); st.fields(to(p)) }
func (r Redirect) pack(p *packer)  { head(p, KindRedirect, 1); r.fields(to(p)) }
func (pr Probe) pack(p *packer)    { head(p, KindProbe, 6); pr.fields(to(p)) }
func (pr Probed) pack(p *packer)   { head(p, KindProbed, 6); pr.fields(to(p)) }
func (l Liveness) pack(p *packer)  { head(p, KindLiveness, 13); l.fields(to(p)) }
func (v Vote) pack(p *packer)      { head(p, KindVote, 8); v.fields(to(p)) }
func (t Transfer) pack(p *packer)  { head(p, KindTransfer, 3); t.fields(to(p)) }

func (s *Standby) fields(c coder) {
	c.said(&s.Addr, MaxName)
	c.said(&s.Why, MaxName)
}

func (st *Standbys) fields(c coder) {
	pack.CodeList(c.Coder, &st.List, maxStandbys, "standbys", func(s *StandbyNode) { s.fields(c) })
	c.Bool(&st.Invited)
}

func (s *StandbyNode) fields(c coder) {
	c.Open(4)
	c.shown(&s.Node)
	c.said(&s.Label, MaxName)
	c.shown(&s.Addr)
	c.Bool(&s.Votes)
	c.Close()
}

// fields are a list of their own, in the frames that have a redirect, too.
func (r *Redirect) fields(c coder) {
	c.Open(5)
	c.name(&r.Group)
	c.Uint(&r.Term)
	c.shown(&r.Host)
	c.said(&r.Node, MaxName)
	c.shownAll(&r.Servers)
	c.Close()
}

func (pr *Probe) fields(c coder) {
	c.cut(&pr.Software)
	c.name(&pr.RunID)
	pr.Policy.Code(c.Coder)
	c.Bool(&pr.Round)
	c.said(&pr.Node, MaxName)
	pr.Target.fields(c)
}

func (pr *Probed) fields(c coder) {
	c.error(&pr.Err)
	c.Bool(&pr.Yields)
	c.Bool(&pr.Round)
	c.said(&pr.Node, MaxName)
	pr.Target.fields(c)
}

func (l *Liveness) fields(c coder) {
	c.name(&l.RunID)
	c.name(&l.Group)
	c.shown(&l.Node)
	c.Bool(&l.Ask)
	c.Uint(&l.State)
	c.Uint(&l.Term)
	l.Target.fields(c)
	c.name(&l.Voter)
	c.Bool(&l.Votes)
	c.shownAll(&l.Linked)
	c.name(&l.Cluster)
	c.Uint(&l.Last[0])
	c.Uint(&l.Last[1])
}

func (v *Vote) fields(c coder) {
	c.name(&v.Group)
	c.name(&v.Cluster)
	pack.Code(c.Coder, &v.From, packVoter, readVoter)
	pack.Code(c.Coder, &v.To, packVoter, readVoter)
	pack.Code(c.Coder, &v.Data, (*packer).Bytes, func(u *unpacker) []byte { return u.Bytes(MaxVote) })
	c.Uint(&v.Piece.Number)
	c.Uint(&v.Piece.Whole)
	c.Uint(&v.Piece.From)
}

func packVoter(p *packer, v raft.Voter)    { p.Text(v.String()) }
func readVoter(u *unpacker) (v raft.Voter) { return raft.ParseVoter(u.Text(MaxName)) }

func (t *Transfer) fields(c coder) {
	c.name(&t.Group)
	c.Uint(&t.Term)
	c.shown(&t.Addr)
}

func (Standby) kind() Kind  { return KindStandby }
func (Standbys) kind() Kind { return KindStandbys }
func (Redirect) kind() Kind { return KindRedirect }
func (Probe) kind() Kind    { return KindProbe }
func (Probed) kind() Kind   { return KindProbed }
func (Liveness) kind() Kind { return KindLiveness }
func (Transfer) kind() Kind { return KindTransfer }
func (Vote) kind() Kind     { return KindVote }
