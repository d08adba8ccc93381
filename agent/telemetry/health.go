package telemetry

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/internal/acceptloop"
	"rallypoint/internal/httpport"
	"rallypoint/internal/logsampler"
	"rallypoint/internal/promtext"
)

// EnvHealthPort names the port of the health server: a port, which is one
// of the loopback address, or HOST:PORT.
const EnvHealthPort = "TORCHELASTIC_HEALTH_CHECK_PORT"

const (
	// maxHealthConns bounds the connections of the port, which serves a supervisor and a scraper
	// or two.
	maxHealthConns = 16
	// closePatience bounds the wait for the answers on their way when the agent ends.
	closePatience = time.Second
	// pulsePatience is how long the agent may take to answer while its workers run.
	// It has nothing else to do then.
	pulsePatience = 5 * time.Second
	// stoppingPatience is how much longer than StopLimit stopping may take.
	stoppingPatience = 60 * time.Second
)

// Health serves /healthz, /readyz, /status and /metrics for as long as the agent
// runs. A nil Health does nothing.
type Health struct {
	listener net.Listener
	check    *peer.Check         // of clients; nil: it takes all
	refusals *logsampler.Sampler // of lines about clients
	log      *slog.Logger
	port     *httpport.Port
	life     context.Context
	end      context.CancelFunc
	serving  sync.WaitGroup // what accepts, and each connection

	mu    sync.Mutex
	conns []*healthConn // the oldest first
}

// healthConn is a connection. Health.mu guards its state.
type healthConn struct {
	net.Conn
	spoke bool // its request has arrived
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

// HealthConfig configures a Health.
type HealthConfig struct {
	Address   string // the value of EnvHealthPort; "": none
	Status    *StatusTracker
	Pulse     chan<- struct{} // the agent receives from it while the workers run
	StopLimit time.Duration   // how long stopping the workers may take

	Users params.LoopbackUsers // who may ask at a loopback address

	Log *slog.Logger

	Metrics func(*promtext.Buffer) // adds to /metrics; nil: nothing
}

// NewHealth begins to serve an agent. It returns nil, having said why, if it cannot: the job runs
// without it.
func NewHealth(c HealthConfig) *Health {
	address, err := healthAddress(c.Address)
	if err != nil {
		c.Log.Warn(fmt.Sprintf("%s is %q, which is not a port: the health server is off", EnvHealthPort, c.Address))
		return nil
	}
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		c.Log.Warn("the health server is off: " + err.Error())
		return nil
	}
	h := &Health{listener: listener, check: loopbackCheck(listener, c.Users), log: c.Log}
	h.refusals = logsampler.New(func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }, func(s logsampler.Summary) {
		h.log.Warn("the health port refused more connections", "count", s.Count, "last", s.Last)
	})
	h.port = httpport.New(named(healthPages(&c, h.check != nil), address), maxHealthConns, c.Log)
	h.life, h.end = context.WithCancel(context.Background())
	c.Log.Info("health, status and metrics: http://" + listener.Addr().String())
	h.serving.Go(h.accept)
	return h
}

// loopbackCheck lets only some users connect to a loopback address.
func loopbackCheck(l net.Listener, users params.LoopbackUsers) *peer.Check {
	if addr, ok := l.Addr().(*net.TCPAddr); ok && addr.IP.IsLoopback() {
		return peer.NewLoopbackCheck(users)
	}
	return nil
}

// refused logs a client that was not taken.
func (h *Health) refused(from netip.AddrPort, why error) {
	switch {
	case errors.Is(why, peer.ErrEnded):
		h.log.Debug("a connection to the health port ended before it was accepted", "address", from.String())
	case h.refusals.Note("other_user", from.Addr().String()):
		h.log.Warn("the health port refused a connection: "+why.Error(), "address", from.String())
	}
}

// Close stops the server at once, and waits for its handlers.
func (h *Health) Close() {
	if h == nil {
		return
	}
	defer h.end()
	_ = h.listener.Close()
	late := time.AfterFunc(closePatience, func() {
		h.end()
		h.cut(func(*healthConn) bool { return true })
	})
	h.cut(func(c *healthConn) bool { return !c.spoke })
	h.serving.Wait()
	late.Stop()
	h.refusals.Close()
}

