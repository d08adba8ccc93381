package etcdstore

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
)

// Log is a [sharedlog.Log] in etcd: the log of one run, for one node.
//
// Each append is one key of its own, in one transaction, so that nodes never
// contend; the revision of that transaction is the entries' place in the order.
// One watch carries everything to a node. Signs of life are keys on leases that
// etcd keeps. The keys of a run, behind the prefix and the run id:
//
//	gen          the run's generation, and the lease on which all below hangs
//	snap         the latest snapshot: its index, and its state or where that is
//	c/ID/I       part I of a state that is too large for one key
//	e/NODE/N     entries
//	l/SESSION    a sign of life
//	l/+NODE      one of a node that has not begun its session yet
//
// The lease of the run is renewed by all its nodes. When they are gone it runs out
// (Config.TTL, DefaultTTL if that is 0), and etcd is as before.
type Log struct {
	config Config
	runID  string
	root   string // of the run's keys
	node   string // names this node's entries
	lease  time.Duration

	ownAddr string

	ctx    context.Context // ends with Close
	stop   context.CancelFunc
	pumped sync.WaitGroup

	opening sync.Mutex // held by Open and Close
	client  *client
	opened  bool

	// Of the run, set by Open.
	generation string
	began      int64 // revision of gen
	runLease   int64

	// Of Beat; Open sets them before.
	session  rendezvous.SessionID
	sign     int64     // lease of the sign of life; 0: none
	runBeat  time.Time // when the run's lease was last renewed
	greeting bool      // the key l/+NODE is there

	appended uint64 // of Append: how many keys

	// Of Look.
	absences map[rendezvous.SessionID]time.Time // since when signs are missing
	lastLook time.Time
	looks    uint64

	mu      sync.Mutex
	signTTL time.Duration
	view    *view
	err     error         // why the view is not up to date; nil: it is
	changed chan struct{} // closed and made anew by each change of the two above
	told    uint64        // index of the snapshot that Next told last
}

var _ sharedlog.Log = (*Log)(nil)

