package agent

import (
	"context"

	"rallypoint/core/store"
	"rallypoint/internal/background"
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
type Arrivals struct{ stop func() }

// AnswerBarriers answers the liveness barriers of a round with that many nodes and these keys,
// until Stop. An Agent does so itself; this is for nodes with another agent, such as torch's.
// Without its answers, a node whose workers have failed waits as long as it takes to declare any
// lost node lost.
func AnswerBarriers(keys store.Store, groups int) *Arrivals {
	if groups < 2 {
		return nil
	}
	return &Arrivals{background.Run(context.Background(), func(ctx context.Context) {
		if keys.Wait(ctx, []string{barrierKey}) != nil {
			return
		}
		if n, err := keys.Add(ctx, arrivalsKey, 1); err == nil && n >= int64(groups) {
			_ = keys.Set(ctx, barrierCompleteKey, []byte("1"))
		}
	})}
}

// Stop ends the answers.
func (a *Arrivals) Stop() {
	if a != nil {
		a.stop()
	}
}

// openBarrier asks all agents of the round to arrive; all is closed once they have. stop ends it.
func (a *Agent) openBarrier(ctx context.Context) (all <-chan struct{}, stop func()) {
	keys, arrived := a.assignment.keys, make(chan struct{})
	return arrived, background.Run(ctx, func(ctx context.Context) {
		if keys.Set(ctx, barrierKey, []byte("1")) == nil && keys.Wait(ctx, []string{barrierCompleteKey}) == nil {
			close(arrived)
		}
	})
}
