package control

import (
	"encoding/binary"

	"rallypoint/core/rendezvous"
)

// Limits of a frame's body. The larger one leaves room for a value of 1 MiB among
// the agents' keys.
const (
	frameHead     = 4 // bytes of a frame's length
	maxFrame      = 2 << 20
	maxHelloFrame = 64 << 10 // before the hello is accepted
)

// Limits of what a frame holds.
const (
	maxName     = rendezvous.MaxNameLen
	maxText     = 16 << 10 // errors, reasons and progress, which name a bounded number of nodes
	maxKey      = 64 << 10
	maxKeys     = 1 << 16
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
	Claim       rendezvous.Claim
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
	Notice   rendezvous.Notice
	Servers  []string // reserved
}

// refuse rejects a hello. Its layout is the same in every version.
type refuse struct{ Err *rendezvous.Error }

// request carries one numbered event; its Request part travels beside it.
type request struct {
	Number uint64
	Acked  uint64
	Op     op
	Event  rendezvous.Event // nil if Op is not known to this version
}

// reply answers a request.
type reply struct {
	Number uint64
	Err    *rendezvous.Error
	Result rendezvous.Result
}

type notice struct{ Notice rendezvous.Notice }

type progress struct{ Progress rendezvous.Progress }

// drop tells a node that it was taken out of its run.
type drop struct{ Err *rendezvous.Error }

// beat keeps the lease of a node that has nothing to say.
type beat struct{}

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
	case adminAnswer:
		return kindAdminAnswer
	}
	return 0
}

// appendFrame appends the frame with its length to dst.
func appendFrame(dst []byte, f frame) []byte {
	p := packers.Get().(*packer)
	p.buf.Reset()
	p.enc.ResetWriter(&p.buf)
	f.pack(p)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(p.buf.Len()))
	dst = append(dst, p.buf.Bytes()...)
	if p.buf.Cap() <= maxKept {
		packers.Put(p)
	}
	return dst
}

// parseFrame decodes a frame's body. What it returns shares no memory with body.
func parseFrame(body []byte) (frame, error) {
	u := newUnpacker(body)
	defer u.release()
	if u.open() == 0 {
		u.fail("no frame kind")
	}
	f := u.frame(kind(u.uint()))
	// Further fields of a newer version end the body: they need not be skipped.
	if u.err != nil {
		return nil, u.err
	}
	return f, nil
}

func (u *unpacker) frame(k kind) frame {
	switch k {
	case kindHello:
		return u.hello()
	case kindWelcome:
		return u.welcome()
	case kindRefuse:
		return refuse{u.error()}
	case kindRequest:
		return u.request()
	case kindReply:
		return u.reply()
	case kindNotice:
		return notice{u.notice()}
	case kindProgress:
		return progress{rendezvous.Progress{Headline: u.text(maxText), Detail: u.text(maxText), Spare: u.bool()}}
	case kindDrop:
		return drop{u.error()}
	case kindBeat:
		return beat{}
	case kindGoodbye:
		return goodbye{}
	case kindAdmin:
		return u.admin()
	case kindAdminAnswer:
		return adminAnswer{Err: u.error(), Done: u.text(maxText)}
	}
	return unknown{k}
}

// head writes the list's length and the kind; fields counts what follows.
func (p *packer) head(k kind, fields int) {
	p.list(1 + fields)
	p.uint(uint64(k))
}

func (f hello) pack(p *packer) {
	p.head(kindHello, 15)
	p.uint(f.Version)
	p.texts(f.Features)
	p.cut(f.Software, maxName)
	p.text(f.RunID)
	p.text(string(f.Session))
	p.text(f.Node)
	p.bool(f.Named)
	p.uint(f.Incarnation)
	p.cut(f.Label, maxName)
	p.policy(f.Policy)
	p.claim(f.Claim)
	p.bool(f.InHost)
	p.text(f.Group)
	p.uint(f.Term)
	p.texts(f.Servers)
}

func (u *unpacker) hello() hello {
	return hello{
		Version:     u.uint(),
		Features:    u.texts(maxFeatures, maxName),
		Software:    u.text(maxName),
		RunID:       u.text(maxName),
		Session:     rendezvous.SessionID(u.text(maxName)),
		Node:        u.text(maxName),
		Named:       u.bool(),
		Incarnation: u.uint(),
		Label:       u.text(maxName),
		Policy:      u.policy(),
		Claim:       u.claim(),
		InHost:      u.bool(),
		Group:       u.text(maxName),
		Term:        u.uint(),
		Servers:     u.texts(maxServers, maxName),
	}
}

func (f welcome) pack(p *packer) {
	p.head(kindWelcome, 9)
	p.uint(f.Version)
	p.texts(f.Features)
	p.cut(f.Software, maxName)
	p.text(f.Server)
	p.text(f.SeenAddr)
	p.int(f.Lease)
	p.bool(f.Resumed)
	p.notice(f.Notice)
	p.texts(f.Servers)
}

func (u *unpacker) welcome() welcome {
	return welcome{
		Version:  u.uint(),
		Features: u.texts(maxFeatures, maxName),
		Software: u.text(maxName),
		Server:   u.text(maxName),
		SeenAddr: u.text(maxName),
		Lease:    u.int64(),
		Resumed:  u.bool(),
		Notice:   u.notice(),
		Servers:  u.texts(maxServers, maxName),
	}
}

func (f refuse) pack(p *packer) {
	p.head(kindRefuse, 2)
	p.error(f.Err)
}

func (f reply) pack(p *packer) {
	p.head(kindReply, 5)
	p.uint(f.Number)
	p.error(f.Err)
	p.result(f.Result)
}

func (u *unpacker) reply() reply {
	return reply{Number: u.uint(), Err: u.error(), Result: u.result()}
}

func (f notice) pack(p *packer) {
	p.head(kindNotice, 1)
	p.notice(f.Notice)
}

func (f progress) pack(p *packer) {
	p.head(kindProgress, 3)
	p.cut(f.Progress.Headline, maxText)
	p.cut(f.Progress.Detail, maxText)
	p.bool(f.Progress.Spare)
}

func (f drop) pack(p *packer) {
	p.head(kindDrop, 2)
	p.error(f.Err)
}

func (beat) pack(p *packer)      { p.head(kindBeat, 0) }
func (goodbye) pack(p *packer)   { p.head(kindGoodbye, 0) }
func (f unknown) pack(p *packer) { p.head(f.Kind, 0) }
