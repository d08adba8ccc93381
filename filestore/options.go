package filestore

import (
	"cmp"
	"log/slog"
	"time"

	"rallypoint/internal/lockedfile"
)

// NeverRemove is the world size of a store whose file stays when the last one
// who used it has closed it.
const NeverRemove = -1

// Options are the choices of a Store that are not of the format. The zero value,
// and nil, is the default.
type Options struct {
	// PollMin and PollMax bound the time between two looks at the file while a
	// call waits and inotify cannot tell. The time starts at PollMin with each
	// change and grows by half with each look that finds none. Defaults: 1 ms
	// and 50 ms.
	PollMin, PollMax time.Duration

	// Remote treats the file's file system as one that other machines write to:
	// no inotify, and no look at the file without its lock. Without it this is
	// so for each file system that is not known to be local. To be set for a
	// network file system that passes as a local one.
	Remote bool

	// CloseTimeout bounds how long Close waits for the file's lock, and reads what it has
	// not read. Default: 5 s.
	CloseTimeout time.Duration

	// Log gets a warning about a file that others rule over. Default: nil, none.
	Log *slog.Logger

	// Clock drives polls, back-offs and CloseTimeout, but not the deadlines of contexts. Default:
	// the machine's.
	Clock Clock
}

// Clock is the time that a Store lives by. Now must be monotonic.
type Clock = lockedfile.Clock

// RealClock is the machine's clock.
type RealClock = lockedfile.RealClock

func (o *Options) withDefaults() Options {
	var full Options
	if o != nil {
		full = *o
	}
	full.PollMin = cmp.Or(full.PollMin, time.Millisecond)
	full.PollMax = max(cmp.Or(full.PollMax, 50*time.Millisecond), full.PollMin)
	full.CloseTimeout = cmp.Or(full.CloseTimeout, 5*time.Second)
	full.Clock = cmp.Or[Clock](full.Clock, RealClock{})
	return full
}
