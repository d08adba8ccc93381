package etcdclient

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/metadata"

	"rallypoint/core/rendezvous"
	retry "rallypoint/internal/backoff"
)

// How a client deals with members that do not answer.
const (
	// FirstAttempt bounds the first attempt of a call; it doubles with each
	// further one up to lastAttempt, so that a slow cluster is waited for and a hung
	// member is not.
	FirstAttempt = 2 * time.Second
	lastAttempt  = 32 * time.Second

	dialTimeout    = 2 * time.Second
	connectTimeout = 3 * dialTimeout // with the handshakes
	redialMax      = time.Second     // the pause between two tries to connect

	// A connection with a call or a watch on which nothing came for pingAfter is asked
	// for a sign of life. Servers punish those who ask more often.
	pingAfter   = 10 * time.Second
	pingTimeout = 2 * time.Second

	pauseMin = 20 * time.Millisecond
	pauseMax = time.Second
)

// gRPC's own log goes to the process's standard error unless another logger is set. What matters of
// it, and of what etcd's client logs, is in the errors of calls.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

// Client speaks to a cluster by etcd's own client, and connects with the first call. It
// is safe for concurrent use.
//
// One loop repeats calls: ours, which knows what may be repeated and what the error says in the
// end; that of etcd's client is off. So is its authentication, which costs the server a bcrypt for
// each stream: a lease that is renewed is one.
type Client struct {
	Config      *Config
	dialer      *dialer
	Etcd        *clientv3.Client
	leases      pb.LeaseClient
	watches     pb.WatchClient
	Interceptor atomic.Pointer[grpc.UnaryClientInterceptor] // of tests; nil: none

	mu           sync.Mutex
	token        string    // "" before authentication, and where there is none
	reached      bool      // a call has succeeded
	notEtcdSince time.Time // since when something else than an etcd answers; zero: it does not
}

// New checks the configuration and reads the certificates; it does not
// connect.
func New(config Config) (*Client, error) {
	urls, err := config.bases()
	if err != nil {
		return nil, err
	}
	if _, err := config.tlsConfig(); err != nil {
		return nil, err
	}
	if _, err := config.password(); err != nil {
		return nil, err
	}
	c := &Client{Config: &config}
	c.dialer = &dialer{config: c.Config, endpoints: len(urls)}
	secure := credentials.TransportCredentials(insecure.NewCredentials())
	if config.TLS {
		secure = c.dialer
	}
	c.Etcd, err = clientv3.New(clientv3.Config{
		Endpoints: urls, MaxUnaryRetries: 1, Logger: zap.NewNop(),
		DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingTimeout,
		DialOptions: []grpc.DialOption{
			grpc.WithTransportCredentials(secure), grpc.WithContextDialer(c.dialer.dial),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: pauseMin, Multiplier: 2, Jitter: 0.3, MaxDelay: redialMax},
				MinConnectTimeout: connectTimeout,
			}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
			grpc.WithChainUnaryInterceptor(c.intercept),
			grpc.WithUserAgent("rallypoint"),
		},
	})
	if err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "etcd at %s: %v", config.Where(), err)
	}
	c.leases, c.watches = pb.NewLeaseClient(c.Etcd.ActiveConnection()), pb.NewWatchClient(c.Etcd.ActiveConnection())
	return c, nil
}

// intercept lets a call fail at once while no member can be connected to: who calls
// repeats it, and has to know why.
func (c *Client) intercept(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	options = append(options, grpc.WaitForReady(false))
	if between := c.Interceptor.Load(); between != nil {
		return (*between)(ctx, method, request, reply, conn, invoke, options...)
	}
	return invoke(ctx, method, request, reply, conn, options...)
}

// Addresses returns both ends of the last connection as IP addresses, "" if there
// was none.
func (c *Client) Addresses() (local, remote string) { return c.dialer.addresses() }

// Close ends the streams and connections. Calls under way fail.
func (c *Client) Close() { _ = c.Etcd.Close() }

