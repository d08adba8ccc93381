// Package changewatch tells when it is worth reading a file again that other processes
// append to.
package changewatch

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the time by which files are polled.
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
		if n, err := newInotifyWatcher(path); err == nil {
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

// inotifyWatcher watches one file by inotify.
type inotifyWatcher struct{ file *os.File }

// inotifyMask is what is asked for: writes, a change in the number of links (the
// file was removed, or another renamed over it), and being renamed.
const inotifyMask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF

// RecheckInterval bounds how long a watcher waits: inotify does not tell of a directory
// above the file that was renamed.
const RecheckInterval = time.Second

func newInotifyWatcher(path string) (*inotifyWatcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, path, inotifyMask); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &inotifyWatcher{file: os.NewFile(uintptr(fd), "inotify")}, nil
}

func (n *inotifyWatcher) Wait(ctx context.Context, _ bool) {
	// Only that something happened matters; a read takes all that is queued. No
	// error matters either: after it the file is read.
	var events [4096]byte
	_ = n.file.SetReadDeadline(time.Now().Add(RecheckInterval))
	defer context.AfterFunc(ctx, func() { _ = n.file.SetReadDeadline(time.Unix(1, 0)) })()
	_, _ = n.file.Read(events[:])
}

func (n *inotifyWatcher) Close() { _ = n.file.Close() }
