package filelog

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/lockedfile"
)

// Modes of a log's files and directories: for its user alone.
const (
	logMode    = 0o600
	logDirMode = 0o700
)

// runDir is the name of a run's directory. It holds letters, digits and _ . - of
// the run id as they are and other bytes as %XX; a long one is cut, with a hash of
// the whole.
func runDir(runID string) string {
	const most = 160
	var b strings.Builder
	b.WriteString("rallypoint-")
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

func (l *Log) logPath(seq uint64) string {
	return filepath.Join(l.dir, fmt.Sprintf("log-%s-%d", l.generation, seq))
}

func (l *Log) livePath() string { return filepath.Join(l.dir, "live-"+l.generation) }

func (l *Log) openFile(seq uint64) (*cursor, error) {
	flags := unix.O_RDWR
	if l.readOnly {
		flags = unix.O_RDONLY
	}
	return openCursor(l.logPath(seq), flags, logHeader{l.runID, l.generation, seq})
}

// list returns the numbers of the log's files in order.
func (l *Log) list() ([]uint64, error) {
	names, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	var seqs []uint64
	for _, n := range names {
		text, ok := strings.CutPrefix(n.Name(), "log-"+l.generation+"-")
		if seq, err := strconv.ParseUint(text, 10, 64); ok && err == nil {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs, nil
}

// openTries bounds how often opening the log begins again: more than a few removals in
// its way, it is a file system on which a path does not lead to the file it opens.
const openTries = 100

// join makes this node a user of the log, and makes a log if there is no live one.
func (l *Log) join(ctx context.Context) error {
	for tries := 1; ; tries++ {
		err := l.tryJoin(ctx)
		// The last node may have removed the directory meanwhile.
		if err == nil || !isGone(err) && !errors.Is(err, lockedfile.ErrVanished) && !errors.Is(err, lockedfile.ErrReplaced) || tries == openTries {
			return err
		}
		if _, err := os.Stat(l.parent); err != nil {
			return err
		}
	}
}

func (l *Log) tryJoin(ctx context.Context) error {
	if err := l.makeDir(); err != nil {
		return err
	}
	run, err := l.lockRun(lockedfile.WaitLimit{Ctx: ctx, Waiters: int(l.nodes.Load())})
	if err != nil {
		return err
	}
	defer run.Close()
	l.release() // of a try before
	l.local = !l.options.Remote && run.IsLocal()
	if err := run.CheckLocksReach(); err != nil {
		return err
	}
	alive, err := l.findGeneration(run)
	if err != nil {
		return err
	}
	if !alive {
		first, _ := l.ended(false)
		if err := l.beginGeneration(run, first); err != nil {
			return err
		}
	}
	live, err := lockedfile.OpenFile(l.livePath(), unix.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if err := live.Lock(lockedfile.WaitLimit{Ctx: ctx, Closing: l.closing}, l.options.Clock, unix.LOCK_SH); err != nil {
		live.Close()
		return err
	}
	l.live = live
	if l.writer, err = l.last(); err == nil {
		l.reader, err = l.last()
	}
	return err
}

// release closes the descriptors that keep the log open.
func (l *Log) release() {
	l.closeFiles()
	if l.live != nil {
		l.live.Close()
		l.live = nil
	}
}

// closeFiles closes the log's files. To close an inotify watch takes the kernel many
// milliseconds.
func (l *Log) closeFiles() {
	l.setReader(nil)
	l.writer.close()
	l.writer = nil
}

// makeDir makes the run's directory, and refuses one that others may write to.
func (l *Log) makeDir() error {
	made := unix.Mkdir(l.dir, logDirMode)
	if made != nil && made != unix.EEXIST {
		return made
	}
	st, err := os.Lstat(l.dir)
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%w: %s is not a directory", lockedfile.ErrForeign, l.dir)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%w: %s may be written to by others (mode %v)", lockedfile.ErrForeign, l.dir, st.Mode().Perm())
	case made == nil:
		return nil
	}
	return l.checkOwner()
}

// checkOwner refuses a run's directory if it belongs to another user than root, who could put
// anything there. It compares the owner of a new file, not this process's own user: a network
// file system may map that to another user.
func (l *Log) checkOwner() error {
	f, err := lockedfile.OpenFile(filepath.Join(l.dir, "new-"+rand.Text()), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, logMode)
	if err != nil {
		return err
	}
	var dir, own unix.Stat_t
	err = f.Stat(&own)
	f.Close()
	_ = unix.Unlink(f.Path)
	if err == nil {
		err = lockedfile.IgnoringEINTR(func() error { return unix.Lstat(l.dir, &dir) })
	}
	if err != nil {
		return err
	}
	if dir.Uid != own.Uid && dir.Uid != 0 {
		return fmt.Errorf("%w: %s belongs to user %d, what this process creates there to user %d", lockedfile.ErrForeign, l.dir, dir.Uid, own.Uid)
	}
	return nil
}

// lockRun opens and locks the file "run", for nodes that open or leave the log.
func (l *Log) lockRun(p lockedfile.WaitLimit) (*lockedfile.File, error) {
	run, err := lockedfile.OpenFile(filepath.Join(l.dir, "run"), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, logMode)
	if err != nil {
		return nil, err
	}
	err = run.Lock(p, l.options.Clock, unix.LOCK_EX)
	if err == nil {
		err = run.CheckPath()
	}
	if err != nil {
		run.Close()
		return nil, err
	}
	return run, nil
}

// findGeneration reads which generation there is, and reports whether any of its
// nodes lives. The lock of run is held.
func (l *Log) findGeneration(run *lockedfile.File) (alive bool, err error) {
	h, ok, err := l.headerOf(run)
	if err != nil || !ok {
		return false, err
	}
	if h.runID != l.runID {
		return false, l.notOurs(h)
	}
	l.generation = h.generation
	idle, err := l.unused(nil)
	return err == nil && !idle, err
}

func (l *Log) notOurs(h logHeader) error {
	return fmt.Errorf("%w: %s belongs to run %q", lockedfile.ErrForeign, l.dir, h.runID)
}

// headerOf reads the file run. It reports false if there is nothing in it: it is
// new, or its writer was killed, which writes only where no run lives.
func (l *Log) headerOf(run *lockedfile.File) (h logHeader, ok bool, err error) {
	var st unix.Stat_t
	if err := run.Stat(&st); err != nil {
		return h, false, err
	}
	first, err := (&frameScanner{lockedfile.Scanner{Source: run, End: min(st.Size, maxRunFile)}}).next()
	if err != nil { // a file that cannot be read is no sign that the run is dead
		return h, false, unreadable(err)
	}
	h, err = decodeHeader(first.payload)
	if err != nil {
		return h, false, fmt.Errorf("%s: %w", run.Path, err)
	}
	return h, true, nil
}

const maxRunFile = 64 << 10

// unused reports whether no node has the generation open. The lock of run is held, so that none
// can begin to. dying is how long it waits for nodes that die, if there are no others; nil: not at
// all.
func (l *Log) unused(dying *lockedfile.WaitLimit) (bool, error) {
	live, err := lockedfile.OpenFile(l.livePath(), unix.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer live.Close()
	idle, err := live.TryLock(unix.LOCK_EX)
	if err != nil || idle || dying == nil || !live.LockHeldByDying() {
		return idle, err
	}
	err = live.Lock(*dying, l.options.Clock, unix.LOCK_EX)
	if errors.Is(err, store.ErrTimeout) {
		return false, nil // it hangs, and the node that begins the run again cleans up
	}
	return err == nil, err
}

// beginGeneration makes a log under a new name, with one entry unless that is nil, and removes
// the files of older ones. The caller holds the lock of run.
func (l *Log) beginGeneration(run *lockedfile.File, first []byte) error {
	l.generation = rand.Text()
	if err := l.clear("run"); err != nil {
		return err
	}
	h := logHeader{l.runID, l.generation, 1}
	if err := l.writeWhole(l.livePath(), nil); err != nil {
		return err
	}
	content := appendFrame(nil, frameHeader, 0, h.encode())
	if first != nil {
		content = appendFrame(content, frameEntry, 1, first)
	}
	if err := l.writeWhole(l.logPath(1), content); err != nil {
		return err
	}
	b := appendFrame(nil, frameHeader, 0, logHeader{l.runID, l.generation, 0}.encode())
	_, err := run.WriteAt(b, 0)
	if err == nil {
		err = run.Truncate(int64(len(b)))
	}
	return err
}

// clear removes the files of the run's directory but one, and but those that the file
// system itself keeps there (EBUSY): removed ones that a process has open.
func (l *Log) clear(but string) error {
	names, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n.Name() != but {
			if err := unix.Unlink(filepath.Join(l.dir, n.Name())); err != nil && err != unix.ENOENT && err != unix.EISDIR && err != unix.EBUSY {
				return err
			}
		}
	}
	return nil
}

// leave takes this node out, and the whole run with the last one.
func (l *Log) leave(ctx context.Context) error {
	l.closeFiles() // not under the lock, for which all others that leave wait
	run, err := l.lockRun(l.leaveLimit(ctx))
	l.release()
	if err != nil {
		if isGone(err) || errors.Is(err, lockedfile.ErrVanished) {
			return nil
		}
		return err
	}
	removed, err := l.removeIfLast(ctx, run)
	run.Close()
	if removed {
		l.removeDir(ctx)
	}
	return err
}

// leaveLimit is how long a node that leaves waits for a lock, whatever is left of ctx: its holder
// may be a process that takes its time to die, and this node the last one that can clean up.
func (l *Log) leaveLimit(ctx context.Context) lockedfile.WaitLimit {
	return lockedfile.WaitLimit{Ctx: context.WithoutCancel(ctx), Deadline: l.lockDeadline(), Waiters: int(l.nodes.Load())}
}

// How long the file system is waited for until it lets go of files that are closed.
const (
	removeTries = 20
	removePause = 5 * time.Millisecond
)

// removeDir removes the run's directory when this node has no file in it open: NFS and FUSE keep a
// removed file that is open in its directory, under another name, and FUSE learns late that it was
// closed. A node that has come meanwhile has put files there, or comes again.
func (l *Log) removeDir(ctx context.Context) {
	for range removeTries {
		if err := unix.Rmdir(l.dir); err == nil || l.local || isGone(err) {
			return
		}
		if _, err := os.Lstat(filepath.Join(l.dir, "run")); err == nil {
			return
		}
		lockedfile.WaitLimit{Ctx: ctx}.Sleep(l.options.Clock, removePause)
	}
}

// removeIfLast removes the files of the run if no node has it open but those that die.
// The lock of run is held.
func (l *Log) removeIfLast(ctx context.Context, run *lockedfile.File) (removed bool, err error) {
	generation := l.generation
	if _, err := l.findGeneration(run); err != nil || l.generation != generation {
		return false, err
	}
	limit := l.leaveLimit(ctx)
	if idle, err := l.unused(&limit); err != nil || !idle {
		return false, err
	}
	if ended, ok := l.ended(true); ok {
		return false, l.beginGeneration(run, ended)
	}
	if err := l.clear("run"); err != nil {
		return false, err
	}
	err = unix.Unlink(run.Path)
	return err == nil, err
}
