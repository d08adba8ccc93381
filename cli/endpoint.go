package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/backend"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// wantArgs names the arguments that a command takes, and complains about the
// first one that is missing. A last name that ends in "..." may be repeated, one
// in brackets left out. An empty KEY is refused: it is most likely a variable without a value.
func wantArgs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		last := len(names) - 1
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return fmt.Errorf("%s is missing", strings.TrimSuffix(name, "..."))
			}
		}
		if len(args) > len(names) && !strings.HasSuffix(names[last], "...") {
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		for i, arg := range args {
			if arg == "" && strings.HasPrefix(names[min(i, last)], "KEY") {
				return errors.New("KEY is empty")
			}
		}
		return nil
	}
}

// printTo writes a text to a command's output. what names the text in the error.
func printTo(out io.Writer, what, text string) error {
	if _, err := io.WriteString(out, text); err != nil {
		return failed("printing %s: %w", what, err)
	}
	return nil
}

func positive[T ~int | ~int64](flag string, n T) error {
	if n <= 0 {
		return fmt.Errorf("%s is %v, it must be greater than 0", flag, n)
	}
	return nil
}

// unreachable is the error of a failed connection. whose names what was looked for, and check
// says what to do.
func unreachable(addr, whose string, tried time.Duration, check string, err error) error {
	var dns *net.DNSError
	took := tried.Round(10 * time.Millisecond)
	switch {
	case errors.As(err, &dns):
		return failed("cannot resolve %q, looking for %s at %s: %s; %s", dns.Name, whose, addr, dns.Err, check)
	case errors.Is(err, syscall.ECONNREFUSED):
		return failed("nothing listens at %s (connection refused), looking for %s; %s", addr, whose, check)
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return failed("no answer from %s within %v, looking for %s; its machine is down, a firewall is between, or it is overloaded (--timeout allows more); %s",
			addr, took, whose, check)
	}
	if errors.Is(err, rendezvous.ErrConnection) { // its text has it already
		return failed("%w; %s", err, check)
	}
	return failed("cannot reach %s at %s: %w; %s", whose, addr, err, check)
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// probeTimeout limits the attempt to identify a server that does not speak the expected protocol.
const probeTimeout = time.Second

// isTCPStore reports whether the server there, which has not answered as a control plane does,
// speaks the TCPStore protocol.
func isTCPStore(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := wire.Dial(ctx, addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	return wire.IsTCPStore(ctx, conn)
}

func isControlPlane(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	code, _, body, err := backend.Get(ctx, addr, nil, "/healthz", "")
	return err == nil && code == http.StatusOK && string(body) == "ok\n"
}
