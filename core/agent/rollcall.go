package agent

import (
	"context"
	"sync"
)

// Keys of the roll call: an agent that wants to know whether all others are alive
// writes the first; each agent then adds itself to the second, and whoever is the
// last writes the third.
const (
	rollCallKey     = "rallypoint/roll_call"
	rollCountKey    = rollCallKey + "/present"
	rollCompleteKey = rollCallKey + "/complete"
)

// attendance answers roll calls of a round while its workers run. A nil attendance
// does nothing.
type attendance struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// attend begins to answer; stop ends it.
func (a *Agent) attend() *attendance {
	ctx, cancel := context.WithCancel(context.Background())
	t := &attendance{cancel: cancel}
	if a.seat.groups < 2 {
		return t
	}
	keys, groups := a.seat.keys, int64(a.seat.groups)
	t.wg.Go(func() {
		if keys.Wait(ctx, []string{rollCallKey}) != nil {
			return
		}
		if n, err := keys.Add(ctx, rollCountKey, 1); err == nil && n >= groups {
			_ = keys.Set(ctx, rollCompleteKey, []byte("1"))
		}
	})
	return t
}

func (t *attendance) stop() {
	if t == nil {
		return
	}
	t.cancel()
	t.wg.Wait()
}

// presence is a roll call under way.
type presence struct {
	done   chan struct{} // closed once all agents of the round have answered
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// rollCall asks all agents of the round whether they are there. stop ends it.
func (a *Agent) rollCall(ctx context.Context) *presence {
	ctx, cancel := context.WithCancel(ctx)
	p := &presence{done: make(chan struct{}), cancel: cancel}
	keys := a.seat.keys
	p.wg.Go(func() {
		if keys.Set(ctx, rollCallKey, []byte("1")) == nil && keys.Wait(ctx, []string{rollCompleteKey}) == nil {
			close(p.done)
		}
	})
	return p
}

func (p *presence) stop() {
	p.cancel()
	p.wg.Wait()
}
