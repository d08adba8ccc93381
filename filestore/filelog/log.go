// Package filelog is the log of a run in a directory that all its nodes share
// ([sharedlog.Log]).
package filelog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/changewatch"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/wake"
)

// Log is a sharedlog.Log in a directory that all nodes of a run share:
//
//	DIR/rallypoint-RUN/
//	    run                     names the generation; its lock is held to open and to leave
//	    live-GENERATION         locked, shared, by every node for as long as it lives
//	    log-GENERATION-NUMBER   the entries; its lock is held to append
//	    beat-GENERATION-SESSION one node's counter, locked by it for as long as it lives
//
// A lock is flock(2): the kernel gives it back when its holder dies, however it dies. So a node
// that opens the log knows whether the run that wrote it is alive: if no process holds
// live-GENERATION, the run is dead, and a new generation begins, whose names differ from those of
// the old files. A node that can lock another's beat file knows that the other has died. A
// process that was forked from a node and outlives it keeps its locks. Then the other nodes
// notice that the counter has stopped.
//
// Entries are appended under the lock, in one write, after the last whole one. If a killed writer
// left part of an entry, that is cut off first, since it was never acknowledged. A snapshot
// begins a new file, and a mark at the end of the old one sends its readers there.
//
// Nothing is synced to the disk: entries survive the death of every process, and
// that of the machines as far as the file system does.
type Log struct {
	dir     string // of the run
	parent  string // as the user named it
	runID   string
	options Options
	local   bool

	readOnly   bool // for Inspect and Watch
	generation string
	live       *lockedfile.File
	reader     *cursor
	watcher    changewatch.Watcher
	changed    bool // the last read of Next has found something
	nodes      atomic.Int64
	appended   wake.Signal // this node has appended, and its reader need not rest

	writing chan struct{} // a token: the goroutine that has it uses writer
	writer  *cursor

	heartbeat *heartbeat
	report    []byte // of this node, encoded; used by the caller of Heartbeat

	closing chan struct{}
	close   sync.Once
}

var _ sharedlog.NodeCounter = (*Log)(nil)

// Values of Info.
const (
	logSnapshotEntries          = 4096
	logSnapshotBytes            = 1 << 20
	manyNodes                   = 128
	heartbeatReadIntervalLocal  = 100 * time.Millisecond
	heartbeatReadIntervalRemote = 500 * time.Millisecond
)

// New makes the log of a run in the directory dir, which must exist. It touches no file.
func New(dir, runID string, options *Options) *Log {
	return &Log{
		dir: filepath.Join(dir, runDir(runID)), parent: dir, runID: runID, options: options.withDefaults(),
		writing: make(chan struct{}, 1), closing: make(chan struct{}), appended: wake.New(),
	}
}

// Open implements sharedlog.Log.
func (l *Log) Open(ctx context.Context) (sharedlog.Info, error) {
	if err := l.join(ctx); err != nil {
		return sharedlog.Info{}, l.explain("open", err)
	}
	info := sharedlog.Info{
		Generation: l.generation, SnapshotEntries: logSnapshotEntries, SnapshotBytes: logSnapshotBytes, HeartbeatReadInterval: heartbeatReadIntervalLocal,
		ManyNodes: manyNodes,
	}
	if !l.local {
		info.HeartbeatReadInterval = heartbeatReadIntervalRemote
	}
	return info, nil
}

// Append implements sharedlog.Log.
func (l *Log) Append(ctx context.Context, entries [][]byte) error {
	err := l.write(ctx, func(c *cursor) error {
		var b []byte
		index := c.index
		for _, data := range entries {
			index++
			b = appendFrame(b, frameEntry, index, data)
		}
		return c.append(b, index)
	})
	l.appended.Set()
	return l.explain("append to", err)
}

// Next implements sharedlog.Log.
func (l *Log) Next(ctx context.Context, after uint64) (sharedlog.Batch, error) {
	for {
		if err := ctx.Err(); err != nil {
			return sharedlog.Batch{}, err
		}
		if l.watcher == nil { // before the read, so that no later change is missed
			l.watcher = changewatch.New(l.reader.file.Path, l.local, l.options.Clock, l.options.PollMin, l.options.PollMax)
		}
		b, err := l.readNew(ctx, after)
		if errors.Is(err, unix.ESTALE) { // NFS: another machine has removed the file
			err = l.explainMissing(err)
		}
		if err != nil {
			return b, l.explain("read", err)
		}
		if l.changed = len(b.Entries) > 0; l.changed {
			return b, nil
		}
		if l.reader.moved {
			if err := l.openNext(after); err != nil {
				return b, l.explain("read", err)
			}
			continue
		}
		l.watcher.Wait(ctx, l.changed)
		l.rest(ctx)
	}
}

