package main

import (
	"context"

	"rallypoint/agent"
	"rallypoint/core/rendezvous"
)

// What an agent asks a rendezvous for beside the interface has to be forwarded, which a type
// that embeds an interface does not do by itself.
var (
	_ agent.Notifier         = borrowed{}
	_ agent.TrainingCarrier  = borrowed{}
	_ agent.StopAnnouncer    = borrowed{}
	_ agent.Elastic          = borrowed{}
	_ agent.DirectiveCarrier = borrowed{}
	_ agent.Director         = borrowed{}
	_ agent.Requeuer         = borrowed{}
)

// AnnounceStop implements agent.StopAnnouncer, as do the others below where the member can.
func (b borrowed) AnnounceStop(ctx context.Context, round uint64, leaving bool, reason string) error {
	if n, ok := b.Node.(agent.StopAnnouncer); ok {
		return n.AnnounceStop(ctx, round, leaving, reason)
	}
	return nil
}

// Stopped implements agent.StopAnnouncer.
func (b borrowed) Stopped(round uint64) rendezvous.RoundStop {
	if n, ok := b.Node.(agent.StopAnnouncer); ok {
		return n.Stopped(round)
	}
	return rendezvous.RoundStop{}
}

// MinNodes implements agent.Elastic.
func (b borrowed) MinNodes() int {
	if n, ok := b.Node.(agent.Elastic); ok {
		return n.MinNodes()
	}
	return 0
}

// Directive implements agent.DirectiveCarrier.
func (b borrowed) Directive() (rendezvous.DirectiveNotice, <-chan struct{}) {
	if n, ok := b.Node.(agent.DirectiveCarrier); ok {
		return n.Directive()
	}
	return rendezvous.DirectiveNotice{}, nil
}

// ReportHeld implements agent.DirectiveCarrier.
func (b borrowed) ReportHeld(ctx context.Context, round uint64, id string, step int64) error {
	if n, ok := b.Node.(agent.DirectiveCarrier); ok {
		return n.ReportHeld(ctx, round, id, step)
	}
	return nil
}

// ReportSaved implements agent.DirectiveCarrier.
func (b borrowed) ReportSaved(ctx context.Context, round uint64, id string) error {
	if n, ok := b.Node.(agent.DirectiveCarrier); ok {
		return n.ReportSaved(ctx, round, id)
	}
	return nil
}

// Direct implements agent.Director.
func (b borrowed) Direct(ctx context.Context, d rendezvous.Direct) error {
	if n, ok := b.Node.(agent.Director); ok {
		return n.Direct(ctx, d)
	}
	return rendezvous.Errorf(rendezvous.CodeInvalid, "the nodes of this job cannot be given directives")
}

// Requeued implements agent.Requeuer.
func (b borrowed) Requeued() (reason string, requeued bool) {
	if n, ok := b.Node.(agent.Requeuer); ok {
		return n.Requeued()
	}
	return "", false
}
