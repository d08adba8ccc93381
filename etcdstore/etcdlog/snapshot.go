package etcdlog

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"rallypoint/core/sharedlog"
	"rallypoint/internal/etcdclient"
)

// A state that does not fit into one request lies in parts.
const (
	partSize = 1 << 20
	maxParts = 1 << 10
)

// Latest implements sharedlog.Log.
func (l *Log) Latest(ctx context.Context) (sharedlog.Snapshot, error) {
	ctx, end := l.begin(ctx)
	defer end()
	for {
		l.mu.Lock()
		snap, err, changed := l.view.snap, l.err, l.changed
		l.mu.Unlock()
		if err != nil {
			return sharedlog.Snapshot{}, err
		}
		state, err := l.stateOf(ctx, snap)
		if err != nil {
			return sharedlog.Snapshot{}, err
		}
		if state != nil || snap.modified == 0 {
			return sharedlog.Snapshot{Index: snap.index, State: state}, nil
		}
		select { // a later snapshot has taken its place
		case <-changed:
		case <-ctx.Done():
			return sharedlog.Snapshot{}, ctx.Err()
		}
	}
}

// stateOf returns the state of a snapshot; nil if it is gone.
func (l *Log) stateOf(ctx context.Context, snap snapshotKey) ([]byte, error) {
	if snap.parts == 0 {
		return snap.state, nil
	}
	var state []byte
	for i := range snap.parts {
		r, err := l.client.Txn(ctx, "reading a snapshot", etcdclient.TxnRequest{Success: []etcdclient.Op{etcdclient.GetOp(l.partKey(snap.id, i))}})
		if err != nil {
			return nil, err
		}
		part, ok := r.Result(0).First()
		if !ok {
			return nil, nil
		}
		state = append(state, part.Value...)
	}
	return state, nil
}

func (l *Log) partKey(id string, i int64) string {
	return fmt.Sprintf("%s%s%s/%04x", l.root, keyParts, id, i)
}

// Snapshot implements sharedlog.Log.
func (l *Log) Snapshot(ctx context.Context, s sharedlog.Snapshot) error {
	const what = "storing a snapshot"
	ctx, end := l.begin(ctx)
	defer end()
	next := snapshotKey{index: s.Index, state: s.State}
	if len(s.State) > partSize {
		next.state, next.id = nil, rand.Text()
		next.parts = int64((len(s.State) + partSize - 1) / partSize)
		if next.parts > maxParts {
			return fmt.Errorf("%s: %d bytes are too many", what, len(s.State))
		}
	}
	l.mu.Lock()
	old := l.view.snap
	l.mu.Unlock()
	for i := range next.parts {
		part := s.State[i*partSize : min(int(i+1)*partSize, len(s.State))]
		put := etcdclient.TxnRequest{Conditions: []etcdclient.Condition{l.sameGeneration()}, Success: []etcdclient.Op{etcdclient.PutOp(l.partKey(next.id, i), part, l.runLease)}}
		if r, err := l.client.Txn(ctx, what, put); err != nil || !r.Succeeded {
			return l.generationError(err)
		}
	}
	value := next.encode()
	for old.index < s.Index {
		r, err := l.client.Txn(ctx, what, etcdclient.TxnRequest{
			Conditions: []etcdclient.Condition{l.sameGeneration(), etcdclient.Unchanged(l.root+keySnapshot, old.modified)},
			Success:    []etcdclient.Op{etcdclient.PutOp(l.root+keySnapshot, value, l.runLease)},
			Failure:    []etcdclient.Op{etcdclient.GetOp(l.root + keyGeneration), etcdclient.GetOp(l.root + keySnapshot)},
		})
		if err != nil {
			return l.generationError(err)
		}
		if r.Succeeded {
			return l.drop(ctx, s.Index, old)
		}
		if gen, _ := r.Result(0).First(); gen.Modified != l.began {
			return l.errNewGeneration()
		}
		now, _ := r.Result(1).First()
		if bytes.Equal(now.Value, value) { // the answer to the first try was lost
			return l.drop(ctx, s.Index, old)
		}
		if old, err = decodeSnapshotKey(now); err != nil {
			return l.foreign(err)
		}
	}
	if next.parts > 0 {
		return l.dropParts(ctx, next)
	}
	return nil
}

// generationError is the error of a transaction that failed, or whose run is over.
func (l *Log) generationError(err error) error {
	if err == nil || errors.Is(err, etcdclient.ErrLeaseGone) {
		return l.errNewGeneration()
	}
	return err
}

// drop deletes the entries that a stored snapshot holds, and the parts of the one
// before it. A node that is killed meanwhile leaves that to the next snapshot.
// Keys are named one by one: an append that was given up may still get in, with a
// number among theirs.
func (l *Log) drop(ctx context.Context, index uint64, old snapshotKey) error {
	var ops []etcdclient.Op
	l.mu.Lock()
	for node, keys := range l.view.keys {
		for _, k := range keys {
			if k.last <= index {
				ops = append(ops, etcdclient.DeleteOp(entryKey(l.root, node, k.number), ""))
			}
		}
	}
	l.mu.Unlock()
	for len(ops) > 0 {
		n := min(len(ops), etcdclient.MaxOps)
		r, err := l.client.Txn(ctx, "dropping old entries", etcdclient.TxnRequest{Conditions: []etcdclient.Condition{l.sameGeneration()}, Success: ops[:n]})
		if err != nil || !r.Succeeded {
			return l.generationError(err)
		}
		ops = ops[n:]
	}
	return l.dropParts(ctx, old)
}

func (l *Log) dropParts(ctx context.Context, snap snapshotKey) error {
	if snap.parts == 0 {
		return nil
	}
	parts := l.root + keyParts + snap.id + "/"
	_, err := l.client.Txn(ctx, "dropping an old snapshot", etcdclient.TxnRequest{
		Conditions: []etcdclient.Condition{l.sameGeneration()}, Success: []etcdclient.Op{etcdclient.DeleteOp(parts, etcdclient.PrefixEnd(parts))},
	})
	return err
}
