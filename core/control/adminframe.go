package control

import "rallypoint/core/rendezvous"

// adminOp numbers what an administrator may ask for; append-only.
type adminOp uint64

const (
	adminClose adminOp = iota + 1
	adminEvict
)

// admin is an administrator's request: the first frame of a connection that no
// node uses. It is answered by an adminAnswer.
type admin struct {
	Software string
	Op       adminOp
	RunID    string
	Node     string // adminEvict: whom
	By       string // who asks, for people
	Reason   string
	Stop     bool // adminClose: everybody stops at once
}

// adminAnswer says what was done, or why nothing was.
type adminAnswer struct {
	Err  *rendezvous.Error
	Done string
}

func (f admin) pack(p *packer) {
	head(p, kindAdmin, 7)
	p.Cut(f.Software, maxName)
	p.Uint(uint64(f.Op))
	p.Text(f.RunID)
	p.Text(f.Node)
	p.Cut(f.By, maxName)
	p.Cut(f.Reason, maxName)
	p.Bool(f.Stop)
}

func readAdmin(u *unpacker) admin {
	return admin{
		Software: u.Text(maxName), Op: adminOp(u.Uint()), RunID: u.Text(maxName), Node: u.Text(maxName),
		By: u.Text(maxName), Reason: u.Text(maxName), Stop: u.Bool(),
	}
}

func (f adminAnswer) pack(p *packer) {
	head(p, kindAdminAnswer, 3)
	packError(p, f.Err)
	p.Cut(f.Done, maxText)
}
