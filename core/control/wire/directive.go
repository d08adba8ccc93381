package wire

import (
	"time"

	"rallypoint/core/rendezvous"
)

// What an administrator asks for about directives.
const (
	AdminOpDrain   AdminOp = 23 + iota // the named nodes leave within a time
	AdminOpCancel                      // a directive that stands
	AdminOpUndrain                     // a drained node may come back
)

// Directive is the part of an Admin that is about directives.
type Directive struct {
	ID     string
	Nodes  []string
	Within time.Duration
	For    time.Duration
}

func (d Directive) pack(p *packer) {
	p.List(4)
	p.Text(d.ID)
	p.Texts(d.Nodes)
	p.Duration(d.Within)
	p.Duration(d.For)
}

func readDirective(u *unpacker) Directive {
	u.Open()
	d := Directive{ID: u.Text(MaxName), Nodes: u.Texts(rendezvous.MaxDirectiveNodes, MaxName), Within: u.Duration(), For: u.Duration()}
	u.Close()
	return d
}
