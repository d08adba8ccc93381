package backend

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"rallypoint/core/election/register"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/etcdstore/etcdregister"
	"rallypoint/internal/etcdclient"
	"rallypoint/roundstore"
)

// leastTTL is for how many leases of a leader its record is kept at least: one without which another node takes
// over, what the record's own lease may be renewed late, and the time that a successor needs.
const leastTTL = 3

// etcdPlace is an etcd that has the records of runs' leaders.
type etcdPlace struct{ *etcdclient.Endpoint }

func parseEtcd(endpoint string) (place, error) {
	e, err := etcdclient.ParseEndpoint(endpoint)
	return etcdPlace{e}, err
}

func (e etcdPlace) complete(p *params.Params) error {
	if err := e.Apply(p); err != nil {
		return err
	}
	p.Endpoint, p.LoopbackRegister = e.String(), e.Hosts.Loopback()
	return nil
}

func (e etcdPlace) open(p params.Params, log *slog.Logger) (Node, error) {
	config, err := e.Config(p.BackendOptions)
	if err != nil {
		return nil, err
	}
	config.Timeout, config.Logger = p.ReadTimeout, log
	if config.TTL > 0 {
		config.TTL = max(config.TTL, leastTTL*p.LeaseTimeout)
	}
	if p.TokenFile != "" && !config.TLS && !p.LoopbackRegister {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"%s is plain: the token file %s would not protect what nodes tell each other there; use etcds://, or leave the token out (token_file, --token-file, %s)",
			p.Endpoint, p.TokenFile, params.EnvTokenFile)
	}
	r, err := etcdregister.New(config, p.RunID)
	if err != nil {
		return nil, err
	}
	own := func() string {
		local, _ := r.Addresses()
		if addr, err := netip.ParseAddr(local); err != nil || addr.IsLoopback() { // an etcd, or a proxy to one, on this machine
			return ownAddress(p.Max)
		}
		return local
	}
	m, err := roundstore.OpenRegister(p, r, own, r.Close, log)
	if err != nil {
		r.Close()
	}
	return node(m, err)
}

func (e etcdPlace) shown() string { return e.String() }

func (e etcdPlace) only() string { return e.RunID }

// config returns how the etcd is reached, whose calls are repeated until the timeout.
func (e etcdPlace) config(timeout time.Duration) (etcdclient.Config, error) {
	p := params.Default()
	if err := e.complete(&p); err != nil {
		return etcdclient.Config{}, err
	}
	config, err := e.Config(p.BackendOptions)
	config.Timeout = timeout
	return config, err
}

func (e etcdPlace) runs(ctx context.Context, timeout time.Duration) ([]string, error) {
	config, err := e.config(timeout)
	if err != nil {
		return nil, err
	}
	return etcdregister.Runs(ctx, config)
}

func (e etcdPlace) register(runID string, timeout time.Duration) (register.Register, func(), error) {
	config, err := e.config(timeout)
	if err != nil {
		return nil, nil, err
	}
	r, err := etcdregister.New(config, runID)
	if err != nil {
		return nil, nil, err
	}
	return r, r.Close, nil
}
