package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Limits of HTTP on the control plane's port. It serves a person, a script and a
// few scrapers, beside what the port is for.
const (
	// httpTimeout bounds reading the request, and writing the answer.
	httpTimeout = 10 * time.Second
	// maxHTTPHeader bounds the request's header, in bytes.
	maxHTTPHeader = 16 << 10
	// maxHTTPConns bounds the connections; one more gets a 503.
	maxHTTPConns = 64
	// maxReports bounds the answers that are made at one time: one of a large run
	// takes megabytes, and holds the run's lock while it is collected.
	maxReports = 2
)

var errCrowded = errors.New("too many HTTP connections at one time")

// httpPort serves the connections of the port that speak HTTP. Its goroutine
// starts with the first of them.
type httpPort struct {
	server   *http.Server
	addr     net.Addr
	conns    chan net.Conn
	places   chan struct{} // taken by each connection
	done     chan struct{}
	once     sync.Once // of starting
	shutOnce sync.Once
	wg       sync.WaitGroup
}

func newHTTPPort(s *Server) *httpPort {
	h := &httpPort{
		addr: s.Addr(), conns: make(chan net.Conn), places: make(chan struct{}, maxHTTPConns), done: make(chan struct{}),
	}
	h.server = &http.Server{
		Handler: newPages(s), ReadHeaderTimeout: httpTimeout, ReadTimeout: httpTimeout, WriteTimeout: httpTimeout,
		MaxHeaderBytes: maxHTTPHeader, ErrorLog: log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			c, ok := conn.(*peekedConn)
			return context.WithValue(ctx, provenKey{}, ok && c.proven)
		},
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed || state == http.StateHijacked {
				h.wg.Done()
			}
		},
	}
	h.server.SetKeepAlivesEnabled(false)
	return h
}

// pages are what the port answers to HTTP.
type pages struct {
	server  *Server
	reports chan struct{} // taken while an answer is made
}

func newPages(s *Server) http.Handler {
	p := &pages{server: s, reports: make(chan struct{}, maxReports)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "text/plain; charset=utf-8", []byte("ok\n"))
	})
	mux.HandleFunc("GET /status", p.status)
	mux.HandleFunc("GET /metrics", p.metrics)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, "text/plain; charset=utf-8",
			[]byte("not found; this is the control plane of Rallypoint, which has /healthz, /metrics, /status and /status?rdzv_id=ID\n"))
	})
	return p.guarded(p.bounded(mux))
}

// provenKey is the key of whether a request's connection has proven that it knows
// the token.
type provenKey struct{}

// guarded answers who may ask: everybody where there is no token, or with
// Config.HTTPOpen; else peers on this machine and those that have proven
// themselves. Whether the server lives is no secret.
func (p *pages) guarded(next http.Handler) http.Handler {
	cfg := &p.server.cfg
	if cfg.Token == nil || cfg.HTTPOpen {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proven, _ := r.Context().Value(provenKey{}).(bool)
		if from, err := netip.ParseAddrPort(r.RemoteAddr); !proven && (err != nil || !from.Addr().Unmap().IsLoopback()) && r.URL.Path != "/healthz" {
			p.server.meters.refused[refusedAuth].Add(1)
			answer(w, http.StatusForbidden, "text/plain; charset=utf-8", []byte(errAuth.Text+"\n"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bounded lets a few requests be answered at one time. The others wait, until
// their client gives up.
func (p *pages) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case p.reports <- struct{}{}:
			defer func() { <-p.reports }()
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}

func (p *pages) status(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if !query.Has("rdzv_id") {
		answerJSON(w, http.StatusOK, p.server.Status())
		return
	}
	id := query.Get("rdzv_id")
	st, ok := p.server.RunStatus(id)
	if !ok {
		ids := p.server.runIDs()
		answerJSON(w, http.StatusNotFound, NoRun{
			Error: p.server.unknownRun(id).Text, Runs: ids[:min(len(ids), MaxStatusRuns)], RunsTotal: len(ids),
		})
		return
	}
	answerJSON(w, http.StatusOK, st)
}

// NoRun is the answer to GET /status for a run that is not there, with code 404.
type NoRun struct {
	Error     string   `json:"error"`
	Runs      []string `json:"runs"` // those that are, by id, the first 256
	RunsTotal int      `json:"runs_total"`
}

func (p *pages) metrics(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, expositionType, p.server.exposition())
}

func answerJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // these types cannot fail
		answer(w, http.StatusInternalServerError, "text/plain; charset=utf-8", []byte(err.Error()+"\n"))
		return
	}
	answer(w, code, "application/json", append(body, '\n'))
}

func answer(w http.ResponseWriter, code int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// serve hands a connection over and returns when it is closed; in holds what was
// read of it already, proven tells that its peer knows the token. errCrowded tells
// that it was sent away.
func (h *httpPort) serve(conn net.Conn, in *bufio.Reader, proven bool) error {
	defer conn.Close()
	select {
	case <-h.done:
		return nil
	default:
	}
	select {
	case h.places <- struct{}{}:
		defer func() { <-h.places }()
	default:
		conn.SetDeadline(time.Now().Add(flushTimeout))
		_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n")
		return errCrowded
	}
	h.once.Do(func() { h.wg.Go(func() { _ = h.server.Serve(h) }) })
	h.wg.Add(1)
	c := &peekedConn{Conn: conn, in: in, proven: proven, closed: make(chan struct{})}
	select {
	case h.conns <- c:
		<-c.closed
	case <-h.done:
		h.wg.Done()
	}
	return nil
}

// open returns how many connections speak HTTP now.
func (h *httpPort) open() int { return len(h.places) }

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
	proven bool // its peer knows the token
	once   sync.Once
	closed chan struct{}
}

func (c *peekedConn) Read(b []byte) (int, error) { return c.in.Read(b) }

func (c *peekedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