// batchBytes is about how much one Batch holds at most.
const batchBytes = 1 << 20

// readNew reads the new entries.
func (l *Log) readNew(ctx context.Context, after uint64) (b sharedlog.Batch, err error) {
	c := l.reader
	if !l.local { // else the size that is seen may be an old one
		locked, err := c.lockForMore(l.lockLimit(ctx), l.options.Clock)
		if !locked {
			return b, err
		}
		defer c.file.Unlock()
	}
	size, err := c.size()
	if err != nil {
		return b, err
	}
	if size == c.pos {
		if err := c.file.CheckPath(); err != nil && !isGone(err) {
			return b, err
		} else if err != nil && !c.moved {
			return b, l.explainMissing(err)
		}
		return b, nil
	}
	bytes := 0
	err = c.read(size, func(fr frame) bool {
		if fr.kind == frameEntry && fr.index > after {
			b.Entries = append(b.Entries, sharedlog.Entry{Index: fr.index, Data: append([]byte{}, fr.payload...)})
			bytes += len(fr.payload)
		}
		return bytes < batchBytes
	})
	b.Snapshot = c.base
	return b, err
}

// explainMissing says why a file of the log has no name any more: a reader that is two files late
// finds a later one, or the run was removed.
func (l *Log) explainMissing(err error) error {
	if seqs, listErr := l.list(); listErr == nil && len(seqs) > 0 {
		return sharedlog.ErrCompacted
	}
	return fmt.Errorf("%w: %w", lockedfile.ErrVanished, err)
}

// openNext makes the reader continue in the next file.
func (l *Log) openNext(after uint64) error {
	next, err := l.openFile(l.reader.header.seq + 1)
	if isGone(err) {
		return l.explainMissing(err)
	}
	if err != nil {
		return err
	}
	size, err := next.size()
	if err == nil {
		_, err = next.state(size)
	}
	if err == nil && next.base > after {
		err = sharedlog.ErrCompacted
	}
	if err != nil {
		next.close()
		return err
	}
	l.setReader(next)
	return nil
}

func (l *Log) setReader(c *cursor) {
	l.reader.close()
	l.reader = c
	if l.watcher != nil {
		l.watcher.Close()
		l.watcher = nil
	}
}

// Latest implements sharedlog.Log.
func (l *Log) Latest(context.Context) (sharedlog.Snapshot, error) {
	c, err := l.last()
	if err != nil {
		return sharedlog.Snapshot{}, l.explain("read", err)
	}
	l.setReader(c)
	size, err := c.size()
	if err != nil {
		return sharedlog.Snapshot{}, l.explain("read", err)
	}
	state, err := c.state(size)
	return sharedlog.Snapshot{Index: c.base, State: state}, l.explain("read", err)
}

// last opens the file in which the log continues, at its beginning.
func (l *Log) last() (*cursor, error) {
	for tries := 1; ; tries++ {
		c, err := l.tryLast()
		if err == nil || !isGone(err) || tries == openTries {
			return c, err
		}
	}
}

func (l *Log) tryLast() (*cursor, error) {
	seqs, err := l.list()
	if err != nil {
		return nil, err
	}
	if len(seqs) == 0 {
		return nil, fmt.Errorf("%w: no log of generation %s", lockedfile.ErrVanished, l.generation)
	}
	for seq := seqs[0]; ; seq++ {
		c, err := l.openFile(seq)
		if err != nil {
			return nil, err
		}
		start := *c
		size, err := c.size()
		if err == nil {
			err = c.catchUp(size)
		}
		if err != nil {
			c.close()
			return nil, err
		}
		if !c.moved {
			start.mem = c.mem
			*c = start
			return c, nil
		}
		c.close()
	}
}

// Snapshot implements sharedlog.Log.
func (l *Log) Snapshot(ctx context.Context, s sharedlog.Snapshot) error {
	err := l.write(ctx, func(c *cursor) error {
		if s.Index <= c.base || s.Index > c.index {
			return nil
		}
		next := c.header
		next.seq++
		b := appendFrame(nil, frameHeader, 0, next.encode())
		b = appendFrame(b, frameSnapshot, s.Index, s.State)
		b, err := c.tail(b, s.Index)
		if err != nil {
			return err
		}
		if err := l.writeWhole(l.logPath(next.seq), b); err != nil {
			return err
		}
		if err := c.append(appendFrame(nil, frameMoved, c.index, nil), c.index); err != nil {
			return err
		}
		c.moved = true
		if c.header.seq > 1 { // its readers have had a whole file's time to leave it
			_ = unix.Unlink(l.logPath(c.header.seq - 1))
		}
		return nil
	})
	return l.explain("store a snapshot in", err)
}

