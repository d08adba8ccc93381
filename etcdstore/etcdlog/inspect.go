package etcdlog

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/etcdclient"
)

// Inspect reads what the runs under the configuration's prefix have written, in the order of their
// ids; only that of the id runID unless it is "". A run that does not exist is left out. Inspect
// writes nothing, makes no lease and is no node.
func Inspect(ctx context.Context, config etcdclient.Config, runID string) ([]sharedlog.Record, error) {
	c, err := etcdclient.New(config)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ids := []string{runID}
	if runID == "" {
		if ids, err = runIDs(ctx, c, config.Prefix+"/"); err != nil {
			return nil, err
		}
	}
	var records []sharedlog.Record
	for _, id := range ids {
		r, there, err := logOf(config, id, c).inspect(ctx)
		if err != nil {
			return nil, err
		}
		if there {
			records = append(records, r)
		}
	}
	slices.SortFunc(records, func(a, b sharedlog.Record) int { return strings.Compare(a.RunID, b.RunID) })
	return records, nil
}

// runIDs returns the ids of the runs whose keys lie under a prefix. It asks once
// for each name there, not for all keys: other programs may keep many.
func runIDs(ctx context.Context, c *etcdclient.Client, prefix string) (ids []string, err error) {
	const what = "looking for runs"
	for from := prefix; ; {
		r, err := c.Txn(ctx, what, etcdclient.TxnRequest{Success: []etcdclient.Op{
			etcdclient.RangeOp(etcdclient.RangeRequest{Key: from, End: etcdclient.PrefixEnd(prefix), Limit: 1, KeysOnly: true}),
		}})
		if err != nil {
			return nil, err
		}
		first, ok := r.Result(0).First()
		if !ok {
			return ids, nil
		}
		name, _, below := strings.Cut(strings.TrimPrefix(first.Key, prefix), "/")
		if !below {
			from = first.Key + "\x00"
			continue
		}
		if id, err := url.PathUnescape(name); err == nil && id != "" {
			ids = append(ids, id)
		}
		from = etcdclient.PrefixEnd(prefix + name + "/")
	}
}

// currentGeneration reads the key of the run's generation; false if there is no run.
func (l *Log) currentGeneration(ctx context.Context) (gen etcdclient.KeyValue, there bool, err error) {
	r, err := l.client.Txn(ctx, "reading the run", etcdclient.TxnRequest{Success: []etcdclient.Op{etcdclient.GetOp(l.root + keyGeneration)}})
	if err != nil {
		return gen, false, err
	}
	gen, there = r.Result(0).First()
	return gen, there, nil
}

// inspect reads the run; false if there is none.
func (l *Log) inspect(ctx context.Context) (record sharedlog.Record, there bool, err error) {
	for {
		gen, ok, err := l.currentGeneration(ctx)
		if err != nil || !ok {
			return record, false, err
		}
		g, err := decodeGeneration(gen.Value)
		if err != nil {
			return record, false, nil // a key of something else
		}
		l.generation, l.began = g.name, gen.Modified
		v, err := l.load(ctx)
		if rendezvous.CodeOf(err) == rendezvous.CodeState && ctx.Err() == nil {
			if now, _, err := l.currentGeneration(ctx); err != nil {
				return record, false, err
			} else if now.Modified != gen.Modified {
				continue // it has ended, or begun again, meanwhile
			}
		}
		if err != nil {
			return record, false, err
		}
		state, err := l.stateOf(ctx, v.snap)
		if err != nil {
			return record, false, err
		}
		if state == nil && v.snap.modified != 0 {
			continue // a later snapshot has taken its place
		}
		record = sharedlog.Record{
			RunID: l.runID, Generation: l.generation, Entries: v.entries,
			Snapshot: sharedlog.Snapshot{Index: v.snap.index, State: state}, Living: make(map[rendezvous.SessionID]bool),
		}
		for session := range v.heartbeats {
			if !strings.HasPrefix(session, "+") { // a node that has not begun its session yet
				record.Living[rendezvous.SessionID(session)] = true
			}
		}
		return record, true, nil
	}
}

// Append appends an entry to the log of that generation of a run, for a process that
// is no node of it, after the entry of the index last: the error is sharedlog.ErrMoved if that
// is not the last one. It is ErrState if the generation has gone.
func Append(ctx context.Context, config etcdclient.Config, runID, generation string, last uint64, entry []byte) error {
	l, err := New(config, runID, 0, "")
	if err != nil {
		return err
	}
	defer l.client.Close()
	defer l.stop()
	r, err := l.client.Txn(ctx, "reading the run", etcdclient.TxnRequest{Success: []etcdclient.Op{
		etcdclient.GetOp(l.root + keyGeneration), etcdclient.GetOp(l.root + keySnapshot),
	}})
	if err != nil {
		return err
	}
	gen, _ := r.Result(0).First()
	g, err := decodeGeneration(gen.Value)
	if err != nil || g.name != generation {
		return rendezvous.Errorf(rendezvous.CodeState, "etcd at %s: run %q has ended meanwhile", l.config.Where(), runID)
	}
	l.runLease, l.began = g.lease, gen.Modified
	var snap snapshotKey
	if kv, there := r.Result(1).First(); there {
		if snap, err = decodeSnapshotKey(kv); err != nil {
			return l.foreign(err)
		}
	}
	if snap.index > last {
		return sharedlog.ErrMoved
	}
	entries := l.root + keyEntries
	return l.append(ctx, [][]byte{entry},
		etcdclient.UnchangedSince(entries, etcdclient.PrefixEnd(entries), revisionOf(last)),
		etcdclient.Unchanged(l.root+keySnapshot, snap.modified)) // else a later entry may have been dropped
}
