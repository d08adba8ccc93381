// Package fileregister is the register of a run's leader in a directory that all nodes share
// ([register.Register]): one file, DIR/rallypoint-RUN, under flock(2).
//
// The file has two slots, each with a number, a sum and a value. A writer holds the lock and writes the slot
// that does not have the present value, so that one that is killed in the middle leaves that. It is written
// in place, and not renamed: a lock has a network file system read anew the file that is locked, and
// not the directory that it is in.
package fileregister

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/election/register"
	"rallypoint/internal/changewatch"
	"rallypoint/internal/lockedfile"
)

const (
	fileMode = 0o600

	slotSize   = 1 << 20
	slotHeader = 8 + 4 + sha256.Size
	slots      = 2

	prefix = "rallypoint-"
)

// Register is the register of one run, for one process.
type Register struct {
	dir   string
	runID string
	path  string
	clock lockedfile.Clock
	far   bool // the directory counts as one that other machines write to
}

var (
	_ register.Watcher = (*Register)(nil)
	_ register.Clocked = (*Register)(nil)
)

// Options are choices for tests. The zero value is the default.
type Options struct {
	Remote bool             // the directory counts as one that other machines write to
	Clock  lockedfile.Clock // of the waits for a lock; nil: the machine's
}

// New makes the register of a run in a directory, which must exist. It touches no file.
func New(dir, runID string, options Options) *Register {
	r := &Register{dir: dir, runID: runID, path: filepath.Join(dir, nameOf(runID)), clock: options.Clock, far: options.Remote}
	if r.clock == nil {
		r.clock = lockedfile.RealClock{}
	}
	return r
}

// nameOf is the name of a run's file. It holds letters, digits and _ . - of the run id as they are and
// other bytes as %XX; a long one is cut, with a hash of the whole.
func nameOf(runID string) string {
	const most = 160
	var b strings.Builder
	b.WriteString(prefix)
	for _, c := range []byte(runID) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	name := b.String()
	if len(name) > most {
		sum := sha256.Sum256([]byte(runID))
		name = name[:most] + "~" + hex.EncodeToString(sum[:16])
	}
	return name
}

// slot is one of the two.
type slot struct {
	number uint64 // grows with each write; 0: it was not written
	value  []byte
}

func (s slot) token() []byte {
	if s.number == 0 {
		return nil
	}
	sum := sha256.Sum256(s.value)
	return fmt.Appendf(nil, "%d %x", s.number, sum[:8])
}

// state is the value; nil is none.
func (s slot) state() []byte {
	if s.number == 0 {
		return nil
	}
	return s.value
}

func (s slot) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, s.number)
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.value)))
	b = append(b, make([]byte, sha256.Size)...)
	b = append(b, s.value...)
	sum := sumOf(b)
	copy(b[12:], sum[:])
	return b
}

func sumOf(b []byte) [sha256.Size]byte {
	return sha256.Sum256(append(append([]byte{}, b[:12]...), b[slotHeader:]...))
}

// readSlot reads the slot at an offset; the zero slot if it is not whole.
func readSlot(f *lockedfile.File, at int64) (slot, error) {
	head := make([]byte, slotHeader)
	n, err := f.ReadAt(head, at)
	if n < slotHeader {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return slot{}, err
	}
	size := binary.BigEndian.Uint32(head[8:])
	if size > slotSize-slotHeader {
		return slot{}, nil
	}
	whole := append(head, make([]byte, size)...)
	if _, err := f.ReadAt(whole[slotHeader:], at+slotHeader); err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return slot{}, err
	}
	if sum := sumOf(whole); !bytes.Equal(sum[:], whole[12:slotHeader]) {
		return slot{}, nil
	}
	return slot{binary.BigEndian.Uint64(head), whole[slotHeader:]}, nil
}

