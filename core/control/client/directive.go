package client

import (
	"context"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// AdminDirect gives a run a directive, like AdminClose in all else. Its ID makes a
// repetition do nothing. One that does not fit the run, as one about a node that is not
// alive, or with a deadline that is negative or too far off, is ErrInvalid.
func AdminDirect(ctx context.Context, addr string, token *secret.Token, runID string, d rendezvous.Direct) (string, error) {
	op, ok := directiveOps[d.Kind]
	if !ok {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "there is no directive of kind %d", int(d.Kind))
	}
	return requestAdmin(ctx, addr, token, wire.Admin{
		Op: op, RunID: runID, By: d.By, Reason: d.Reason,
		Directive: wire.Directive{ID: d.ID, Nodes: d.Nodes, Within: d.Within, For: d.For, Target: d.Target},
	})
}

var directiveOps = map[rendezvous.DirectiveKind]wire.AdminOp{
	rendezvous.DirectiveSave: wire.AdminOpSave, rendezvous.DirectiveDrain: wire.AdminOpDrain,
	rendezvous.DirectiveScale: wire.AdminOpScale, rendezvous.DirectiveStop: wire.AdminOpStop,
}

// AdminCancel takes a directive back that stands.
func AdminCancel(ctx context.Context, addr string, token *secret.Token, runID, id, by, reason string) (string, error) {
	return requestAdmin(ctx, addr, token, wire.Admin{Op: wire.AdminOpCancel, RunID: runID, By: by, Reason: reason, Directive: wire.Directive{ID: id}})
}

// AdminUndrain admits a drained node again.
func AdminUndrain(ctx context.Context, addr string, token *secret.Token, runID, node, by, reason string) (string, error) {
	return requestAdmin(ctx, addr, token, wire.Admin{Op: wire.AdminOpUndrain, RunID: runID, Node: node, By: by, Reason: reason})
}
