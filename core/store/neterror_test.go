package store

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestPlainNetError(t *testing.T) {
	address := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	op := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Addr: address, Err: err} }
	other := errors.New("other")
	for _, c := range []struct {
		err  error
		text string
	}{
		{op(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "connection refused"},
		{op(os.NewSyscallError("bind", syscall.EADDRINUSE)), "address already in use"},
		{op(os.ErrDeadlineExceeded), "no answer in time"},
		{op(context.DeadlineExceeded), "no answer in time"},
		{op(&net.DNSError{Err: "no such host", Name: "host0", Server: "10.0.0.1:53", IsNotFound: true}), `the name "host0" cannot be resolved: no such host`},
		{op(net.ErrClosed), "use of closed network connection"},
		{other, "other"},
	} {
		got := PlainNetError(c.err)
		if got.Error() != c.text || !errors.Is(got, c.err) {
			t.Errorf("%v: got %q, want %q of the same chain", c.err, got, c.text)
		}
	}
	if PlainNetError(nil) != nil {
		t.Error("nil became an error")
	}
	if !errors.Is(PlainNetError(op(os.NewSyscallError("connect", syscall.ECONNREFUSED))), syscall.ECONNREFUSED) {
		t.Error("the number was lost")
	}
}
