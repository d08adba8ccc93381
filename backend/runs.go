package backend

import (
	"context"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/etcdstore"
	"rallypoint/filestore"
)

// Runs reads what runs have written at a file:// or etcd:// endpoint, in the order
// of their ids: only that of the id runID (an etcd's URL may name it, too), all if
// it is "". A run that is not there is left out. Runs writes nothing and is no node.
// An etcd is tried for until the timeout. shown is the endpoint for people.
func Runs(ctx context.Context, endpoint, runID string, timeout time.Duration) (shown string, records []sharedlog.Record, err error) {
	if Scheme(endpoint) == SchemeFile {
		dir, err := directory(endpoint)
		if err != nil {
			return endpoint, nil, err
		}
		records, err = filestore.Runs(dir, runID)
		return endpoint, records, err
	}
	config, runID, shown, err := reachEtcd(endpoint, runID, timeout)
	if err != nil {
		return endpoint, nil, err
	}
	records, err = etcdstore.Runs(ctx, config, runID)
	return shown, records, err
}

// reachEtcd takes apart an endpoint that carries its options itself.
func reachEtcd(endpoint, runID string, timeout time.Duration) (config etcdstore.Config, run, shown string, err error) {
	p := rendezvous.DefaultParams()
	p.Endpoint, p.RunID = endpoint, runID
	e, err := etcdstore.ParseEndpoint(endpoint)
	if err == nil {
		err = e.Apply(&p)
	}
	if err == nil {
		config, err = e.Config(p.BackendOptions)
	}
	config.Timeout = timeout
	return config, p.RunID, e.String(), err
}
