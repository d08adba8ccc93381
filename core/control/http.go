package control

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/internal/httpport"
	"rallypoint/internal/printable"
	"rallypoint/internal/promtext"
)

const (
	// maxHTTPConns bounds the connections that are being answered: a person, a script and a
	// few scrapers. One more gets a 503.
	maxHTTPConns = 64
	// maxReports bounds the answers that are made at one time: one of a large run
	// takes megabytes, and holds the run's lock while it is collected.
	maxReports = 2
)

// pages are the port's HTTP pages.
type pages struct {
	server  *Server
	names   httpport.Names
	reports chan struct{} // taken while an answer is made
}

func newPages(s *Server) http.Handler {
	p := &pages{server: s, names: httpport.NewNames(s.cfg.HTTPNames...), reports: make(chan struct{}, maxReports)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		httpport.Answer(w, http.StatusOK, httpport.PlainText, []byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", p.ready)
	mux.HandleFunc("GET /status", p.atHost(p.status))
	mux.HandleFunc("GET /metrics", p.metrics)
	mux.HandleFunc("/", notFound)
	mux.HandleFunc("GET /{$}", p.atHost(func(w http.ResponseWriter, r *http.Request) {
		if wantsPage(r) {
			servePage(w)
			return
		}
		w.Header().Set("Vary", "Accept")
		p.text(w, r)
	}))
	hint := ""
	if s.cfg.RunID == "" { // else a node hosts, which has no such option
		hint = ", or give the name to `rallypoint serve` by --http-name"
	}
	return p.guarded(p.names.Guard(p.bounded(mux), hint, func() { s.metrics.refused[refusedHost].Add(1) }))
}

// isProbe reports whether a request asks no more than whether the process lives, or is ready: that is
// no secret.
func isProbe(r *http.Request) bool { return httpport.Alive(r) || r.URL.Path == "/readyz" }

// unguarded reports whether a request needs no proof. With Config.MetricsOpen /metrics needs none,
// which has the names of runs and nodes, but no text of theirs.
func (p *pages) unguarded(r *http.Request) bool {
	return isProbe(r) || p.server.cfg.MetricsOpen && r.URL.Path == "/metrics"
}

// ready answers whether nodes, and a supervisor that replaces one server after the other, may rely on
// this one.
func (p *pages) ready(w http.ResponseWriter, _ *http.Request) {
	if g := p.server.cfg.Peers; g != nil && g.Ready() != "" {
		httpport.Answer(w, http.StatusServiceUnavailable, httpport.PlainText, []byte("not ready; /status says why\n"))
		return
	}
	httpport.Answer(w, http.StatusOK, httpport.PlainText, []byte("ok\n"))
}

// atHost sends requests on to the server that hosts, if this is another one and knows which one that is,
// except those for what this one knows itself (here=1).
func (p *pages) atHost(page http.HandlerFunc) http.HandlerFunc {
	if p.server.cfg.Elector == nil {
		return page
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("here") == "1" {
			page(w, r)
			return
		}
		to, serve, err := p.server.awaitHost(r.Context(), p.server.cfg.RunID)
		if serve || err != nil || to.Host == "" {
			page(w, r)
			return
		}
		at := url.URL{Scheme: "http", Host: to.Host, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
		w.Header().Set("Location", at.String())
		httpport.Answer(w, http.StatusTemporaryRedirect, httpport.PlainText, []byte(to.Node+" leads, at "+to.Host+"\n"))
	}
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	httpport.Answer(w, http.StatusNotFound, httpport.PlainText,
		[]byte("not found; this is the control plane of Rallypoint, which has /, /healthz, /readyz, /metrics, /status and /status?rdzv_id=ID\n"))
}

// requester is the sender of an HTTP request.
type requester struct {
	conn   net.Conn
	proven bool   // it knows the token
	only   string // the run that its token opens; "": all
}

// requesterKey is the key of a request's requester.
type requesterKey struct{}

// guarded answers the requests that it may: all where there is no token, else those that are
// unguarded, those of requesters that have proven themselves, and of this process's user on this
// machine by a name of ours.
func (p *pages) guarded(next http.Handler) http.Handler {
	cfg := &p.server.cfg
	if cfg.Token == nil {
		return next
	}
	var users params.LoopbackUsers
	if cfg.Node != nil {
		users = cfg.Node.LoopbackUsers
	}
	own := peer.NewLoopbackCheck(users)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, _ := r.Context().Value(requesterKey{}).(requester)
		switch {
		case a.only != "" && !p.unguarded(r) && !p.opened(a, r):
			p.server.metrics.refused[refusedAuth].Add(1)
			httpport.Answer(w, http.StatusForbidden, httpport.PlainText, fmt.Appendf(nil, "authentication failed: the token opens run %q only: ask for /status?rdzv_id= with that run id\n", printable.Text(a.only)))
		case a.proven, p.unguarded(r):
			next.ServeHTTP(w, r)
		case !a.near() || own.Admit(a.conn) != nil:
			p.server.metrics.refused[refusedAuth].Add(1)
			httpport.Answer(w, http.StatusForbidden, httpport.PlainText, []byte(wire.ErrAuth.Text+"\n"))
		case !p.names.Own(r):
			p.server.metrics.refused[refusedHost].Add(1)
			httpport.Answer(w, httpport.Misdirected, httpport.PlainText, []byte(httpport.MisdirectedText+"\n"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// opened reports whether a request is for the run that its sender's token opens. The run
// must exist.
func (p *pages) opened(a requester, r *http.Request) bool {
	query := r.URL.Query()
	return r.URL.Path == "/status" && query.Has("rdzv_id") && query.Get("rdzv_id") == a.only && p.server.lookUp(a.only) != nil
}

// near reports whether the requester's address is a loopback one.
func (r requester) near() bool {
	if r.conn == nil {
		return false
	}
	tcp, ok := r.conn.RemoteAddr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// bounded lets a few answers be made at one time. The others wait, but not for
// those being read by their clients, nor for more than have a place.
func (p *pages) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isProbe(r) {
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

// text answers with the status as text, of one run if it is asked for.
func (p *pages) text(w http.ResponseWriter, r *http.Request) {
	if p.server.cfg.Text == nil {
		notFound(w, r)
		return
	}
	st, there := p.asked(r)
	if !there {
		httpport.Answer(w, http.StatusNotFound, httpport.PlainText, []byte(p.server.unknownRun(r.URL.Query().Get("rdzv_id")).Text+"\n"))
		return
	}
	httpport.Answer(w, http.StatusOK, httpport.PlainText, []byte(p.server.cfg.Text(st)))
}

// asked returns the status that a request asks for; false: of a run that is not there.
func (p *pages) asked(r *http.Request) (st Status, there bool) {
	if query := r.URL.Query(); query.Has("rdzv_id") {
		return p.server.RunStatus(query.Get("rdzv_id"))
	}
	return p.server.Status(), true
}

func (p *pages) status(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	id, one := query.Get("rdzv_id"), query.Has("rdzv_id")
	brief := false
	switch nodes := query.Get("nodes"); {
	case nodes == "0":
		brief = true
	case nodes == "1" || !query.Has("nodes"):
	default:
		httpport.Answer(w, http.StatusBadRequest, httpport.PlainText, fmt.Appendf(nil, "nodes=%.20q: expected 0, which leaves out the lists of nodes, or 1\n", nodes))
		return
	}
	if tag := p.server.statusTag(id, one); tag != "" {
		if brief {
			tag = strings.TrimSuffix(tag, `"`) + `-brief"`
		}
		w.Header().Set("ETag", tag)
		if hasTag(r, tag) {
			w.Header().Set("Cache-Control", "no-store")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	st, there := p.asked(r)
	if !there {
		w.Header().Del("ETag")
		ids := p.server.runIDs()
		httpport.AnswerJSON(w, http.StatusNotFound, NoRun{
			Error: p.server.unknownRun(id).Text, Runs: ids[:min(len(ids), MaxStatusRuns)], RunsTotal: len(ids),
		})
		return
	}
	if a, _ := r.Context().Value(requesterKey{}).(requester); a.only != "" && p.server.cfg.RunID == "" {
		st.Server.hideOthers()
	}
	st.shorten(brief)
	httpport.AnswerJSON(w, http.StatusOK, st)
}

// NoRun is the answer to GET /status for a run that is not there, with code 404.
type NoRun struct {
	Error     string   `json:"error"`
	Runs      []string `json:"runs"` // those that are, by id, the first 256
	RunsTotal int      `json:"runs_total"`
}

func (p *pages) metrics(w http.ResponseWriter, _ *http.Request) {
	httpport.Answer(w, http.StatusOK, promtext.ContentType, p.server.metricsPage())
}
