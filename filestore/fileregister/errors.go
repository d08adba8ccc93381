package fileregister

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/lockedfile"
)

// errDamaged is the error of a file without a whole value that is not empty.
var errDamaged = errors.New("the file is damaged, or not of a run of this release")

// explain adds to an error what was tried where, and what to do about it. Errors that no retry
// can fix become final.
func (r *Register) explain(what string, err error) error {
	switch {
	case err == nil, errors.As(err, new(*rendezvous.Error)), errors.Is(err, context.Canceled):
		return err
	}
	code, remedy := rendezvous.CodeConnection, ""
	switch {
	case errors.Is(err, lockedfile.ErrNoLocks):
		code, remedy = rendezvous.CodeInvalid, "use a directory on a file system with flock(2) that reaches over all nodes "+
			"(NFS: version 4, or 3 with lockd, mounted without nolock and local_lock), or another endpoint"
	case errors.Is(err, errDamaged):
		code, remedy = rendezvous.CodeState, "no node wrote that: look at the disk, stop all nodes of the run and start them again"
	case errors.Is(err, lockedfile.ErrForeign):
		code, remedy = rendezvous.CodeState, "give the run another id or directory, or remove that one if no run uses it"
	case errors.Is(err, lockedfile.ErrVanished), errors.Is(err, lockedfile.ErrReplaced):
		code, remedy = rendezvous.CodeState, "another process removed or replaced the file of a run that was using it"
	case errors.Is(err, unix.EROFS):
		code, remedy = rendezvous.CodeInvalid, "the file system is mounted read-only: all nodes have to write there"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		code, remedy = rendezvous.CodeInvalid, fmt.Sprintf("user %d of this machine may not write there: "+
			"all nodes have to run as one user who may", os.Geteuid())
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		remedy = "the file system or the user's quota is full: make room"
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP):
		code, remedy = rendezvous.CodeInvalid, "give a shorter path without links in it"
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		code, remedy = rendezvous.CodeInvalid, "it has to be there, on each node, before the nodes start: create it, or mount it"
	case errors.Is(err, store.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		remedy = "a process that hangs, or was stopped, blocks all others: end it or resume it"
	}
	text := fmt.Sprintf("cannot %s the directory %s: %v", what, r.dir, err)
	if r.runID != "" { // else all runs in it were asked for
		text = fmt.Sprintf("run %q: %s", r.runID, text)
	}
	if remedy != "" {
		text += "; " + remedy
	}
	return &rendezvous.Error{Code: code, Text: text}
}
