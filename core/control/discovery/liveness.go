package discovery

import (
	"context"
	"errors"
	"net/netip"
	"sync"
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
		opened, err := f.serveLiveness(ctx, addr, link, func() {})
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

// lookPatience bounds the last look at the other standbys before a takeover.
const lookPatience = 300 * time.Millisecond

// look asks once, of all standbys without a connection, who hosts: one of them may have taken
// over while this process was stopped. The returned function closes the connections.
func (f *Finder) look(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	all := f.group.Unlinked()
	heard := make(chan struct{}, len(all))
	for _, s := range all {
		addr, err := netip.ParseAddrPort(s.Addr)
		if err != nil {
			heard <- struct{}{}
			continue
		}
		wg.Go(func() {
			link := f.group.Dial(s.Node)
			defer f.group.Drop(link)
			told := sync.OnceFunc(func() { heard <- struct{}{} })
			defer told()
			_, _ = f.serveLiveness(ctx, addr, link, told)
		})
	}
	end = func() {
		cancel()
		wg.Wait()
	}
	patience, stop := f.network.timer(lookPatience)
	defer stop()
	for range all {
		select {
		case <-heard:
		case <-patience:
			return end
		}
	}
	return end
}

// serveLiveness serves one connection to a standby until it ends, or is silent; heard is called with each
// message of the standby. It reports whether there was any.
func (f *Finder) serveLiveness(ctx context.Context, addr netip.AddrPort, link *standby.Link, heard func()) (opened bool, err error) {
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
		heard()
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
