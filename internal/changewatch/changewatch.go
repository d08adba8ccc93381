// Package changewatch tells when it is worth reading a file again that other processes
// append to.
package changewatch

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Clock is the time by which files are polled, and looked at again.
type Clock interface {
	// After returns a channel that is sent to once, d from now.
	After(d time.Duration) <-chan time.Time
}

// Watcher tells when it is worth reading a file again.
type Watcher interface {
	// Wait returns when the file may have changed since the last wait, or when ctx
	// has ended. changed says whether the last read has found something.
	Wait(ctx context.Context, changed bool)
	Close()
}

// New returns a watcher of the file that inotify wakes, if the file is on one of this
// machine's own file systems, else one that polls, between shortest and longest apart.
func New(path string, local bool, clock Clock, shortest, longest time.Duration) Watcher {
	if local {
		if n, err := newInotifyWatcher(path, clock); err == nil {
			return n
		}
		// No instances or watches are left to this user: their number is bounded.
	}
	return &pollWatcher{clock: clock, min: shortest, max: longest}
}

// pollWatcher watches a file of which the kernel tells nothing: each interval is half
// as long again as the one before, until a read finds something.
type pollWatcher struct {
	clock    Clock
	min, max time.Duration
	next     time.Duration
}

func (p *pollWatcher) Wait(ctx context.Context, changed bool) {
	if changed || p.next == 0 {
		p.next = p.min
	} else {
		p.next = min(p.next+p.next/2+1, p.max)
	}
	select {
	case <-ctx.Done():
	case <-p.clock.After(p.next):
	}
}

func (p *pollWatcher) Close() {}

// inotifyWatcher watches one file by inotify: writes, a change in the number of links (the
// file was removed, or another renamed over it), and being renamed.
type inotifyWatcher struct {
	notify *fsnotify.Watcher
	clock  Clock
}

// RecheckInterval bounds how long a watcher waits: inotify does not tell of a directory
// above the file that was renamed.
const RecheckInterval = time.Second

func newInotifyWatcher(path string, clock Clock) (*inotifyWatcher, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := notify.Add(path); err != nil {
		_ = notify.Close()
		return nil, err
	}
	return &inotifyWatcher{notify, clock}, nil
}

func (i *inotifyWatcher) Wait(ctx context.Context, _ bool) {
	// Only that something happened matters. An error does not: after it the file is read.
	select {
	case event := <-i.notify.Events:
		if event.Has(fsnotify.Remove) { // another file may have its place, and no watch yet
			_ = i.notify.Add(event.Name)
		}
	case <-i.notify.Errors:
	case <-i.clock.After(RecheckInterval):
	case <-ctx.Done():
	}
}

// Close ends the watch, which takes the kernel many milliseconds: the caller holds no lock
// that others wait for.
func (i *inotifyWatcher) Close() { _ = i.notify.Close() }
