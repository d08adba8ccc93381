package filestore

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// news tells when it is worth looking at the file again.
type news interface {
	// wait returns when the file may have changed since the last wait, or when ctx
	// has ended. changed says what the last look has shown.
	wait(ctx context.Context, changed bool)
	close()
}

// newsOf returns inotify's news of the file, if it is local, or a poll where
// there is none, whose looks are between shortest and longest apart.
func newsOf(path string, local bool, clock Clock, shortest, longest time.Duration) news {
	if local {
		if n, err := newNotices(path); err == nil {
			return n
		}
		// No instances or watches are left to this user: their number is bounded.
	}
	return &poll{clock: clock, min: shortest, max: longest}
}

// poll is the news of a file of which nothing tells: each next look is half as
// far again, until one finds something.
type poll struct {
	clock    Clock
	min, max time.Duration
	next     time.Duration
}

func (p *poll) wait(ctx context.Context, changed bool) {
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

func (p *poll) close() {}

// notices is inotify's news of one file.
type notices struct{ file *os.File }

// noticeMask is what is asked for: writes, a change in the number of links (the
// file was removed, or another renamed over it), and being renamed.
const noticeMask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF

// recheck bounds the time without a look at the file: inotify does not tell of a
// directory above it that was renamed.
const recheck = time.Second

func newNotices(path string) (*notices, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, path, noticeMask); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &notices{file: os.NewFile(uintptr(fd), "inotify")}, nil
}

func (n *notices) wait(ctx context.Context, _ bool) {
	// Only that something happened matters; a read takes all that is queued. No
	// error matters either: after it the file is looked at.
	var events [4096]byte
	_ = n.file.SetReadDeadline(time.Now().Add(recheck))
	defer context.AfterFunc(ctx, func() { _ = n.file.SetReadDeadline(time.Unix(1, 0)) })()
	_, _ = n.file.Read(events[:])
}

func (n *notices) close() { _ = n.file.Close() }
