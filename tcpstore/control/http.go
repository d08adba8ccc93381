package control

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// httpTimeout bounds each part of a GET on the control plane's port.
const httpTimeout = 10 * time.Second

// httpPort serves the connections of the port that speak HTTP. Its goroutine
// starts with the first of them.
type httpPort struct {
	server   *http.Server
	addr     net.Addr
	conns    chan net.Conn
	done     chan struct{}
	once     sync.Once // of starting
	shutOnce sync.Once
	wg       sync.WaitGroup
}

func newHTTPPort(s *Server) *httpPort {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n")
	})
	if s.cfg.HTTP != nil {
		mux.Handle("/", s.cfg.HTTP(s))
	}
	h := &httpPort{addr: s.Addr(), conns: make(chan net.Conn), done: make(chan struct{})}
	h.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: httpTimeout, ReadTimeout: httpTimeout, WriteTimeout: httpTimeout,
		MaxHeaderBytes: 16 << 10, ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed || state == http.StateHijacked {
				h.wg.Done()
			}
		},
	}
	h.server.SetKeepAlivesEnabled(false)
	return h
}

// serve hands a connection over and returns when it is closed; in holds what was
// read of it already.
func (h *httpPort) serve(conn net.Conn, in *bufio.Reader) {
	defer conn.Close()
	select {
	case <-h.done:
		return
	default:
	}
	h.once.Do(func() { h.wg.Go(func() { _ = h.server.Serve(h) }) })
	h.wg.Add(1)
	c := &peekedConn{Conn: conn, in: in, closed: make(chan struct{})}
	select {
	case h.conns <- c:
		<-c.closed
	case <-h.done:
		h.wg.Done()
	}
}

// shut ends the listener and the connections; wait waits for the goroutines,
// once serve is not called any more.
func (h *httpPort) shut() {
	_ = h.Close()
	_ = h.server.Close()
}

func (h *httpPort) wait() { h.wg.Wait() }

// Accept, Close and Addr make the port a net.Listener for net/http.

func (h *httpPort) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *httpPort) Close() error {
	h.shutOnce.Do(func() { close(h.done) })
	return nil
}

func (h *httpPort) Addr() net.Addr { return h.addr }

// peekedConn is a connection whose first bytes were read into a buffer.
type peekedConn struct {
	net.Conn
	in     *bufio.Reader
	once   sync.Once
	closed chan struct{}
}

func (c *peekedConn) Read(b []byte) (int, error) { return c.in.Read(b) }

func (c *peekedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
