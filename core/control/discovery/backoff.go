package discovery

import (
	"time"

	"rallypoint/internal/backoff"
)

// Pauses between attempts to connect. The longest depends on the size of the job, so
// that all its nodes together make at most some 5000 attempts a second.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = time.Second
	shortCap     = 100 * time.Millisecond
	capPerNode   = 200 * time.Microsecond
)

func newBackoff(nodes int) *backoff.Backoff {
	return backoff.New(firstPause, min(max(crowdTime(nodes), shortCap), longestPause))
}

// crowdTime is how long a server may take until it has served all nodes of a job.
func crowdTime(nodes int) time.Duration { return time.Duration(nodes) * capPerNode }
