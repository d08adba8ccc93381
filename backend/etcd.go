package backend

import (
	"context"
	"log/slog"
	"slices"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/etcdstore/etcdlog"
	"rallypoint/internal/etcdclient"
)

// Complete sets the parameters that the endpoint itself contains: the run id, the options and the
// user in an etcd's URL (docs/spec/rendezvous.md R103). Parameters that p has already must agree.
// p.Endpoint is then only the hosts, for display. Open does the same. A caller that needs the
// result earlier calls this after SetOptions.
func Complete(p *params.Params) error {
	if scheme := Scheme(p.Endpoint); scheme != SchemeEtcd && scheme != SchemeEtcds {
		return nil
	}
	_, err := completeEtcd(p)
	return err
}

// completeEtcd is Complete for an etcd's endpoint, which it returns.
func completeEtcd(p *params.Params) (e *etcdclient.Endpoint, err error) {
	if e, err = etcdclient.ParseEndpoint(p.Endpoint); err != nil {
		return e, err
	}
	if err = e.Apply(p); err != nil {
		return e, err
	}
	p.Endpoint = e.String()
	return e, nil
}

// openEtcd makes a member whose run's log is in an etcd.
func openEtcd(p params.Params, log *slog.Logger) (Node, error) {
	e, err := completeEtcd(&p)
	if err != nil {
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
