package filestore

import (
	"errors"
	"fmt"

	"rallypoint/internal/lockedfile"
)

// Errors about the file, after which every call on the Store returns the same one: the
// file at the path is no longer the store.
var (
	// ErrVanished is returned by every call once the path does not exist: the file or a directory
	// above it was removed or renamed.
	ErrVanished = lockedfile.ErrVanished

	// ErrReplaced is returned by every call once the path names another file, or the file no
	// longer has the content that was read from it.
	ErrReplaced = lockedfile.ErrReplaced

	// ErrForeign is returned by Open and by every call that reads something that
	// neither is a record nor could become one. Nothing is written then.
	ErrForeign = lockedfile.ErrForeign
)

// Errors about what the store can do.
var (
	// errNoQueues is returned by the queue operations, which this store does not
	// have, as the reference's has not. It matches errors.ErrUnsupported.
	errNoQueues = fmt.Errorf("a file store has no queues: %w", errors.ErrUnsupported)

	// ErrNoLocks is returned when the file system has no flock(2), without which
	// the file cannot be shared. The remedy is another directory, or a mount with
	// locks.
	ErrNoLocks = lockedfile.ErrNoLocks
)
