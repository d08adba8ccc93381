package discovery

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
)

// redialLiveness is the pause before a standby that could not be reached is dialled again.
const redialLiveness = time.Second

// keepLiveness keeps a connection to each standby that succeeds before this one, until the
// finder is closed. Without one, a refused dial would prove nothing of that standby: a firewall
// may answer for a port that was never reachable.
func (f *Finder) keepLiveness() {
	running := map[wire.StandbyNode]context.CancelFunc{}
	for f.life.Err() == nil {
		changed := f.group.Changed()
		wanted := map[wire.StandbyNode]bool{}
		for _, s := range f.group.Wanted() {
			s.Label, s.Votes = "", false
			wanted[s] = true
			if running[s] == nil {
				ctx, cancel := context.WithCancel(f.life)
				running[s] = cancel
				f.helpers.Go(func() { f.watchStandby(ctx, s) })
			}
		}
		for s, cancel := range running {
			if !wanted[s] {
				cancel()
				delete(running, s)
			}
		}
		select {
		case <-changed:
		case <-f.life.Done():
		}
	}
	for _, cancel := range running {
		cancel()
	}
}

// watchStandby keeps the connection to one standby, and proves that its process is dead
// when it has ended the connection. It dials on after that: a firewall may have rejected in its name.
func (f *Finder) watchStandby(ctx context.Context, s wire.StandbyNode) {
	link := f.group.Dial(s.Node)
	defer f.group.Drop(link)
	addr, err := netip.ParseAddrPort(s.Addr)
	if err != nil {
		return
	}
	for ctx.Err() == nil {
		opened, err := f.serveLiveness(ctx, addr, link)
		pause, soon := f.group.Attempted(link, opened, err)
		if !soon {
			pause = f.redial()
		}
		f.network.sleep(ctx, pause)
	}
}

// redial is the pause before a standby that could not be reached is dialled again. With voters it
// is short, so that nobody waits for TCP to resend packets that were lost in a partition.
func (f *Finder) redial() time.Duration {
	if f.HasVoters() {
		return f.group.Beat()
	}
	return redialLiveness
}

// serveLiveness serves one connection to a standby until it ends, or is silent. It reports whether anything came on it.
func (f *Finder) serveLiveness(ctx context.Context, addr netip.AddrPort, link *standby.Link) (opened bool, err error) {
	patience := dialTimeout
	if f.HasVoters() {
		patience = min(patience, f.askPatience())
	}
	dctx, cancel := context.WithTimeout(ctx, patience)
	raw, err := f.network.dial(dctx, addr)
	cancel()
	if err != nil {
		return false, err
	}
	own := f.group.Liveness()
	own.Ask = true
	conn, err := f.greet(ctx, raw, own)
	if err != nil {
		return false, err
	}
	return f.group.Serve(link, conn, func(said wire.Liveness) error {
		if f.group.Stranger(link, said) {
			return errStranger
		}
		return nil
	}, func(said wire.Liveness, superseded bool) {
		if superseded {
			f.stepDown(said.Target, "node "+said.Node+" hosts in a later term")
		}
	})
}

// errStranger is why the process at a standby's address is none.
var errStranger = errors.New("a process of another group answers")

// stepDown makes the server of this process wait, if it hosts.
func (f *Finder) stepDown(to wire.Redirect, why string) {
	if host := f.host(); host != nil {
		host.StepDown(to, why)
	}
}
