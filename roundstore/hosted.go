// Package roundstore joins a member to a hosted control plane ([Open]), which it starts
// in this process where the endpoint is this machine, and opens the TCPStores of a
// member's rounds ([RoundStores]), with a token protected by [Protection]. The stores' own
// protocol is package tcpstore's. RoundStores.mu guards which servers are open; the order
// of all its locks is in locks.txt.
package roundstore

import (
	"cmp"
	"log/slog"
	"net"
	"net/netip"
	"net/url"

	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/control/discovery"
	"rallypoint/core/control/statustext"
	"rallypoint/core/election/register"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// Open makes the member that p describes, whose control plane is at p.Servers. It uses no network and
// starts nothing before the member's first Next. The error for a wrong parameter, local address or token
// file is ErrInvalid. log receives messages for users; nil discards them.
//
// The caller ends the member by Shutdown or Close.
func Open(p params.Params, log *slog.Logger) (*member.Member, error) {
	if len(p.Servers) == 0 {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "run %q has no endpoint", p.RunID)
	}
	p.Endpoint = cmp.Or(p.Endpoint, p.Servers.String())
	return newMember(p, log, true, func(cfg discovery.Config) client.Finder { return discovery.New(cfg) })
}

// OpenRegister makes a member whose run's leader a register names. ownHost returns by which address, or
// name, the other nodes reach this process where no option says it: it is called when the register was
// read. end, if set, ends the register. See Open.
func OpenRegister(p params.Params, r register.Register, ownHost func() string, end func(), log *slog.Logger) (*member.Member, error) {
	return newMember(p, log, true, func(cfg discovery.Config) client.Finder {
		own := func() string { return cmp.Or(p.AdvertiseAddr, p.LocalAddr, ownHost()) }
		return discovery.NewRegister(discovery.RegisterConfig{Config: cfg, Register: r, OwnHost: own, Close: end})
	})
}

// OpenLocal makes the only node of a job, whose control plane no other process reaches. See Open.
func OpenLocal(p params.Params, log *slog.Logger) (*member.Member, error) {
	return newMember(p, log, false, func(cfg discovery.Config) client.Finder { return &discovery.LocalFinder{Config: cfg} })
}

// newMember makes a member whose control plane is found, or started in this process, by what find makes. hosted tells
// that a control plane listens at the endpoint. A wrong parameter, local address or token file is ErrInvalid. A nil log
// is none.
func newMember(p params.Params, log *slog.Logger, hosted bool, find func(discovery.Config) client.Finder) (*member.Member, error) {
	if err := check(p); err != nil {
		return nil, err
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	warning, err := p.CheckSecurity(params.QuotableEndpoint(p.Endpoint), hosted)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		log.Warn(warning)
	}
	stores, err := newRoundStores(p, log)
	if err != nil {
		return nil, err
	}
	start := func(cfg discovery.HostConfig, listeners ...net.Listener) discovery.Host {
		return startHost(cfg, stores, openTrace(p.Record, cfg.Node, log), listeners...)
	}
	return member.New(p, func(o member.Observer) member.ControlPlane {
		return client.NewWith(p, o, log, func(cfg discovery.Config) client.Finder {
			cfg.Start = start
			return find(cfg)
		})
	}, stores, log), nil
}

func check(p params.Params) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if p.TokenFile != "" {
		if _, err := secret.OpenToken(p.TokenFile, nil); err != nil {
			return err
		}
	}
	if addr, err := netip.ParseAddr(p.LocalAddr); err == nil && addr.IsUnspecified() {
		return rendezvous.Errorf(rendezvous.CodeInvalid,
			"the local address is %s, which is no address of one machine: give one under which the other nodes reach this one", p.LocalAddr)
	}
	return nil
}

// startHost starts the control plane of a run whose node hosts it. A trace is closed with it.
func startHost(cfg discovery.HostConfig, stores *RoundStores, file *control.TraceFile, listeners ...net.Listener) discovery.Host {
	c := control.Config{
		RunID: cfg.Params.RunID, Node: &cfg.Params, HostNode: cfg.Node, Fixed: cfg.Fixed, Token: cfg.Token, HTTPNames: cfg.HTTPNames, Log: cfg.Log, Group: cfg.Group, Elector: cfg.Elector, Ended: cfg.Ended,
		Metrics: stores.Expose, Refused: stores.refused, Text: statustext.Plainly,
	}
	h := host{file: file}
	if !cfg.Standby {
		if c.TakeStore = stores.shareControlPort(listeners); c.TakeStore != nil {
			h.leave = stores.leaveControlPort
		}
	}
	if file != nil {
		c.Trace = file.Record
	}
	h.Server = control.Start(c, listeners...)
	return h
}

// host is a control plane in this process, with what ends with it.
type host struct {
	*control.Server
	leave func()             // nil: no store shares its port
	file  *control.TraceFile // of its history; nil: none
}

// Close ends the control plane, and then its history.
func (h host) Close() error {
	if h.leave != nil {
		h.leave()
	}
	err := h.Server.Close()
	if h.file != nil {
		err = cmp.Or(err, h.file.Close())
	}
	return err
}

// openTrace opens the file for the history of a control plane in this node's process: each
// node that hosts has its own. Without one the job continues.
func openTrace(path, node string, log *slog.Logger) *control.TraceFile {
	if path == "" {
		return nil
	}
	path += "." + url.PathEscape(node)
	file, err := control.OpenTraceFile(path, log)
	if err != nil {
		log.Error("the control plane in this process is not recorded", "file", path, "error", err)
		return nil
	}
	return file
}
