package wire

import (
	"encoding/binary"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/training"
	"rallypoint/internal/pack"
)

// Limits of a frame's body. The larger one leaves room for a value of 1 MiB among
// the agents' keys.
const (
	frameHead     = 4 // bytes of a frame's length
	MaxFrame      = 2 << 20
	MaxHelloFrame = 64 << 10             // before the hello is accepted
	MaxProofFrame = secret.MaxProofFrame // before the peer has proven that it knows the token
)

// Limits of a frame's fields.
const (
	MaxName     = rendezvous.MaxNameLen
	maxText     = 16 << 10 // errors, reasons and progress, which name a bounded number of nodes
	maxKey      = rendezvous.MaxKeyLen
	maxKeys     = rendezvous.MaxKeys
	maxDropped  = 64
	maxFeatures = 64
	maxServers  = 64
)

// Kind numbers the frames; append-only.
type Kind uint64

const (
	KindHello Kind = iota + 1
	KindWelcome
	KindRefuse
	KindRequest
	KindReply
	KindNotice
	KindProgress
	KindDrop
	KindBeat
	KindGoodbye
	KindAdmin
	KindAdminAnswer
	KindChallenge // retired; its number stays taken
	KindProof
)

// Frame is one message: a msgpack list of its kind and its fields, in the order
// of docs/protocol.md.
type Frame interface {
	pack(p *packer)
	kind() Kind // 0 for one of a newer version
}

// Hello opens a connection. Group, Term and Servers are the node's knowledge of the servers of
// its run: the last one that it followed, and the standbys.
type Hello struct {
	Version     uint64
	Features    []string
	Software    string
	RunID       string
	Session     rendezvous.SessionID
	Node        string
	Named       bool
	Incarnation uint64
	Label       string
	HostName    string // of the node's machine; "": unknown
	Topology    string // domain of the node; "": none
	Command     rendezvous.Command
	Policy      rendezvous.Policy
	LastRound   rendezvous.LastRound
	InHost      bool
	Group       string
	Term        uint64
	Servers     []string
	Machine     string // the boot id of the node's kernel; "": unknown
	BeginAgain  bool
}

// Welcome accepts a hello.
type Welcome struct {
	Version  uint64
	Features []string
	Software string
	Server   string // id of the server, drawn when it started
	SeenAddr string // the node's address as the server sees it
	Lease    int64  // lease_timeout of the run, in nanoseconds
	Resumed  bool
	Notice   rendezvous.MembershipUpdate
	Servers  []string // listeners of the nodes that stand by, in the order of succession
	Embedded bool     // the server runs in the process of a node of the run
	Group    string   // of the servers that succeed each other; "": it has no successors
	Term     uint64
	Addr     string // "ip:port" of the server as it sees itself on this connection
	HostNode string // whose process hosts, human-readable
}

// Refuse rejects a hello. Its layout is the same in every version, but for what follows the error.
type Refuse struct {
	Err   *rendezvous.Error
	Group string // as a Welcome's; "": nobody can succeed the server
}

// Request carries one numbered event. The event's Request part is a field of its own.
type Request struct {
	Number uint64
	Acked  uint64
	Op     rendezvous.Op
	Event  rendezvous.Event // nil if Op is not known to this version
}

// Reply answers a request.
type Reply struct {
	Number uint64
	Err    *rendezvous.Error
	Result rendezvous.Result
}

// Notice tells a node what has changed between rounds.
type Notice struct{ Notice rendezvous.MembershipUpdate }

// Progress tells a node what its pending join waits for.
type Progress struct{ Progress rendezvous.Progress }

// Drop tells a node that it was taken out of its run.
type Drop struct{ Err *rendezvous.Error }

// Beat keeps the lease of a node that has nothing to say. With Echo the server
// answers it by one of its own: see FeatureEcho. Training is how far the node's workers are,
// nil if they have not said so.
type Beat struct {
	Echo     bool
	Training *training.Report
}

// FeatureEcho is that a server answers a beat that asks for it, so that a node
// knows one that hangs from one that has nothing to say.
const FeatureEcho = "echo"

