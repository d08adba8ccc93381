package client

import (
	"context"
	"crypto/rand"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/secret"
)

// NewDirectiveID draws the id of a directive.
func NewDirectiveID() string { return rand.Text()[:8] }

// AdminDrain gives a run the directive that the named nodes leave within a time, and are
// not admitted again for another one (0: until AdminUndrain), like AdminClose in all else.
// The id makes a repetition do nothing. A node that is not alive, and a time that is
// negative or too long, is ErrInvalid.
func AdminDrain(ctx context.Context, addr string, token *secret.Token, runID, id string, nodes []string, within, away time.Duration, by, reason string) (string, error) {
	return requestAdmin(ctx, addr, token, wire.Admin{
		Op: wire.AdminOpDrain, RunID: runID, By: by, Reason: reason,
		Directive: wire.Directive{ID: id, Nodes: nodes, Within: within, For: away},
	})
}

// AdminCancel takes a directive back that stands.
func AdminCancel(ctx context.Context, addr string, token *secret.Token, runID, id, by, reason string) (string, error) {
	return requestAdmin(ctx, addr, token, wire.Admin{Op: wire.AdminOpCancel, RunID: runID, By: by, Reason: reason, Directive: wire.Directive{ID: id}})
}

// AdminUndrain admits a drained node again.
func AdminUndrain(ctx context.Context, addr string, token *secret.Token, runID, node, by, reason string) (string, error) {
	return requestAdmin(ctx, addr, token, wire.Admin{Op: wire.AdminOpUndrain, RunID: runID, Node: node, By: by, Reason: reason})
}
