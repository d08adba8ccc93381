package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"rallypoint/core/params"
	"rallypoint/internal/logsampler"
	"rallypoint/internal/promtext"
	"rallypoint/internal/rebinding"
)

// EnvHealthPort names the port of the health server: a port, which is one
// of the loopback address, or HOST:PORT.
const EnvHealthPort = "TORCHELASTIC_HEALTH_CHECK_PORT"

// Limits of the health port, which serves a supervisor and a scraper or two.
const (
	healthTimeout   = 10 * time.Second // of reading a request, and of writing the answer
	maxHealthHeader = 16 << 10
	maxHealthConns  = 16
	// pulsePatience is how long the agent may take to answer while its workers run.
	// It has nothing else to do then.
	pulsePatience = 5 * time.Second
	// stoppingPatience is how much longer than StopLimit stopping may take.
	stoppingPatience = 60 * time.Second
)

// Health serves /healthz, /readyz, /status and /metrics for as long as the agent
// runs. A nil Health does nothing.
type Health struct {
	server   *http.Server
	listener net.Listener
	refusals *logsampler.Sampler
	done     chan struct{}
}

// healthAddress reads the variable; "" is no server. A value that is no port is an
// error.
func healthAddress(value string) (string, error) {
	value = strings.TrimSpace(value)
	if value == "" {
		return "", nil
	}
	if !strings.Contains(value, ":") {
		value = "127.0.0.1:" + value
	}
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	return value, err
}

// HealthConfig is what a Health serves.
type HealthConfig struct {
	Address   string // the value of EnvHealthPort; "": none
	Status    *StatusTracker
	Pulse     chan<- struct{} // the agent receives from it while the workers run
	StopLimit time.Duration   // how long stopping the workers may take

	Users params.LoopbackUsers // who may ask at a loopback address

	Log *slog.Logger

	Metrics func(*promtext.Buffer) // adds to /metrics; nil: nothing
}

// NewHealth begins to serve an agent. It returns nil, having said why, if it
// cannot: the job goes on without.
func NewHealth(c HealthConfig) *Health {
	value, logger := c.Address, c.Log
	address, err := healthAddress(value)
	if err != nil {
		logger.Info(fmt.Sprintf("%s is %q, which is no port: there is no health server", EnvHealthPort, value))
		return nil
	}
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		logger.Warn("there is no health server: " + err.Error())
		return nil
	}
	h := &Health{listener: listener, done: make(chan struct{}), server: &http.Server{
		Handler: noted(named(healthPages(&c), address)), ReadHeaderTimeout: healthTimeout, ReadTimeout: healthTimeout, WriteTimeout: healthTimeout,
		ConnContext:    func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, narrowKey{}, c) },
		MaxHeaderBytes: maxHealthHeader, ErrorLog: log.New(io.Discard, "", 0),
	}}
	h.server.SetKeepAlivesEnabled(false)
	users := newUserListener(listener, c.Users, logger)
	h.refusals = users.refusals
	logger.Info("health, status and metrics: http://" + listener.Addr().String())
	go func() {
		defer close(h.done)
		if err := h.server.Serve(&narrowListener{Listener: users}); !errors.Is(err, http.ErrServerClosed) {
			logger.Warn("the health server has ended: " + err.Error())
		}
	}()
	return h
}

// Close ends the server at once, and waits for its answers to end.
func (h *Health) Close() {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if h.server.Shutdown(ctx) != nil {
		_ = h.server.Close()
	}
	<-h.done
	h.refusals.Close()
}

// narrowListener has a limited number of connections. For one more the oldest makes room
// that has not sent its request yet; if each has, the new one is closed.
type narrowListener struct {
	net.Listener

	mu     sync.Mutex
	open   int
	silent []*narrowConn // have sent no request yet, the oldest first
}

func (n *narrowListener) Accept() (net.Conn, error) {
	for {
		conn, err := n.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := n.admit(conn); c != nil {
			return c, nil
		}
		_ = conn.Close()
	}
}

