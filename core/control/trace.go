package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
	"rallypoint/internal/linequeue"
)

// traceEventLocked records an event that came at a time and was applied, once its effects are
// said: one that a deposed host has applied never was. Timers are set after that time and run out
// before their event's, so that by the record none runs out early.
//
// A request that was answered without a change is aside, and has no number of its own.
func (r *run) traceEventLocked(at time.Time, ev rendezvous.Event, effects []rendezvous.Effect, aside bool) {
	if !aside {
		r.applied++
	}
	if record := r.server.cfg.Trace; record != nil {
		rec := trace.Record{At: at, Run: r.id, Number: r.applied, Event: ev, Effects: effects, Aside: aside}
		r.sayLocked(func() { record(rec) })
	}
}

// traceBegin records that a run begins.
func (r *run) traceBegin() {
	if record := r.server.cfg.Trace; record != nil {
		rec := trace.Record{At: r.server.clock.Now(), Run: r.id, State: r.machine.Snapshot(), Host: r.server.cfg.HostNode}
		if e := r.server.cfg.Elector; e != nil {
			rec.Group = e.Current().Group
		}
		if rec.Host != "" {
			s := r.machine.Succession()
			s.Term = max(s.Term, 1)
			rec.Succession = &s
		}
		record(rec)
	}
}

// traceRestored records a run that continues: an earlier process may have
// been killed before it recorded all that it had stored.
func (r *run) traceRestored(found storedRun) {
	record := r.server.cfg.Trace
	r.applied = found.seq
	if record == nil {
		return
	}
	now, number := r.server.clock.Now(), found.Through
	record(trace.Record{At: now, Run: r.id, Number: number, State: found.Snapshot})
	m, err := rendezvous.Restore(found.Snapshot)
	if err != nil {
		return // OpenData has read it before
	}
	for _, b := range found.Events {
		ev, err := rendezvous.DecodeEvent(b)
		if err != nil {
			return
		}
		number++
		record(trace.Record{At: now, Run: r.id, Number: number, Event: ev, Effects: m.Apply(ev)})
	}
}

// maxTraceFile bounds a trace file, in bytes.
const maxTraceFile = 1 << 30

// TraceFile is a file to which records are appended, one line each; its Record is for
// Config.Trace. The server never waits for the disk: a goroutine writes the records, and a kill of
// the process loses those that wait for it, which are usually none.
type TraceFile struct {
	log   *slog.Logger
	begun time.Time
	most  int64 // bytes
	file  *os.File
	queue *linequeue.Queue

	mu    sync.Mutex
	size  int64
	ended bool
}

// OpenTraceFile opens or makes the file, which only its owner can read: it holds
// the keys of the jobs' agents. It is closed after the server that writes to it.
func OpenTraceFile(path string, log *slog.Logger) (*TraceFile, error) {
	file, err := openOwn(path)
	if err != nil {
		return nil, err
	}
	rec := &TraceFile{log: log, begun: time.Now(), most: maxTraceFile, file: file}
	rec.queue = linequeue.New(&traceWriter{t: rec}, path)
	last := []byte{'\n'}
	if rec.size, err = file.Seek(0, io.SeekEnd); err == nil && rec.size > 0 {
		_, err = file.ReadAt(last, rec.size-1)
	}
	if err == nil && !bytes.Equal(last, []byte{'\n'}) {
		_, err = file.Write([]byte{'\n'}) // an earlier process was killed in a line
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return rec, nil
}

// openOwn opens a file of this user's for appending, or makes it, and follows no link: others may
// have put something in its place in a directory that all write to.
func openOwn(path string) (*os.File, error) {
	const flags = os.O_APPEND | os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK
	file, err := os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600)
	if !errors.Is(err, os.ErrExist) {
		return file, err
	}
	if file, err = os.OpenFile(path, flags, 0); err != nil {
		if errors.Is(err, unix.ELOOP) {
			err = fmt.Errorf("%w: give the file that the link names", err)
		}
		return nil, err
	}
	var st, dir unix.Stat_t
	err = errors.Join(unix.Fstat(int(file.Fd()), &st), unix.Stat(filepath.Dir(path), &dir))
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFCHR:
		err = fmt.Errorf("%s is neither a regular file nor a device", path)
	case int(st.Uid) != os.Geteuid() && dir.Mode&0o022 != 0: // elsewhere a file system may name users otherwise
		err = fmt.Errorf("%s belongs to user %d, this process to user %d: give another file", path, st.Uid, os.Geteuid())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// Record appends a record, with its time since OpenTraceFile. If that fails, because the disk is
// full or has not answered for many records, or if the file has become too large, the trace ends
// with one log line and nothing else does.
func (t *TraceFile) Record(r trace.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	r.Seconds = r.At.Sub(t.begun).Seconds()
	b, err := r.Encode()
	if err == nil && !t.queue.Put(b) {
		err = errors.New("its disk does not answer")
	}
	t.size += int64(len(b))
	switch {
	case err != nil:
		t.failLocked(err)
	case t.size >= t.most:
		t.ended = true
		t.log.Warn("the recording is full; the jobs continue; start again with another file", "file", t.file.Name(), "bytes", t.size)
	}
}

// failLocked ends the trace, unless it has ended.
func (t *TraceFile) failLocked(err error) {
	if !t.ended {
		t.ended = true
		t.log.Error("the recording ends here; the jobs continue", "file", t.file.Name(), "error", err)
	}
}

// traceWriter writes to the file of a trace until that fails: a trace has no gaps.
type traceWriter struct {
	t      *TraceFile
	failed bool
}

func (w *traceWriter) Write(b []byte) (int, error) {
	if w.failed {
		return len(b), nil
	}
	n, err := w.t.file.Write(b)
	if w.failed = err != nil; w.failed {
		w.t.mu.Lock()
		defer w.t.mu.Unlock()
		w.t.failLocked(err)
	}
	return n, err
}

// Flush waits until the system has all records, or the disk does not answer.
func (t *TraceFile) Flush() { t.queue.Flush() }

// Close ends the trace, with Flush.
func (t *TraceFile) Close() error {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	if !t.queue.Flush() {
		t.log.Error("the end of the recording is missing: its disk does not answer", "file", t.file.Name())
		return nil
	}
	if err := t.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
