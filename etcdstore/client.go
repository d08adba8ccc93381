package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// How a client deals with members that do not answer.
const (
	// firstAttempt bounds the first attempt of a call; it doubles with each
	// further one, so that a slow cluster is waited for and a hung member is not.
	firstAttempt = 2 * time.Second
	dialTimeout  = 2 * time.Second

	// A connection on which nothing came for pingAfter is asked for a sign of
	// life. etcd takes it amiss if that is less than 5 s (grpc-keepalive-min-time).
	pingAfter   = 5 * time.Second
	pingTimeout = 2 * time.Second

	backoffMin = 20 * time.Millisecond
	backoffMax = time.Second
)

// client speaks to a cluster: it goes from member to member until one answers.
// It is safe for concurrent use and has no goroutine of its own.
type client struct {
	config *Config
	caller caller
	conns  *http.Transport
	urls   []string

	mu      sync.Mutex
	current int                // of urls: the member that answered last
	at      context.Context    // ends when current is given up
	leave   context.CancelFunc // ends at
	token   string             // "" before authentication, and where there is none
	local   net.Addr           // of the last connection
	remote  net.Addr
	closed  bool
}

// newClient checks the configuration and reads the certificates; it does not
// connect.
func newClient(config Config) (*client, error) {
	urls, err := config.bases()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := config.tlsConfig()
	if err != nil {
		return nil, err
	}
	c := &client{config: &config, urls: urls, current: rand.IntN(len(urls))}
	c.at, c.leave = context.WithCancel(context.Background())
	protocols := new(http.Protocols)
	protocols.SetHTTP2(config.TLS)
	protocols.SetUnencryptedHTTP2(!config.TLS)
	c.conns = &http.Transport{
		DialContext:         c.dial,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 2 * dialTimeout,
		Protocols:           protocols,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: pingAfter},
		IdleConnTimeout:     2 * time.Minute,
	}
	c.caller.transport = c.conns
	return c, nil
}

func (c *client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err == nil {
		c.mu.Lock()
		c.local, c.remote = conn.LocalAddr(), conn.RemoteAddr()
		c.mu.Unlock()
	}
	return conn, err
}

// addresses returns both ends of the last connection as IP addresses, "" if there
// was none.
func (c *client) addresses() (local, remote string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ip := func(a net.Addr) string {
		if tcp, ok := a.(*net.TCPAddr); ok {
			return tcp.IP.String()
		}
		return ""
	}
	return ip(c.local), ip(c.remote)
}

// close ends the streams and connections. Calls under way fail.
func (c *client) close() {
	c.mu.Lock()
	c.closed = true
	leave := c.leave
	c.mu.Unlock()
	leave()
	c.conns.CloseIdleConnections()
}

// member returns the present member's URL, the context of what is open there, and
// the header of a call.
func (c *client) member() (url string, at context.Context, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.urls[c.current], c.at, c.token
}

// giveUp goes on to the next member, unless that was done since url was current.
// What is open at the old one ends. Where there is but one, it stays.
func (c *client) giveUp(url string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.urls) == 1 || c.urls[c.current] != url || c.closed {
		return
	}
	c.current = (c.current + 1) % len(c.urls)
	c.leave()
	c.at, c.leave = context.WithCancel(context.Background())
}

// call makes a call, again and again until it succeeds, fails for good, or ctx
// or the configured timeout ends. A call whose repetition would change something
// twice must protect itself by its conditions. what says what it is for.
func (c *client) call(ctx context.Context, what, method string, request message) (message, error) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.config.timeout())
	defer cancel()
	var last error
	pause := backoff{}
	for limit := firstAttempt; ; limit *= 2 {
		if err := ctx.Err(); err != nil {
			return nil, c.fail(what, started, last, err)
		}
		response, err := c.attempt(ctx, limit, method, request)
		switch {
		case err == nil:
			return response, nil
		case errors.Is(err, errCompacted), errors.Is(err, errLeaseGone), errors.Is(err, errLeaseThere):
			return nil, err
		case final(err):
			return nil, explain(c.config, what, time.Since(started), err)
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		pause.wait(ctx)
	}
}

