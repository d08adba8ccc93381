package backend

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/etcdstore/etcdlog"
	"rallypoint/internal/etcdclient"
)

// etcdPlace is an etcd that has the logs of runs.
type etcdPlace struct {
	*etcdclient.Endpoint
	written string
}

func parseEtcd(endpoint string) (place, error) {
	e, err := etcdclient.ParseEndpoint(endpoint)
	return etcdPlace{e, endpoint}, err
}

func (e etcdPlace) endpoint() string { return e.written }

func (e etcdPlace) complete(p *params.Params) error {
	if err := e.Apply(p); err != nil {
		return err
	}
	p.Endpoint = e.String()
	return nil
}

func (e etcdPlace) open(p params.Params, log *slog.Logger) (Node, error) {
	if err := e.complete(&p); err != nil {
		return nil, err
	}
	config, err := e.Config(p.BackendOptions)
	if err != nil {
		return nil, err
	}
	config.Timeout, config.Logger = p.ReadTimeout, log
	if p.TokenFile != "" && !config.TLS && slices.ContainsFunc(e.Hosts, func(host string) bool { return !params.LoopbackEndpoint(host) }) {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"%s is plain: the token file %s would not protect what nodes tell each other there; use etcds://, or leave the token out (token_file, --token-file, %s)",
			p.Endpoint, p.TokenFile, params.EnvTokenFile)
	}
	shared, err := etcdlog.New(config, p.RunID, p.LeaseTimeout, ownAddress(p.Max))
	if err != nil {
		return nil, err
	}
	m, err := openSeen(p, log, func() sharedlog.Log { return shared })
	if err != nil {
		_ = shared.Close(context.Background())
	}
	return node(m, err)
}

func (e etcdPlace) log(runID string, timeout time.Duration) (runLog, error) {
	p := params.Default()
	p.RunID = runID
	if err := e.complete(&p); err != nil {
		return nil, err
	}
	config, err := e.Config(p.BackendOptions)
	config.Timeout = timeout
	return etcdLog{e.String(), config, p.RunID}, err
}

// etcdLog is the log of a run in an etcd, or of all runs.
type etcdLog struct {
	hosts  string
	config etcdclient.Config
	runID  string
}

func (l etcdLog) inspect(ctx context.Context) ([]sharedlog.Record, error) {
	return etcdlog.Inspect(ctx, l.config, l.runID)
}

// watchEtcdEvery is longer than a directory's, because each look reads all of the run's log.
const watchEtcdEvery = 200 * time.Millisecond

func (l etcdLog) watch() (sharedlog.Watcher, time.Duration, error) {
	w, err := etcdlog.Watch(l.config, l.runID)
	return w, watchEtcdEvery, err
}

func (l etcdLog) append(ctx context.Context, run sharedlog.Record, entry []byte) error {
	return etcdlog.Append(ctx, l.config, run.RunID, run.Generation, run.Last(), entry)
}

func (l etcdLog) shown() string { return l.hosts }
