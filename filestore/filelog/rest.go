package filelog

import (
	"context"
	"time"

	"rallypoint/internal/backoff"
)

// SetNodes implements sharedlog.NodeCounter.
func (l *Log) SetNodes(n int) { l.nodes.Store(int64(n)) }

// A change wakes all nodes at once, and each soon has something to append. If every node read
// each entry separately, the cost per node would grow with their number. So nodes rest before
// they read, the longer the more nodes there are.
const (
	restFrom    = 9 // fewer nodes do not rest
	restPerNode = 700 * time.Microsecond
	longestRest = 90 * time.Millisecond // of 128 nodes; above, a warning names the hosted endpoint
)

// restTime returns how long a reader among that many nodes rests at most after a wake-up.
func restTime(nodes int64) time.Duration {
	if nodes < restFrom {
		return 0
	}
	return min(time.Duration(min(nodes, 1000))*restPerNode, longestRest)
}

// rest returns after the rest of a reader that was woken, or once this node has appended itself.
func (l *Log) rest(ctx context.Context) {
	d := restTime(l.nodes.Load())
	if d == 0 {
		return
	}
	select {
	case <-l.appended:
	case <-l.options.Clock.After(d/2 + backoff.Below(d/2)):
	case <-l.closing:
	case <-ctx.Done():
	}
}