// FeatureSegments is that a server forms rounds of whole segments: an older one would ignore
// the segment and the domain in a hello.
const FeatureSegments = "segments"

// Goodbye announces that the connection ends on purpose.
type Goodbye struct{}

// Unknown is a frame of a newer version; it is ignored.
type Unknown struct{ Kind Kind }

// NameOf returns the name of a frame's kind, as metrics have it.
func NameOf(f Frame) string { return KindNames[f.kind()] }

func (Hello) kind() Kind       { return KindHello }
func (Welcome) kind() Kind     { return KindWelcome }
func (Refuse) kind() Kind      { return KindRefuse }
func (Request) kind() Kind     { return KindRequest }
func (Reply) kind() Kind       { return KindReply }
func (Notice) kind() Kind      { return KindNotice }
func (Progress) kind() Kind    { return KindProgress }
func (Drop) kind() Kind        { return KindDrop }
func (Beat) kind() Kind        { return KindBeat }
func (Goodbye) kind() Kind     { return KindGoodbye }
func (Admin) kind() Kind       { return KindAdmin }
func (AdminAnswer) kind() Kind { return KindAdminAnswer }
func (Proof) kind() Kind       { return KindProof }
func (Unknown) kind() Kind     { return 0 }

// AppendFrame appends the frame with its length to dst.
func AppendFrame(dst []byte, f Frame) []byte {
	from := len(dst)
	dst = pack.Append(append(dst, make([]byte, frameHead)...), f.pack)
	binary.LittleEndian.PutUint32(dst[from:], uint32(len(dst)-from-frameHead))
	return dst
}

