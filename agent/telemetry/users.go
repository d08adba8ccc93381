package telemetry

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/internal/logsampler"
)

// userListener takes connections of some users only, if its address is a loopback one.
type userListener struct {
	net.Listener
	check    *peer.Check
	refusals *logsampler.Sampler
	log      *slog.Logger
}

func newUserListener(l net.Listener, users params.LoopbackUsers, log *slog.Logger) *userListener {
	u := &userListener{Listener: l, log: log}
	if addr, ok := l.Addr().(*net.TCPAddr); ok && addr.IP.IsLoopback() {
		u.check = peer.NewLoopbackCheck(users)
	}
	u.refusals = logsampler.New(func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }, func(s logsampler.Summary) {
		log.Warn("the health port refused more connections", "count", s.Count, "last", s.Last)
	})
	return u
}

// Accept implements net.Listener.
func (u *userListener) Accept() (net.Conn, error) {
	return u.check.Accept(u.Listener, func(from netip.AddrPort, why error) {
		if errors.Is(why, peer.ErrEnded) {
			u.log.Debug("a connection to the health port ended before it was accepted", "address", from.String())
			return
		}
		if u.refusals.Note("other_user", from.Addr().String()) {
			u.log.Warn("the health port refused a connection: "+why.Error(), "address", from.String())
		}
	})
}