// NewLog returns the log of a run for one node, whose lease will be the given one
// unless the run has another. ownAddr is the node's address where its connection to
// etcd does not show one that others could use. NewLog checks the configuration and
// touches no network.
func NewLog(config Config, runID string, lease time.Duration, ownAddr string) (*Log, error) {
	if config.TTL <= 0 {
		config.TTL = DefaultTTL
	}
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	l := &Log{
		config: config, runID: runID, root: config.Prefix + "/" + url.PathEscape(runID) + "/", node: rand.Text(), lease: lease, ownAddr: ownAddr,
		client: c, absences: make(map[rendezvous.SessionID]time.Time), changed: make(chan struct{}),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l, nil
}

// Open implements sharedlog.Log.
func (l *Log) Open(ctx context.Context) (sharedlog.Info, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	ctx, end := l.begin(ctx)
	defer end()
	for !l.opened {
		if err := l.enter(ctx); err != nil {
			return sharedlog.Info{}, err
		}
		v, err := l.load(ctx)
		if err != nil {
			return sharedlog.Info{}, err
		}
		l.view = v
		l.opened = true
		l.pumped.Add(1)
		go l.pump()
	}
	local, remote := l.client.addresses()
	if addr, err := netip.ParseAddr(local); err != nil || addr.IsLoopback() {
		// An etcd on this machine, or a proxy to one, which others may see elsewhere.
		local, remote = l.ownAddr, ""
	}
	return sharedlog.Info{
		Generation: l.generation, SeenAddr: local, ServerAddr: remote,
		SnapshotEntries: snapshotEntries, SnapshotBytes: snapshotBytes, MaxEntry: maxEntry,
	}, nil
}

// What suits etcd: it takes 1.5 MiB in one request, and a node that joins reads all
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

// The keys of a run, behind its root.
const (
	keyGeneration = "gen"
	keySnapshot   = "snap"
	keyParts      = "c/"
	keyEntries    = "e/"
	keySigns      = "l/"
)

func (l *Log) greetingKey() string { return l.root + keySigns + "+" + l.node }

func (l *Log) signKey(session rendezvous.SessionID) string {
	return l.root + keySigns + string(session)
}

// inRun is the condition that the run is the one that was entered.
func (l *Log) inRun() condition { return unchanged(l.root+keyGeneration, l.began) }

// enter leaves a sign of life in the run, which it creates if there is none or if
// all its nodes are gone. If that takes longer than the lease, the next try has more time.
func (l *Log) enter(ctx context.Context) error {
	const what = "entering the run"
	err := l.tryEnter(ctx, what)
	if errors.Is(err, errLeaseGone) {
		tried := l.signTTL
		l.sign, l.signTTL = 0, 2*tried
		return fmt.Errorf("etcd at %s: %s took longer than the lease of %v: %w", l.config.where(), what, tried, sharedlog.ErrSlow)
	}
	return err
}

func (l *Log) tryEnter(ctx context.Context, what string) error {
	if l.sign == 0 {
		ttl := max(l.lease, l.signTTL)
		sign, err := l.client.grant(ctx, ttl)
		if err != nil {
			return err
		}
		l.sign, l.signTTL = sign, ttl
	}
	silent := false // no node shows a sign of life, and that was so a while ago
	gen, signs := l.root+keyGeneration, l.root+keySigns
	for pause := (pauses{}); ; pause.wait(ctx) {
		if err := store.ContextError(ctx); err != nil {
			return err
		}
		found, err := l.client.txn(ctx, what, txnRequest{success: []op{
			getOp(gen), rangeOp(rangeRequest{key: signs, end: prefixEnd(signs), countOnly: true}),
		}})
		if err != nil {
			return err
		}
		old, exists := found.result(0).first()
		if exists && found.result(1).count > 0 {
			r, err := l.client.txn(ctx, what, txnRequest{
				conditions: []condition{unchanged(gen, old.modified)},
				success:    []op{putOp(l.greetingKey(), nil, l.sign)},
			})
			if err != nil {
				return err
			}
			if r.succeeded {
				return l.entered(old)
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
			done, err = l.create(ctx, what, old)
		case silent:
			done, err = l.takeOver(ctx, what, old, orphans)
		default: // a sign that is missing for a moment is none
			silent = true
			sleep(ctx, l.absence())
		}
		if err != nil || done {
			return err
		}
	}
}

// orphans returns the sessions of the run that are there without a sign of life, but for
// one, and whether the run is over. What cannot be read is.
func (l *Log) orphans(ctx context.Context, but rendezvous.SessionID) (sessions []rendezvous.SessionID, over bool, err error) {
	r, there, err := (&Log{config: l.config, runID: l.runID, root: l.root, client: l.client}).peek(ctx)
	if err != nil && rendezvous.CodeOf(err) != rendezvous.CodeState || !there {
		return nil, true, err
	}
	sessions, over, err = r.Orphans(but)
	if err != nil {
		l.config.logger().Debug("what is left of the run cannot be read", "error", err)
	}
	return sessions, over, nil
}

// takeOver enters a run whose nodes show no sign of life and have not gone either. They
// are declared lost, as nodes that live would have done by now; those that come back find
// the run and regroup. It reports false if somebody has come back or was quicker.
func (l *Log) takeOver(ctx context.Context, what string, old keyValue, orphans []rendezvous.SessionID) (done bool, err error) {
	g, err := decodeGeneration(old.value)
	if err != nil {
		return true, l.entered(old)
	}
	entries, err := sharedlog.DeclareLost(orphans)
	if err != nil {
		return false, err
	}
	signs := l.root + keySigns
	ops := []op{putOp(l.greetingKey(), nil, l.sign)}
	if len(entries) > 0 {
		l.appended++
		ops = append(ops, putOp(entryKey(l.root, l.node, l.appended), encodeEntries(entries), g.lease))
	}
	r, err := l.client.txn(ctx, what, txnRequest{
		conditions: []condition{unchanged(l.root+keyGeneration, old.modified), absent(signs, prefixEnd(signs))},
		success:    ops,
	})
	if err != nil || !r.succeeded {
		return false, err
	}
	l.config.logger().Warn("no node of the run shows a sign of life; they are taken for lost, and join again should they live", "run", l.runID)
	err = l.entered(old)
	l.runBeat = time.Time{} // nobody may have renewed its lease for long
	return true, err
}

// create begins the run, in the place of one whose nodes are all gone. It reports
// false if others were quicker.
func (l *Log) create(ctx context.Context, what string, old keyValue) (done bool, err error) {
	lease, err := l.client.grant(ctx, l.config.TTL)
	if err != nil {
		return false, err
	}
	gen, signs := l.root+keyGeneration, l.root+keySigns
	value := generation{name: rand.Text(), lease: lease}.encode()
	r, err := l.client.txn(ctx, what, txnRequest{
		conditions: []condition{unchanged(gen, old.modified), absent(signs, prefixEnd(signs))},
		success: []op{
			deleteOp(l.root+keyEntries, prefixEnd(l.root+keyEntries)),
			deleteOp(l.root+keyParts, prefixEnd(l.root+keyParts)),
			deleteOp(l.root+keySnapshot, ""),
			putOp(gen, value, lease),
			putOp(l.greetingKey(), nil, l.sign),
		},
		failure: []op{getOp(gen)},
	})
	if err != nil {
		return false, err
	}
	now, _ := r.result(0).first()
	if r.succeeded {
		now = keyValue{value: value, modified: r.revision}
		if g, err := decodeGeneration(old.value); err == nil && old.modified != 0 {
			_ = l.client.revoke(ctx, g.lease)
		}
	} else if string(now.value) != string(value) { // else the answer to the first try was lost
		return false, l.client.revoke(ctx, lease)
	}
	return true, l.entered(now)
}

// entered takes note of the run.
func (l *Log) entered(gen keyValue) error {
	g, err := decodeGeneration(gen.value)
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeState, "etcd at %s: the key %q is not of a run of rallypoint: %v; use another key_prefix",
			l.config.where(), l.root+keyGeneration, err)
	}
	l.generation, l.runLease, l.began = g.name, g.lease, gen.modified
	l.greeting, l.runBeat = true, time.Now()
	return nil
}