// parseFrame decodes a frame's body. The result shares no memory with body.
func parseFrame(body []byte) (Frame, error) {
	u := pack.NewUnpacker(body)
	defer u.Release()
	if u.Open() == 0 {
		u.Fail("no frame kind")
	}
	f := readFrame(u, Kind(u.Uint()))
	// Further fields of a newer version end the body: they need not be skipped.
	if err := u.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// readFrame reads the fields of a frame. Frequent frames of nodes are apart from readOther:
// a function needs a stack for all its cases together, and a server has one for each node.
func readFrame(u *unpacker, k Kind) Frame {
	switch k {
	case KindRequest:
		return readRequest(u)
	case KindBeat:
		return Beat{Echo: u.Bool(), Training: training.Unpack(u)}
	}
	return readOther(u, k)
}

func readOther(u *unpacker, k Kind) Frame {
	switch k {
	case KindHello:
		return readHello(u)
	case KindWelcome:
		return readWelcome(u)
	case KindRefuse:
		return Refuse{Err: rendezvous.UnpackError(u), Group: u.Text(MaxName)}
	case KindReply:
		return Reply{Number: u.Uint(), Err: rendezvous.UnpackError(u), Result: rendezvous.UnpackResult(u)}
	case KindNotice:
		return Notice{rendezvous.UnpackMembershipUpdate(u)}
	case KindProgress:
		return Progress{rendezvous.Progress{Headline: u.Text(maxText), Detail: u.Text(maxText), Spare: u.Bool()}}
	case KindDrop:
		return Drop{rendezvous.UnpackError(u)}
	case KindGoodbye:
		return Goodbye{}
	case KindAdmin:
		return readAdmin(u)
	case KindAdminAnswer:
		return AdminAnswer{Err: rendezvous.UnpackError(u), Done: u.Text(maxText)}
	case KindProof:
		return readProof(u)
	}
	return readSuccession(u, k)
}

// head writes the list's length and the kind. fields is the number of fields that follow.
func head(p *packer, k Kind, fields int) {
	p.List(1 + fields)
	p.Uint(uint64(k))
}

func (h Hello) pack(p *packer) {
	head(p, KindHello, 21)
	p.Uint(h.Version)
	p.Texts(h.Features)
	p.Cut(h.Software, MaxName)
	p.Text(h.RunID)
	p.Text(string(h.Session))
	p.Text(h.Node)
	p.Bool(h.Named)
	p.Uint(h.Incarnation)
	p.Cut(h.Label, MaxName)
	rendezvous.PackPolicy(p, h.Policy)
	rendezvous.PackLastRound(p, h.LastRound)
	p.Bool(h.InHost)
	p.Text(h.Group)
	p.Uint(h.Term)
	p.Texts(h.Servers)
	p.Cut(h.Machine, MaxName)
	p.Bool(h.BeginAgain)
	p.Cut(h.HostName, MaxName)
	p.Text(h.Topology)
	rendezvous.PackCommand(p, h.Command)
}

func readHello(u *unpacker) Hello {
	return Hello{
		Version:     u.Uint(),
		Features:    u.Texts(maxFeatures, MaxName),
		Software:    u.Text(MaxName),
		RunID:       u.Text(MaxName),
		Session:     rendezvous.SessionID(u.Text(MaxName)),
		Node:        u.Text(MaxName),
		Named:       u.Bool(),
		Incarnation: u.Uint(),
		Label:       u.Text(MaxName),
		Policy:      rendezvous.UnpackPolicy(u),
		LastRound:   rendezvous.UnpackLastRound(u),
		InHost:      u.Bool(),
		Group:       u.Text(MaxName),
		Term:        u.Uint(),
		Servers:     u.Texts(maxServers, MaxName),
		Machine:     u.Text(MaxName),
		BeginAgain:  u.Bool(),
		HostName:    u.Text(MaxName),
		Topology:    u.Text(MaxName),
		Command:     rendezvous.UnpackCommand(u),
	}
}

func (w Welcome) pack(p *packer) {
	head(p, KindWelcome, 14)
	p.Uint(w.Version)
	p.Texts(w.Features)
	p.Cut(w.Software, MaxName)
	p.Text(w.Server)
	p.Text(w.SeenAddr)
	p.Int64(w.Lease)
	p.Bool(w.Resumed)
	packNotice(p, w.Notice)
	p.Texts(w.Servers)
	p.Bool(w.Embedded)
	p.Text(w.Group)
	p.Uint(w.Term)
	p.Text(w.Addr)
	p.Cut(w.HostNode, MaxName)
}

func readWelcome(u *unpacker) Welcome {
	return Welcome{
		Version:  u.Uint(),
		Features: u.Texts(maxFeatures, MaxName),
		Software: u.Text(MaxName),
		Server:   u.Text(MaxName),
		SeenAddr: u.Text(MaxName),
		Lease:    u.Int64(),
		Resumed:  u.Bool(),
		Notice:   rendezvous.UnpackMembershipUpdate(u),
		Servers:  u.Texts(maxServers, MaxName),
		Embedded: u.Bool(),
		Group:    u.Text(MaxName),
		Term:     u.Uint(),
		Addr:     u.Text(MaxName),
		HostNode: u.Text(MaxName),
	}
}

func (r Refuse) pack(p *packer) {
	head(p, KindRefuse, 3)
	packError(p, r.Err)
	p.Text(r.Group)
}

func (r Reply) pack(p *packer) {
	head(p, KindReply, 5)
	p.Uint(r.Number)
	packError(p, r.Err)
	packResult(p, r.Result)
}

func (n Notice) pack(p *packer) {
	head(p, KindNotice, 1)
	packNotice(p, n.Notice)
}

func (pr Progress) pack(p *packer) {
	head(p, KindProgress, 3)
	p.Cut(pr.Progress.Headline, maxText)
	p.Cut(pr.Progress.Detail, maxText)
	p.Bool(pr.Progress.Spare)
}

func (d Drop) pack(p *packer) {
	head(p, KindDrop, 2)
	packError(p, d.Err)
}

func (b Beat) pack(p *packer) {
	head(p, KindBeat, 2)
	p.Bool(b.Echo)
	training.Pack(p, b.Training)
}

func (Goodbye) pack(p *packer)   { head(p, KindGoodbye, 0) }
func (u Unknown) pack(p *packer) { head(p, u.Kind, 0) }

// How often a waiting node learns what it waits for: not before ProgressFirst, so that a quick
// join costs nothing, then at most once in ProgressEvery.
const (
	ProgressFirst = 500 * time.Millisecond
	ProgressEvery = time.Second
)
