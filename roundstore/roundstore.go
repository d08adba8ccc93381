package roundstore

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/acceptloop"
	"rallypoint/tcpstore"
	"rallypoint/tcpstore/forward"
)

// lookupTimeout bounds how long a host name is looked up; a resolver that does
// not answer is no reason to hold up a join, since the wildcard serves as well.
const lookupTimeout = 2 * time.Second

// RoundStores is a member.RoundStores of tcpstore servers, which fold the
// restart count in the keys of torch 2.2-2.5 workers.
type RoundStores struct {
	params    params.Params // of the node
	log       *slog.Logger
	protected *Protection // nil: the stores are plain

	mu    sync.Mutex
	fixed *socket      // in use on a fixed port; nil: none is
	port  *controlPort // store_port, if the control plane in this process listens there; nil: it does not
	open  map[*socket]struct{}
	past  tcpstore.Stats // of sockets that were closed
}

var _ member.RoundStores = (*RoundStores)(nil)

// newRoundStores makes the round stores of the node that p describes, which log to log. On
// a loopback address they serve the users of p.LoopbackUsers only. The error is ErrInvalid if the token
// file cannot be used.
func newRoundStores(p params.Params, log *slog.Logger) (*RoundStores, error) {
	protected, err := newProtection(&p, log)
	return &RoundStores{
		params:    p,
		log:       log,
		protected: protected,
		open:      map[*socket]struct{}{},
		past:      tcpstore.Stats{Ops: map[string]uint64{}, Refused: map[string]uint64{}},
	}, err
}

// socket is a listening server with the round stores that share it: that of the
// running round and the one that is offered for the next.
type socket struct {
	server *tcpstore.Server
	gate   gate
	sides  *Sides       // nil: the store is plain
	beside *controlPort // nil: it listens itself
	host   string
	port   int
	users  int    // guarded by RoundStores.mu
	local  func() // ends the listener for this machine's workers, nil if there is none; guarded by RoundStores.mu
}

type roundStore struct {
	stores *RoundStores
	socket *socket
	next   *store.Engine // what new connections get from Begin on; nil: they get it already

	begun, closed bool // guarded by RoundStores.mu
}

// shareControlPort makes the stores' fixed port the one of the control plane in this process, if
// this node is the one to host it, or may, and its listeners have that port. It returns what takes the
// connections of the stores' clients; nil: the stores listen themselves.
func (r *RoundStores) shareControlPort(listeners []net.Listener) (take func(net.Conn, []byte, <-chan struct{})) {
	addr, ok := listeners[0].Addr().(*net.TCPAddr)
	if hosts := r.params.IsHost; !ok || !r.params.StoreWithHost && (hosts == nil || !*hosts) || addr.Port != r.params.StorePort {
		return nil
	}
	for _, l := range listeners {
		_ = share(r.protected, l) // else this machine's workers get another port, which is logged
	}
	p := &controlPort{addr: addr, plain: r.protected == nil, conns: make(chan net.Conn)}
	for _, l := range listeners {
		p.on = append(p.on, l.Addr().(*net.TCPAddr).AddrPort().Addr().Unmap())
	}
	r.mu.Lock()
	r.port = p
	r.mu.Unlock()
	return p.take
}

// leaveControlPort ends what shareControlPort began, for the stores that are opened from now on.
func (r *RoundStores) leaveControlPort() {
	r.mu.Lock()
	r.port = nil
	r.mu.Unlock()
}

// Open implements member.RoundStores. A fixed port that is open already on
// the same host is shared: until one of its stores begins or is closed, new
// connections wait.
func (r *RoundStores) Open(ctx context.Context, host string, port int) (member.RoundStore, error) {
	r.mu.Lock()
	beside := r.port
	r.mu.Unlock()
	if beside != nil && (port != beside.addr.Port || !beside.serves(ctx, host)) {
		beside = nil
	}
	if beside == nil && r.params.StoreWithHost {
		port = 0
	}
	r.mu.Lock()
	if f := r.fixed; f != nil && port == f.port && beside == f.beside && (beside != nil || host == f.host) {
		defer r.mu.Unlock()
		f.users++
		f.gate.shut()
		return &roundStore{stores: r, socket: f, next: newEngine()}, nil
	}
	r.mu.Unlock()

	opts := tcpstore.Options{Logger: r.log, NormalizeAttemptKeys: true}
	var l net.Listener
	if beside != nil {
		l = acceptloop.NewHanded(beside.conns, beside.addr) // whose users the control plane has checked
	} else {
		var err error
		if l, err = listen(ctx, host, port); err != nil {
			return nil, err
		}
		if err = share(r.protected, l); err != nil {
			l.Close()
			return nil, err
		}
		opts.Accept = peer.NewCheck(&r.params, l.Addr()).Accept
	}
	k := &socket{sides: r.protected.sides(), beside: beside, host: host, port: port, users: 1}
	opts.Pass = k.gate.await
	k.sides.protect(&opts)
	k.server = tcpstore.Serve(l, newEngine(), opts)
	r.mu.Lock()
	r.open[k] = struct{}{}
	if port != 0 {
		r.fixed = k
	}
	r.mu.Unlock()
	return &roundStore{stores: r, socket: k}, nil
}