// begunAnew is the error of a node that missed the end of its run.
func (l *Log) begunAnew() error {
	return rendezvous.Errorf(rendezvous.CodeState,
		"etcd at %s: run %q has ended or was begun anew by other nodes while this one was stopped or cut off; start this node again",
		l.config.where(), l.runID)
}

// Append implements sharedlog.Log.
func (l *Log) Append(ctx context.Context, entries [][]byte) error {
	const what = "appending to the run's log"
	ctx, end := l.begin(ctx)
	defer end()
	l.appended++
	key := entryKey(l.root, l.node, l.appended)
	// A key that is not there yet: sent again, it is not appended again.
	r, err := l.client.txn(ctx, what, txnRequest{
		conditions: []condition{l.inRun(), unchanged(key, 0)},
		success:    []op{putOp(key, encodeEntries(entries), l.runLease)},
		failure:    []op{getOp(l.root + keyGeneration)},
	})
	if errors.Is(err, errLeaseGone) {
		return l.begunAnew()
	}
	if err != nil || r.succeeded {
		return err
	}
	if now, _ := r.result(0).first(); now.modified != l.began {
		return l.begunAnew()
	}
	return nil // it was there: the answer to the first try was lost
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
	if l.sign != 0 && l.session == session && l.signTTL == lease {
		err := l.client.keepAlive(ctx, l.sign)
		if !errors.Is(err, errLeaseGone) {
			return err
		}
		l.sign = 0 // this process was stopped, or etcd out of reach, for longer than that
	}
	var old int64
	if l.signTTL != lease || l.sign == 0 {
		sign, err := l.client.grant(ctx, lease)
		if err != nil {
			return err
		}
		l.mu.Lock()
		old, l.sign, l.signTTL = l.sign, sign, lease
		l.mu.Unlock()
	}
	ops := []op{putOp(l.signKey(session), nil, l.sign)}
	if l.session != "" && l.session != session {
		ops = append(ops, deleteOp(l.signKey(l.session), ""))
	}
	if l.greeting {
		ops = append(ops, deleteOp(l.greetingKey(), ""))
	}
	r, err := l.client.txn(ctx, what, txnRequest{conditions: []condition{l.inRun()}, success: ops})
	switch {
	case errors.Is(err, errLeaseGone):
		l.sign = 0
		return fmt.Errorf("%s took longer than a lease: %w", what, err)
	case err != nil:
		return err
	case !r.succeeded:
		return l.begunAnew()
	}
	l.session, l.greeting = session, false
	if old != 0 {
		_ = l.client.revoke(ctx, old)
	}
	return nil
}

