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

// readFrame reads the fields of a frame. It reads itself the frames that nodes send again and again: the larger ones
// need more stack, and a server has one for each node.
func readFrame(u *unpacker, k Kind) Frame {
	switch {
	case k == KindRequest:
		return readRequest(u)
	case k == KindBeat:
		b := Beat{}
		b.fields(from(u))
		return b
	case k < Kind(len(readers)) && readers[k] != nil:
		return readers[k](u)
	}
	return Unknown{k}
}

// readers read the other frames.
var readers = [...]func(*unpacker) Frame{
	KindHello: read[Hello], KindWelcome: read[Welcome], KindRefuse: read[Refuse], KindReply: read[Reply], KindNotice: read[Notice],
	KindProgress: read[Progress], KindDrop: read[Drop], KindGoodbye: func(*unpacker) Frame { return Goodbye{} },
	KindAdmin: read[Admin], KindAdminAnswer: read[AdminAnswer], KindProof: func(u *unpacker) Frame { return readProof(u) },
	KindStandby: read[Standby], KindStandbys: read[Standbys], KindRedirect: read[Redirect], KindProbe: read[Probe], KindProbed: read[Probed],
	KindLiveness: read[Liveness], KindTransfer: read[Transfer], KindVote: read[Vote],
}

func read[F Frame, P interface {
	*F
	fields(c coder)
}](u *unpacker) Frame {
	var f F
	P(&f).fields(from(u))
	return f
}

// head writes the list's length and the kind. fields is the number of fields that follow.
func head(p *packer, k Kind, fields int) {
	p.List(1 + fields)
	p.Uint(uint64(k))
}

func (h Hello) pack(p *packer)     { head(p, KindHello, 21); h.fields(to(p)) }
func (w Welcome) pack(p *packer)   { head(p, KindWelcome, 14); w.fields(to(p)) }
func (r Refuse) pack(p *packer)    { head(p, KindRefuse, 3); r.fields(to(p)) }
func (r Reply) pack(p *packer)     { head(p, KindReply, 5); r.fields(to(p)) }
func (n Notice) pack(p *packer)    { head(p, KindNotice, 1); n.fields(to(p)) }
func (pr Progress) pack(p *packer) { head(p, KindProgress, 3); pr.fields(to(p)) }
func (d Drop) pack(p *packer)      { head(p, KindDrop, 2); d.fields(to(p)) }
func (b Beat) pack(p *packer)      { head(p, KindBeat, 2); b.fields(to(p)) }
func (Goodbye) pack(p *packer)     { head(p, KindGoodbye, 0) }
func (u Unknown) pack(p *packer)   { head(p, u.Kind, 0) }

func (h *Hello) fields(c coder) {
	c.Uint(&h.Version)
	c.names(&h.Features, maxFeatures)
	c.cut(&h.Software)
	c.name(&h.RunID)
	c.name((*string)(&h.Session))
	c.name(&h.Node)
	c.Bool(&h.Named)
	c.Uint(&h.Incarnation)
	c.cut(&h.Label)
	h.Policy.Code(c.Coder)
	h.LastRound.Code(c.Coder)
	c.Bool(&h.InHost)
	c.name(&h.Group)
	c.Uint(&h.Term)
	c.names(&h.Servers, maxServers)
	c.cut(&h.Machine)
	c.Bool(&h.BeginAgain)
	c.cut(&h.HostName)
	c.name(&h.Topology)
	h.Command.Code(c.Coder)
}

func (w *Welcome) fields(c coder) {
	c.Uint(&w.Version)
	c.names(&w.Features, maxFeatures)
	c.cut(&w.Software)
	c.name(&w.Server)
	c.shown(&w.SeenAddr)
	c.Int64(&w.Lease)
	c.Bool(&w.Resumed)
	pack.Code(c.Coder, &w.Notice, packNotice, readNotice)
	c.shownAll(&w.Servers)
	c.Bool(&w.Embedded)
	c.name(&w.Group)
	c.Uint(&w.Term)
	c.shown(&w.Addr)
	c.said(&w.HostNode, MaxName)
}

func (r *Refuse) fields(c coder) {
	c.error(&r.Err)
	c.name(&r.Group)
}

func (r *Reply) fields(c coder) {
	c.Uint(&r.Number)
	c.error(&r.Err)
	pack.Code(c.Coder, &r.Result, packResult, rendezvous.UnpackResult)
}

func (n *Notice) fields(c coder) { pack.Code(c.Coder, &n.Notice, packNotice, readNotice) }
func (d *Drop) fields(c coder)   { c.error(&d.Err) }

func (pr *Progress) fields(c coder) {
	c.said(&pr.Progress.Headline, maxText)
	c.said(&pr.Progress.Detail, maxText)
	c.Bool(&pr.Progress.Spare)
}

func (b *Beat) fields(c coder) {
	c.Bool(&b.Echo)
	pack.Code(c.Coder, &b.Training, training.Pack, training.Unpack)
}

// How often a waiting node learns what it waits for: not before ProgressFirst, so that a quick
// join costs nothing, then at most once in ProgressEvery.
const (
	ProgressFirst = 500 * time.Millisecond
	ProgressEvery = time.Second
)
