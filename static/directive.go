package static

import (
	"context"

	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// Direct refuses a directive: the nodes of a static job are fixed, and it has no control
// plane, so that none can leave it and nothing agrees on a step.
func (s *Static) Direct(_ context.Context, d rendezvous.Direct) error {
	return refuseDirective(s.p.RunID, d)
}

func refuseDirective(run string, d rendezvous.Direct) error {
	return rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: there is no %v here: its nodes are known beforehand (--rdzv-backend=static), "+
		"and no control plane is there that could carry it out; meet at HOST:PORT, file:///DIR or etcd://HOST for that", run, d.Kind)
}

// Directive implements agent.Rendezvous: none ever stands.
func (*Static) Directive() (rendezvous.DirectiveNotice, <-chan struct{}) {
	return rendezvous.DirectiveNotice{}, nil
}

// ReportHeld implements agent.Rendezvous.
func (*Static) ReportHeld(context.Context, uint64, string, int64) error { return nil }

// ReportSaved implements agent.Rendezvous.
func (*Static) ReportSaved(context.Context, uint64, string) error { return nil }

// Requeued implements agent.Rendezvous.
func (*Static) Requeued() (reason string, requeued bool) { return "", false }

// MinNodes implements agent.Rendezvous: the nodes are fixed.
func (*Static) MinNodes() int { return 0 }

// CarryTraining implements agent.Rendezvous: there is nobody to tell.
func (*Static) CarryTraining(func() *training.Report) {}
