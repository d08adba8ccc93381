package etcdlog

import (
	"context"
	"errors"
	"slices"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/etcdclient"
)

// watcher is a sharedlog.Watcher of a run in etcd. It writes nothing and makes no lease.
// When its last node leaves, all keys of a run are deleted. The watcher then reads at an
// earlier revision what was written since the last look.
type watcher struct {
	l     *Log
	after uint64 // index of the last entry
	seen  int64  // revision of the last look at a run that has not ended; 0: none
}

// Watch makes a watcher of the run runID under the configuration's prefix. It checks
// the configuration and touches no network.
func Watch(config etcdclient.Config, runID string) (sharedlog.Watcher, error) {
	c, err := etcdclient.New(config)
	if err != nil {
		return nil, err
	}
	return &watcher{l: logOf(config, runID, c)}, nil
}

// Close implements sharedlog.Watcher.
func (w *watcher) Close() { w.l.client.Close() }

// Poll implements sharedlog.Watcher: it reads the present keys, and, as they were before, those
// that a snapshot has replaced since the last look.
func (w *watcher) Poll(ctx context.Context) (r sharedlog.Record, err error) {
	l := w.l
	gen, ok, err := l.currentGeneration(ctx)
	switch {
	case err != nil:
		return r, err
	case w.seen != 0 && (!ok || gen.Modified != l.began):
		return w.rest(ctx)
	case !ok:
		return r, nil
	}
	g, err := decodeGeneration(gen.Value)
	if err != nil {
		return r, l.foreign(err)
	}
	if gen.Modified != l.began {
		l.generation, l.began, w.after = g.name, gen.Modified, 0
	}
	v, err := l.load(ctx)
	if rendezvous.CodeOf(err) == rendezvous.CodeState && w.ended(ctx) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	w.seen = v.revision
	entries := v.entries
	if v.snap.index > w.after {
		old, whole, err := w.before(ctx, v.snap)
		if err != nil {
			return r, err
		}
		if whole {
			entries = append(old, entries...)
		} else {
			state, err := l.stateOf(ctx, v.snap)
			if err != nil || state == nil { // nil: a later snapshot has taken its place
				return sharedlog.Record{}, err
			}
			r.Snapshot, w.after = sharedlog.Snapshot{Index: v.snap.index, State: state}, v.snap.index
		}
	}
	w.take(&r, entries)
	return r, nil
}

// take adds to a Record the entries that were not returned yet.
func (w *watcher) take(r *sharedlog.Record, entries []sharedlog.Entry) {
	r.RunID, r.Generation = w.l.runID, w.l.generation
	for _, e := range entries {
		if e.Index > w.after {
			r.Entries = append(r.Entries, e)
			w.after = e.Index
		}
	}
}

// rest returns what was written between the last look at a run and its end; nothing, if
// the etcd has dropped that.
func (w *watcher) rest(ctx context.Context) (r sharedlog.Record, err error) {
	entries, err := w.lastEntries(ctx)
	switch {
	case err == nil:
		w.take(&r, entries)
	case !errors.Is(err, etcdclient.ErrCompacted):
		return r, err
	}
	w.seen = 0
	return r, nil
}

// lastEntries returns the entries of a run that has ended, from the last one found at the
// latest.
func (w *watcher) lastEntries(ctx context.Context) ([]sharedlog.Entry, error) {
	last, err := w.lastRevision(ctx)
	if err != nil {
		return nil, err
	}
	v, err := w.l.loadAt(ctx, last)
	if err != nil {
		return nil, err
	}
	if v.snap.index <= w.after {
		return v.entries, nil
	}
	old, whole, err := w.before(ctx, v.snap)
	if err == nil && !whole {
		err = etcdclient.ErrCompacted
	}
	return append(old, v.entries...), err
}

// lastRevision looks for the last revision at which a run existed that has ended since the
// last look. The etcd may have dropped it.
func (w *watcher) lastRevision(ctx context.Context) (int64, error) {
	at := func(revision int64) (there bool, now int64, err error) {
		found, err := w.l.client.Get(ctx, "reading the run as it was", etcdclient.RangeRequest{Key: w.l.root + keyGeneration, Revision: revision})
		if err != nil {
			return false, 0, err
		}
		return len(found.KVs) == 1 && found.KVs[0].Modified == w.l.began, found.Revision, nil
	}
	_, gone, err := at(0)
	if err != nil {
		return 0, err
	}
	there := w.seen
	for gone-there > 1 {
		middle := there + (gone-there)/2
		alive, _, err := at(middle)
		dropped := errors.Is(err, etcdclient.ErrCompacted)
		switch {
		case err != nil && !dropped:
			return 0, err
		case alive || dropped:
			there = middle
		default:
			gone = middle
		}
	}
	return there, nil
}

// ended reports whether the run has ended, or begun again, since Poll began.
func (w *watcher) ended(ctx context.Context) bool {
	now, _, err := w.l.currentGeneration(ctx)
	return err == nil && now.Modified != w.l.began
}

// before returns the entries at the time when a snapshot was stored; whole tells whether none is
// missing among those after the last one found.
func (w *watcher) before(ctx context.Context, snap snapshotKey) (entries []sharedlog.Entry, whole bool, err error) {
	v, _, err := w.l.read(ctx, snap.modified-1)
	if errors.Is(err, etcdclient.ErrCompacted) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return slices.DeleteFunc(v.entries, func(e sharedlog.Entry) bool { return e.Index > snap.index }), v.snap.index <= w.after, nil
}
