package static

import (
	"cmp"
	"context"
	"sync"
	"time"

	"rallypoint/agent"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/wake"
)

var (
	_ agent.DirectiveCarrier = (*Standalone)(nil)
	_ agent.Director         = (*Standalone)(nil)
	_ agent.Requeuer         = (*Standalone)(nil)
)

// ownDirectives are those of a job of one node, which agrees with itself. They are safe for
// concurrent use.
type ownDirectives struct {
	news wake.Signal

	mu       sync.Mutex
	round    uint64
	notice   rendezvous.DirectiveNotice // of the one that stands
	changed  chan struct{}
	deadline *time.Timer // nil: none stands
	ends     time.Time   // when the deadline is
	requeue  string      // why the job has ended to be queued again; "": it has not
	ended    bool
}

func newOwnDirectives() *ownDirectives {
	return &ownDirectives{news: wake.New(), changed: make(chan struct{})}
}

// showLocked replaces the notice.
func (o *ownDirectives) showLocked(n rendezvous.DirectiveNotice) {
	o.notice = n
	close(o.changed)
	o.changed = make(chan struct{})
}

// clearLocked has nothing stand any more.
func (o *ownDirectives) clearLocked() {
	if o.deadline != nil {
		o.deadline.Stop()
		o.deadline = nil
	}
	o.showLocked(rendezvous.DirectiveNotice{})
}

// standLocked has a directive stand, at most for so long.
func (o *ownDirectives) standLocked(d rendezvous.Direct) {
	o.clearLocked()
	o.ends = time.Now().Add(d.Within)
	o.deadline = time.AfterFunc(d.Within, func() { o.carryOut(d.ID) })
	o.showLocked(rendezvous.DirectiveNotice{
		ID: d.ID, Kind: d.Kind, Named: d.Kind.EndsRound(), Within: d.Within, Round: o.round,
		Text: d.Kind.String() + ", asked for by " + d.By + ": " + d.Reason, By: d.By, Reason: d.Reason,
	})
}

// joinLocked has what stands end no later than another directive that asks for the same.
func (o *ownDirectives) joinLocked(d rendezvous.Direct) {
	if ends := time.Now().Add(d.Within); ends.Before(o.ends) {
		o.ends = ends
		o.deadline.Reset(d.Within)
		n := o.notice
		n.Within = d.Within
		o.showLocked(n)
	}
}

// begin is for a round that has begun: what stands is asked again.
func (o *ownDirectives) begin(round uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.round = round
	if o.notice.ID != "" {
		n := o.notice
		n.Round, n.Agreed, n.Step = round, false, 0
		o.showLocked(n)
	}
}

// carryOut ends a directive: the workers have saved, or its deadline has passed.
func (o *ownDirectives) carryOut(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.notice.ID != id || id == "" {
		return
	}
	if n := o.notice; n.Kind.EndsRound() {
		o.requeue = "asked for by " + n.By + ": " + n.Reason
		o.news.Set()
	}
	o.clearLocked()
}

// end forgets what stands.
func (o *ownDirectives) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.clearLocked()
}

// Direct implements agent.Director: save, or drain and stop, which are the same for a job of
// one node. Of two directives that differ, the one that ends the job stands.
func (s *Standalone) Direct(_ context.Context, d rendezvous.Direct) error {
	o := s.directives
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !d.Kind.OfOneNode():
		return rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: there is no %v here: it is of this node alone", s.run, d.Kind)
	case o.ended || o.requeue != "":
		return rendezvous.Errorf(rendezvous.CodeClosed, "run %q has ended", s.run)
	}
	d.ID = cmp.Or(d.ID, member.NewDirectiveID())
	if d.By == "" {
		d.By = "this node"
	}
	switch n := o.notice; {
	case n.ID == "", d.Kind.EndsRound() && !n.Kind.EndsRound():
		o.standLocked(d)
	case d.Kind.EndsRound() == n.Kind.EndsRound():
		o.joinLocked(d)
	} // else the workers save for what stands
	return nil
}

// Directive implements agent.DirectiveCarrier.
func (s *Standalone) Directive() (rendezvous.DirectiveNotice, <-chan struct{}) {
	o := s.directives
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.notice, o.changed
}

// ReportHeld implements agent.DirectiveCarrier: where its workers are is what the job agrees on.
func (s *Standalone) ReportHeld(_ context.Context, round uint64, id string, step int64) error {
	o := s.directives
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := o.notice; n.ID == id && n.Round == round && !n.Agreed {
		n.Agreed, n.Step = true, step
		o.showLocked(n)
	}
	return nil
}

// ReportSaved implements agent.DirectiveCarrier.
func (s *Standalone) ReportSaved(_ context.Context, _ uint64, id string) error {
	s.directives.carryOut(id)
	return nil
}

// Requeued implements agent.Requeuer.
func (s *Standalone) Requeued() (reason string, requeued bool) {
	o := s.directives
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.requeue, o.requeue != ""
}