// read returns the present slot, and where the next one belongs.
func read(f *lockedfile.File) (now slot, next int64, err error) {
	whole := false
	for i := range int64(slots) {
		s, err := readSlot(f, i*slotSize)
		if err != nil {
			return slot{}, 0, err
		}
		whole = whole || s.number > 0
		if s.number > now.number {
			now, next = s, (i+1)%slots*slotSize
		}
	}
	if size, err := f.SizeAtServer(); err != nil || size > 0 && !whole {
		if err == nil {
			err = errDamaged
		}
		return slot{}, 0, err
	}
	return now, next, nil
}

// with calls f with the file, locked as how says; false if there is no file. It is made if need be.
func (r *Register) with(ctx context.Context, how, flags int, f func(*lockedfile.File) error) (there bool, err error) {
	for {
		file, err := lockedfile.OpenFile(r.path, flags|unix.O_NOFOLLOW, fileMode)
		if flags&unix.O_CREAT == 0 && errors.Is(err, os.ErrNotExist) {
			_, err = os.Stat(r.dir)
			return false, err
		}
		if err == unix.ESTALE && ctx.Err() == nil { // NFS: another machine has removed it
			continue
		}
		if err == unix.EISDIR {
			err = fmt.Errorf("%w: %s is a directory, in which another release kept its runs", lockedfile.ErrForeign, r.path)
		}
		if err != nil {
			return false, err
		}
		again, err := r.locked(ctx, file, how, f)
		file.Close()
		if !again {
			return true, err
		}
	}
}

// locked calls f under the lock; again: the file was removed meanwhile.
func (r *Register) locked(ctx context.Context, file *lockedfile.File, how int, f func(*lockedfile.File) error) (again bool, err error) {
	if err := r.checkOwner(file); err != nil {
		return false, err
	}
	if how == unix.LOCK_SH && !r.far && file.IsLocal() { // a value that is being written is not whole, and the one before is
		if f(file) == nil {
			return false, nil
		} // the lock tells whether the first value is being written, and whether the file was removed
	}
	if err := file.CheckLocksReach(); err != nil {
		return false, err
	}
	if err := file.Lock(lockedfile.WaitLimit{Ctx: ctx}, r.clock, how); err != nil {
		return false, err
	}
	defer file.Unlock()
	if err := file.CheckPath(); err != nil {
		return ctx.Err() == nil, err
	}
	return false, f(file)
}

// checkOwner refuses a file that others may write to, or that belongs to another user than root, who could
// put anything there. It compares the owner of a new file, not this process's own user: a network
// file system may map that to another user.
func (r *Register) checkOwner(file *lockedfile.File) error {
	var st unix.Stat_t
	if err := file.Stat(&st); err != nil {
		return err
	}
	switch {
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%w: %s may be written to by others (mode %v)", lockedfile.ErrForeign, r.path, os.FileMode(st.Mode).Perm())
	case int(st.Uid) == os.Geteuid(), st.Uid == 0:
		return nil
	}
	var own unix.Stat_t
	probe, err := r.probe()
	if err == nil {
		err = probe.Stat(&own)
		probe.Close()
	}
	if err == nil && own.Uid != st.Uid {
		err = fmt.Errorf("%w: %s belongs to user %d, what this process creates there to user %d", lockedfile.ErrForeign, r.path, st.Uid, own.Uid)
	}
	return err
}

// probe makes a new file beside the register, and takes its name away.
func (r *Register) probe() (*lockedfile.File, error) {
	f, err := lockedfile.OpenFile(filepath.Join(r.dir, ".rallypoint-new-"+rand.Text()), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, fileMode)
	if err == nil {
		_ = unix.Unlink(f.Path)
	}
	return f, err
}

// GetState implements register.Register.
func (r *Register) GetState(ctx context.Context) (state, token []byte, err error) {
	_, err = r.with(ctx, unix.LOCK_SH, unix.O_RDONLY, func(f *lockedfile.File) error {
		now, _, err := read(f)
		state, token = now.state(), now.token()
		return err
	})
	return state, token, r.explain("read", err)
}

