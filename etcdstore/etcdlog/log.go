// Package etcdlog is the log of a run in an etcd ([sharedlog.Log]): [Log] for a node, and
// [Inspect], [Append] and [Watch] for processes that are none. The content of the entries is package
// sharedlog's. Log.opening is held by Open and Close; Log.mu guards the view of the run's keys
// that a watch keeps, and is a leaf.
package etcdlog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/core/store"
	"rallypoint/internal/backoff"
	"rallypoint/internal/etcdclient"
)

// Log is a [sharedlog.Log] in etcd: the log of one run, for one node.
//
// Each append is one key of its own, in one transaction, so that nodes never
// contend; the revision of that transaction is the entries' place in the order.
// One watch carries everything to a node. Heartbeats are keys on leases that
// etcd keeps. The keys of a run, behind the prefix and the run id:
//
//	gen          the run's generation, and the lease on which all below hangs
//	snap         the latest snapshot: its index, and its state or where that is
//	c/ID/I       part I of a state that is too large for one key
//	e/NODE/N     entries
//	l/SESSION    a heartbeat
//	l/+NODE      one of a node that has not begun its session yet
//
// The lease of the run is renewed by all its nodes. When they are gone it runs out
// (Config.TTL, DefaultTTL if that is 0), and etcd is as before.
type Log struct {
	config etcdclient.Config
	runID  string
	root   string // of the run's keys
	node   string // names this node's entries
	lease  time.Duration

	ownAddr string

	ctx      context.Context // ends with Close
	stop     context.CancelFunc
	watching sync.WaitGroup

	opening sync.Mutex // held by Open and Close
	client  *etcdclient.Client
	opened  bool

	// Of the run, set by Open.
	generation string
	began      int64 // revision of gen
	runLease   int64

	// Of Heartbeat; Open sets them before.
	session        rendezvous.SessionID
	heartbeatLease int64     // lease of the heartbeat; 0: none
	runRenewed     time.Time // when the run's lease was last renewed
	greeting       bool      // the key l/+NODE exists

	appended uint64 // of Append: how many keys

	// Of ReadHeartbeats.
	absences map[rendezvous.SessionID]time.Time // since when heartbeats are missing
	lastRead time.Time
	reads    uint64

	mu           sync.Mutex
	heartbeatTTL time.Duration
	view         *view
	err          error         // why the view is not up to date; nil: it is
	changed      chan struct{} // closed and replaced by each change of the two above
	lastNotified uint64        // index of the snapshot that Next returned last
}

var _ sharedlog.Log = (*Log)(nil)

// New returns the log of a run for one node, whose lease will be the given one
// unless the run has another. ownAddr is the node's address where its connection to
// etcd does not show one that others could use. It checks the configuration and
// touches no network.
func New(config etcdclient.Config, runID string, lease time.Duration, ownAddr string) (*Log, error) {
	if config.TTL <= 0 {
		config.TTL = etcdclient.DefaultTTL
	}
	c, err := etcdclient.New(config)
	if err != nil {
		return nil, err
	}
	l := logOf(config, runID, c)
	l.node, l.lease, l.ownAddr = rand.Text(), lease, ownAddr
	l.absences, l.changed = make(map[rendezvous.SessionID]time.Time), make(chan struct{})
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l, nil
}

// logOf makes a log for reading only.
func logOf(config etcdclient.Config, runID string, c *etcdclient.Client) *Log {
	return &Log{config: config, runID: runID, root: config.Prefix + "/" + url.PathEscape(runID) + "/", client: c}
}

// Open implements sharedlog.Log.
func (l *Log) Open(ctx context.Context) (sharedlog.Info, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	ctx, end := l.begin(ctx)
	defer end()
	for !l.opened {
		if err := l.join(ctx); err != nil {
			return sharedlog.Info{}, err
		}
		v, err := l.load(ctx)
		if err != nil {
			return sharedlog.Info{}, err
		}
		l.view = v
		l.opened = true
		l.watching.Add(1)
		go l.watchLoop()
	}
	local, remote := l.client.Addresses()
	if addr, err := netip.ParseAddr(local); err != nil || addr.IsLoopback() {
		// An etcd on this machine, or a proxy to one, which others may see elsewhere.
		local, remote = l.ownAddr, ""
	}
	return sharedlog.Info{
		Generation: l.generation, SeenAddr: local, ServerAddr: remote,
		SnapshotEntries: snapshotEntries, SnapshotBytes: snapshotBytes, MaxEntry: maxEntry,
	}, nil
}

// Limits that suit etcd: it takes 1.5 MiB in one request, and a node that joins reads all
// entries since the last snapshot.
const (
	maxEntry        = 1 << 20
	snapshotEntries = 1024
	snapshotBytes   = 4 << 20
)

