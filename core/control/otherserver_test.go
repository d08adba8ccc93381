package control

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestOtherUsersServer: a node of a job on one machine that has no token does not follow the
// control plane of another user, who was quicker to listen at its endpoint, whatever that says,
// unless the parameters say that it may be another user's.
func TestOtherUsersServer(t *testing.T) {
	never := false
	for name, test := range map[string]struct {
		change func(p *params.Params)
		wants  bool
	}{
		"one node":         {func(p *params.Params) { p.Max = 1 }, false},
		"several":          {func(*params.Params) {}, false},
		"another user's":   {func(p *params.Params) { p.LoopbackUsers.Also = []params.UIDRange{{First: 1, Last: 2}} }, false},
		"refused in words": {func(p *params.Params) { p.RunID = "other" }, false},
		"allow_uid": {func(p *params.Params) {
			p.LoopbackUsers.Also = []params.UIDRange{{First: peertest.Stranger, Last: peertest.Stranger}}
		}, true},
		"loopback_check=0":  {func(p *params.Params) { p.LoopbackUsers.Anyone = true }, true},
		"is_host=0, shared": {func(p *params.Params) { p.IsHost = &never }, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := peertest.Listen(t, peertest.Stranger, "127.0.0.1:0")
			evil := Start(Config{RunID: "run", Log: slog.New(slog.DiscardHandler)}, l)
			defer evil.Close()
			p := controltest.Params(l.Addr().String(), 3)
			p.Min = 1
			test.change(&p)
			log, lines := testkit.NewLog(t)
			c := client.New(p, controltest.NewObserver(), log, startHost)
			defer func() {
				canceled, cancel := context.WithCancel(context.Background())
				cancel()
				c.Close(canceled)
			}()
			ctx, cancel := context.WithCancel(controltest.Context(t))
			defer cancel()
			if test.wants {
				if err := c.Connect(ctx); err != nil {
					t.Error(err)
				}
				return
			}
			ended := make(chan error)
			go func() { ended <- c.Connect(ctx) }()
			lines.Await(t, fmt.Sprintf("it is another user's connection: user %d", peertest.Stranger), 1)
			cancel()
			controltest.WantCode(t, <-ended, rendezvous.CodeCanceled, "may be another user's", fmt.Sprintf("allow_uid=%d", peertest.Stranger))
		})
	}
}
