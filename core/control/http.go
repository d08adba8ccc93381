package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"rallypoint/core/control/statuspage"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/internal/printable"
	"rallypoint/internal/promtext"
	"rallypoint/internal/rebinding"
)

// Limits of HTTP on the control plane's port. It serves a person, a script and a
// few scrapers, beside what the port is for. A connection is answered once; it has
// to send the whole request within helloTimeout.
const (
	// httpTimeout bounds writing the answer.
	httpTimeout = 10 * time.Second
	// maxHTTPHead bounds the request's first line and header, in bytes.
	maxHTTPHead = 16 << 10
	// maxHTTPConns bounds the connections that are being answered; one more gets a
	// 503. /healthz does not count, nor who has not sent its request yet.
	maxHTTPConns = 64
	// maxReports bounds the answers that are made at one time: one of a large run
	// takes megabytes, and holds the run's lock while it is collected.
	maxReports = 2
)

var (
	errCrowded  = errors.New("too many HTTP connections at one time")
	errLongHead = fmt.Errorf("%w: an HTTP header of more than %d bytes", wire.ErrMalformed, maxHTTPHead)
)

// httpPort answers the connections of the port that speak HTTP, each in its own
// goroutine.
type httpPort struct {
	pages  http.Handler
	log    *slog.Logger
	places chan struct{} // taken by each connection that is being answered
	ended  context.Context
	end    context.CancelFunc
}

func newHTTPPort(s *Server) *httpPort {
	h := &httpPort{pages: newPages(s), log: s.log, places: make(chan struct{}, maxHTTPConns)}
	h.ended, h.end = context.WithCancel(context.Background())
	return h
}

// pages are what the port answers to HTTP.
type pages struct {
	server  *Server
	names   rebinding.Names
	reports chan struct{} // taken while an answer is made
}

func newPages(s *Server) http.Handler {
	p := &pages{server: s, names: rebinding.NewNames(s.cfg.HTTPNames...), reports: make(chan struct{}, maxReports)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		rebinding.Answer(w, http.StatusOK, plainText, []byte("ok\n"))
	})
	mux.HandleFunc("GET /status", p.status)
	mux.HandleFunc("GET /metrics", p.metrics)
	mux.HandleFunc("/", notFound)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if statuspage.Wanted(r) {
			statuspage.Serve(w)
			return
		}
		w.Header().Set("Vary", "Accept")
		p.text(w, r)
	})
	return p.guarded(p.named(p.bounded(mux)))
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	rebinding.Answer(w, http.StatusNotFound, plainText,
		[]byte("not found; this is the control plane of Rallypoint, which has /, /healthz, /metrics, /status and /status?rdzv_id=ID\n"))
}

const plainText = "text/plain; charset=utf-8"

// requester is who has sent a request of HTTP.
type requester struct {
	conn   net.Conn
	proven bool   // it knows the token
	only   string // the run that its token opens; "": all
}

// requesterKey is the key of a request's requester.
type requesterKey struct{}

