package etcdclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rallypoint/core/rendezvous"
)

var (
	// errNotEtcd is what something other than an etcd answers.
	errNotEtcd = errors.New("this is no etcd with the v3 API")

	// ErrCompacted says that etcd has dropped the revisions that were asked for.
	ErrCompacted = errors.New("etcd has compacted this revision")

	// ErrLeaseGone says that a lease has run out or was revoked.
	ErrLeaseGone = errors.New("the lease has run out")

	// errLeaseThere says that a lease of this number was made before.
	errLeaseThere = errors.New("the lease is there already")
)

// statusError is a call's end as the server, or gRPC, tells it.
type statusError struct {
	code codes.Code
	text string
}

func (e *statusError) Error() string { return e.text }

// errSilent is what a call comes to whose answer does not come.
var errSilent = &statusError{codes.Unavailable, "it does not answer"}

func statusOf(err error) *statusError {
	if own, ok := errors.AsType[*statusError](err); ok {
		return own
	}
	if etcd, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return &statusError{etcd.Code(), sanitize(etcd.Error())}
	}
	s := status.Convert(err)
	return &statusError{s.Code(), sanitize(s.Message())}
}

// sanitize takes off a server's words what says nothing to a user, and what a terminal
// would act on.
func sanitize(text string) string {
	text = strings.TrimPrefix(text, "etcdserver: ")
	if _, inner, ok := strings.Cut(text, `connection error: desc = "`); ok {
		text = strings.TrimPrefix(strings.TrimSuffix(inner, `"`), "transport: ")
	}
	if len(text) > maxWords {
		text = text[:maxWords] + "..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// maxWords bounds what is passed on of a server's words.
const maxWords = 500

// fromGateway reports whether the answer is not of an etcd but of a web server before it.
func (e *statusError) fromGateway() bool {
	return strings.Contains(e.text, "unexpected HTTP status code") || strings.Contains(e.text, "content-type")
}

// statusCode returns the gRPC code of an error, codes.Unknown if it has none.
func statusCode(err error) codes.Code {
	if s, ok := errors.AsType[*statusError](err); ok {
		return s.code
	}
	return codes.Unknown
}

// transientError is an error that is final by its kind, but not for a client that has been let
// in before: repeating the call may help.
type transientError struct{ error }

// Unwrap does not show an error of the rendezvous: its code says that it is final.
func (t transientError) Unwrap() error {
	if _, ok := errors.AsType[*rendezvous.Error](t.error); ok {
		return nil
	}
	return t.error
}

// refusedByEtcd reports whether err is what an etcd itself says of a request.
func refusedByEtcd(err error) bool {
	var s *statusError
	if !errors.As(err, &s) || errors.Is(err, errNotEtcd) {
		return false
	}
	switch s.code {
	case codes.PermissionDenied, codes.Unimplemented:
		return true
	case codes.InvalidArgument: // but for a password that is being changed
		return !strings.Contains(s.text, "authentication failed")
	}
	return false
}

// IsFinal reports whether err stays as it is however often the call is repeated:
// the user has to change something.
func IsFinal(err error) bool {
	if _, ok := errors.AsType[transientError](err); ok {
		return false
	}
	switch statusCode(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented:
		return true
	}
	if own, ok := errors.AsType[*rendezvous.Error](err); ok {
		return !own.Code.Retryable()
	}
	switch {
	case errors.As(err, new(x509.CertificateInvalidError)), errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.HostnameError)),
		errors.As(err, new(tls.AlertError)), errors.As(err, new(tls.RecordHeaderError)), errors.As(err, new(*tls.CertificateVerificationError)),
		errors.As(err, new(*fs.PathError)):
		return true
	}
	return errors.Is(err, errNotEtcd) || strings.Contains(err.Error(), "remote error: tls:")
}

// remedy says what a user can do about err; "" if nothing better comes to mind
// than what err says itself.
func remedy(err error, c *Config) string {
	invalid, _ := errors.AsType[x509.CertificateInvalidError](err)
	text := err.Error()
	switch code := statusCode(err); {
	case code == codes.PermissionDenied:
		return fmt.Sprintf("give the user %q the permission to read and write keys under %q (etcdctl role grant-permission)", c.User, c.Prefix)
	case strings.Contains(text, "user name is empty"):
		return "this etcd asks for a user: give the options user and password, or write etcd://USER:PASSWORD@HOST:PORT"
	case strings.Contains(text, "authentication failed"), code == codes.Unauthenticated:
		return "check the user name and the password"
	case code == codes.Unimplemented, errors.Is(err, errNotEtcd):
		return "check the port; etcd 3.4 or newer is needed, its client port is 2379 by default"
	case strings.Contains(text, "database space exceeded"):
		return "etcd is full: compact and defragment it, raise its quota-backend-bytes, and disarm the alarm (etcdctl alarm disarm)"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "name the authority that signed the server's certificate with the option ca_cert"
	case errors.As(err, new(x509.HostnameError)):
		return "write the endpoint with a name that the server's certificate carries"
	case invalid.Reason == x509.Expired:
		return "renew the server's certificate, or set this machine's clock"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "this port speaks no TLS: write etcd:// instead of etcds://, or leave out protocol=https"
	case strings.Contains(text, "expired certificate"):
		return "renew the client certificate that the option ssl_cert names"
	case strings.Contains(text, "certificate required"), strings.Contains(text, "bad certificate"),
		strings.Contains(text, "unknown certificate"), strings.Contains(text, "unknown authority"):
		return "this etcd asks for a client certificate: give one that it trusts with the options ssl_cert and ssl_cert_key"
	case !c.TLS && (cutOff(err) || strings.Contains(text, "EOF") || strings.Contains(text, "http2:")):
		return "if this port speaks TLS, write etcds:// or give the option protocol=https"
	case c.TLS && (cutOff(err) || errors.Is(err, io.EOF) || strings.Contains(text, "handshake failed: EOF")):
		return "if this port speaks no TLS, write etcd:// instead of etcds://, or leave out protocol=https"
	case errors.As(err, new(*net.DNSError)):
		return "check the host name in the endpoint"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "start etcd there, or correct the endpoint"
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return "check the path"
	}
	return "check that etcd runs there, has a leader and can be reached from this machine"
}

func cutOff(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), syscall.ECONNRESET.Error()) || strings.Contains(err.Error(), syscall.EPIPE.Error())
}

// Explain makes the one error of a call that has failed for good: what was done,
// where, for how long it was tried, why it failed and what to do.
func Explain(c *Config, what string, tried time.Duration, err error) error {
	switch {
	case errors.As(err, new(*rendezvous.Error)), errors.Is(err, context.Canceled):
		return err
	case !IsFinal(err):
		return fmt.Errorf("%w%w", rendezvous.Errorf(rendezvous.CodeConnection, "etcd at %s: %s: tried for %.1f s: ", c.Where(), what, tried.Seconds()),
			withRemedy{err, remedy(err, c)})
	}
	return fmt.Errorf("%w%w", rendezvous.Errorf(rendezvous.CodeInvalid, "etcd at %s: %s: ", c.Where(), what), withRemedy{err, remedy(err, c)})
}

type withRemedy struct {
	error
	remedy string
}

func (w withRemedy) Error() string { return w.error.Error() + "; " + w.remedy }
func (w withRemedy) Unwrap() error { return w.error }
