// Package fence decides who may replace a checkpoint: the process that loaded the present version
// of it or wrote it, and nobody else.
//
// Each write gives the checkpoint a new random version. A record beside the checkpoint holds it,
// and who wrote it. A [Fence] remembers the version that was there before its process loaded the
// checkpoint, and refuses to write over another one. So the history of a checkpoint is one line,
// whatever the writers believe of their rounds and of each other.
//
// The order of the steps of a write carries the guarantee. All of them are under one flock(2):
//
//  1. the data are on the disk, under a temporary name;
//  2. the record has the new version, on the disk;
//  3. the data take the checkpoint's place.
//
// A writer that stops between 2 and 3 leaves the old data with a version that nobody holds: all
// others are refused, and whoever opens the checkpoint next loads the old data and continues from
// them. The other order would admit a writer that had not loaded the new data. Opening takes the
// lock, too: else it could see the new version, and the old data after it.
//
// A writer may lose its lock without noticing it, as on NFS when its machine was cut off. Whoever
// has the lock then removes what could still take the record's or the checkpoint's place: records
// that are not in place yet, and temporaries, which are named after the version that they replace, of
// other versions. docs/spec/agreement checks these steps in any order.
package fence

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/world"
	"rallypoint/internal/lockedfile"
)

// Options says what a fence guards.
type Options struct {
	// Path is the file or folder that is replaced as a whole, or with Into the folder that the
	// checkpoints of one job are written into, each by a name of its own.
	Path string
	Into bool

	Writer Writer // this process
	World  string // the path of its world record, which says the round it is in when it writes; "": none
}

// Fence is one writer's knowledge of a checkpoint. Its methods may be called by several threads,
// one after the other; Close ends the waiting ones.
type Fence struct {
	names
	writer  Writer
	world   string
	closing chan struct{}
	close   func()

	mu       sync.Mutex
	closed   bool
	held     string // the version that was loaded or written; "" if there was none
	tried    string // the version that a write began and may have made the present one
	existed  bool
	file     *lockedfile.File // locked from Claim to Release
	prepared string           // the temporary of Prepare, until Commit or Release
}

// Open remembers the present version of a checkpoint. Call it before the checkpoint is loaded. It
// waits for writers until the deadline; the zero time is none.
func Open(o Options, deadline time.Time) (*Fence, error) {
	path, err := resolve(o.Path)
	if err != nil || o.Path == "" {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the path of a checkpoint, %q, cannot be used: %v", o.Path, err)
	}
	f := &Fence{names: newNames(path, o.Into), writer: o.Writer, world: o.World, closing: make(chan struct{})}
	f.close = sync.OnceFunc(func() { close(f.closing) })
	if _, err := os.Stat(f.folder); errors.Is(err, fs.ErrNotExist) {
		return f, nil // and no checkpoint in it
	}
	err = f.locked(deadline, func(present record) (err error) {
		f.held = present.Version
		f.existed, err = f.names.exists()
		return err
	})
	if err != nil {
		return nil, f.explain("open", err)
	}
	return f, nil
}

// Existed reports whether there was a checkpoint when the fence was opened.
func (f *Fence) Existed() bool { return f.existed }

// Version returns the version that this process has loaded or written; "" if there was none.
func (f *Fence) Version() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

// Prepare returns a new name for the next version's file or folder, in the checkpoint's folder. It
// is refused at once if Commit would be. What an earlier Prepare has begun is dropped. If another
// process writes the checkpoint before Commit, it removes what is at that name.
func (f *Fence) Prepare(deadline time.Time) (temporary string, err error) {
	err = f.call("replace", func() error {
		if f.prefix == "" {
			return rendezvous.Errorf(rendezvous.CodeInvalid, "the fence of the folder %s is for writing into it: claim it", f.data)
		}
		f.drop()
		return f.locked(deadline, func(present record) error {
			if err := f.check(present, unchanged); err != nil {
				return err
			}
			temporary = f.names.temporary(present.Version)
			f.prepared = temporary
			return nil
		})
	})
	return temporary, err
}

// Commit replaces the checkpoint by what was written to Prepare's name. The new version is on the
// disk when it returns, and this process holds it. After an error the old one is in place. If the
// deadline has passed, Commit may be called again, else Prepare.
func (f *Fence) Commit(deadline time.Time) error {
	return f.call("replace", func() error {
		if f.prepared == "" {
			return rendezvous.Errorf(rendezvous.CodeInvalid, "nothing was prepared for the checkpoint %s", f.data)
		}
		synced := syncTree(f.prepared)
		return f.locked(deadline, func(present record) error {
			if err := f.check(present, unchanged); err != nil {
				return err
			}
			if errors.Is(synced, fs.ErrNotExist) {
				return rendezvous.Errorf(rendezvous.CodeInvalid, "nothing was written to %s (a library may have added an ending to the name): write there, and commit again", f.prepared)
			}
			if synced != nil {
				return synced
			}
			if err := f.advance(present); err != nil {
				return err
			}
			if err := f.names.replace(f.prepared); err != nil {
				return err
			}
			f.prepared = ""
			_ = f.sweep(f.held) // else the next writer does it
			return nil
		})
	})
}

