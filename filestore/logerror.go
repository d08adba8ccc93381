package filestore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/core/store"
)

// explain makes an error one that says what was tried where, and what to do about
// it. Those that no repetition heals are final (see sharedlog.Log).
func (l *Log) explain(what string, err error) error {
	var own *rendezvous.Error
	switch {
	case err == nil, errors.As(err, &own), errors.Is(err, sharedlog.ErrCompacted), errors.Is(err, context.Canceled):
		return err
	}
	code, remedy := rendezvous.CodeConnection, ""
	switch {
	case errors.Is(err, ErrNoLocks):
		code, remedy = rendezvous.CodeInvalid, "use a directory on a file system with flock(2) that reaches over all nodes "+
			"(NFS: version 4, or 3 with lockd, mounted without nolock and local_lock), or another endpoint"
	case errors.Is(err, ErrDamaged):
		code, remedy = rendezvous.CodeState, "no node wrote that: look at the disk, stop all nodes of the run and start them anew"
	case errors.Is(err, ErrForeign):
		code, remedy = rendezvous.CodeState, "give the run another id or directory, or remove that one if no run uses it"
	case errors.Is(err, ErrVanished), errors.Is(err, ErrReplaced):
		code, remedy = rendezvous.CodeState, "somebody removed or replaced files of a run that was using them; start all its nodes anew"
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
		remedy = "a process that hangs, or was stopped, holds up all others: end it or let it go on"
	}
	text := fmt.Sprintf("run %q: cannot %s the directory %s: %v", l.runID, what, l.parent, err)
	if remedy != "" {
		text += "; " + remedy
	}
	return &rendezvous.Error{Code: code, Text: text}
}

// lockError is the error of a flock that failed other than by being held.
func lockError(err error) error {
	switch err {
	case unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL:
		return fmt.Errorf("%w: %w", ErrNoLocks, err)
	}
	return fmt.Errorf("flock: %w", err)
}

// checkLocks refuses a file system whose locks end at this machine although its
// files do not.
func checkLocks(dev uint64) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	if option := localLocks(table, unix.Major(dev), unix.Minor(dev)); option != "" {
		return fmt.Errorf("%w over machines: it is mounted with %s", ErrNoLocks, option)
	}
	return nil
}

// localLocks returns the option of an NFS mount by which its locks are this
// machine's own; "" if there is none. table is that of proc_pid_mountinfo(5).
func localLocks(table []byte, major, minor uint32) string {
	device := fmt.Sprintf("%d:%d", major, minor)
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		mount, system, ok := strings.Cut(lines.Text(), " - ")
		fields, types := strings.Fields(mount), strings.Fields(system)
		if !ok || len(fields) < 3 || len(types) < 3 || fields[2] != device || !strings.HasPrefix(types[0], "nfs") {
			continue
		}
		for _, option := range strings.Split(types[2], ",") {
			switch option {
			case "nolock", "local_lock=flock", "local_lock=all":
				return option
			}
		}
	}
	return ""
}
