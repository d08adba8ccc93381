package backend

import (
	"context"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
)

// inspect reads what runs have written at a file:// or etcd:// endpoint, in the order
// of their ids: only that of the id runID (an etcd's URL may name it, too), which must exist, all
// if it is "". It writes nothing and is no node. It tries an etcd until the timeout. l is the log
// that they are in.
func inspect(ctx context.Context, endpoint, runID string, timeout time.Duration) (l runLog, records []sharedlog.Record, err error) {
	if l, err = logOf(endpoint, runID, timeout); err != nil {
		return nil, nil, err
	}
	records, err = l.inspect(ctx)
	if err == nil && len(records) == 0 && runID != "" {
		err = noSuchRun(ctx, endpoint, runID, l.shown(), timeout)
	}
	return l, records, err
}

// watchPatience is how long an etcd is tried for before a look fails.
const watchPatience = 10 * time.Second

// Watch makes a watcher of a run at a file:// or etcd:// endpoint, and says how often
// to ask it. It touches neither directory nor network.
func Watch(endpoint, runID string) (w sharedlog.Watcher, pause time.Duration, err error) {
	l, err := logOf(endpoint, runID, watchPatience)
	if err != nil {
		return nil, 0, err
	}
	return l.watch()
}

// appendTo puts an event that comes from no node, such as an eviction, into the log of a run, if
// that is as inspect has returned it; else the error is sharedlog.ErrMoved. When it returns the
// log has the event for good, and each node soon applies it.
func appendTo(ctx context.Context, l runLog, run sharedlog.Record, ev rendezvous.Event) error {
	entry, err := rendezvous.EncodeEvent(ev)
	if err == nil {
		_, err = rendezvous.DecodeEvent(entry) // what no node could read would end the run
	}
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: the request cannot be written: %v", run.RunID, err)
	}
	return l.append(ctx, run, entry)
}