func (h *Health) cut(which func(*healthConn) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		if which(c) {
			_ = c.Close()
		}
	}
}

func (h *Health) accept() {
	_ = acceptloop.Run(h.life, h.log, "connections to the health port", func() error {
		conn, err := h.check.Accept(h.listener, h.refused)
		if err == nil {
			if c := h.admit(conn); c != nil {
				h.serving.Go(func() { h.serve(c) })
			}
		}
		return err
	})
}

// admit gives a connection a place. If there is none, it closes the oldest connection that has
// not sent its request yet, or the new one if all have.
func (h *Health) admit(conn net.Conn) *healthConn {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.conns) >= maxHealthConns {
		i := slices.IndexFunc(h.conns, func(c *healthConn) bool { return !c.spoke })
		if i < 0 {
			_ = conn.Close()
			return nil
		}
		_ = h.conns[i].Close()
		h.conns = slices.Delete(h.conns, i, i+1)
	}
	c := &healthConn{Conn: conn}
	h.conns = append(h.conns, c)
	return c
}

func (h *Health) serve(c *healthConn) {
	defer func() {
		_ = c.Close()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conns = slices.DeleteFunc(h.conns, func(other *healthConn) bool { return other == c })
	}()
	_ = c.SetDeadline(time.Now().Add(httpport.Timeout))
	head, err := httpport.ReadHead(bufio.NewReader(c))
	h.mu.Lock()
	c.spoke = err == nil
	h.mu.Unlock()
	switch {
	case err == nil:
		_ = h.port.Serve(h.life, c, head)
	case errors.Is(err, httpport.ErrLongHead):
		h.port.Refuse(c, http.StatusRequestHeaderFieldsTooLarge)
	}
}

// named refuses a browser that asks for a name which is none of the machine's, since its
// page may be a stranger's.
func named(next http.Handler, address string) http.Handler {
	host, _, _ := net.SplitHostPort(address)
	return httpport.NewNames(host).Guard(next, "", func() {})
}

// healthPages are the pages of the port. Only a private one shows the text of exceptions and where
// the workers are.
func healthPages(c *HealthConfig, private bool) http.Handler {
	mux := http.NewServeMux()
	healthz := func(w http.ResponseWriter, r *http.Request) {
		if err := c.healthy(r.Context()); err != nil {
			httpport.Answer(w, http.StatusServiceUnavailable, httpport.PlainText, []byte(err.Error()+"\n"))
			return
		}
		httpport.Answer(w, http.StatusOK, httpport.PlainText, []byte("ok\n"))
	}
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /health", healthz) // its former name
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		code := http.StatusOK
		s, _ := c.Status.read()
		if s.Phase != PhaseRunning {
			code = http.StatusServiceUnavailable
		}
		httpport.Answer(w, code, httpport.PlainText, []byte(string(s.Phase)+"\n"))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		st := c.Status.full(r.Context())
		if !private {
			st.LastError, st.Stalled = hidden(st.LastError), hidden(st.Stalled)
		}
		text, err := json.MarshalIndent(st, "", "  ")
		if err != nil { // these types cannot fail
			httpport.Answer(w, http.StatusInternalServerError, httpport.PlainText, []byte(err.Error()+"\n"))
			return
		}
		httpport.Answer(w, http.StatusOK, "application/json", append(text, '\n'))
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		httpport.Answer(w, http.StatusOK, promtext.ContentType, c.Status.metrics(c.Metrics))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		httpport.Answer(w, http.StatusNotFound, httpport.PlainText, []byte("not found; this is a worker agent of Rallypoint, which has /healthz, /readyz, /status and /metrics\n"))
	})
	return mux
}

// hidden replaces a text that everyone could read who reaches the port.
func hidden(text string) string {
	if text == "" {
		return ""
	}
	return "see the agent's log: this port is open to other machines"
}

// healthy returns what is wrong with the agent itself. An agent that waits for other nodes,
// however long, is healthy, and so is one whose workers hang, which is the watchdog's business.
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
