package wire

import "rallypoint/core/rendezvous"

// AdminOp numbers what an administrator may ask for; append-only.
type AdminOp uint64

const (
	AdminOpClose AdminOp = iota + 1
	AdminOpEvict
)

// Admin is an administrator's request: the first frame of a connection that no
// node uses. It is answered by an AdminAnswer.
type Admin struct {
	Software string
	Op       AdminOp
	RunID    string
	Node     string // AdminOpEvict: whom
	By       string // who asks, human-readable
	Reason   string
	Stop     bool // AdminOpClose: all nodes stop at once
	// Directive is for what is asked about directives.
	Directive Directive
}

// AdminAnswer says what was done, or why nothing was.
type AdminAnswer struct {
	Err  *rendezvous.Error
	Done string
}

func (f Admin) pack(p *packer) {
	head(p, KindAdmin, 8)
	p.Cut(f.Software, MaxName)
	p.Uint(uint64(f.Op))
	p.Text(f.RunID)
	p.Text(f.Node)
	p.Cut(f.By, MaxName)
	p.Cut(f.Reason, MaxName)
	p.Bool(f.Stop)
	f.Directive.pack(p)
}

func readAdmin(u *unpacker) Admin {
	return Admin{
		Software: u.Text(MaxName), Op: AdminOp(u.Uint()), RunID: u.Text(MaxName), Node: u.Text(MaxName),
		By: u.Text(MaxName), Reason: u.Text(MaxName), Stop: u.Bool(), Directive: readDirective(u),
	}
}

func (f AdminAnswer) pack(p *packer) {
	head(p, KindAdminAnswer, 3)
	packError(p, f.Err)
	p.Cut(f.Done, maxText)
}
