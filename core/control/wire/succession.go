package wire

import (
	"net/netip"

	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
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

func (s Standby) pack(p *packer) {
	head(p, KindStandby, 2)
	p.Cut(s.Addr, MaxName)
	p.Cut(s.Why, MaxName)
}

func (st Standbys) pack(p *packer) {
	head(p, KindStandbys, 2)
	p.List(len(st.List))
	for _, s := range st.List {
		p.List(4)
		p.Text(s.Node)
		p.Cut(s.Label, MaxName)
		p.Text(s.Addr)
		p.Bool(s.Votes)
	}
	p.Bool(st.Invited)
}

func readStandbys(u *unpacker) Standbys {
	return Standbys{
		List: pack.Lists(u, maxStandbys, "standbys", func() StandbyNode {
			return StandbyNode{Node: u.Text(MaxName), Label: u.Text(MaxName), Addr: u.Text(MaxName), Votes: u.Bool()}
		}),
		Invited: u.Bool(),
	}
}

// packRedirect writes a redirect's fields as a list of their own.
func packRedirect(p *packer, f Redirect) {
	p.List(5)
	p.Text(f.Group)
	p.Uint(f.Term)
	p.Text(f.Host)
	p.Cut(f.Node, MaxName)
	p.Texts(f.Servers)
}

func readRedirect(u *unpacker) Redirect {
	u.Open()
	f := Redirect{Group: u.Text(MaxName), Term: u.Uint(), Host: u.Text(MaxName), Node: u.Text(MaxName), Servers: u.Texts(maxServers, MaxName)}
	u.Close()
	return f
}

func (r Redirect) pack(p *packer) {
	head(p, KindRedirect, 1)
	packRedirect(p, r)
}

func (pr Probe) pack(p *packer) {
	head(p, KindProbe, 6)
	p.Cut(pr.Software, MaxName)
	p.Text(pr.RunID)
	rendezvous.PackPolicy(p, pr.Policy)
	p.Bool(pr.Round)
	p.Cut(pr.Node, MaxName)
	packRedirect(p, pr.Target)
}

func readProbe(u *unpacker) Probe {
	return Probe{
		Software: u.Text(MaxName), RunID: u.Text(MaxName), Policy: rendezvous.UnpackPolicy(u),
		Round: u.Bool(), Node: u.Text(MaxName), Target: readRedirect(u),
	}
}

func (pr Probed) pack(p *packer) {
	head(p, KindProbed, 6)
	packError(p, pr.Err)
	p.Bool(pr.Yields)
	p.Bool(pr.Round)
	p.Cut(pr.Node, MaxName)
	packRedirect(p, pr.Target)
}

func readProbed(u *unpacker) Probed {
	return Probed{
		Err: rendezvous.UnpackError(u), Yields: u.Bool(), Round: u.Bool(), Node: u.Text(MaxName), Target: readRedirect(u),
	}
}

func (l Liveness) pack(p *packer) {
	head(p, KindLiveness, 13)
	p.Text(l.RunID)
	p.Text(l.Group)
	p.Text(l.Node)
	p.Bool(l.Ask)
	p.Uint(l.State)
	p.Uint(l.Term)
	packRedirect(p, l.Target)
	p.Text(l.Voter)
	p.Bool(l.Votes)
	p.Texts(l.Linked)
	p.Text(l.Cluster)
	p.Uint(l.Last[0])
	p.Uint(l.Last[1])
}

func readLiveness(u *unpacker) Liveness {
	return Liveness{
		RunID: u.Text(MaxName), Group: u.Text(MaxName), Node: u.Text(MaxName), Ask: u.Bool(), State: u.Uint(), Term: u.Uint(),
		Target: readRedirect(u), Voter: u.Text(MaxName), Votes: u.Bool(),
		Linked: u.Texts(maxServers, MaxName), Cluster: u.Text(MaxName), Last: [2]uint64{u.Uint(), u.Uint()},
	}
}

func (v Vote) pack(p *packer) {
	head(p, KindVote, 8)
	p.Text(v.Group)
	p.Text(v.Cluster)
	p.Text(v.From.String())
	p.Text(v.To.String())
	p.Bytes(v.Data)
	p.Uint(v.Piece.Number)
	p.Uint(v.Piece.Whole)
	p.Uint(v.Piece.From)
}

func readVote(u *unpacker) Vote {
	return Vote{Group: u.Text(MaxName), Message: raft.Message{
		Cluster: u.Text(MaxName), From: raft.ParseVoter(u.Text(MaxName)), To: raft.ParseVoter(u.Text(MaxName)), Data: u.Bytes(MaxVote),
	}, Piece: Piece{Number: u.Uint(), Whole: u.Uint(), From: u.Uint()}}
}

func (t Transfer) pack(p *packer) {
	head(p, KindTransfer, 3)
	p.Text(t.Group)
	p.Uint(t.Term)
	p.Text(t.Addr)
}

// readSuccession reads the frames of this file, and those of a newer version.
func readSuccession(u *unpacker, k Kind) Frame {
	switch k {
	case KindStandby:
		return Standby{Addr: u.Text(MaxName), Why: u.Text(MaxName)}
	case KindStandbys:
		return readStandbys(u)
	case KindRedirect:
		return readRedirect(u)
	case KindProbe:
		return readProbe(u)
	case KindProbed:
		return readProbed(u)
	case KindLiveness:
		return readLiveness(u)
	case KindVote:
		return readVote(u)
	case KindTransfer:
		return Transfer{Group: u.Text(MaxName), Term: u.Uint(), Addr: u.Text(MaxName)}
	}
	return Unknown{k}
}

func (Standby) kind() Kind  { return KindStandby }
func (Standbys) kind() Kind { return KindStandbys }
func (Redirect) kind() Kind { return KindRedirect }
func (Probe) kind() Kind    { return KindProbe }
func (Probed) kind() Kind   { return KindProbed }
func (Liveness) kind() Kind { return KindLiveness }
func (Transfer) kind() Kind { return KindTransfer }
func (Vote) kind() Kind     { return KindVote }

// sanitizeSuccession makes the texts of a frame of this file safe to show.
func sanitizeSuccession(f Frame) Frame {
	switch f := f.(type) {
	case Standby:
		f.Addr, f.Why = printable.Text(f.Addr), printable.Text(f.Why)
		return f
	case Standbys:
		for i := range f.List {
			s := &f.List[i]
			s.Label, s.Node, s.Addr = printable.Text(s.Label), printable.Text(s.Node), printable.Text(s.Addr)
		}
		return f
	case Redirect:
		return sanitizeTarget(f)
	case Probe:
		f.Node, f.Target = printable.Text(f.Node), sanitizeTarget(f.Target)
		return f
	case Probed:
		f.Err, f.Node, f.Target = sanitizeError(f.Err), printable.Text(f.Node), sanitizeTarget(f.Target)
		return f
	case Liveness:
		f.Node, f.Target, f.Linked = printable.Text(f.Node), sanitizeTarget(f.Target), sanitizeTexts(f.Linked)
		return f
	case Transfer:
		f.Addr = printable.Text(f.Addr)
		return f
	}
	return f
}

func sanitizeTarget(f Redirect) Redirect {
	f.Host, f.Node, f.Servers = printable.Text(f.Host), printable.Text(f.Node), sanitizeTexts(f.Servers)
	return f
}
