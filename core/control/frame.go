package control

import (
	"encoding/binary"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

// Limits of a frame's body. The larger one leaves room for a value of 1 MiB among
// the agents' keys.
const (
	frameHead     = 4 // bytes of a frame's length
	maxFrame      = 2 << 20
	maxHelloFrame = 64 << 10 // before the hello is accepted
	maxProofFrame = 1 << 10  // before the peer has proven that it knows the token
)

// Limits of what a frame holds.
const (
	maxName     = rendezvous.MaxNameLen
	maxText     = 16 << 10 // errors, reasons and progress, which name a bounded number of nodes
	maxKey      = rendezvous.MaxKeyLen
	maxKeys     = rendezvous.MaxKeys
	maxDropped  = 64
	maxFeatures = 64
	maxServers  = 64
)

// kind numbers the frames; append-only.
type kind uint64

const (
	kindHello kind = iota + 1
	kindWelcome
	kindRefuse
	kindRequest
	kindReply
	kindNotice
	kindProgress
	kindDrop
	kindBeat
	kindGoodbye
	kindAdmin
	kindAdminAnswer
	kindChallenge
	kindProof
)

// frame is one message: a msgpack list of its kind and its fields, in the order
// of docs/protocol.md.
type frame interface{ pack(p *packer) }

// hello opens a connection. Group, Term and Servers are reserved for a
// replicated control plane and ignored now.
type hello struct {
	Version     uint64
	Features    []string
	Software    string
	RunID       string
	Session     rendezvous.SessionID
	Node        string
	Named       bool
	Incarnation uint64
	Label       string
	Policy      rendezvous.Policy
	Claim       rendezvous.LastRound
	InHost      bool
	Group       string
	Term        uint64
	Servers     []string
}

// welcome accepts a hello.
type welcome struct {
	Version  uint64
	Features []string
	Software string
	Server   string // id of the server, drawn when it started
	SeenAddr string // the node's address as the server sees it
	Lease    int64  // lease_timeout of the run, in nanoseconds
	Resumed  bool
	Notice   rendezvous.MembershipUpdate
	Servers  []string // reserved
	Embedded bool     // the server runs in the process of a node of the run
}

// refuse rejects a hello. Its layout is the same in every version.
type refuse struct{ Err *rendezvous.Error }

// request carries one numbered event; its Request part travels beside it.
type request struct {
	Number uint64
	Acked  uint64
	Op     rendezvous.Op
	Event  rendezvous.Event // nil if Op is not known to this version
}

// reply answers a request.
type reply struct {
	Number uint64
	Err    *rendezvous.Error
	Result rendezvous.Result
}

type notice struct{ Notice rendezvous.MembershipUpdate }

type progress struct{ Progress rendezvous.Progress }

// drop tells a node that it was taken out of its run.
type drop struct{ Err *rendezvous.Error }

// beat keeps the lease of a node that has nothing to say. With Echo the server
// answers it by one of its own: see featureEcho.
type beat struct{ Echo bool }

// featureEcho is that a server answers a beat that asks for it, so that a node
// knows one that hangs from one that has nothing to say.
const featureEcho = "echo"

// goodbye announces that the connection ends on purpose.
type goodbye struct{}

// unknown is a frame of a newer version; it is ignored.
type unknown struct{ Kind kind }

// kindOf returns the kind of a frame that a server sends.
func kindOf(f frame) kind {
	switch f.(type) {
	case welcome:
		return kindWelcome
	case refuse:
		return kindRefuse
	case reply:
		return kindReply
	case notice:
		return kindNotice
	case progress:
		return kindProgress
	case drop:
		return kindDrop
	case beat:
		return kindBeat
	case adminAnswer:
		return kindAdminAnswer
	case challenge:
		return kindChallenge
	case proof:
		return kindProof
	}
	return 0
}

// appendFrame appends the frame with its length to dst.
func appendFrame(dst []byte, f frame) []byte {
	from := len(dst)
	dst = pack.Append(append(dst, make([]byte, frameHead)...), f.pack)
	binary.LittleEndian.PutUint32(dst[from:], uint32(len(dst)-from-frameHead))
	return dst
}

// parseFrame decodes a frame's body. What it returns shares no memory with body.
func parseFrame(body []byte) (frame, error) {
	u := pack.NewUnpacker(body)
	defer u.Release()
	if u.Open() == 0 {
		u.Fail("no frame kind")
	}
	f := readFrame(u, kind(u.Uint()))
	// Further fields of a newer version end the body: they need not be skipped.
	if err := u.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

func readFrame(u *unpacker, k kind) frame {
	switch k {
	case kindHello:
		return readHello(u)
	case kindWelcome:
		return readWelcome(u)
	case kindRefuse:
		return refuse{rendezvous.UnpackError(u)}
	case kindRequest:
		return readRequest(u)
	case kindReply:
		return readReply(u)
	case kindNotice:
		return notice{rendezvous.UnpackMembershipUpdate(u)}
	case kindProgress:
		return progress{rendezvous.Progress{Headline: u.Text(maxText), Detail: u.Text(maxText), Spare: u.Bool()}}
	case kindDrop:
		return drop{rendezvous.UnpackError(u)}
	case kindBeat:
		return beat{Echo: u.Bool()}
	case kindGoodbye:
		return goodbye{}
	case kindAdmin:
		return readAdmin(u)
	case kindAdminAnswer:
		return adminAnswer{Err: rendezvous.UnpackError(u), Done: u.Text(maxText)}
	case kindChallenge:
		return readChallenge(u)
	case kindProof:
		return readProof(u)
	}
	return unknown{k}
}

// head writes the list's length and the kind; fields counts what follows.
func head(p *packer, k kind, fields int) {
	p.List(1 + fields)
	p.Uint(uint64(k))
}

func (f hello) pack(p *packer) {
	head(p, kindHello, 15)
	p.Uint(f.Version)
	p.Texts(f.Features)
	p.Cut(f.Software, maxName)
	p.Text(f.RunID)
	p.Text(string(f.Session))
	p.Text(f.Node)
	p.Bool(f.Named)
	p.Uint(f.Incarnation)
	p.Cut(f.Label, maxName)
	rendezvous.PackPolicy(p, f.Policy)
	rendezvous.PackLastRound(p, f.Claim)
	p.Bool(f.InHost)
	p.Text(f.Group)
	p.Uint(f.Term)
	p.Texts(f.Servers)
}

func readHello(u *unpacker) hello {
	return hello{
		Version:     u.Uint(),
		Features:    u.Texts(maxFeatures, maxName),
		Software:    u.Text(maxName),
		RunID:       u.Text(maxName),
		Session:     rendezvous.SessionID(u.Text(maxName)),
		Node:        u.Text(maxName),
		Named:       u.Bool(),
		Incarnation: u.Uint(),
		Label:       u.Text(maxName),
		Policy:      rendezvous.UnpackPolicy(u),
		Claim:       rendezvous.UnpackLastRound(u),
		InHost:      u.Bool(),
		Group:       u.Text(maxName),
		Term:        u.Uint(),
		Servers:     u.Texts(maxServers, maxName),
	}
}

func (f welcome) pack(p *packer) {
	head(p, kindWelcome, 10)
	p.Uint(f.Version)
	p.Texts(f.Features)
	p.Cut(f.Software, maxName)
	p.Text(f.Server)
	p.Text(f.SeenAddr)
	p.Int64(f.Lease)
	p.Bool(f.Resumed)
	packNotice(p, f.Notice)
	p.Texts(f.Servers)
	p.Bool(f.Embedded)
}

func readWelcome(u *unpacker) welcome {
	return welcome{
		Version:  u.Uint(),
		Features: u.Texts(maxFeatures, maxName),
		Software: u.Text(maxName),
		Server:   u.Text(maxName),
		SeenAddr: u.Text(maxName),
		Lease:    u.Int64(),
		Resumed:  u.Bool(),
		Notice:   rendezvous.UnpackMembershipUpdate(u),
		Servers:  u.Texts(maxServers, maxName),
		Embedded: u.Bool(),
	}
}

func (f refuse) pack(p *packer) {
	head(p, kindRefuse, 2)
	packError(p, f.Err)
}

func (f reply) pack(p *packer) {
	head(p, kindReply, 5)
	p.Uint(f.Number)
	packError(p, f.Err)
	packResult(p, f.Result)
}

func readReply(u *unpacker) reply {
	return reply{Number: u.Uint(), Err: rendezvous.UnpackError(u), Result: rendezvous.UnpackResult(u)}
}

func (f notice) pack(p *packer) {
	head(p, kindNotice, 1)
	packNotice(p, f.Notice)
}

func (f progress) pack(p *packer) {
	head(p, kindProgress, 3)
	p.Cut(f.Progress.Headline, maxText)
	p.Cut(f.Progress.Detail, maxText)
	p.Bool(f.Progress.Spare)
}

func (f drop) pack(p *packer) {
	head(p, kindDrop, 2)
	packError(p, f.Err)
}

func (f beat) pack(p *packer) {
	head(p, kindBeat, 1)
	p.Bool(f.Echo)
}

func (goodbye) pack(p *packer)   { head(p, kindGoodbye, 0) }
func (f unknown) pack(p *packer) { head(p, f.Kind, 0) }

// How often a waiting node hears what it waits for: not before progressFirst, so
// that a quick join costs nothing; then at most once in progressEvery.
const (
	progressFirst = 500 * time.Millisecond
	progressEvery = time.Second
)