// Call makes a call, and repeats it until it succeeds, fails for good, or ctx or the
// configured timeout ends. A call whose repetition would change something twice must
// protect itself by its conditions. what says what it is for.
func (c *Client) Call(ctx context.Context, what string, f func(ctx context.Context) error) error {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Config.Timeout, defaultTimeout))
	defer cancel()
	var last error
	pause := NewBackoff()
	for limit := FirstAttempt; ; limit = nextLimit(limit) {
		if err := ctx.Err(); err != nil {
			return c.fail(what, started, last, err)
		}
		err := c.Attempt(ctx, limit, f)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrCompacted), errors.Is(err, ErrLeaseGone), errors.Is(err, errLeaseThere):
			return err
		case IsFinal(err):
			return Explain(c.Config, what, time.Since(started), err)
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		pause.Wait(ctx)
	}
}

func nextLimit(limit time.Duration) time.Duration { return min(2*limit, lastAttempt) }

// fail is the error of a call whose time is over.
func (c *Client) fail(what string, started time.Time, last, ended error) error {
	if errors.Is(ended, context.Canceled) {
		return fmt.Errorf("etcd at %s: %s: %w", c.Config.Where(), what, ended)
	}
	if last == nil {
		last = errSilent
	}
	return Explain(c.Config, what, time.Since(started), last)
}

// Attempt makes a call once, for at most d or half of what is left for all attempts: a
// member that hangs must not use it up.
func (c *Client) Attempt(whole context.Context, limit time.Duration, f func(ctx context.Context) error) error {
	if end, ok := whole.Deadline(); ok {
		if left := time.Until(end); left > FirstAttempt/2 {
			limit = min(limit, left/2)
		}
	}
	ctx, cancel := context.WithTimeout(whole, limit)
	defer cancel()
	token, err := c.authenticate(ctx, false)
	if err == nil {
		err = c.classify(ctx, f(withToken(ctx, token)), token)
	}
	return err
}

// withToken makes a context whose calls carry a token, and are refused by a member that
// has no leader.
func withToken(ctx context.Context, token string) context.Context {
	ctx = clientv3.WithRequireLeader(ctx)
	if token != "" && token != noToken {
		ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
	}
	return ctx
}

// classify says what a call came to that carried a token, in errors of ours.
func (c *Client) classify(ctx context.Context, err error, token string) error {
	if err = clientv3.ContextError(ctx, err); err == nil {
		c.mu.Lock()
		c.reached, c.notEtcdSince = true, time.Time{}
		c.mu.Unlock()
		return nil
	}
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return ErrCompacted
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return ErrLeaseGone
	case errors.Is(err, rpctypes.ErrLeaseExist):
		return errLeaseThere
	case token != "" && staleToken(err):
		c.mu.Lock()
		if c.token == token {
			c.token = ""
		}
		c.mu.Unlock()
		return &statusError{codes.Unavailable, "the session of the user has ended"}
	case errors.Is(err, context.Canceled):
		return err
	}
	s := statusOf(err)
	if errors.Is(err, context.DeadlineExceeded) || s.code == codes.DeadlineExceeded {
		s = &statusError{codes.Unavailable, errSilent.Error()}
	}
	if s.code == codes.Unavailable {
		if why := c.dialer.failure(); why != nil {
			return c.retryOnceReached(why)
		}
	}
	if s.fromGateway() && s.code != codes.Unavailable {
		err := fmt.Errorf("%w: %w", errNotEtcd, s)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.notEtcdSince.IsZero() {
			c.notEtcdSince = time.Now()
		}
		if c.reached || c.dialer.endpoints > 1 && time.Since(c.notEtcdSince) < FirstAttempt { // another endpoint may be one
			return transientError{err}
		}
		return err
	}
	return c.retryOnceReached(s)
}

