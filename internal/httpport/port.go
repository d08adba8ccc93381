package httpport

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"rallypoint/internal/pack"
)

// Limits of a port, which serves a person, a script and a few scrapers.
const (
	// Timeout bounds reading a request, and writing its answer.
	Timeout = 10 * time.Second
	// MaxHead bounds a request's first line and header, in bytes.
	MaxHead = 16 << 10
	// drainTime bounds reading the bytes that follow a refused request.
	drainTime = time.Second
)

var (
	// ErrCrowded is of a request that was sent away since too many were being answered.
	ErrCrowded = errors.New("too many HTTP connections at one time")
	// ErrLongHead is of a request with a header of more than MaxHead bytes.
	ErrLongHead = fmt.Errorf("%w: an HTTP header of more than %d bytes", pack.ErrMalformed, MaxHead)
)

// Port answers connections that speak HTTP, one request each. The question whether the
// process lives is always answered.
type Port struct {
	pages  http.Handler
	log    *slog.Logger
	places chan struct{} // taken by each connection that is being answered
}

// New makes a port that answers so many connections at one time.
func New(pages http.Handler, conns int, log *slog.Logger) *Port {
	return &Port{pages: pages, log: log, places: make(chan struct{}, conns)}
}

// BeginsHTTP reports whether what comes is a request of HTTP: one that begins with a
// method. first is its first byte, which no other protocol of the port begins with.
func BeginsHTTP(in *bufio.Reader, first byte) bool {
	if !bytes.ContainsRune([]byte("GHPODTC"), rune(first)) {
		return false
	}
	start, _ := in.Peek(4)
	return slices.Contains([]string{"GET ", "HEAD", "POST", "PUT ", "PATC", "OPTI", "DELE", "TRAC", "CONN"}, string(start))
}

// ReadHead returns a request's first line and header, of which in has the
// beginning.
func ReadHead(in *bufio.Reader) ([]byte, error) {
	for seen := 0; ; {
		head, _ := in.Peek(in.Buffered()) // which has arrived
		if end := headEnd(head, seen); end > 0 {
			return head[:end], nil
		}
		var err error
		switch seen = len(head); {
		case seen < in.Size():
			_, err = in.Peek(seen + 1)
		case seen < MaxHead:
			in = bufio.NewReaderSize(in, MaxHead)
			_, err = in.Peek(1)
		default:
			err = ErrLongHead
		}
		if err != nil {
			return nil, err
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

// Serve answers the request that head begins, and closes the connection. The pages get ctx.
// An error tells that the request was malformed or sent away, or that the answer was not read.
func (p *Port) Serve(ctx context.Context, conn net.Conn, head []byte) error {
	defer conn.Close()
	answer := &page{header: http.Header{}}
	r, err := http.ReadRequest(bufio.NewReaderSize(bytes.NewReader(head), len(head)))
	answer.head = err == nil && r.Method == http.MethodHead
	switch {
	case err != nil:
		answer.fail(http.StatusBadRequest)
		err = fmt.Errorf("%w: %w", pack.ErrMalformed, err)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		answer.allow(r.Method)
		p.drained(answer, conn)
		return nil
	case Alive(r):
		p.make(ctx, answer, r, conn)
	default:
		select {
		case p.places <- struct{}{}:
			defer func() { <-p.places }()
			p.make(ctx, answer, r, conn)
		default:
			answer.header.Set("Retry-After", "1")
			answer.fail(http.StatusServiceUnavailable)
			err = ErrCrowded
		}
	}
	return errors.Join(err, answer.write(conn))
}

// Refuse answers a request that is not wanted, of which more may be on its way: the
// answer would be lost if the connection were closed before that is read.
func (p *Port) Refuse(conn net.Conn, code int) {
	defer conn.Close()
	answer := &page{header: http.Header{}}
	answer.fail(code)
	p.drained(answer, conn)
}

// drained sends a page and reads what else its client sends, before the connection is
// closed.
func (p *Port) drained(answer *page, conn net.Conn) {
	if answer.write(conn) != nil {
		return
	}
	if c, ok := conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		conn.SetReadDeadline(time.Now().Add(drainTime))
		_, _ = io.Copy(io.Discard, conn)
	}
}

// make fills in the page. A defect in it costs the answer, and nothing else.
func (p *Port) make(ctx context.Context, answer *page, r *http.Request, conn net.Conn) {
	defer func() {
		if v := recover(); v != nil {
			p.log.Error("an HTTP request could not be answered because of a defect of Rallypoint",
				"path", r.URL.Path, "defect", fmt.Sprint(v), "stack", string(debug.Stack()))
			answer.fail(http.StatusInternalServerError)
		}
	}()
	r.RemoteAddr = conn.RemoteAddr().String()
	p.pages.ServeHTTP(answer, r.WithContext(ctx))
}

// Open returns how many connections are being answered now.
func (p *Port) Open() int { return len(p.places) }

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
	p.code = cmp.Or(p.code, code)
}

func (p *page) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	p.body = append(p.body, b...)
	return len(b), nil
}

func (p *page) fail(code int) {
	p.code, p.body = code, []byte(http.StatusText(code)+"\n")
	p.header.Set("Content-Type", PlainText)
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
	conn.SetWriteDeadline(time.Now().Add(Timeout))
	out := bufio.NewWriterSize(conn, 512)
	return errors.Join(response.Write(out), out.Flush())
}