// begin returns a context which also ends with Close.
func (l *Log) begin(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// The keys of a run, under its root.
const (
	keyGeneration = "gen"
	keySnapshot   = "snap"
	keyParts      = "c/"
	keyEntries    = "e/"
	keyHeartbeats = "l/"
)

func (l *Log) greetingKey() string { return l.root + keyHeartbeats + "+" + l.node }

func (l *Log) heartbeatKey(session rendezvous.SessionID) string {
	return l.root + keyHeartbeats + string(session)
}

// sameGeneration is the condition that the run is the one that was entered.
func (l *Log) sameGeneration() etcdclient.Condition {
	return etcdclient.Unchanged(l.root+keyGeneration, l.began)
}

// heartbeats are all heartbeats of the run.
func (l *Log) heartbeats() (from, end string) {
	from = l.root + keyHeartbeats
	return from, etcdclient.PrefixEnd(from)
}

// countHeartbeats asks how many nodes show a heartbeat.
func (l *Log) countHeartbeats() etcdclient.Op {
	from, end := l.heartbeats()
	return etcdclient.RangeOp(etcdclient.RangeRequest{Key: from, End: end, CountOnly: true})
}

// entering is what join is for.
const entering = "entering the run"

// join leaves a heartbeat in the run, which it creates if there is none or if
// all its nodes are gone. If that takes longer than the lease, the next try has more time.
func (l *Log) join(ctx context.Context) error {
	err := l.tryJoin(ctx)
	if errors.Is(err, etcdclient.ErrLeaseGone) {
		tried := l.heartbeatTTL
		l.heartbeatLease, l.heartbeatTTL = 0, 2*tried
		return fmt.Errorf("etcd at %s: %s took longer than the lease of %v: %w", l.config.Where(), entering, tried, sharedlog.ErrSlow)
	}
	return err
}

func (l *Log) tryJoin(ctx context.Context) error {
	if l.heartbeatLease == 0 {
		ttl := max(l.lease, l.heartbeatTTL)
		sign, err := l.client.Grant(ctx, ttl)
		if err != nil {
			return err
		}
		l.heartbeatLease, l.heartbeatTTL = sign, ttl
	}
	silent := false // no node shows a sign of life, and that was so a while ago
	gen := l.root + keyGeneration
	for pause := etcdclient.NewBackoff(); ; pause.Wait(ctx) {
		if err := store.ContextError(ctx); err != nil {
			return err
		}
		found, err := l.client.Txn(ctx, entering, etcdclient.TxnRequest{Success: []etcdclient.Op{etcdclient.GetOp(gen), l.countHeartbeats()}})
		if err != nil {
			return err
		}
		old, exists := found.Result(0).First()
		if exists && found.Result(1).Count > 0 {
			r, err := l.client.Txn(ctx, entering, etcdclient.TxnRequest{
				Conditions: []etcdclient.Condition{etcdclient.Unchanged(gen, old.Modified)},
				Success:    []etcdclient.Op{etcdclient.PutOp(l.greetingKey(), nil, l.heartbeatLease)},
			})
			if err != nil {
				return err
			}
			if r.Succeeded {
				return l.joined(old)
			}
			continue
		}
		orphans, over, err := l.orphans(ctx, "")
		if err != nil {
			return err
		}
		var done bool
		switch {
		case !exists || over:
			done, err = l.create(ctx, old)
		case silent:
			done, err = l.takeOver(ctx, old, orphans)
		default: // a heartbeat that is missing for a moment does not count
			silent = true
			backoff.Sleep(ctx, l.absence())
		}
		if err != nil || done {
			return err
		}
	}
}

// orphans returns the sessions of the run that have no heartbeat, but for one, and whether the run
// is over. A run whose snapshot or entries another release has written is; keys that are not as any
// release writes them are an error.
func (l *Log) orphans(ctx context.Context, but rendezvous.SessionID) (sessions []rendezvous.SessionID, over bool, err error) {
	r, there, err := logOf(l.config, l.runID, l.client).inspect(ctx)
	if err != nil || !there {
		return nil, true, err
	}
	sessions, over, err = r.Orphans(but)
	if err != nil {
		l.config.Log().Debug("cannot read what is left of the run", "error", err)
	}
	return sessions, over, nil
}

// takeOver enters a run whose nodes show no heartbeat and have not gone either. They
// are declared lost, as nodes that live would have done by now; those that come back find
// the run and regroup. It reports false if another node has come back or was quicker.
func (l *Log) takeOver(ctx context.Context, old etcdclient.KeyValue, orphans []rendezvous.SessionID) (done bool, err error) {
	g, err := decodeGeneration(old.Value)
	if err != nil {
		return true, l.joined(old)
	}
	entries, err := sharedlog.DeclareLost(orphans)
	if err != nil {
		return false, err
	}
	ops := []etcdclient.Op{etcdclient.PutOp(l.greetingKey(), nil, l.heartbeatLease)}
	if len(entries) > 0 {
		l.appended++
		ops = append(ops, etcdclient.PutOp(entryKey(l.root, l.node, l.appended), encodeEntries(entries), g.lease))
	}
	r, err := l.client.Txn(ctx, entering, etcdclient.TxnRequest{
		Conditions: []etcdclient.Condition{etcdclient.Unchanged(l.root+keyGeneration, old.Modified), etcdclient.Absent(l.heartbeats())},
		Success:    ops,
	})
	if err != nil || !r.Succeeded {
		return false, err
	}
	l.config.Log().Warn("no node of the run shows a sign of life: all are declared lost, and any that still run join again", "run", l.runID)
	err = l.joined(old)
	l.runRenewed = time.Time{} // its lease may not have been renewed for long
	return true, err
}

// create begins the run, in the place of one whose nodes are all gone. It reports
// false if others were quicker.
func (l *Log) create(ctx context.Context, old etcdclient.KeyValue) (done bool, err error) {
	lease, err := l.client.Grant(ctx, l.config.TTL)
	if err != nil {
		return false, err
	}
	gen := l.root + keyGeneration
	value := generation{name: rand.Text(), lease: lease}.encode()
	first, _, err := l.firstEntry(ctx, old)
	if err != nil {
		return false, err
	}
	r, err := l.client.Txn(ctx, entering, etcdclient.TxnRequest{
		Conditions: []etcdclient.Condition{etcdclient.Unchanged(gen, old.Modified), etcdclient.Absent(l.heartbeats())},
		Success:    append(l.beginOver(value, lease, first), etcdclient.PutOp(l.greetingKey(), nil, l.heartbeatLease)),
		Failure:    []etcdclient.Op{etcdclient.GetOp(gen)},
	})
	if err != nil {
		return false, err
	}
	now, _ := r.Result(0).First()
	if r.Succeeded {
		now = etcdclient.KeyValue{Value: value, Modified: r.Revision}
		if g, err := decodeGeneration(old.Value); err == nil && old.Modified != 0 {
			_ = l.client.Revoke(ctx, g.lease)
		}
	} else if string(now.Value) != string(value) { // else the answer to the first try was lost
		return false, l.client.Revoke(ctx, lease)
	}
	return true, l.joined(now)
}

// joined records the run.
func (l *Log) joined(gen etcdclient.KeyValue) error {
	g, err := decodeGeneration(gen.Value)
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeState, "etcd at %s: the key %q is not of a run of rallypoint: %v; use another key_prefix",
			l.config.Where(), l.root+keyGeneration, err)
	}
	l.generation, l.runLease, l.began = g.name, g.lease, gen.Modified
	l.greeting, l.runRenewed = true, time.Now()
	return nil
}