// retryOnceReached makes an error that may have become one only now such that the call is repeated:
// certificates, passwords and gateways are exchanged one after the other while jobs run.
func (c *Client) retryOnceReached(err error) error {
	c.mu.Lock()
	reached := c.reached
	c.mu.Unlock()
	if reached && IsFinal(err) && !refusedByEtcd(err) {
		return transientError{err}
	}
	return err
}

func staleToken(err error) bool {
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// authenticate returns the token that calls carry, "" if the configuration has no user. It
// gets one if there is none yet, or if it has to be a fresh one.
func (c *Client) authenticate(ctx context.Context, fresh bool) (token string, err error) {
	if c.Config.User == "" {
		return "", nil
	}
	c.mu.Lock()
	token = c.token
	c.mu.Unlock()
	if token != "" && !fresh {
		return token, nil
	}
	password, err := c.Config.password()
	if err != nil {
		return "", c.retryOnceReached(err)
	}
	response, err := c.Etcd.Authenticate(clientv3.WithRequireLeader(ctx), c.Config.User, password)
	switch {
	case errors.Is(err, rpctypes.ErrAuthNotEnabled):
		token = noToken
	case err != nil:
		return "", c.classify(ctx, err, "")
	default:
		token = response.Token
	}
	c.mu.Lock()
	c.token = token
	c.mu.Unlock()
	return token, nil
}

// noToken stands for the token of an etcd that asks for none.
const noToken = "-"

// Txn runs a transaction.
func (c *Client) Txn(ctx context.Context, what string, t Txn) (r *clientv3.TxnResponse, err error) {
	err = c.Call(ctx, what, func(ctx context.Context) (err error) {
		r, err = c.Etcd.Txn(ctx).If(t.If...).Then(t.Then...).Else(t.Else...).Commit()
		return err
	})
	return r, err
}

// Get reads keys.
func (c *Client) Get(ctx context.Context, what, key string, options ...clientv3.OpOption) (r *clientv3.GetResponse, err error) {
	err = c.Call(ctx, what, func(ctx context.Context) (err error) {
		r, err = c.Etcd.Get(ctx, key, options...)
		return err
	})
	return r, err
}

// pageSize is how many keys one request of List asks for, pageOfValues with values, which
// may have a megabyte each.
const (
	pageSize     = 1000
	pageOfValues = 100
)

// List returns all keys with a prefix at one revision. ErrCompacted if that revision was dropped in
// the middle.
func (c *Client) List(ctx context.Context, what, prefix string, keysOnly bool) (kvs []*mvccpb.KeyValue, err error) {
	options := []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(pageOfValues)}
	if keysOnly {
		options = append(options, clientv3.WithKeysOnly(), clientv3.WithLimit(pageSize))
	}
	for from := prefix; ; {
		page, err := c.Get(ctx, what, from, options...)
		if err != nil {
			return nil, err
		}
		if len(kvs) == 0 {
			options = append(options, clientv3.WithRev(page.Header.Revision))
		}
		kvs = append(kvs, page.Kvs...)
		if !page.More || len(page.Kvs) == 0 {
			return kvs, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// Grant makes a lease of at least so long. Its number is drawn here, so that a lost answer leaves
// no second lease.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (lease int64, err error) {
	const what = "making a lease"
	request := &pb.LeaseGrantRequest{TTL: seconds(ttl)}
	tries := 0
	err = c.Call(ctx, what, func(ctx context.Context) error {
		if request.ID == 0 {
			request.ID, tries = leaseNumber(), 0
		}
		tries++
		response, err := c.leases.LeaseGrant(ctx, request)
		switch {
		case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseExist) && tries > 1: // made by a try whose answer was lost
			return nil
		case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseExist): // another client's
			request.ID = 0
			return &statusError{codes.Unavailable, "the number of the lease is taken"}
		case err == nil && response.Error != "":
			return &statusError{codes.Unavailable, response.Error}
		}
		return err
	})
	return request.ID, err
}

var leaseNumber = func() int64 {
	for {
		var b [8]byte
		rand.Read(b[:])
		if id := int64(binary.BigEndian.Uint64(b[:]) >> 1); id != 0 {
			return id
		}
	}
}

