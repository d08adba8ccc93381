package lockedfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// File is an open regular file that remembers which one it is and where it was. Size
// and Stat may be called at any time, the rest only before Close.
type File struct {
	Path string
	fd   int
	dev  uint64
	Ino  uint64

	life    sync.RWMutex // against a descriptor that is closed while Size uses it
	closed  bool
	opened  time.Time
	checked atomic.Int64 // time of the last check of the path, since opened
}

// OpenFile opens the regular file at path, which must be absolute, with these flags;
// it is created, if that is asked for, with that mode. It never waits: a directory
// that is missing is an error.
func OpenFile(path string, flags int, mode uint32) (*File, error) {
	f := &File{Path: path, opened: time.Now()}
	f.checked.Store(int64(-PathCheckAge))
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		flags |= unix.O_NONBLOCK // else a FIFO, which is refused below, waits for a writer
	}
	err := IgnoringEINTR(func() (err error) {
		f.fd, err = unix.Open(path, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) && flags&unix.O_CREAT != 0 {
		return nil, fmt.Errorf("directory %s does not exist: %w", filepath.Dir(path), err)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := f.Stat(&st); err != nil {
		f.Close()
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, fmt.Errorf("%w: not a regular file", ErrForeign)
	}
	f.dev, f.Ino = uint64(st.Dev), st.Ino
	return f, nil
}

// PathCheckAge is how old the last check of the path may be that Size relies on. It
// costs several times what it costs to ask the open file, which itself knows that
// it was removed or that another was renamed over it, but not that it, or a
// directory above it, has another name now.
const PathCheckAge = time.Millisecond

// Size returns the size of the file if it still is what its path names, else
// ErrVanished or ErrReplaced.
func (f *File) Size() (int64, error) {
	var st unix.Stat_t
	if err := f.Stat(&st); err != nil {
		return 0, missing(err)
	}
	now := time.Since(f.opened)
	if st.Nlink == 0 || now-time.Duration(f.checked.Load()) >= PathCheckAge {
		if err := f.CheckPath(); err != nil {
			return 0, err
		}
		f.checked.Store(int64(now))
	}
	return st.Size, nil
}

// Stat is fstat(2), which may be called beside Close.
func (f *File) Stat(st *unix.Stat_t) error {
	f.life.RLock()
	defer f.life.RUnlock()
	if f.closed {
		return os.ErrClosed
	}
	return IgnoringEINTR(func() error { return unix.Fstat(f.fd, st) })
}

// CheckPath returns ErrVanished or ErrReplaced if the path does not name the file.
func (f *File) CheckPath() error {
	var st unix.Stat_t
	err := IgnoringEINTR(func() error { return unix.Stat(f.Path, &st) })
	if err != nil {
		return missing(err)
	}
	if uint64(st.Dev) != f.dev || st.Ino != f.Ino {
		return ErrReplaced
	}
	return nil
}

// SizeAtServer is Size for a file that other machines write to: what the server of a network
// file system says now, not what this machine has kept of it. A file system that has its
// own idea of that may still give an old size, only a lock excludes it.
func (f *File) SizeAtServer() (int64, error) {
	var st unix.Statx_t
	err := IgnoringEINTR(func() error {
		return unix.Statx(unix.AT_FDCWD, f.Path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE|unix.STATX_INO, &st)
	})
	if err != nil {
		return 0, missing(err)
	}
	if unix.Mkdev(st.Dev_major, st.Dev_minor) != f.dev || st.Ino != f.Ino {
		return 0, ErrReplaced
	}
	return int64(st.Size), nil
}

// missing puts ErrVanished in front of an error that says that there is no file.
func missing(err error) error {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ESTALE:
		return fmt.Errorf("%w: %w", ErrVanished, err)
	}
	return err
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(b []byte, offset int64) (int, error) {
	return transfer(b, offset, func(b []byte, offset int64) (int, error) {
		n, err := unix.Pread(f.fd, b, offset)
		if n == 0 && err == nil {
			err = io.EOF
		}
		return n, err
	})
}

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(b []byte, offset int64) (int, error) {
	return transfer(b, offset, func(b []byte, offset int64) (int, error) {
		n, err := unix.Pwrite(f.fd, b, offset)
		if n == 0 && err == nil {
			err = io.ErrShortWrite
		}
		return n, err
	})
}

// Truncate cuts the file down to size. Only for bytes that no reader can have seen.
func (f *File) Truncate(size int64) error {
	return IgnoringEINTR(func() error { return unix.Ftruncate(f.fd, size) })
}

// Remove takes the path away if it still names the file.
func (f *File) Remove() error {
	if err := f.CheckPath(); err != nil {
		return err
	}
	return unix.Unlink(f.Path)
}

// Close gives the descriptor, and with it the lock, back. Not repeated on EINTR: Linux
// closes the descriptor all the same.
func (f *File) Close() {
	f.life.Lock()
	defer f.life.Unlock()
	f.closed = true
	_ = unix.Close(f.fd)
}

// transfer calls move until all of b is through.
func transfer(b []byte, offset int64, move func([]byte, int64) (int, error)) (done int, err error) {
	for done < len(b) {
		n, err := move(b[done:], offset+int64(done))
		if err != nil && err != unix.EINTR {
			return done, err
		}
		done += max(n, 0)
	}
	return done, nil
}

// IgnoringEINTR calls f until a signal does not come between.
func IgnoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
