package etcdlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/etcdclient"
)

// view is a run's keys at one revision, as far as they matter to a node.
type view struct {
	root     string
	revision int64

	entries    []sharedlog.Entry // in order
	floor      uint64            // entries up to here may be missing
	snap       snapshotKey
	heartbeats map[string]bool        // the sessions that are alive
	keys       map[string][]entryPart // what is stored of each node's entries
}

// entryPart is one key of entries.
type entryPart struct {
	number uint64 // of the key
	last   uint64 // index of its last entry
}

// An index is the revision of the transaction that appended the entry, and the
// entry's place in it.
const placeBits = 16

func indexOf(revision int64, place int) uint64 { return uint64(revision)<<placeBits | uint64(place) }

func revisionOf(index uint64) int64 { return int64(index >> placeBits) }

// apply applies one change of a key; errForeign says that it is not ours.
func (v *view) apply(e etcdclient.Event) error {
	v.revision = max(v.revision, e.KV.Modified)
	name, ok := strings.CutPrefix(e.KV.Key, v.root)
	if !ok {
		return nil
	}
	var err error
	switch {
	case name == keySnapshot && !e.Deleted:
		v.snap, err = decodeSnapshotKey(e.KV)
	case strings.HasPrefix(name, keyHeartbeats):
		session := name[len(keyHeartbeats):]
		if v.heartbeats[session] = true; e.Deleted {
			delete(v.heartbeats, session)
		}
	case strings.HasPrefix(name, keyEntries):
		err = v.applyEntries(name[len(keyEntries):], e)
	}
	if err != nil {
		return fmt.Errorf("the key %q: %w", e.KV.Key, err)
	}
	return nil
}

func (v *view) applyEntries(name string, e etcdclient.Event) error {
	node, number, err := splitEntryKey(name)
	if err != nil {
		return err
	}
	if e.Deleted {
		v.keys[node] = slices.DeleteFunc(v.keys[node], func(p entryPart) bool { return p.number == number })
		if len(v.keys[node]) == 0 {
			delete(v.keys, node)
		}
		return nil
	}
	contents, err := decodeEntries(e.KV.Value)
	if err != nil {
		return err
	}
	for i, data := range contents {
		v.entries = append(v.entries, sharedlog.Entry{Index: indexOf(e.KV.Modified, i), Data: data})
	}
	v.keys[node] = append(v.keys[node], entryPart{number, indexOf(e.KV.Modified, max(0, len(contents)-1))})
	return nil
}

// watchedFrom is where the keys begin that all nodes read: after the parts of snapshots.
func (l *Log) watchedFrom() string { return l.root + keyEntries }

// load reads the keys of the run that was entered.
func (l *Log) load(ctx context.Context) (*view, error) { return l.loadAt(ctx, 0) }

// loadAt reads them as they were at a revision; 0: as they are.
func (l *Log) loadAt(ctx context.Context, at int64) (*view, error) {
	for {
		v, alive, err := l.read(ctx, at)
		switch {
		case err == etcdclient.ErrCompacted && at == 0:
			continue
		case err != nil:
			return nil, err
		case !alive:
			return nil, l.errNewGeneration()
		}
		v.floor = v.snap.index
		v.entries = slices.DeleteFunc(v.entries, func(e sharedlog.Entry) bool { return e.Index <= v.floor })
		return v, nil
	}
}

// read reads the run's keys as they were at a revision; 0: as they are. alive tells whether
// they are of the generation that was entered.
func (l *Log) read(ctx context.Context, at int64) (v *view, alive bool, err error) {
	kvs, revision, err := l.client.List(ctx, "reading the run's log", etcdclient.RangeRequest{Key: l.watchedFrom(), End: etcdclient.PrefixEnd(l.root), Revision: at})
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(kvs, func(a, b etcdclient.KeyValue) int { return cmp.Compare(a.Modified, b.Modified) })
	v = &view{root: l.root, heartbeats: make(map[string]bool), keys: make(map[string][]entryPart)}
	for _, kv := range kvs {
		alive = alive || kv.Key == l.root+keyGeneration && kv.Modified == l.began
		if err := v.apply(etcdclient.Event{KV: kv}); err != nil {
			return nil, false, l.foreign(err)
		}
	}
	v.revision = revision
	return v, alive, nil
}

