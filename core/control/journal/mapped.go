package journal

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// mapped is a bbolt file. bbolt maps it into memory, so if the file is truncated or its disk
// fails, a memory fault occurs anywhere in bbolt's code, which may hold its locks forever. After
// a fault bbolt is not called again, and every call returns the fault at once. Its methods are
// safe for concurrent use.
type mapped struct {
	db   *bbolt.DB
	file *os.File // bbolt's; closed behind its back after a fault

	mu    sync.Mutex // one call at a time: a second one would wait for bbolt's locks
	size  int64      // the most bytes the file had; bbolt never makes it shorter
	fault *faultError
}

// faultError is a fault of a mapped file, or a panic of bbolt about its content.
type faultError struct{ what any }

func (e *faultError) Error() string { return fmt.Sprintf("the mapped file has a fault: %v", e.what) }

// openMapped opens a file, and makes it if need be.
func openMapped(path string, o bbolt.Options) (*mapped, error) {
	m := &mapped{}
	o.OpenFile = func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
		f, err = os.OpenFile(name, flag, mode)
		m.file = f
		return f, err
	}
	err := m.call(func() (err error) {
		m.db, err = bbolt.Open(path, 0o600, &o)
		return err
	})
	if err != nil {
		_ = m.close()
		return nil, err
	}
	return m, nil
}

func (m *mapped) view(f func(*bbolt.Tx) error) error {
	return m.call(func() error { return m.db.View(f) })
}

// update writes. A file that is truncated while bbolt writes grows again with the write, and has
// a hole in place of the rest. So update checks the size before and after a write.
func (m *mapped) update(f func(*bbolt.Tx) error) error {
	return m.call(func() error {
		m.checkSize()
		err := m.db.Update(f)
		m.checkSize()
		return err
	})
}

// checkSize panics, as bbolt does over a broken file, where the file is shorter than it was.
func (m *mapped) checkSize() {
	info, err := m.file.Stat()
	if err != nil {
		panic(err)
	}
	if info.Size() < m.size {
		panic(fmt.Sprintf("it has %d bytes, and had %d", info.Size(), m.size))
	}
	m.size = info.Size()
}

// close closes the file, and so gives back bbolt's lock on it. It never waits for bbolt
// after a fault. The mapping then stays until the process ends.
func (m *mapped) close() error {
	err := m.call(func() error {
		if m.db == nil { // bbolt.Open has closed the file, or a fault has kept it from that
			return nil
		}
		return m.db.Close()
	})
	if _, fault := err.(*faultError); fault {
		_ = unix.Flock(int(m.file.Fd()), unix.LOCK_UN) // closing is not enough while it is mapped
		_ = m.file.Close()
		return nil
	}
	return err
}

// call turns a fault into an error.
func (m *mapped) call(f func() error) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault != nil {
		return m.fault
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			m.fault = &faultError{v}
			err = m.fault
		}
	}()
	return f()
}
