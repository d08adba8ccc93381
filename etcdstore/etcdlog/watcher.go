package etcdlog

import (
	"context"
	"errors"
	"net/url"
	"slices"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/etcdclient"
)

// watcher is a sharedlog.Watcher of a run in etcd. It writes nothing and makes no
// lease. With the last node of a run all its keys go, and with them what was written since
// the last look.
type watcher struct {
	l     *Log
	after uint64 // index of the last entry
}

// Watch makes a watcher of the run runID behind the configuration's prefix. It checks
// the configuration and touches no network.
func Watch(config etcdclient.Config, runID string) (sharedlog.Watcher, error) {
	c, err := etcdclient.New(config)
	if err != nil {
		return nil, err
	}
	return &watcher{l: &Log{config: config, runID: runID, root: config.Prefix + "/" + url.PathEscape(runID) + "/", client: c}}, nil
}

// Close implements sharedlog.Watcher.
func (f *watcher) Close() { f.l.client.Close() }

// Poll implements sharedlog.Watcher: it reads what is there now, and what a snapshot has
// taken the place of since the last look as it was before.
func (f *watcher) Poll(ctx context.Context) (r sharedlog.Record, err error) {
	l := f.l
	gen, ok, err := l.currentGeneration(ctx)
	if err != nil || !ok {
		return r, err
	}
	g, err := decodeGeneration(gen.Value)
	if err != nil {
		return r, l.foreign(err)
	}
	if gen.Modified != l.began {
		l.generation, l.began, f.after = g.name, gen.Modified, 0
	}
	v, err := l.load(ctx)
	if rendezvous.CodeOf(err) == rendezvous.CodeState && f.ended(ctx) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	entries := v.entries
	if v.snap.index > f.after {
		old, whole, err := f.before(ctx, v.snap)
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
			r.Snapshot, f.after = sharedlog.Snapshot{Index: v.snap.index, State: state}, v.snap.index
		}
	}
	r.RunID, r.Generation = l.runID, l.generation
	for _, e := range entries {
		if e.Index > f.after {
			r.Entries = append(r.Entries, e)
			f.after = e.Index
		}
	}
	return r, nil
}

// ended reports whether the run has ended, or begun again, since Poll began.
func (f *watcher) ended(ctx context.Context) bool {
	now, _, err := f.l.currentGeneration(ctx)
	return err == nil && now.Modified != f.l.began
}

// before returns the entries that there were when a snapshot was stored; whole tells
// whether none is missing among those behind the last one found.
func (f *watcher) before(ctx context.Context, snap snapshotKey) (entries []sharedlog.Entry, whole bool, err error) {
	l := f.l
	kvs, _, err := l.client.List(ctx, "reading the run's log", etcdclient.RangeRequest{Key: l.watchedFrom(), End: etcdclient.PrefixEnd(l.root), Revision: snap.modified - 1})
	if errors.Is(err, etcdclient.ErrCompacted) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	etcdclient.SortByRevision(kvs)
	v := newView(l.root)
	for _, kv := range kvs {
		if err := v.apply(etcdclient.Event{KV: kv}); err != nil {
			return nil, false, l.foreign(err)
		}
	}
	return slices.DeleteFunc(v.entries, func(e sharedlog.Entry) bool { return e.Index > snap.index }), v.snap.index <= f.after, nil
}