// SetState implements register.Register.
func (r *Register) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	if len(state) > slotSize-slotHeader {
		return nil, nil, false, fmt.Errorf("the value has %d bytes, at most %d are allowed", len(state), slotSize-slotHeader)
	}
	_, err = r.with(ctx, unix.LOCK_EX, unix.O_RDWR|unix.O_CREAT, func(f *lockedfile.File) error {
		last, at, err := read(f)
		if err != nil {
			return err
		}
		if ok = bytes.Equal(last.token(), token); ok {
			last = slot{last.number + 1, state}
			_, err = f.WriteAt(last.encode(), at)
		}
		now, nowToken = last.state(), last.token()
		return err
	})
	return now, nowToken, ok && err == nil, r.explain("write to", err)
}

// SetFor implements register.Clocked. A value that is set for a time stays, and Age tells that it is over.
func (r *Register) SetFor(ctx context.Context, state, token []byte, after time.Duration) (now, nowToken []byte, ok bool, err error) {
	if after > 0 {
		return r.SetState(ctx, state, token)
	}
	there, err := r.with(ctx, unix.LOCK_EX, unix.O_RDWR, func(f *lockedfile.File) error {
		last, _, err := read(f)
		if err != nil {
			return err
		}
		if ok = bytes.Equal(last.token(), token); ok {
			return f.Remove()
		}
		now, nowToken = last.state(), last.token()
		return nil
	})
	return now, nowToken, (ok || !there) && err == nil, r.explain("remove from", err)
}

// Age implements register.Clocked by the clock that the directory's file system writes times by.
func (r *Register) Age(context.Context) (time.Duration, error) {
	written, err := os.Stat(r.path)
	if err != nil {
		return 0, r.explain("read", err)
	}
	probe, err := r.probe()
	if err != nil {
		return 0, r.explain("write to", err)
	}
	defer probe.Close()
	var now unix.Stat_t
	if err := probe.Stat(&now); err != nil {
		return 0, r.explain("read", err)
	}
	return max(0, time.Unix(now.Mtim.Unix()).Sub(written.ModTime())), nil
}

// errFar is why a directory tells of no changes: other machines write to it.
var errFar = errors.New("the kernel tells of no changes there")

// Watch implements register.Watcher where the kernel tells of changes.
func (r *Register) Watch(ctx context.Context, changed func(state, token []byte)) error {
	local := false
	there, err := r.with(ctx, unix.LOCK_SH, unix.O_RDONLY, func(f *lockedfile.File) error {
		local = !r.far && f.IsLocal()
		return nil
	})
	if err != nil || there && !local {
		if err == nil {
			<-ctx.Done()
			err = errFar
		}
		return err
	}
	if !there {
		return os.ErrNotExist // until it is
	}
	w := changewatch.New(r.path, true, r.clock, watchEvery, watchEvery)
	defer w.Close()
	for last := []byte(nil); ctx.Err() == nil; w.Wait(ctx, false) {
		state, token, err := r.GetState(ctx)
		if err != nil {
			return err
		}
		if !bytes.Equal(token, last) {
			changed(state, token)
		}
		if last = token; state == nil {
			return os.ErrNotExist
		}
	}
	return ctx.Err()
}

// watchEvery is how often the file is read where no watches are left to the user.
const watchEvery = time.Second

// Runs returns the ids of the runs that have a file in a directory.
func Runs(ctx context.Context, dir string) (ids []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, (&Register{dir: dir}).explain("read", err)
	}
	for _, e := range entries {
		name, ours := strings.CutPrefix(e.Name(), prefix)
		if !ours || !e.Type().IsRegular() {
			continue
		}
		id, err := url.PathUnescape(name)
		if strings.Contains(name, "~") { // of a long id the record knows the rest
			r := &Register{dir: dir, path: filepath.Join(dir, e.Name()), clock: lockedfile.RealClock{}}
			state, _, wrong := r.GetState(ctx)
			record, unread := register.Decode(state)
			if err = wrong; wrong == nil && unread == nil {
				id = record.RunID
			}
		}
		if err == nil && id != "" {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
