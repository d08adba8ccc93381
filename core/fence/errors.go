package fence

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/lockedfile"
)

// damaged is the error for a record that cannot be used. Without one the checkpoint would count
// as never fenced, and anybody might replace it.
func (n names) damaged(why error) error {
	if errors.Is(why, lockedfile.ErrForeign) {
		why = errors.New("it is not a regular file")
	}
	return rendezvous.Errorf(rendezvous.CodeState,
		"the record of who wrote the checkpoint %s cannot be used: %s: %v. See that no job writes this checkpoint, remove that file, and start one job: it resumes from the checkpoint as it is",
		n.data, n.record, why)
}

// explain says what failed on which checkpoint, unless err does.
func (n names) explain(what string, err error) error {
	if err == nil || errors.As(err, new(*rendezvous.Error)) {
		return err
	}
	text := fmt.Sprintf("cannot %s the checkpoint %s", what, n.data)
	switch {
	case errors.Is(err, store.ErrClosed):
		return rendezvous.Errorf(rendezvous.CodeCanceled, "%s: the fence was closed", text)
	case errors.Is(err, lockedfile.ErrNoLocks):
		return fmt.Errorf("%s: %w; keep it on a file system whose flock(2) reaches all machines", text, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR),
		errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EBUSY):
		return rendezvous.Errorf(rendezvous.CodeInvalid, "%s: %v", text, err)
	}
	return fmt.Errorf("%s: %w", text, err)
}
