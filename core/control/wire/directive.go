package wire

import (
	"time"

	"rallypoint/core/rendezvous"
)

// Requests of an administrator about directives.
const (
	AdminOpDrain   AdminOp = 23 + iota // the named nodes leave within a time
	AdminOpCancel                      // a directive that stands
	AdminOpUndrain                     // a drained node may come back
	AdminOpSave                        // all workers save within a time
	AdminOpScale                       // the job continues with another number of nodes
	AdminOpStop                        // all workers save, and the run ends to be queued again
	AdminOpForget                      // a closed run begins again
	AdminOpCordon                      // a node is kept out, whether it is here or not
	endOfAdminOps
)

// directiveOps are the requests for directives, by kind. A later kind is requested by its own
// number: no other request has one from 5 to 22.
var directiveOps = func() map[rendezvous.DirectiveKind]AdminOp {
	ops := map[rendezvous.DirectiveKind]AdminOp{
		rendezvous.DirectiveSave: AdminOpSave, rendezvous.DirectiveDrain: AdminOpDrain,
		rendezvous.DirectiveScale: AdminOpScale, rendezvous.DirectiveStop: AdminOpStop,
	}
	for _, kind := range rendezvous.DirectiveKinds() {
		if ops[kind] == 0 {
			ops[kind] = AdminOp(kind)
		}
	}
	return ops
}()

// AdminOpNames returns the names of administrators' requests, by number: "" is no request, and 0
// stands for those that this version does not know.
func AdminOpNames() [endOfAdminOps]string {
	names := [endOfAdminOps]string{
		"unknown", AdminOpClose: "close", AdminOpEvict: "evict", AdminOpCancel: "cancel", AdminOpUndrain: "undrain", AdminOpCordon: "cordon", AdminOpForget: "forget",
	}
	for kind, op := range directiveOps {
		names[op] = kind.String()
	}
	return names
}

// Directive is the part of an Admin that is about directives.
type Directive struct {
	ID     string
	Nodes  []string
	Within time.Duration
	For    time.Duration
	Target int // of AdminOpScale
}

func (d *Directive) fields(c coder) {
	c.Open(5)
	c.name(&d.ID)
	c.names(&d.Nodes, rendezvous.MaxDirectiveNodes)
	c.Duration(&d.Within)
	c.Duration(&d.For)
	c.Int(&d.Target)
	c.Close()
}
