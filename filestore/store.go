package filestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/lockedfile"
)

// Store is a store.Store in a file. It may be used by several goroutines at once,
// and the file by any number of Stores and of stock processes, on any number of
// machines if the file system's locks reach over them.
//
// Locks, in the order in which they are taken: turn, the file's lock, mu. Waiting
// calls hold none.
type Store struct {
	store.Methods

	file      *lockedfile.File
	local     bool // see lockedfile.File.IsLocal
	worldSize int
	options   Options
	closing   chan struct{} // closed when Close begins
	close     func() error

	// turn is a token: the goroutine that has it uses the file's lock, since the lock belongs to
	// the descriptor, not to the goroutine. Fields that are written under turn and mu may be read
	// under either.
	turn   chan struct{}
	limit  lockedfile.WaitLimit // of the call that has the turn
	pos    int64                // end of the last record applied; written under turn and mu
	anchor []byte               // the last bytes before pos
	mem    []byte               // memory to read into
	log    []byte               // memory to build records in

	mu      sync.Mutex // held for memory only, never over a call that may wait
	engine  *store.Engine
	failure error  // why every call fails
	watch   *watch // runs while calls wait
	waiting int    // calls that wait
	watches sync.WaitGroup
}

// Open opens the store in the file at path, creating it if necessary (in a directory that must
// exist), and counts it as one more user of the file.
//
// worldSize says when the file is removed: by the Close after which no store is
// open, if at least worldSize were closed over the life of the file. 0 stands for
// whenever the last one is closed, NeverRemove (and every number below 0) for
// never. A file that is left over is used on, with its keys; a process that dies
// without Close is counted as a user for ever (docs/spec/filestore-format.md 6).
//
// Open waits for the file's lock until ctx ends, and for nothing else. It returns
// ErrForeign for a file that is something else, and ErrNoLocks. An Open that fails
// removes the file if it is empty, unless worldSize keeps it.
func Open(ctx context.Context, path string, worldSize int, options *Options) (*Store, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("file store %s: open: %w", path, err)
	}
	for tries := 1; ; tries++ {
		s, err := open(ctx, absolute, worldSize, options.withDefaults())
		if err == nil {
			return s, nil
		}
		// The last user may have removed the file while this one waited for its
		// lock.
		gone := errors.Is(err, ErrVanished) || errors.Is(err, ErrReplaced)
		if !gone || tries == maxOpenTries {
			return nil, fmt.Errorf("file store %s: open: %w", absolute, err)
		}
	}
}

// maxOpenTries bounds how often Open begins again: more than a few removals in its
// way, it is a file system on which a path does not lead to the file it opens.
const maxOpenTries = 100

// fileMode is the mode with which the reference creates files, less the umask.
const fileMode = 0o644

func open(ctx context.Context, path string, worldSize int, options Options) (*Store, error) {
	if err := store.ContextError(ctx); err != nil {
		return nil, err
	}
	f, err := lockedfile.OpenFile(path, unix.O_RDWR|unix.O_CREAT, fileMode)
	if err != nil {
		return nil, err
	}
	s := &Store{
		file:      f,
		local:     !options.Remote && f.IsLocal(),
		worldSize: worldSize,
		options:   options,
		closing:   make(chan struct{}),
		turn:      make(chan struct{}, 1),
		engine:    store.NewEngine(store.Limits{}),
	}
	s.Methods = store.MethodsOf(s)
	s.close = sync.OnceValue(s.shutDown)
	err = s.updateLocked(ctx, func(log []byte) ([]byte, error) {
		log, _, err := s.countLocked(log, refcountKey, 1)
		return log, err
	})
	if err != nil {
		s.abandon()
		return nil, err
	}
	s.warnOfOthers()
	return s, nil
}

// abandon closes the file of an open that failed. An empty file has no user: it is removed as
// the last Close would, since no store is left that could.
func (s *Store) abandon() {
	defer s.file.Close()
	if s.worldSize < 0 {
		return
	}
	if locked, err := s.file.TryLock(unix.LOCK_EX); !locked || err != nil {
		return // another user is about to write to it
	}
	if size, err := s.file.Size(); err == nil && size == 0 {
		_ = s.file.Remove()
	}
}

func (s *Store) warnOfOthers() {
	var st unix.Stat_t
	if s.options.Log == nil || s.file.Stat(&st) != nil {
		return
	}
	foreign := st.Uid != 0 && st.Uid != uint32(os.Geteuid())
	if foreign || st.Mode&0o002 != 0 {
		s.options.Log.Warn("other users can change what is in the file of a FileStore: use one in a directory of this user's",
			"file", s.file.Path, "owner", st.Uid, "mode", fmt.Sprintf("%04o", st.Mode&0o7777))
	}
}

// Path returns the absolute path of the store's file.
func (s *Store) Path() string { return s.file.Path }

// Close ends the store: waiting calls return ErrClosed, the file's counters are
// changed, and the file is removed if this was the last user and worldSize allows
// (see Open). It waits for the file's lock, at most for Options.CloseTimeout. On
// an error this store stays counted as a user of the file; it is closed anyway. A
// file that is gone already is none. Closing again returns what the first Close
// returned.
func (s *Store) Close() error { return s.close() }

func (s *Store) shutDown() error {
	s.mu.Lock()
	close(s.closing) // under mu, so that no watch begins after it
	s.endWatchLocked()
	s.mu.Unlock()
	s.watches.Wait()
	clock := s.options.Clock
	deadline := clock.Now().Add(s.options.CloseTimeout)
	s.turn <- struct{}{} // its holder sees closing and stops waiting
	defer func() { <-s.turn }()
	err := s.withLock(lockedfile.WaitLimit{Ctx: context.Background(), Deadline: deadline}, unix.LOCK_EX, s.leave)
	s.file.Close()
	if err == nil || errors.Is(err, ErrVanished) {
		return nil
	}
	return fmt.Errorf("file store %s: close: %w", s.file.Path, err)
}

