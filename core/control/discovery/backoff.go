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

func (f *Finder) newBackoff() *backoff.Backoff {
	return backoff.New(firstPause, min(max(f.crowdTime(), shortCap), longestPause))
}

// crowdTime is how long a server may take until it has served all nodes of the job.
func (f *Finder) crowdTime() time.Duration { return time.Duration(f.Params.Max) * capPerNode }