func (l *Log) foreign(err error) error {
	return rendezvous.Errorf(rendezvous.CodeState, "etcd at %s: run %q: %v; all nodes of a run need one release", l.config.Where(), l.runID, err)
}

// watchLoop keeps the view up to date until Close.
func (l *Log) watchLoop() {
	defer l.watching.Done()
	for pause := etcdclient.NewBackoff(); l.ctx.Err() == nil; {
		progress, err := l.watchKeys()
		if errors.Is(err, etcdclient.ErrCompacted) {
			var v *view
			if v, err = l.load(l.ctx); err == nil {
				l.update(func() { l.view, l.err = v, nil })
				continue
			}
		}
		if l.ctx.Err() != nil {
			return
		}
		if etcdclient.IsFinal(err) {
			err = etcdclient.Explain(&l.config, "following the run's log", 0, err)
			l.update(func() { l.err = err })
			return
		}
		if progress { // the first break is repaired before callers learn of it
			pause.Reset()
			continue
		}
		l.update(func() { l.err = fmt.Errorf("etcd at %s: following the run's log: %w", l.config.Where(), err) })
		pause.Wait(l.ctx)
	}
}

// update changes the view and wakes the goroutines that wait for it.
func (l *Log) update(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// watchKeys watches the run's keys until the watch breaks. progress tells that it was
// established.
func (l *Log) watchKeys() (progress bool, err error) {
	w, err := l.client.Watch(l.ctx, etcdclient.WatchRequest{Key: l.watchedFrom(), End: etcdclient.PrefixEnd(l.root), Revision: l.view.revision + 1})
	if err != nil {
		return false, err
	}
	defer w.Close()
	for {
		events, err := w.Next()
		if err != nil {
			return progress, err
		}
		progress = true
		l.update(func() {
			l.err = nil
			for _, e := range events {
				if e.KV.Key == l.root+keyGeneration {
					err = l.errNewGeneration()
					return
				}
				if err = l.view.apply(e); err != nil {
					err = l.foreign(err)
					return
				}
			}
		})
		if err != nil {
			return progress, err
		}
	}
}

// Next implements sharedlog.Log.
func (l *Log) Next(ctx context.Context, after uint64) (sharedlog.Batch, error) {
	ctx, end := l.begin(ctx)
	defer end()
	for {
		b, changed, err := l.pending(after)
		if err != nil || changed == nil {
			return b, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return sharedlog.Batch{}, ctx.Err()
		}
	}
}

// pending returns what is at hand after an index. If that is nothing, it returns a
// channel that is closed when there may be.
func (l *Log) pending(after uint64) (b sharedlog.Batch, changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.view
	if after < v.floor {
		return b, nil, sharedlog.ErrCompacted
	}
	i, _ := slices.BinarySearchFunc(v.entries, after+1, func(e sharedlog.Entry, index uint64) int {
		return int(int64(e.Index) - int64(index))
	})
	// It does not ask for anything twice.
	v.entries = slices.Delete(v.entries, 0, i)
	v.floor = max(v.floor, after)
	switch {
	case l.ctx.Err() != nil:
		return b, nil, l.ctx.Err()
	case len(v.entries) == 0 && l.err != nil:
		return b, nil, l.err
	case len(v.entries) == 0 && v.snap.index == l.lastNotified:
		return b, l.changed, nil
	}
	l.lastNotified = v.snap.index
	return sharedlog.Batch{Entries: slices.Clone(v.entries), Snapshot: v.snap.index}, nil, nil
}
