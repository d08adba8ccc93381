package etcdlog

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/etcdclient"
)

// beginOver replaces the log of the run by that of another generation, which has no entry but the
// first, unless that is nil.
func (l *Log) beginOver(generation []byte, lease int64, first []byte) []etcdclient.Op {
	l.appended++
	key, entries := entryKey(l.root, l.node, l.appended), l.root+keyEntries
	ops := []etcdclient.Op{
		etcdclient.DeleteOp(entries, key), // a transaction cannot delete and put the same key
		etcdclient.DeleteOp(key+"\x00", etcdclient.PrefixEnd(entries)),
		etcdclient.DeleteOp(l.root+keyParts, etcdclient.PrefixEnd(l.root+keyParts)),
		etcdclient.DeleteOp(l.root+keySnapshot, ""),
		etcdclient.PutOp(l.root+keyGeneration, generation, lease),
	}
	if first != nil {
		ops = append(ops, etcdclient.PutOp(key, encodeEntries([][]byte{first}), lease))
	}
	return ops
}

// ended returns as what, and for how long from now on, the run stays closed that is over and
// whose generation that is; false if it may begin again.
func (l *Log) ended(ctx context.Context, gen etcdclient.KeyValue) (ended rendezvous.Ended, ok bool, err error) {
	g, err := decodeGeneration(gen.Value)
	if err != nil {
		return ended, false, nil
	}
	r, there, err := logOf(l.config, l.runID, l.client).inspect(ctx)
	if err != nil || !there {
		return ended, false, err
	}
	ended, rests, ok := r.Ended()
	if !ok || !rests {
		return ended, ok, nil
	}
	age, err := l.client.LeaseAge(ctx, g.lease)
	if errors.Is(err, etcdclient.ErrLeaseGone) {
		return ended, false, nil
	}
	ended.For -= age
	return ended, ended.For > 0, err
}

// firstEntry is what the log begins with that takes the place of a generation's; nil: nothing.
func (l *Log) firstEntry(ctx context.Context, old etcdclient.KeyValue) (entry []byte, remaining time.Duration, err error) {
	ended, ok, err := l.ended(ctx, old)
	if err != nil || !ok {
		return nil, 0, err
	}
	entry, err = rendezvous.EncodeEvent(ended)
	return entry, ended.For, err
}

// remove removes the log of a run that is over. One that stays closed leaves how it ended, on
// a lease that is as long as it does: etcd's clock tells when that is over.
func (l *Log) remove(ctx context.Context) error {
	old, there, err := l.currentGeneration(ctx)
	if err != nil || !there || old.Modified != l.began {
		return err
	}
	first, remaining, err := l.firstEntry(ctx, old)
	if err != nil {
		return err
	}
	ops := []etcdclient.Op{etcdclient.DeleteOp(l.root, etcdclient.PrefixEnd(l.root))}
	lease := int64(0)
	if first != nil {
		if lease, err = l.client.Grant(ctx, remaining); err != nil {
			return err
		}
		ops = l.beginOver(generation{name: rand.Text(), lease: lease}.encode(), lease, first)
	}
	r, err := l.client.Txn(ctx, "removing the run's log", etcdclient.TxnRequest{
		Conditions: []etcdclient.Condition{l.sameGeneration(), etcdclient.Absent(l.heartbeats())}, Success: ops,
	})
	switch {
	case err != nil:
		return err
	case r.Succeeded:
		return l.client.Revoke(ctx, l.runLease)
	case lease != 0:
		return l.client.Revoke(ctx, lease)
	}
	return nil
}