// Port implements member.RoundStore.
func (r *roundStore) Port() int { return r.socket.server.Addr().(*net.TCPAddr).Port }

// share lets the listener for this machine's workers have the port of l, which may be on all
// addresses. It is done when l listens already, so that no other store shares a fixed port. A
// plain store's listener stays as it is.
func share(t *Protection, l net.Listener) error {
	if t == nil {
		return nil
	}
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return err
	}
	return forward.Share(raw)
}

// Begin implements member.RoundStore.
func (r *roundStore) Begin(o rendezvous.Outcome) (rendezvous.Outcome, error) {
	r.stores.mu.Lock()
	defer r.stores.mu.Unlock()
	if r.begun || r.closed {
		return o, nil
	}
	r.begun = true
	k := r.socket
	if r.stores.protected == nil {
		if r.next != nil {
			k.server.SwapEngine(r.next)
			k.gate.open()
		}
		return o, nil
	}
	if k.local != nil { // for the workers of the round before
		k.local()
		k.local = nil
	}
	name := nameOf(r.stores.params.RunID, o)
	k.server.BeginRound(r.next, name)
	if r.next != nil {
		k.gate.open()
	}
	at, stop, err := r.stores.protected.serve(k.server, k.sides, name)
	if err != nil {
		return o, err
	}
	k.local = stop
	return located(o, at), nil
}

// Reach implements member.RoundStores.
func (r *RoundStores) Reach(ctx context.Context, o rendezvous.Outcome) (rendezvous.Outcome, io.Closer, error) {
	if r.protected == nil {
		return o, nil, nil
	}
	at, way, err := r.protected.Reach(ctx, o.StoreAddr, o.StorePort, nameOf(r.params.RunID, o))
	if err != nil {
		return o, nil, err
	}
	return located(o, at), way, nil
}

// Close implements member.RoundStore.
func (r *roundStore) Close() error {
	s, k := r.stores, r.socket
	s.mu.Lock()
	if r.closed {
		s.mu.Unlock()
		return nil
	}
	r.closed = true
	k.users--
	last := k.users == 0
	if last && s.fixed == k {
		s.fixed = nil
	}
	if !last && !r.begun {
		k.gate.open() // the round continues whose replacement was expected
	}
	s.mu.Unlock()
	if !last {
		return nil
	}
	err := k.server.Close()
	k.sides.Close()
	s.mu.Lock()
	s.forgetLocked(k)
	s.mu.Unlock()
	return err
}

// newEngine makes an empty store. It has no limits: its workers are the user's
// own program, as with torch's server.
func newEngine() *store.Engine { return store.NewEngine(store.Limits{}) }

// listen listens on host if that is local to this machine, else on the wildcard.
func listen(ctx context.Context, host string, port int) (net.Listener, error) {
	if addr, ok := resolve(ctx, host); ok {
		l, err := listenOn(ctx, addr.String(), port)
		if err == nil || errors.Is(err, syscall.EADDRINUSE) {
			return l, explain(err, port)
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	l, err := listenOn(ctx, "", port)
	return l, explain(err, port)
}

func listenOn(ctx context.Context, host string, port int) (net.Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: tcpstore.KeepAlive}
	config.SetMultipathTCP(false) // clients are plain TCP
	return config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
}

// explain makes an error of ours; nil stays nil.
func explain(err error, port int) error {
	switch {
	case err == nil:
		return nil
	case port != 0 && errors.Is(err, syscall.EADDRINUSE):
		return rendezvous.Errorf(rendezvous.CodeConnection,
			"cannot open the store for the round's workers (store_port=%d): %v; free the port, choose another store_port or leave it out (of a static job: another --master-port)", port, err)
	}
	return rendezvous.Errorf(rendezvous.CodeConnection, "cannot open the store for the round's workers: %v", err)
}

// resolve returns the only address of host. It returns none for a name with several addresses,
// since workers may use any of them, and for a name that is loopback here, since that is another
// machine elsewhere.
func resolve(ctx context.Context, host string) (addr netip.Addr, ok bool) {
	if host == "" {
		return addr, false
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr, true
	}
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(addrs) != 1 || addrs[0].Unmap().IsLoopback() {
		return addr, false
	}
	return addrs[0].Unmap(), true
}