// guarded answers who may ask: everyone where there is no token, or with Config.HTTPOpen;
// else those that have proven themselves, and this process's user on this machine who asks
// by a name of ours. Whether the server lives is no secret.
func (p *pages) guarded(next http.Handler) http.Handler {
	cfg := &p.server.cfg
	if cfg.Token == nil || cfg.HTTPOpen {
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
		case a.only != "" && r.URL.Path != "/healthz" && !p.opened(a, r):
			p.server.metrics.refused[refusedAuth].Add(1)
			rebinding.Answer(w, http.StatusForbidden, plainText, fmt.Appendf(nil, "authentication failed: the token opens run %q only, if it is there: ask for /status?rdzv_id= of it\n", printable.Text(a.only)))
		case a.proven, r.URL.Path == "/healthz":
			next.ServeHTTP(w, r)
		case !a.near() || own.Admit(a.conn) != nil:
			p.server.metrics.refused[refusedAuth].Add(1)
			rebinding.Answer(w, http.StatusForbidden, plainText, []byte(wire.ErrAuth.Text+"\n"))
		case !p.names.Own(r):
			p.server.metrics.refused[refusedHost].Add(1)
			rebinding.Answer(w, rebinding.Code, plainText, []byte(rebinding.Text+"\n"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// opened reports whether a request is for the run, which has to be there, that its sender's
// token opens.
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

// named refuses a browser that asks for a name which is none of the machine's, since its
// page may be a stranger's. Whether the server lives is no secret.
func (p *pages) named(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" && p.names.Foreign(r) {
			p.server.metrics.refused[refusedHost].Add(1)
			text := rebinding.Text
			if p.server.cfg.RunID == "" { // else a node hosts, which has no such option
				text += ", or give the name to `rallypoint serve` by --http-name"
			}
			rebinding.Answer(w, rebinding.Code, plainText, []byte(text+"\n"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bounded lets a few answers be made at one time. The others wait, but not for
// those being read by their clients, nor for more than have a place.
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

// text answers with the status as text, of one run if it is asked for.
func (p *pages) text(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	st, there := Status{}, true
	switch id := query.Get("rdzv_id"); {
	case p.server.cfg.Text == nil:
		notFound(w, r)
		return
	case query.Has("rdzv_id"):
		if st, there = p.server.RunStatus(id); !there {
			rebinding.Answer(w, http.StatusNotFound, plainText, []byte(p.server.unknownRun(id).Text+"\n"))
			return
		}
	default:
		st = p.server.Status()
	}
	rebinding.Answer(w, http.StatusOK, plainText, []byte(p.server.cfg.Text(st)))
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
		rebinding.Answer(w, http.StatusBadRequest, plainText, fmt.Appendf(nil, "nodes=%.20q: expected 0, which leaves out the lists of nodes, or 1\n", nodes))
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
	if !one {
		st := p.server.Status()
		st.shorten(brief)
		answerJSON(w, http.StatusOK, st)
		return
	}
	st, ok := p.server.RunStatus(id)
	if !ok {
		w.Header().Del("ETag")
		ids := p.server.runIDs()
		answerJSON(w, http.StatusNotFound, NoRun{
			Error: p.server.unknownRun(id).Text, Runs: ids[:min(len(ids), MaxStatusRuns)], RunsTotal: len(ids),
		})
		return
	}
	if a, _ := r.Context().Value(requesterKey{}).(requester); a.only != "" && p.server.cfg.RunID == "" {
		st.Server.hideOthers()
	}
	st.shorten(brief)
	answerJSON(w, http.StatusOK, st)
}

// NoRun is the answer to GET /status for a run that is not there, with code 404.
type NoRun struct {
	Error     string   `json:"error"`
	Runs      []string `json:"runs"` // those that are, by id, the first 256
	RunsTotal int      `json:"runs_total"`
}

func (p *pages) metrics(w http.ResponseWriter, _ *http.Request) {
	rebinding.Answer(w, http.StatusOK, promtext.ContentType, p.server.metricsPage())
}

func answerJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // these types cannot fail
		rebinding.Answer(w, http.StatusInternalServerError, plainText, []byte(err.Error()+"\n"))
		return
	}
	rebinding.Answer(w, code, "application/json", append(body, '\n'))
}

// beginsHTTP reports whether what comes is a request of HTTP: one that begins with a
// method. first is its first byte, which no other protocol of the port begins with.
func beginsHTTP(in *bufio.Reader, first byte) bool {
	if !bytes.ContainsRune([]byte("GHPODTC"), rune(first)) {
		return false
	}
	start, _ := in.Peek(4)
	return slices.Contains([]string{"GET ", "HEAD", "POST", "PUT ", "PATC", "OPTI", "DELE", "TRAC", "CONN"}, string(start))
}

// readsOnly reports whether a method asks for a page.
func readsOnly(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// readHead returns a request's first line and header, of which in has the
// beginning.
func readHead(in *bufio.Reader) ([]byte, error) {
	for seen := 0; ; {
		head, _ := in.Peek(in.Buffered()) // which is there
		if end := headEnd(head, seen); end > 0 {
			return head[:end], nil
		}
		var err error
		switch seen = len(head); {
		case seen < in.Size():
			_, err = in.Peek(seen + 1)
		case seen < maxHTTPHead:
			in = bufio.NewReaderSize(in, maxHTTPHead)
			_, err = in.Peek(1)
		default:
			err = errLongHead
		}
		if err != nil {
			return nil, wire.NoEOF(err)
		}
	}
}

// headEnd returns the length of the head that b begins with, 0 if its end is not
// there; the first seen bytes have been looked at. Lines may end without \r.
func headEnd(b []byte, seen int) int {
	for from := max(0, seen-2); ; {
		i := bytes.IndexByte(b[from:], '\n')
		if i < 0 {
			return 0
		}
		from += i + 1
		if rest := b[from:]; bytes.HasPrefix(rest, []byte("\n")) {
			return from + 1
		} else if bytes.HasPrefix(rest, []byte("\r\n")) {
			return from + 2
		}
	}
}

// serve answers the request that head begins, and closes the connection; proven
// tells that its peer knows the token. errCrowded tells that it was sent away.
func (h *httpPort) serve(conn net.Conn, head []byte, proven bool, only string) error {
	defer conn.Close()
	p := &page{header: http.Header{}}
	r, err := http.ReadRequest(bufio.NewReaderSize(bytes.NewReader(head), len(head)))
	p.head = err == nil && r.Method == http.MethodHead
	switch {
	case err != nil:
		p.fail(http.StatusBadRequest)
		err = fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	case !readsOnly(r.Method):
		p.allow(r.Method)
		h.drained(p, conn)
		return nil
	case r.URL.Path == "/healthz":
		h.make(p, r, requester{conn, proven, only})
	default:
		select {
		case h.places <- struct{}{}:
			defer func() { <-h.places }()
			h.make(p, r, requester{conn, proven, only})
		default:
			p.header.Set("Retry-After", "1")
			p.fail(http.StatusServiceUnavailable)
			err = errCrowded
		}
	}
	if failed := p.write(conn); errors.Is(failed, os.ErrDeadlineExceeded) {
		return wire.ErrStuck
	}
	return err
}

// refuse answers a request that is not wanted, of which more may be on its way: the
// answer would be lost if the connection were closed before that is read.
func (h *httpPort) refuse(conn net.Conn, code int) {
	defer conn.Close()
	p := &page{header: http.Header{}}
	p.fail(code)
	h.drained(p, conn)
}

// drained sends a page and reads what else its client sends, before the connection is
// closed.
func (h *httpPort) drained(p *page, conn net.Conn) {
	if p.write(conn) != nil {
		return
	}
	if c, ok := conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		conn.SetReadDeadline(time.Now().Add(drainTime))
		_, _ = io.Copy(io.Discard, conn)
	}
}

// make fills in the page. A defect in it costs the answer, and nothing else.
func (h *httpPort) make(p *page, r *http.Request, from requester) {
	defer func() {
		if v := recover(); v != nil {
			h.log.Error("an HTTP request could not be answered because of a defect of Rallypoint",
				"path", r.URL.Path, "defect", fmt.Sprint(v), "stack", string(debug.Stack()))
			p.fail(http.StatusInternalServerError)
		}
	}()
	r.RemoteAddr = from.conn.RemoteAddr().String()
	h.pages.ServeHTTP(p, r.WithContext(context.WithValue(h.ended, requesterKey{}, from)))
}

// open returns how many connections are being answered now.
func (h *httpPort) open() int { return len(h.places) }

// page is the answer to one request: an http.ResponseWriter that keeps it, so that
// nothing is held while its client reads.
type page struct {
	code   int
	header http.Header
	body   []byte
	head   bool // the client wants no more than the header
}

func (p *page) Header() http.Header { return p.header }

func (p *page) WriteHeader(code int) {
	if p.code == 0 {
		p.code = code
	}
}

func (p *page) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	p.body = append(p.body, b...)
	return len(b), nil
}

// fail makes it the page of an error.
func (p *page) fail(code int) {
	p.code, p.body = code, []byte(http.StatusText(code)+"\n")
	p.header.Set("Content-Type", plainText)
}

// allow makes it the answer to a method that does not read: what is allowed.
func (p *page) allow(method string) {
	p.header.Set("Allow", "GET, HEAD, OPTIONS")
	if method == http.MethodOptions {
		p.code = http.StatusNoContent
		return
	}
	p.fail(http.StatusMethodNotAllowed)
}

// write sends the page.
func (p *page) write(conn net.Conn) error {
	p.WriteHeader(http.StatusOK)
	p.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	response := http.Response{
		StatusCode: p.code, ProtoMajor: 1, ProtoMinor: 1, Header: p.header,
		Body: io.NopCloser(bytes.NewReader(p.body)), ContentLength: int64(len(p.body)), Close: true,
	}
	if p.head {
		response.Request = &http.Request{Method: http.MethodHead}
	}
	conn.SetWriteDeadline(time.Now().Add(httpTimeout))
	out := bufio.NewWriterSize(conn, 512)
	return errors.Join(response.Write(out), out.Flush())
}
