package filelog

import (
	"cmp"
	"time"

	"rallypoint/internal/lockedfile"
)

// Options are the choices of a Log that are not of the format. The zero value, and nil,
// is the default.
type Options struct {
	// PollMin and PollMax bound the interval between two reads of the log where inotify
	// tells of no changes. It starts at PollMin with each change and grows by half with
	// each read that finds none. Defaults: 1 ms and 200 ms.
	PollMin, PollMax time.Duration

	// Remote treats the directory's file system as one that other machines write to: no
	// inotify, and no read without the lock. Without it this is so for each file system
	// that is not known to be local.
	Remote bool

	// Clock drives polls and back-offs, but not the deadlines of contexts. Default: the
	// machine's.
	Clock lockedfile.Clock
}

// Defaults of Options.
const (
	defaultPollMin = time.Millisecond
	defaultPollMax = 200 * time.Millisecond
)

// withDefaults returns o with each field set.
func (o *Options) withDefaults() Options {
	var full Options
	if o != nil {
		full = *o
	}
	full.PollMin = cmp.Or(full.PollMin, defaultPollMin)
	full.PollMax = max(cmp.Or(full.PollMax, defaultPollMax), full.PollMin)
	full.Clock = cmp.Or[lockedfile.Clock](full.Clock, lockedfile.RealClock{})
	return full
}
