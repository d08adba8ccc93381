package backend

import (
	"context"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/etcdstore/etcdlog"
	"rallypoint/filestore/filelog"
	"rallypoint/internal/etcdclient"
)

// Inspect reads what runs have written at a file:// or etcd:// endpoint, in the order
// of their ids: only that of the id runID (an etcd's URL may name it, too), all if
// it is "". A run that is not there is left out. Inspect writes nothing and is no node.
// It tries an etcd until the timeout. shown is the endpoint without secrets, to be displayed.
func Inspect(ctx context.Context, endpoint, runID string, timeout time.Duration) (shown string, records []sharedlog.Record, err error) {
	if Scheme(endpoint) == SchemeFile {
		dir, err := directory(endpoint)
		if err != nil {
			return endpoint, nil, err
		}
		records, err = filelog.Inspect(dir, runID)
		return endpoint, records, err
	}
	config, runID, shown, err := reachEtcd(endpoint, runID, timeout)
	if err != nil {
		return endpoint, nil, err
	}
	records, err = etcdlog.Inspect(ctx, config, runID)
	return shown, records, err
}

// How often a run is looked at by who follows it: a look at a directory costs next to
// nothing, a look at an etcd reads all of the run's log.
const (
	followFile = 50 * time.Millisecond
	followEtcd = 200 * time.Millisecond
)

// Watch makes a watcher of a run at a file:// or etcd:// endpoint, and says how often
// to ask it. It touches neither directory nor network.
func Watch(endpoint, runID string) (f sharedlog.Watcher, pause time.Duration, err error) {
	if Scheme(endpoint) == SchemeFile {
		dir, err := directory(endpoint)
		if err != nil {
			return nil, 0, err
		}
		return filelog.Watch(dir, runID), followFile, nil
	}
	config, runID, _, err := reachEtcd(endpoint, runID, followPatience)
	if err != nil {
		return nil, 0, err
	}
	f, err = etcdlog.Watch(config, runID)
	return f, followEtcd, err
}

// followPatience is how long an etcd is tried for before a look fails.
const followPatience = 10 * time.Second

// reachEtcd takes apart an endpoint that carries its options itself.
func reachEtcd(endpoint, runID string, timeout time.Duration) (config etcdclient.Config, run, shown string, err error) {
	p := params.Default()
	p.Endpoint, p.RunID = endpoint, runID
	e, err := etcdclient.ParseEndpoint(endpoint)
	if err == nil {
		err = e.Apply(&p)
	}
	if err == nil {
		config, err = e.Config(p.BackendOptions)
	}
	config.Timeout = timeout
	return config, p.RunID, e.String(), err
}

// Append puts an event that comes from no node, such as an eviction, into the log of a run, if
// that is as Inspect has returned it; else the error is sharedlog.ErrMoved. When it returns the
// event is there for good, and each node comes to it soon.
func Append(ctx context.Context, endpoint string, run sharedlog.Record, ev rendezvous.Event, timeout time.Duration) error {
	entry, err := rendezvous.EncodeEvent(ev)
	if err == nil {
		_, err = rendezvous.DecodeEvent(entry) // what no node could read would end the run
	}
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: the request cannot be written: %v", run.RunID, err)
	}
	if Scheme(endpoint) == SchemeFile {
		dir, err := directory(endpoint)
		if err != nil {
			return err
		}
		return filelog.Append(ctx, dir, run.RunID, run.Generation, run.Last(), entry)
	}
	config, _, _, err := reachEtcd(endpoint, run.RunID, timeout)
	if err != nil {
		return err
	}
	return etcdlog.Append(ctx, config, run.RunID, run.Generation, run.Last(), entry)
}