// KeepAlive renews a lease; ErrLeaseGone if it has run out. The stream is this one, and
// not that of etcd's client, which repeats without a pause while no member can be
// connected to.
func (c *Client) KeepAlive(ctx context.Context, lease int64) error {
	return c.Call(ctx, "renewing a lease", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.leases.LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}); err != nil && err != io.EOF { // EOF: Recv says why
			return err
		}
		response, err := stream.Recv()
		if err == io.EOF {
			return errEnded
		}
		if err == nil && response.TTL <= 0 {
			return rpctypes.ErrLeaseNotFound
		}
		return err
	})
}

// LeaseAge returns how long ago a lease was made or last renewed, by etcd's clock;
// ErrLeaseGone if it has run out.
func (c *Client) LeaseAge(ctx context.Context, lease int64) (age time.Duration, err error) {
	err = c.Call(ctx, "reading a lease", func(ctx context.Context) error {
		r, err := c.Etcd.TimeToLive(ctx, clientv3.LeaseID(lease))
		if err == nil && r.TTL <= 0 {
			return rpctypes.ErrLeaseNotFound
		}
		if err == nil {
			age = time.Duration(max(0, r.GrantedTTL-r.TTL)) * time.Second
		}
		return err
	})
	return age, err
}

// errEnded is what a stream comes to that the server has ended without a word.
var errEnded = &statusError{codes.Unavailable, "the server ended the call"}

func seconds(d time.Duration) int64 { return int64(max(1, (d+time.Second-1)/time.Second)) }

// watch is an open stream of changes. It is the stream itself, not the watcher of etcd's
// client, which continues by itself at another member: a watcher of a run has to know when
// it is blind.
type watch struct {
	stream  pb.Watch_WatchClient
	client  *Client
	cancel  context.CancelFunc
	ctx     context.Context
	token   string
	created int
}

// Watch opens a stream of the changes that are asked for. It does not try twice. Its
// token is a fresh one: the server says of one that has run out that the user lacks
// a permission.
func (c *Client) Watch(ctx context.Context, requests ...*pb.WatchCreateRequest) (*watch, error) {
	opening, opened := context.WithTimeout(ctx, FirstAttempt)
	defer opened()
	token, err := c.authenticate(opening, true)
	if err != nil {
		return nil, err
	}
	w := &watch{client: c, token: token}
	w.ctx, w.cancel = context.WithCancel(withToken(ctx, token))
	slow := context.AfterFunc(opening, w.cancel)
	w.stream, err = c.watches.Watch(w.ctx)
	for _, r := range requests {
		if err == nil {
			err = w.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
		}
	}
	if err == io.EOF { // Recv says why
		_, err = w.stream.Recv()
	}
	if !slow() && err == nil {
		err = opening.Err()
	}
	if err != nil {
		w.cancel()
		return nil, c.classify(opening, err, token)
	}
	return w, nil
}

// Next waits for changes. Any error is the end of the watch.
func (w *watch) Next() ([]*mvccpb.Event, error) {
	r, err := w.stream.Recv()
	if err == io.EOF {
		err = errEnded
	}
	if err != nil {
		return nil, w.client.classify(w.ctx, err, w.token)
	}
	switch {
	case r.CompactRevision != 0:
		return nil, ErrCompacted
	case r.Canceled:
		err := &statusError{codes.Unavailable, "the server ended the watch: " + sanitize(r.CancelReason)}
		if strings.Contains(r.CancelReason, "permission denied") && w.created == 0 {
			err = &statusError{codes.PermissionDenied, sanitize(r.CancelReason)}
		}
		return nil, err
	case r.Created:
		w.created++
	}
	return r.Events, nil
}

// Close ends the watch.
func (w *watch) Close() { w.cancel() }

// NewBackoff paces tries of what the cluster did not do.
func NewBackoff() *retry.Backoff { return retry.New(pauseMin, pauseMax) }