// renewRun renews the run's lease now and then.
func (l *Log) renewRun(ctx context.Context) error {
	if time.Since(l.runBeat) < l.config.TTL/3 {
		return nil
	}
	err := l.client.keepAlive(ctx, l.runLease)
	if errors.Is(err, errLeaseGone) {
		return l.begunAnew()
	}
	if err == nil {
		l.runBeat = time.Now()
	}
	return err
}

// ReadHeartbeats implements sharedlog.Log. It tells from the watch and asks nobody.
func (l *Log) ReadHeartbeats(_ context.Context, sessions []rendezvous.SessionID) ([]sharedlog.Liveness, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	now := time.Now()
	// After a pause of this process the others may have been stopped, too, and be
	// about to show themselves again.
	if now.Sub(l.lastLook) > l.signTTL/2 {
		clear(l.absences)
	}
	l.lastLook = now
	l.looks++
	list := make([]sharedlog.Liveness, len(sessions))
	for i, session := range sessions {
		// The lease lives: etcd has heard of the node, whatever we know of when.
		list[i] = sharedlog.Liveness{State: sharedlog.LivenessHeartbeats, Heartbeats: l.looks}
		if l.view.signs[string(session)] {
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

// absence is how long a sign has to be seen missing before it counts.
func (l *Log) absence() time.Duration { return min(500*time.Millisecond, l.signTTL/4) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Close implements sharedlog.Log.
func (l *Log) Close(ctx context.Context) error {
	l.stop()
	l.opening.Lock()
	defer l.opening.Unlock()
	l.pumped.Wait()
	defer l.client.close()
	if l.sign == 0 {
		return nil
	}
	err := l.client.revoke(ctx, l.sign)
	l.sign = 0
	if err != nil || l.began == 0 {
		return err
	}
	signs := l.root + keySigns
	found, err := l.client.txn(ctx, "leaving the run", txnRequest{success: []op{
		rangeOp(rangeRequest{key: signs, end: prefixEnd(signs), countOnly: true}),
	}})
	if err != nil || found.result(0).count > 0 {
		return err
	}
	if _, over, err := l.orphans(ctx, l.session); err != nil || !over {
		return err // nodes may be cut off, and come back
	}
	r, err := l.client.txn(ctx, "removing the run's log", txnRequest{
		conditions: []condition{l.inRun(), absent(signs, prefixEnd(signs))},
		success:    []op{deleteOp(l.root, prefixEnd(l.root))},
	})
	if err != nil || !r.succeeded {
		return err
	}
	return l.client.revoke(ctx, l.runLease)
}