// fail is the error of a call whose time is over.
func (c *client) fail(what string, started time.Time, last, ended error) error {
	if errors.Is(ended, context.Canceled) {
		return fmt.Errorf("etcd at %s: %s: %w", c.config.where(), what, ended)
	}
	if last == nil {
		last = ended
	}
	return explain(c.config, what, time.Since(started), last)
}

// attempt makes a call once, at the present member, at most for so long.
func (c *client) attempt(whole context.Context, limit time.Duration, method string, request message) (message, error) {
	ctx, cancel := context.WithTimeout(whole, limit)
	defer cancel()
	if err := c.authenticate(ctx); err != nil {
		return nil, err
	}
	url, _, token := c.member()
	response, err := c.caller.unary(ctx, url, method, headerOf(token), request)
	if err != nil && whole.Err() != nil {
		return nil, err // it says nothing of the member
	}
	return response, c.judge(err, url, token)
}

// judge looks at what a call at url came to and prepares the next one.
func (c *client) judge(err error, url, token string) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case token != "" && staleToken(err):
		c.mu.Lock()
		if c.token == token {
			c.token = ""
		}
		c.mu.Unlock()
		return &statusError{codeUnavailable, "the session of the user has ended"}
	case statusCode(err) == codeOutOfRange && strings.Contains(err.Error(), "compacted"):
		return errCompacted
	case statusCode(err) == codeNotFound && strings.Contains(err.Error(), "lease not found"):
		return errLeaseGone
	case statusCode(err) == codeFailedPrecondition && strings.Contains(err.Error(), "lease already exists"):
		return errLeaseThere
	case !final(err):
		c.giveUp(url)
	}
	return err
}

// staleToken reports whether a call failed because its token is no longer good.
func staleToken(err error) bool {
	code := statusCode(err)
	return code == codeUnauthenticated || code == codeInvalidArgument && strings.Contains(err.Error(), "auth store is old")
}

// authenticate gets a token if the configuration has a user and there is none.
func (c *client) authenticate(ctx context.Context) error {
	url, _, token := c.member()
	if c.config.User == "" || token != "" {
		return nil
	}
	response, err := c.caller.unary(ctx, url, methodAuthenticate, headerOf(""), authenticateRequest(c.config.User, c.config.Password))
	switch {
	case statusCode(err) == codeFailedPrecondition && strings.Contains(err.Error(), "not enabled"):
		token = noToken
	case err != nil:
		return c.judge(err, url, "")
	default:
		if token, err = decodeToken(response); err != nil {
			return fmt.Errorf("%w: %w", errNotEtcd, err)
		}
	}
	c.mu.Lock()
	c.token = token
	c.mu.Unlock()
	return nil
}

// noToken stands for the token of an etcd that asks for none.
const noToken = "-"

func headerOf(token string) http.Header {
	h := http.Header{"Hasleader": {"true"}}
	if token != "" && token != noToken {
		h["Token"] = []string{token}
	}
	return h
}

// txn runs a transaction.
func (c *client) txn(ctx context.Context, what string, t txnRequest) (txnResponse, error) {
	m, err := c.call(ctx, what, methodTxn, t.encode())
	if err != nil {
		return txnResponse{}, err
	}
	response, err := decodeTxnResponse(m)
	return response, c.malformed(what, err)
}

// malformed explains an answer that could not be read.
func (c *client) malformed(what string, err error) error {
	if err == nil {
		return nil
	}
	return explain(c.config, what, 0, fmt.Errorf("%w: %w", errNotEtcd, err))
}

// pageSize is how many keys one request of list asks for.
const pageSize = 1000

// list returns all keys from key to end at one revision, which it returns too.
// errCompacted if that revision was dropped in the middle.
func (c *client) list(ctx context.Context, what string, r rangeRequest) (kvs []keyValue, revision int64, err error) {
	r.limit = pageSize
	for {
		m, err := c.call(ctx, what, methodRange, r.encode())
		if err != nil {
			return nil, 0, err
		}
		page, err := decodeRangeResponse(m)
		if err != nil {
			return nil, 0, c.malformed(what, err)
		}
		if r.revision == 0 {
			r.revision = page.revision
		}
		kvs = append(kvs, page.kvs...)
		if !page.more || len(page.kvs) == 0 {
			return kvs, r.revision, nil
		}
		r.key = page.kvs[len(page.kvs)-1].key + "\x00"
	}
}

