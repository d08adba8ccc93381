package filelog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"rallypoint/core/sharedlog"
	"rallypoint/internal/lockedfile"
)

// watcher is a sharedlog.Watcher of a run in a directory. It creates and writes nothing. On local
// file systems it locks nothing. On others it locks the log, shared, to read new entries, as
// nodes do.
type watcher struct {
	l     *Log
	after uint64 // index of the last entry
	over  string // the generation whose files were removed
}

// Watch makes a watcher of the run runID in the directory dir, which must exist; the run
// may begin later.
func Watch(dir, runID string) sharedlog.Watcher {
	l := New(dir, runID, nil)
	l.readOnly = true
	return &watcher{l: l}
}

// Close implements sharedlog.Watcher.
func (w *watcher) Close() { w.l.setReader(nil) }

// Poll implements sharedlog.Watcher. It keeps the file that it reads open, so that it
// reads that to its end also when a snapshot has taken its place, or the last node has
// removed it.
func (w *watcher) Poll(ctx context.Context) (r sharedlog.Record, err error) {
	if w.l.reader == nil {
		r, err = w.begin()
		if err != nil || r.Generation == "" {
			return r, w.l.explain("read", err)
		}
	}
	r.RunID, r.Generation = w.l.runID, w.l.generation
	for {
		gone, err := w.read(ctx, &r)
		if err != nil {
			return r, w.l.explain("read", err)
		}
		if !w.l.reader.moved {
			if gone {
				w.over = w.l.generation
				w.l.setReader(nil)
			}
			return r, nil
		}
		switch err := w.l.openNext(w.after); {
		case err == nil:
		case errors.Is(err, sharedlog.ErrCompacted), errors.Is(err, lockedfile.ErrVanished):
			w.l.setReader(nil) // the next call begins after the missing entries
			return r, nil
		default:
			return r, w.l.explain("read", err)
		}
	}
}

// read reads the new entries of the file, and reports whether the file was removed before.
func (w *watcher) read(ctx context.Context, r *sharedlog.Record) (gone bool, err error) {
	c := w.l.reader
	if !w.l.local { // else the size that is seen may be an old one
		locked, err := c.lockForMore(lockedfile.WaitLimit{Ctx: ctx, Deadline: w.l.lockDeadline()}, w.l.options.Clock)
		if !locked {
			return false, err
		}
		defer c.file.Unlock()
	}
	gone = c.file.CheckPath() != nil
	size, err := c.size()
	if err != nil {
		return gone, err
	}
	return gone, c.read(size, func(fr frame) bool {
		if fr.kind == frameEntry && fr.index > w.after {
			r.Entries = append(r.Entries, sharedlog.Entry{Index: fr.index, Data: append([]byte{}, fr.payload...)})
			w.after = fr.index
		}
		return true
	})
}

// begin opens the oldest file of the run. The record is empty if there is none, or is
// just being made or removed.
func (w *watcher) begin() (r sharedlog.Record, err error) {
	for tries := 1; ; tries++ {
		r, err := w.tryBegin()
		switch {
		case err == nil:
			return r, nil
		case !errors.Is(err, fs.ErrNotExist) && !isGone(err):
			return r, err
		case tries == openTries:
			_, err := os.Stat(w.l.parent)
			return sharedlog.Record{}, err
		}
	}
}

func (w *watcher) tryBegin() (r sharedlog.Record, err error) {
	l := w.l
	h, run, err := l.readRun()
	if err != nil {
		return r, err
	}
	defer run.Close()
	if h.generation == w.over {
		return r, fs.ErrNotExist
	}
	if h.generation != l.generation {
		w.after = 0
	}
	l.generation, l.local = h.generation, run.IsLocal()
	seqs, err := l.list()
	if err != nil {
		return r, err
	}
	if len(seqs) == 0 {
		return r, fmt.Errorf("%w: no log of generation %s", fs.ErrNotExist, l.generation)
	}
	c, err := l.openFile(seqs[0])
	if err != nil {
		return r, err
	}
	size, err := c.size()
	if err == nil {
		r.Snapshot.State, err = c.state(size)
	}
	if err != nil {
		c.close()
		return r, err
	}
	l.setReader(c)
	r.RunID, r.Generation, r.Snapshot.Index = l.runID, l.generation, c.base
	w.after = max(w.after, c.base)
	return r, nil
}
