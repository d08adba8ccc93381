package etcdstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxResponse bounds one message from a server.
const maxResponse = 128 << 20

// Codes of gRPC that are told apart here.
const (
	codeCanceled           = 1
	codeUnknown            = 2
	codeInvalidArgument    = 3
	codeDeadlineExceeded   = 4
	codeNotFound           = 5
	codePermissionDenied   = 7
	codeResourceExhausted  = 8
	codeFailedPrecondition = 9
	codeOutOfRange         = 11
	codeUnimplemented      = 12
	codeInternal           = 13
	codeUnavailable        = 14
	codeUnauthenticated    = 16
)

// statusError is a call's end as the server tells it.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return strings.TrimPrefix(e.text, "etcdserver: ") }

// caller makes gRPC calls over HTTP/2. It knows nothing of etcd.
type caller struct{ transport http.RoundTripper }

// unary makes a call with one message either way.
func (c caller) unary(ctx context.Context, base, method string, header http.Header, request message) (message, error) {
	s, err := c.send(ctx, base, method, header, bytes.NewReader(frame(request)))
	if err != nil {
		return nil, err
	}
	defer s.close()
	response, err := s.receive()
	if err == io.EOF {
		return nil, &statusError{codeInternal, "the server ended the call without an answer"}
	}
	if err != nil {
		return nil, err
	}
	if _, err := s.receive(); err != io.EOF { // reads the status
		return nil, err
	}
	return response, nil
}

// stream makes a call with many messages from the server, which ends when the
// stream is closed.
func (c caller) stream(ctx context.Context, base, method string, header http.Header, requests ...message) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	var all []byte
	for _, r := range requests {
		all = append(all, frame(r)...)
	}
	// The call stays open as long as its body has no end. The transport closes the
	// body when the call is over, and waits for a read of it to return then; that ctx
	// has ended it sees by such a read only.
	open, end := io.Pipe()
	context.AfterFunc(ctx, func() { end.CloseWithError(ctx.Err()) })
	body := struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(all), open), open}
	s, err := c.send(ctx, base, method, header, body)
	if err != nil {
		cancel()
		return nil, err
	}
	s.cancel = cancel
	return s, nil
}

func frame(m message) []byte {
	b := make([]byte, 5, 5+len(m))
	binary.BigEndian.PutUint32(b[1:], uint32(len(m)))
	return append(b, m...)
}

func (c caller) send(ctx context.Context, base, method string, header http.Header, body io.Reader) (*stream, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+method, body)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	r.Header.Set("User-Agent", "rallypoint")
	if deadline, ok := ctx.Deadline(); ok {
		left := max(1, time.Until(deadline).Milliseconds())
		r.Header.Set("Grpc-Timeout", strconv.FormatInt(min(left, 99999999), 10)+"m")
	}
	response, err := c.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	s := &stream{response: response, cancel: func() {}}
	if kind := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "application/grpc") {
		s.close()
		return nil, fmt.Errorf("%w: it answered %s, %q", errNotEtcd, response.Status, kind)
	}
	if response.Header.Get("Grpc-Status") != "" { // a call that failed at once has no messages
		defer s.close()
		return nil, statusOf(response.Header)
	}
	return s, nil
}

// stream is a call whose answers are still to come.
type stream struct {
	response *http.Response
	cancel   context.CancelFunc
}

// receive returns the next message, io.EOF after the last one of a call that
// succeeded.
func (s *stream) receive() (message, error) {
	var head [5]byte
	if _, err := io.ReadFull(s.response.Body, head[:]); err == io.EOF {
		if err := statusOf(s.response.Trailer); err != nil {
			return nil, err
		}
		return nil, io.EOF
	} else if err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if head[0] != 0 || size > maxResponse {
		return nil, fmt.Errorf("%w: a message of %d bytes, compression %d", errNotEtcd, size, head[0])
	}
	m, err := io.ReadAll(io.LimitReader(s.response.Body, int64(size)))
	if err == nil && len(m) < int(size) {
		err = io.ErrUnexpectedEOF
	}
	return m, err
}

func (s *stream) close() {
	s.cancel()
	_ = s.response.Body.Close()
}

// statusOf reads how a call ended; nil if it succeeded.
func statusOf(h http.Header) error {
	text := h.Get("Grpc-Status")
	code, err := strconv.Atoi(text)
	if err != nil {
		return &statusError{codeUnavailable, "the connection ended in the middle of an answer"}
	}
	if code == 0 {
		return nil
	}
	words, err := url.PathUnescape(h.Get("Grpc-Message"))
	if err != nil {
		words = h.Get("Grpc-Message")
	}
	if words == "" {
		words = "gRPC status " + text
	}
	return &statusError{code, words}
}

// statusCode returns the gRPC code of an error, codeUnknown if it has none.
func statusCode(err error) int {
	var s *statusError
	if errors.As(err, &s) {
		return s.code
	}
	return codeUnknown
}
