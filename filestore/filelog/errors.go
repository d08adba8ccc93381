package filelog

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/core/store"
	"rallypoint/internal/lockedfile"
)

// ErrDamaged is returned by a Log whose file has foreign bytes between the frames of nodes.
var ErrDamaged = errors.New("the file is damaged")

// explain adds to an error what was tried where, and what to do about it. Errors that no retry
// can fix become final (see sharedlog.Log).
func (l *Log) explain(what string, err error) error {
	switch {
	case err == nil, errors.As(err, new(*rendezvous.Error)), errors.Is(err, sharedlog.ErrCompacted), errors.Is(err, sharedlog.ErrMoved), errors.Is(err, context.Canceled):
		return err
	}
	code, remedy := rendezvous.CodeConnection, ""
	switch {
	case errors.Is(err, lockedfile.ErrNoLocks):
		code, remedy = rendezvous.CodeInvalid, "use a directory on a file system with flock(2) that reaches over all nodes "+
			"(NFS: version 4, or 3 with lockd, mounted without nolock and local_lock), or another endpoint"
	case errors.Is(err, ErrDamaged):
		code, remedy = rendezvous.CodeState, "no node wrote that: look at the disk, stop all nodes of the run and start them again"
	case errors.Is(err, lockedfile.ErrForeign):
		code, remedy = rendezvous.CodeState, "give the run another id or directory, or remove that one if no run uses it"
	case errors.Is(err, lockedfile.ErrVanished), errors.Is(err, lockedfile.ErrReplaced):
		code, remedy = rendezvous.CodeState, "another process removed or replaced files of a run that was using them; start all its nodes again"
	case errors.Is(err, unix.EROFS):
		code, remedy = rendezvous.CodeInvalid, "the file system is mounted read-only: all nodes have to write there"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		code, remedy = rendezvous.CodeInvalid, fmt.Sprintf("user %d of this machine may not write there: "+
			"all nodes have to run as one user who may", os.Geteuid())
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		remedy = "the file system or the user's quota is full: make room"
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP):
		code, remedy = rendezvous.CodeInvalid, "give a shorter path without links in it"
	case isGone(err):
		code, remedy = rendezvous.CodeInvalid, "it has to be there, on each node, before the nodes start: create it, or mount it"
	case errors.Is(err, store.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		remedy = "a process that hangs, or was stopped, blocks all others: end it or resume it"
	}
	text := fmt.Sprintf("cannot %s the directory %s: %v", what, l.parent, err)
	if l.runID != "" { // else all runs in it were asked for
		text = fmt.Sprintf("run %q: %s", l.runID, text)
	}
	if remedy != "" {
		text += "; " + remedy
	}
	return &rendezvous.Error{Code: code, Text: text}
}