// grant makes a lease of at least so long. Its number is drawn here, so that a lost
// answer leaves no second lease behind.
func (c *client) grant(ctx context.Context, ttl time.Duration) (lease int64, err error) {
	const what = "making a lease"
	id := 1 + rand.Int64N(math.MaxInt64)
	m, err := c.call(ctx, what, methodGrant, grantRequest(seconds(ttl), id))
	if errors.Is(err, errLeaseThere) { // by a try whose answer was lost
		return id, nil
	}
	if err != nil {
		return 0, err
	}
	l, err := decodeLeaseResponse(m)
	if err == nil && l.problem != "" {
		err = errors.New(l.problem)
	}
	return l.id, c.malformed(what, err)
}

// revoke ends a lease and deletes its keys; a lease that is gone is not an error.
func (c *client) revoke(ctx context.Context, lease int64) error {
	_, err := c.call(ctx, "giving a lease back", methodRevoke, leaseRequest(lease))
	if errors.Is(err, errLeaseGone) {
		return nil
	}
	return err
}

// keepAlive renews a lease; errLeaseGone if it has run out.
func (c *client) keepAlive(ctx context.Context, lease int64) error {
	const what = "renewing a lease"
	m, err := c.call(ctx, what, methodKeepAlive, leaseRequest(lease))
	if err != nil {
		return err
	}
	l, err := decodeLeaseResponse(m)
	if err == nil && l.ttl <= 0 {
		return errLeaseGone
	}
	return c.malformed(what, err)
}

func seconds(d time.Duration) int64 { return int64(max(1, (d+time.Second-1)/time.Second)) }

// watch is an open stream of changes.
type watch struct {
	stream *stream
	stop   func() bool
	url    string
	client *client
}

// watch opens a stream of the changes that are asked for. It does not try twice.
// The stream ends, too, when the client goes to another member.
func (c *client) watch(ctx context.Context, requests ...watchRequest) (*watch, error) {
	opening, opened := context.WithTimeout(ctx, firstAttempt)
	defer opened()
	if err := c.authenticate(opening); err != nil {
		return nil, err
	}
	url, at, token := c.member()
	messages := make([]message, len(requests))
	for i, r := range requests {
		messages[i] = r.encode()
	}
	ctx, cancel := context.WithCancel(ctx)
	leaving := context.AfterFunc(at, cancel)
	slow := context.AfterFunc(opening, cancel) // the server answers at once
	s, err := c.caller.stream(ctx, url, methodWatch, headerOf(token), messages...)
	if !slow() && err == nil {
		s.close()
		err = opening.Err()
	}
	if err != nil {
		leaving()
		cancel()
		return nil, c.judge(err, url, token)
	}
	return &watch{stream: s, client: c, url: url, stop: func() bool { cancel(); return leaving() }}, nil
}

// next waits for changes. Any error is the end of the watch.
func (w *watch) next() (watchResponse, error) {
	m, err := w.stream.receive()
	if err == io.EOF {
		err = &statusError{codeUnavailable, "the server ended the watch"}
	}
	if err != nil {
		return watchResponse{}, w.client.judge(err, w.url, "")
	}
	r, err := decodeWatchResponse(m)
	switch {
	case err != nil:
		return r, fmt.Errorf("%w: %w", errNotEtcd, err)
	case r.compacted != 0:
		return r, errCompacted
	case r.canceled:
		if strings.Contains(r.reason, "permission denied") {
			return r, &statusError{codePermissionDenied, r.reason}
		}
		return r, &statusError{codeUnavailable, "the server ended the watch: " + r.reason}
	}
	return r, nil
}

func (w *watch) close() {
	w.stop()
	w.stream.close()
}

// backoff is a pause that grows from one to the next.
type backoff struct{ pause time.Duration }

// wait pauses, or until ctx ends.
func (b *backoff) wait(ctx context.Context) {
	b.pause = min(max(2*b.pause, backoffMin), backoffMax)
	t := time.NewTimer(b.pause/2 + rand.N(b.pause/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// sortByRevision puts keys into the order of their last change.
func sortByRevision(kvs []keyValue) {
	slices.SortFunc(kvs, func(a, b keyValue) int { return int(a.modified - b.modified) })
}
