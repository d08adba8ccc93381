package lockedfile

import "errors"

var (
	// ErrVanished says that nothing is at a file's path any more: the file or a
	// directory above it was removed or renamed.
	ErrVanished = errors.New("the file is gone")

	// ErrReplaced says that a path names another file, or that the file does not hold
	// any more what was read from it.
	ErrReplaced = errors.New("the file was replaced by another")

	// ErrForeign says that a file is something else than its reader expects.
	ErrForeign = errors.New("not the file of a FileStore")

	// ErrNoLocks says that the file system has no flock(2), or none that reaches over
	// all machines that share it.
	ErrNoLocks = errors.New("the file system cannot lock files")
)
