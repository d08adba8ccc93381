package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/backoff"
	"rallypoint/internal/printable"
)

// nextAfter is how long a server of a list may take to answer before the next one is asked, too.
const nextAfter = 300 * time.Millisecond

// firstOf asks the servers of a list, "host:port,host:port", the next one when those before have failed
// or said nothing for a while. The answer is the first one that comes without an error, or with one
// that is final; without any, the error is the first. Asking ends with the answer.
func firstOf[T any](ctx context.Context, servers string, final func(error) bool, ask func(ctx context.Context, addr string) (T, error)) (T, error) {
	answer, failed := backoff.First(ctx, strings.Split(servers, ","), nextAfter, ask, final, func(T) {})
	if failed != nil {
		return answer, failed[0]
	}
	return answer, nil
}

// askAgain is how long a host that was named may take to answer before the server that named it is
// asked again.
const askAgain = 500 * time.Millisecond

// AskHost asks the server that hosts. It asks those of a list as firstOf does, and when ask returns a
// *wire.Redirected, the server that it names. Until that one has answered, the server that named it
// is asked again from time to time, since another one may be elected meanwhile.
func AskHost[T any](ctx context.Context, servers string, final func(error) bool, ask func(ctx context.Context, addr string) (T, error)) (T, error) {
	h := &hostSearch[T]{ask: ask, final: func(err error) bool { return final(err) || errors.As(err, new(*misdirected)) }}
	return firstOf(ctx, servers, h.final, func(ctx context.Context, addr string) (T, error) { return h.from(ctx, []string{addr}) })
}

// hostSearch is one AskHost.
type hostSearch[T any] struct {
	ask    func(ctx context.Context, addr string) (T, error)
	final  func(error) bool
	asking sync.Map // by address: no server is asked twice at one time
}

// misdirected is the error of a redirect that cannot be followed.
type misdirected struct{ at, why string }

func (m *misdirected) Error() string {
	return fmt.Sprintf("%v at %s: %s", rendezvous.ErrConnection, m.at, m.why)
}

func (m *misdirected) Unwrap() error { return rendezvous.ErrConnection }

// from asks the last server of a path, in which each server has named the next one.
func (h *hostSearch[T]) from(ctx context.Context, path []string) (answer T, err error) {
	type result struct {
		of    T
		err   error
		named bool // by this server
	}
	addr := path[len(path)-1]
	if _, asked := h.asking.LoadOrStore(addr, true); asked {
		return answer, fmt.Errorf("%w at %s: it is asked already", rendezvous.ErrConnection, addr)
	}
	defer h.asking.Delete(addr)
	ctx, cancel := context.WithCancel(ctx)
	results, pending := make(chan result), 0
	defer func() {
		cancel()
		for ; pending > 0; pending-- {
			<-results
		}
	}()
	start := func(named bool, ask func() (T, error)) {
		pending++
		go func() {
			of, err := ask()
			results <- result{of, err, named}
		}()
	}
	askIt := func() { start(false, func() (T, error) { return h.ask(ctx, addr) }) }
	askIt()
	again := time.NewTicker(askAgain)
	defer again.Stop()
	var moved *wire.Redirected // the last redirect
	done := ctx.Done()
	for asked := true; pending > 0 || done != nil; {
		select {
		case r := <-results:
			pending--
			asked = asked && r.named
			switch {
			case !r.named && errors.As(r.err, &moved):
				to := moved.To.Host
				if _, already := h.asking.Load(to); to == "" || already && !slices.Contains(path, to) {
					continue
				}
				if wrong := leadsNowhere(path, moved); wrong != "" {
					return answer, &misdirected{addr, wrong}
				}
				start(true, func() (T, error) { return h.from(ctx, append(slices.Clone(path), to)) })
			case r.err == nil, h.final(r.err), moved == nil:
				return r.of, r.err
			case r.named:
				err = cmp.Or(err, r.err)
			}
		case <-again.C:
			if !asked && done != nil {
				asked = true
				askIt()
			}
		case <-done:
			done = nil
		}
	}
	if err == nil {
		err = fmt.Errorf("%w at %s: %w", rendezvous.ErrConnection, addr, moved)
	}
	return answer, err
}

// leadsNowhere says why a redirect of the last server of a path cannot be followed; "" if it can.
func leadsNowhere(path []string, moved *wire.Redirected) string {
	to, from := moved.To, path[len(path)-1]
	addr := to.Addr()
	switch {
	case slices.Contains(path, to.Host):
		return printable.Text(moved.Error()) + ", which points back"
	case len(path) > wire.MaxRedirects:
		return fmt.Sprintf("%d servers have sent it on, the last one to %s", len(path), printable.Text(to.Host))
	case !addr.IsValid() && from != "": // a register may have a name
		return fmt.Sprintf("%s, which is no address", printable.Text(moved.Error()))
	}
	host, _, _ := net.SplitHostPort(from)
	if near, err := netip.ParseAddr(host); err == nil && addr.Addr().IsLoopback() && !near.Unmap().IsLoopback() {
		return fmt.Sprintf("%s, a loopback address of its own machine: ask there", printable.Text(moved.Error()))
	}
	return ""
}