func (n *narrowListener) admit(conn net.Conn) *narrowConn {
	c := &narrowConn{Conn: conn, listener: n}
	var oldest *narrowConn
	n.mu.Lock()
	if n.open >= maxHealthConns && len(n.silent) > 0 {
		oldest = n.silent[0]
		oldest.leaveLocked()
	}
	full := n.open >= maxHealthConns
	if !full {
		n.open++
		n.silent = append(n.silent, c)
	}
	n.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close()
	}
	if full {
		return nil
	}
	return c
}

// narrowConn is a connection of a narrowListener, whose lock guards it.
type narrowConn struct {
	net.Conn
	listener *narrowListener
	gone     bool
}

func (n *narrowConn) Close() error {
	n.listener.mu.Lock()
	n.leaveLocked()
	n.listener.mu.Unlock()
	return n.Conn.Close()
}

// leaveLocked gives the place back, as it is for spoke.
func (n *narrowConn) leaveLocked() {
	if !n.gone {
		n.gone = true
		n.listener.open--
		n.spoke()
	}
}

func (n *narrowConn) spoke() {
	n.listener.silent = slices.DeleteFunc(n.listener.silent, func(other *narrowConn) bool { return other == n })
}

// narrowKey is the key of a request's narrowConn.
type narrowKey struct{}

// noted notes of each request that it has come.
func noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(narrowKey{}).(*narrowConn); ok {
			c.listener.mu.Lock()
			c.spoke()
			c.listener.mu.Unlock()
		}
		next.ServeHTTP(w, r)
	})
}

// named refuses a browser that asks for a name which is none of the machine's, since its
// page may be a stranger's (internal/rebinding). Whether the agent lives is no secret.
func named(next http.Handler, address string) http.Handler {
	host, _, _ := net.SplitHostPort(address)
	names := rebinding.NewNames(host)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" && r.URL.Path != "/health" && names.Foreign(r) {
			rebinding.Answer(w, rebinding.Code, "text/plain; charset=utf-8", []byte(rebinding.Text+"\n"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// healthPages are what the port answers.
func healthPages(c *HealthConfig) http.Handler {
	const plain = "text/plain; charset=utf-8"
	mux := http.NewServeMux()
	healthz := func(w http.ResponseWriter, r *http.Request) {
		if err := c.healthy(r.Context()); err != nil {
			rebinding.Answer(w, http.StatusServiceUnavailable, plain, []byte(err.Error()+"\n"))
			return
		}
		rebinding.Answer(w, http.StatusOK, plain, []byte("ok\n"))
	}
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /health", healthz) // its former name
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		code := http.StatusOK
		s, _ := c.Status.read()
		if s.Phase != PhaseRunning {
			code = http.StatusServiceUnavailable
		}
		rebinding.Answer(w, code, plain, []byte(string(s.Phase)+"\n"))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		text, err := json.MarshalIndent(c.Status.full(r.Context()), "", "  ")
		if err != nil { // these types cannot fail
			rebinding.Answer(w, http.StatusInternalServerError, plain, []byte(err.Error()+"\n"))
			return
		}
		rebinding.Answer(w, http.StatusOK, "application/json", append(text, '\n'))
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		rebinding.Answer(w, http.StatusOK, promtext.ContentType, c.Status.metrics(c.Metrics))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		rebinding.Answer(w, http.StatusNotFound, plain, []byte("not found; this is a worker agent of Rallypoint, which has /healthz, /readyz, /status and /metrics\n"))
	})
	return mux
}

// healthy reports what is wrong with the agent itself. To wait for other nodes, as
// long as it takes, is healthy; so are workers that hang, which are the watchdog's
// business.
func (h *HealthConfig) healthy(ctx context.Context) error {
	s, _ := h.Status.read()
	switch s.Phase {
	case PhaseStopping:
		if limit := h.StopLimit + stoppingPatience; s.PhaseFor > limit.Seconds() {
			return fmt.Errorf("the workers have been stopping for %.0f s", s.PhaseFor)
		}
	case PhaseRunning:
		ctx, cancel := context.WithTimeout(ctx, pulsePatience)
		defer cancel()
		select {
		case h.Pulse <- struct{}{}:
		case <-ctx.Done():
			if now, _ := h.Status.read(); now.Phase == PhaseRunning {
				return fmt.Errorf("the agent has not answered for %v", pulsePatience)
			}
		}
	}
	return nil
}
