package agent

import (
	"context"
	"sync"

	"rallypoint/core/store"
)

// Keys of the liveness barrier: an agent that wants to know whether all others are alive
// writes the first; each agent then adds itself to the second, and the last of
// them writes the third.
const (
	barrierKey         = "rallypoint/roll_call"
	arrivalsKey        = barrierKey + "/present"
	barrierCompleteKey = barrierKey + "/complete"
)

// Arrivals answers the liveness barriers of a round while its workers run. A nil Arrivals
// does nothing.
type Arrivals struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// AnswerBarriers begins to answer for one of so many nodes of a round, which has these keys;
// Stop ends it. An Agent does so by itself. It is for nodes whose agent is another one, as
// torch's: without their answers a node whose workers have failed waits until each node that
// could be lost would have been declared so.
func AnswerBarriers(keys store.Store, groups int) *Arrivals {
	ctx, cancel := context.WithCancel(context.Background())
	t := &Arrivals{cancel: cancel}
	if groups < 2 {
		return t
	}
	t.wg.Go(func() {
		if keys.Wait(ctx, []string{barrierKey}) != nil {
			return
		}
		if n, err := keys.Add(ctx, arrivalsKey, 1); err == nil && n >= int64(groups) {
			_ = keys.Set(ctx, barrierCompleteKey, []byte("1"))
		}
	})
	return t
}

// Stop ends the answers.
func (a *Arrivals) Stop() {
	if a == nil {
		return
	}
	a.cancel()
	a.wg.Wait()
}

// livenessBarrier waits for the arrivals of all agents of a round.
type livenessBarrier struct {
	done   chan struct{} // closed once all agents of the round have answered
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// openBarrier asks all agents of the round to arrive. stop ends it.
func (a *Agent) openBarrier(ctx context.Context) *livenessBarrier {
	ctx, cancel := context.WithCancel(ctx)
	p := &livenessBarrier{done: make(chan struct{}), cancel: cancel}
	keys := a.assignment.keys
	p.wg.Go(func() {
		if keys.Set(ctx, barrierKey, []byte("1")) == nil && keys.Wait(ctx, []string{barrierCompleteKey}) == nil {
			close(p.done)
		}
	})
	return p
}

func (l *livenessBarrier) stop() {
	l.cancel()
	l.wg.Wait()
}