// leave writes a closing store's counters and removes the file if that is due.
func (s *Store) leave(size int64) error {
	cleanups, users := int64(0), int64(0)
	err := s.append(context.Background(), size, func(log []byte) ([]byte, error) {
		log, n, err := s.countLocked(log, cleanupKey, 1)
		if err != nil {
			return nil, err
		}
		cleanups = n
		log, users, err = s.countLocked(log, refcountKey, -1)
		return log, err
	})
	if err != nil {
		return err
	}
	if users == 0 && s.worldSize >= 0 && cleanups >= int64(s.worldSize) {
		// A file that cannot be removed is one that is left over; the reference
		// does not mind either.
		_ = s.file.Remove()
	}
	return nil
}

// countLocked appends to log the record that adds delta to the number under the stored
// key, and returns the sum.
func (s *Store) countLocked(log []byte, key string, delta int64) ([]byte, int64, error) {
	value, _ := s.engine.Get(key)
	n, err := parseNumber(value)
	if err != nil {
		return nil, 0, fmt.Errorf("%.100q: %w", key, err)
	}
	n += delta
	var digits [20]byte // the longest int64 with its sign
	log, err = appendRecord(log, key, strconv.AppendInt(digits[:0], n, 10))
	return log, n, err
}

// viewLocked runs f when everything is known that was in the file when view was called.
// f reads the engine, and may register a waiter.
func (s *Store) viewLocked(ctx context.Context, f func()) error {
	if err := s.checkOpen(ctx); err != nil {
		return err
	}
	if s.local {
		size, err := s.file.Size()
		if err != nil {
			return cmp.Or(s.checkOpen(ctx), s.fail(err))
		}
		if s.viewAt(size, f) {
			return nil
		}
	}
	return s.locked(ctx, unix.LOCK_SH, func(size int64) error {
		if err := s.refreshLocked(size); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		f()
		return nil
	})
}

// viewAt runs f if exactly the first size bytes of the file have been applied.
func (s *Store) viewAt(size int64, f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size != s.pos || s.failure != nil {
		return false
	}
	f()
	return true
}

// updateLocked appends the result of f to the file. f gets a buffer to append to, and sees the
// engine with everything in the file applied. Nothing is written if f returns nothing or an
// error.
func (s *Store) updateLocked(ctx context.Context, f func(log []byte) ([]byte, error)) error {
	if err := s.checkOpen(ctx); err != nil {
		return err
	}
	return s.locked(ctx, unix.LOCK_EX, func(size int64) error { return s.append(ctx, size, f) })
}

// append is update under the exclusive lock.
func (s *Store) append(ctx context.Context, size int64, f func(log []byte) ([]byte, error)) error {
	if err := s.refreshLocked(size); err != nil {
		return err
	}
	if s.pos != size {
		var err error
		if size, err = s.repair(size); err != nil {
			return fmt.Errorf("incomplete record at offset %d: %w", s.pos, err)
		}
	}
	s.mu.Lock()
	log, err := f(s.log[:0])
	s.mu.Unlock()
	if err != nil || len(log) == 0 {
		return err
	}
	defer s.keepLog(log)
	if len(log) > checkTimeBytes {
		if err := mayWait(ctx); err != nil {
			return err
		}
	}
	return s.write(log, size)
}

// locked runs f under the file's lock with the size of the file.
func (s *Store) locked(ctx context.Context, how int, f func(size int64) error) error {
	select {
	case s.turn <- struct{}{}:
	default:
		if err := mayWait(ctx); err != nil {
			return err
		}
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return store.ContextError(ctx)
		case <-s.closing:
			return store.ErrClosed
		}
	}
	defer func() { <-s.turn }()
	if err := s.checkOpen(ctx); err != nil {
		return err // the descriptor may be closed already
	}
	limit := lockedfile.WaitLimit{Ctx: ctx, Closing: s.closing}
	if isTry(ctx) {
		limit.Deadline = s.options.Clock.Now().Add(tryPatience)
	}
	return s.withLock(limit, how, f)
}

// withLock runs f under the file's lock if the path still names the file. The turn
// is held.
func (s *Store) withLock(p lockedfile.WaitLimit, how int, f func(size int64) error) error {
	if err := s.failed(); err != nil {
		return err
	}
	s.limit = p
	if err := s.file.Lock(p, s.options.Clock, how); err != nil {
		if errors.Is(err, unix.ESTALE) { // NFS: another machine has removed it
			err = fmt.Errorf("%w: %w", ErrVanished, err)
		}
		return s.fail(err)
	}
	defer s.file.Unlock()
	size, err := s.file.Size()
	if err == nil && size-s.pos > checkTimeBytes {
		err = mayWait(p.Ctx)
	}
	if err == nil {
		err = f(size)
	}
	return s.fail(err)
}

// checkTimeBytes is how much is read or written by a call that must not wait: some
// milliseconds' worth.
const checkTimeBytes = 1 << 20

// checkOpen returns why no call can be begun, if so.
func (s *Store) checkOpen(ctx context.Context) error {
	select {
	case <-s.closing:
		return store.ErrClosed
	default:
		return store.ContextError(ctx)
	}
}

// fail returns err, and remembers it if it ends the store.
func (s *Store) fail(err error) error {
	if errors.Is(err, ErrVanished) || errors.Is(err, ErrReplaced) || errors.Is(err, ErrForeign) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.failure == nil {
			s.failure = err
		}
		return s.failure
	}
	return err
}

// failed returns why every call fails, if so.
func (s *Store) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}