// tail appends the frames of the entries after index to b.
func (c *cursor) tail(b []byte, index uint64) ([]byte, error) {
	again := &cursor{file: c.file, header: c.header, pos: c.start}
	err := again.read(c.pos, func(fr frame) bool {
		if fr.kind == frameEntry && fr.index > index {
			b = appendFrame(b, frameEntry, fr.index, fr.payload)
		}
		return true
	})
	return b, err
}

// writeWhole puts a whole file in its place.
func (l *Log) writeWhole(path string, content []byte) error {
	temporary := filepath.Join(l.dir, "new-"+rand.Text())
	f, err := lockedfile.OpenFile(temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, logMode)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil && !l.local {
		err = f.Sync()
	}
	f.Close()
	if err == nil {
		err = unix.Rename(temporary, path)
	}
	if err != nil {
		_ = unix.Unlink(temporary)
	}
	return err
}

// write runs f under the lock with the writer at the end of the log.
func (l *Log) write(ctx context.Context, f func(c *cursor) error) error {
	select {
	case l.writing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.writing }()
	for tries := 1; ; tries++ {
		done, err := l.writeHere(ctx, f)
		stale := errors.Is(err, unix.ESTALE) // NFS: another machine has removed the file
		if done || err != nil && (!stale || tries >= openTries) {
			return err
		}
		var next *cursor
		if !stale {
			next, err = l.openFile(l.writer.header.seq + 1)
		}
		if isGone(err) {
			next, err = l.last()
		}
		if err != nil {
			return err
		}
		l.writer.close()
		l.writer = next
	}
}

// writeHere is write in the writer's file. It does nothing if the log continues in another one.
func (l *Log) writeHere(ctx context.Context, f func(c *cursor) error) (done bool, err error) {
	c := l.writer
	if err := c.file.Lock(l.lockLimit(ctx), l.options.Clock, unix.LOCK_EX); err != nil {
		return false, err
	}
	defer c.file.Unlock()
	size, err := c.size()
	if err != nil {
		return false, err
	}
	if err := c.catchUp(size); err != nil || c.moved {
		return false, err
	}
	if err := c.file.CheckPath(); err != nil {
		return false, err
	}
	if c.pos < size {
		if err := c.file.Truncate(c.pos); err != nil {
			return false, err
		}
	}
	return true, f(c)
}

// append writes frames at the end. If the file cannot take them all, nothing
// stays of them but whole frames, which a reader without the lock may have seen.
func (c *cursor) append(b []byte, index uint64) error {
	if _, err := c.file.WriteAt(b, c.pos); err != nil {
		return errors.Join(err, c.cut())
	}
	c.pos += int64(len(b))
	c.index = index
	return nil
}

// cut removes bytes after pos that are no whole frame. Whole frames
// stay: a reader may have seen them.
func (c *cursor) cut() error {
	size, err := c.size()
	if err != nil {
		return err
	}
	if err := c.catchUp(size); err != nil {
		return err
	}
	return c.file.Truncate(c.pos)
}

// lockTimeout bounds how long one call waits for a lock. Sections under it take
// well below a millisecond: the error names a holder that takes longer, since it hangs.
const lockTimeout = 5 * time.Second

func (l *Log) lockLimit(ctx context.Context) lockedfile.WaitLimit {
	return lockedfile.WaitLimit{Ctx: ctx, Closing: l.closing, Deadline: l.lockDeadline(), Waiters: int(l.nodes.Load())}
}

func (l *Log) lockDeadline() time.Time { return l.options.Clock.Now().Add(lockTimeout) }

// Close implements sharedlog.Log. The last node removes the run's directory.
func (l *Log) Close(ctx context.Context) (err error) {
	l.close.Do(func() {
		close(l.closing)
		l.heartbeat.remove()
		if l.live != nil {
			err = l.explain("leave", l.leave(ctx))
		}
		l.release()
	})
	return err
}

var errNoLog = rendezvous.Errorf(rendezvous.CodeInternal, "the file log is not open")