// Claim makes this process the writer of the folder until Release: nobody else opens or claims it
// in between. The version is a new one from here on, whatever is written. A second Claim before
// Release does nothing.
//
// The lock is held while the checkpoint is written. Were it not, another process could open the
// folder meanwhile, not see what is half written, and claim it with the right version: both would
// write.
func (f *Fence) Claim(deadline time.Time) error {
	return f.call("write into", func() error {
		if f.prefix != "" {
			return rendezvous.Errorf(rendezvous.CodeInvalid, "the fence of %s is for replacing it: prepare and commit", f.data)
		}
		if f.file != nil {
			return nil
		}
		file, present, err := f.lockAndRead(deadline)
		if err != nil {
			return err
		}
		defer func() {
			if f.file == nil {
				unlock(file)
			}
		}()
		if err := f.check(present, unchanged); err != nil {
			return err
		}
		if err := f.advance(present); err != nil {
			return err
		}
		f.file = file
		return nil
	})
}

// Release ends what Claim or Prepare has begun; without them it does nothing. What was prepared is
// removed. It reports a claim that was lost: another process has claimed the folder in spite of
// the lock, as the server of a network file system admits if this machine was cut off.
func (f *Fence) Release() error {
	return f.call("write into", func() error {
		f.drop()
		if f.file == nil {
			return nil
		}
		defer func() {
			unlock(f.file)
			f.file = nil
		}()
		present, err := f.read()
		if err != nil {
			return err
		}
		return f.check(present, "Its lock did not keep the other out, and both may have written")
	})
}

// Close ends calls that wait for the lock, and what Claim or Prepare has begun.
func (f *Fence) Close() {
	f.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.drop()
	if f.file != nil {
		unlock(f.file)
		f.file = nil
	}
}

func (f *Fence) call(what string, body func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return f.explain(what, store.ErrClosed)
	}
	return f.explain(what, body())
}

// unchanged is what a refusal before a write says of it.
const unchanged = "Nothing was overwritten"

// check returns an error unless this process loaded or wrote the version of the present record.
// The error says what the writes so far have done.
func (f *Fence) check(present record, done string) error {
	if present.Version == f.held || present.Version != "" && present.Version == f.tried {
		return nil
	}
	by := "its record, " + f.record + ", is gone: somebody has removed it, or replaced the folder"
	if present.Version != "" {
		by = "another process has written it: " + present.Writer.String()
	}
	return rendezvous.Errorf(rendezvous.CodeFenced,
		"the checkpoint %s is no longer the one that this process loaded or wrote; %s. %s. Start this worker again: it then resumes from the present checkpoint. If two jobs write it, end one of them, or give it a path of its own", f.data, by, done)
}

// advance makes a new version the present one, under the lock.
func (f *Fence) advance(present record) error {
	next := record{Version: newVersion(), Previous: present.Version, Writer: f.writer}
	next.Round = cmp.Or(world.Entered(f.world), next.Round)
	next.Time = time.Now()
	f.tried = next.Version
	err := f.write(next, func() error {
		now, err := f.read()
		if err != nil || now.Version == present.Version {
			return err
		}
		return f.check(now, unchanged)
	})
	if err != nil {
		return err
	}
	f.held = next.Version
	return nil
}

func (f *Fence) drop() {
	if f.prepared != "" {
		_ = os.RemoveAll(f.prepared)
		f.prepared = ""
	}
}

// locked calls body under the lock with the present record.
func (f *Fence) locked(deadline time.Time, body func(present record) error) error {
	file, present, err := f.lockAndRead(deadline)
	if err != nil {
		return err
	}
	defer unlock(file)
	return body(present)
}

// lockAndRead takes the lock, reads the record, and removes what stopped writers have left.
func (f *Fence) lockAndRead(deadline time.Time) (*lockedfile.File, record, error) {
	file, err := f.takeLock(deadline)
	if err != nil {
		return nil, record{}, err
	}
	present, err := f.read()
	if err == nil {
		err = f.sweep(present.Version)
	}
	if err != nil {
		unlock(file)
		return nil, record{}, err
	}
	return file, present, nil
}

func (f *Fence) takeLock(deadline time.Time) (*lockedfile.File, error) {
	if err := os.MkdirAll(f.folder, 0o777); err != nil {
		return nil, err
	}
	for {
		file, err := f.openLock()
		if err != nil {
			return nil, err
		}
		if err := file.CheckLocksReach(); err != nil {
			file.Close()
			return nil, err
		}
		limit := lockedfile.WaitLimit{Ctx: context.Background(), Closing: f.closing, Deadline: deadline}
		free, err := file.TryLock(unix.LOCK_EX) // even if the deadline has passed
		if err == nil && !free {
			err = file.Lock(limit, lockedfile.RealClock{}, unix.LOCK_EX)
		}
		if err != nil {
			holder := file.LockHolder()
			file.Close()
			if errors.Is(err, store.ErrTimeout) {
				return nil, f.busy(holder)
			}
			return nil, err
		}
		if file.CheckPath() == nil {
			return file, nil
		}
		unlock(file) // somebody has removed it while this process waited
	}
}

// busy is the error for a lock that another process has held until the deadline.
func (f *Fence) busy(holder string) error {
	last := ""
	if present, err := f.read(); err == nil && present.Version != "" {
		last = "; the last to write was " + present.Writer.String()
	}
	return rendezvous.Errorf(rendezvous.CodeTimeout,
		"the checkpoint %s is being written: its lock, %s, was held by %s until the deadline%s. Give it more time or, if that process hangs, end it: its lock ends with it",
		f.data, f.lock, holder, last)
}

// unlock gives the lock back even if a forked child has the descriptor, too.
func unlock(file *lockedfile.File) {
	file.Unlock()
	file.Close()
}