// errNewGeneration is the error of a node that missed the end of its run.
func (l *Log) errNewGeneration() error {
	return rendezvous.Errorf(rendezvous.CodeState,
		"etcd at %s: run %q has ended or was begun again by other nodes while this one was stopped or cut off; start this node again",
		l.config.Where(), l.runID)
}

// Append implements sharedlog.Log.
func (l *Log) Append(ctx context.Context, entries [][]byte) error { return l.append(ctx, entries) }

// append appends entries if the conditions hold; the error is sharedlog.ErrMoved if one does not.
func (l *Log) append(ctx context.Context, entries [][]byte, conditions ...etcdclient.Condition) error {
	const what = "appending to the run's log"
	ctx, end := l.begin(ctx)
	defer end()
	l.appended++
	key := entryKey(l.root, l.node, l.appended)
	// A key that is not there yet: sent again, it is not appended again.
	r, err := l.client.Txn(ctx, what, etcdclient.TxnRequest{
		Conditions: append(conditions, l.sameGeneration(), etcdclient.Unchanged(key, 0)),
		Success:    []etcdclient.Op{etcdclient.PutOp(key, encodeEntries(entries), l.runLease)},
		Failure:    []etcdclient.Op{etcdclient.GetOp(l.root + keyGeneration), etcdclient.GetOp(key)},
	})
	if errors.Is(err, etcdclient.ErrLeaseGone) {
		return l.errNewGeneration()
	}
	if err != nil || r.Succeeded {
		return err
	}
	if now, _ := r.Result(0).First(); now.Modified != l.began {
		return l.errNewGeneration()
	}
	if _, there := r.Result(1).First(); !there && len(conditions) > 0 {
		return sharedlog.ErrMoved
	}
	return nil // it existed: the answer to the first try was lost
}

