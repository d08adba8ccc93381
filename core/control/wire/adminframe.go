package wire

import (
	"time"

	"rallypoint/core/rendezvous"
)

// AdminOp numbers the requests of administrators. New ones are only appended.
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
	Node     string // AdminOpEvict: the node
	By       string // the requester, human-readable
	Reason   string
	Stop     bool // AdminOpClose: all nodes stop at once
	// Directive is for requests about directives.
	Directive Directive
}

// AdminAnswer says what was done, or why nothing was.
type AdminAnswer struct {
	Err  *rendezvous.Error
	Done string
}

// NewAdmin is the request to apply an event to a run: a CloseRun, Evict, Direct,
// CancelDirective, Cordon or Undrain. The result is false for any other event, and for a Direct of
// an unknown kind.
func NewAdmin(runID string, ev rendezvous.Event) (Admin, bool) {
	f := Admin{RunID: runID}
	switch ev := ev.(type) {
	case rendezvous.CloseRun:
		f.Op, f.By, f.Reason, f.Stop = AdminOpClose, ev.By, ev.Reason, ev.Stop
	case rendezvous.Evict:
		f.Op, f.By, f.Reason, f.Node = AdminOpEvict, ev.By, ev.Reason, ev.Node
	case rendezvous.Direct:
		f.Op, f.By, f.Reason = directiveOps[ev.Kind], ev.By, ev.Reason
		f.Directive = Directive{ID: ev.ID, Nodes: ev.Nodes, Within: ev.Within, For: ev.For, Target: ev.Target}
	case rendezvous.CancelDirective:
		f.Op, f.By, f.Reason, f.Directive.ID = AdminOpCancel, ev.By, ev.Reason, ev.ID
	case rendezvous.Forget:
		f.Op, f.By, f.Reason = AdminOpForget, ev.By, ev.Reason
	case rendezvous.Cordon:
		f.Op, f.By, f.Reason, f.Node, f.Directive.For = AdminOpCordon, ev.By, ev.Reason, ev.Node, ev.For
	case rendezvous.Undrain:
		f.Op, f.By, f.Reason, f.Node = AdminOpUndrain, ev.By, ev.Reason, ev.Node
	}
	return f, f.Op != 0
}

// Event is the event that the request stands for, with the server's own words for the requester
// and its time; nil for a request that this release does not know.
func (a Admin) Event(by string, at time.Time) rendezvous.Event {
	switch a.Op {
	case AdminOpClose:
		return rendezvous.CloseRun{By: by, Reason: a.Reason, Stop: a.Stop, At: at}
	case AdminOpEvict:
		return rendezvous.Evict{Node: a.Node, By: by, Reason: a.Reason}
	case AdminOpCancel:
		return rendezvous.CancelDirective{ID: a.Directive.ID, By: by, Reason: a.Reason}
	case AdminOpForget:
		return rendezvous.Forget{By: by, Reason: a.Reason}
	case AdminOpCordon:
		return rendezvous.Cordon{Node: a.Node, For: a.Directive.For, By: by, Reason: a.Reason}
	case AdminOpUndrain:
		return rendezvous.Undrain{Node: a.Node, By: by, Reason: a.Reason}
	}
	d := a.Directive
	for kind, op := range directiveOps {
		if op == a.Op {
			return rendezvous.Direct{
				ID: d.ID, Kind: kind, Nodes: d.Nodes, Within: d.Within, For: d.For,
				By: by, Reason: a.Reason, At: at, Target: d.Target,
			}
		}
	}
	return nil
}

func (a Admin) pack(p *packer)       { head(p, KindAdmin, 8); a.fields(to(p)) }
func (a AdminAnswer) pack(p *packer) { head(p, KindAdminAnswer, 3); a.fields(to(p)) }

func (a *Admin) fields(c coder) {
	c.cut(&a.Software)
	c.Uint((*uint64)(&a.Op))
	c.name(&a.RunID)
	c.name(&a.Node)
	c.cut(&a.By)
	c.cut(&a.Reason)
	c.Bool(&a.Stop)
	a.Directive.fields(c)
}

func (a *AdminAnswer) fields(c coder) {
	c.error(&a.Err)
	c.said(&a.Done, maxText)
}