// Heartbeat implements sharedlog.Log.
func (l *Log) Heartbeat(ctx context.Context, session rendezvous.SessionID, lease time.Duration) error {
	const what = "showing a sign of life"
	ctx, end := l.begin(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, max(lease/2, time.Second)) // another try follows
	defer cancel()
	if err := l.renewRun(ctx); err != nil {
		return err
	}
	if l.heartbeatLease != 0 && l.session == session && l.heartbeatTTL == lease {
		err := l.client.KeepAlive(ctx, l.heartbeatLease)
		if !errors.Is(err, etcdclient.ErrLeaseGone) {
			return err
		}
		l.heartbeatLease = 0 // this process was stopped, or etcd out of reach, for longer than that
	}
	var old int64
	if l.heartbeatTTL != lease || l.heartbeatLease == 0 {
		sign, err := l.client.Grant(ctx, lease)
		if err != nil {
			return err
		}
		l.mu.Lock()
		old, l.heartbeatLease, l.heartbeatTTL = l.heartbeatLease, sign, lease
		l.mu.Unlock()
	}
	ops := []etcdclient.Op{etcdclient.PutOp(l.heartbeatKey(session), nil, l.heartbeatLease)}
	if l.session != "" && l.session != session {
		ops = append(ops, etcdclient.DeleteOp(l.heartbeatKey(l.session), ""))
	}
	if l.greeting {
		ops = append(ops, etcdclient.DeleteOp(l.greetingKey(), ""))
	}
	r, err := l.client.Txn(ctx, what, etcdclient.TxnRequest{Conditions: []etcdclient.Condition{l.sameGeneration()}, Success: ops})
	switch {
	case errors.Is(err, etcdclient.ErrLeaseGone):
		l.heartbeatLease = 0
		return fmt.Errorf("%s took longer than a lease: %w", what, err)
	case err != nil:
		return err
	case !r.Succeeded:
		return l.errNewGeneration()
	}
	l.session, l.greeting = session, false
	if old != 0 {
		_ = l.client.Revoke(ctx, old)
	}
	return nil
}

// renewRun renews the run's lease now and then.
func (l *Log) renewRun(ctx context.Context) error {
	if time.Since(l.runRenewed) < l.config.TTL/3 {
		return nil
	}
	err := l.client.KeepAlive(ctx, l.runLease)
	if errors.Is(err, etcdclient.ErrLeaseGone) {
		return l.errNewGeneration()
	}
	if err == nil {
		l.runRenewed = time.Now()
	}
	return err
}

// ReadHeartbeats implements sharedlog.Log. It answers from the watch, without a request.
func (l *Log) ReadHeartbeats(_ context.Context, sessions []rendezvous.SessionID) ([]sharedlog.Liveness, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	now := time.Now()
	// After a pause of this process the others may have been stopped, too, and be
	// about to show themselves again.
	if now.Sub(l.lastRead) > l.heartbeatTTL/2 {
		clear(l.absences)
	}
	l.lastRead = now
	l.reads++
	list := make([]sharedlog.Liveness, len(sessions))
	for i, session := range sessions {
		// The lease lives: etcd has heard of the node, whatever we know of when.
		list[i] = sharedlog.Liveness{State: sharedlog.LivenessHeartbeats, Heartbeats: l.reads}
		if l.view.heartbeats[string(session)] {
			delete(l.absences, session)
			continue
		}
		since, known := l.absences[session]
		if !known {
			l.absences[session] = now
		} else if now.Sub(since) >= l.absence() {
			list[i].State = sharedlog.LivenessExpired
		}
	}
	return list, nil
}

// absence is how long a heartbeat has to be missing before that counts.
func (l *Log) absence() time.Duration { return min(500*time.Millisecond, l.heartbeatTTL/4) }

// Close implements sharedlog.Log.
func (l *Log) Close(ctx context.Context) error {
	l.stop()
	l.opening.Lock()
	defer l.opening.Unlock()
	l.watching.Wait()
	defer l.client.Close()
	if l.heartbeatLease == 0 {
		return nil
	}
	err := l.client.Revoke(ctx, l.heartbeatLease)
	l.heartbeatLease = 0
	if err != nil || l.began == 0 {
		return err
	}
	found, err := l.client.Txn(ctx, "leaving the run", etcdclient.TxnRequest{Success: []etcdclient.Op{l.countHeartbeats()}})
	if err != nil || found.Result(0).Count > 0 {
		return err
	}
	if _, over, err := l.orphans(ctx, l.session); err != nil || !over {
		return err // nodes may be cut off, and come back
	}
	return l.remove(ctx)
}
