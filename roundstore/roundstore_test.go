package roundstore

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

func TestRoundStoreListensWhereItShould(t *testing.T) {
	for host, want := range map[string]string{
		"127.0.0.1":   "127.0.0.1",
		"localhost":   "127.0.0.1",
		"":            "wildcard",
		"192.0.2.1":   "wildcard", // of no interface
		"fe80::1":     "wildcard", // needs a zone
		"not..a.name": "wildcard",
	} {
		s := testkit.Must(newRoundStores(params.Default(), logTo(t, "stores")))(t)
		r, err := s.Open(t.Context(), host, 0)
		if err != nil {
			t.Errorf("%q: %v", host, err)
			continue
		}
		addr := r.(*roundStore).socket.server.Addr().(*net.TCPAddr)
		got := addr.IP.String()
		if addr.IP.IsUnspecified() {
			got = "wildcard"
		}
		if got != want || r.Port() == 0 || r.Port() != addr.Port {
			t.Errorf("%q: listens on %v, port %d; want %s", host, addr, r.Port(), want)
		}
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Errorf("%q: Close: %v", host, err)
		}
	}
}

func TestRoundStorePortIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = testkit.Must(newRoundStores(params.Default(), logTo(t, "stores")))(t).Open(t.Context(), "127.0.0.1", port)
	if !errors.Is(err, rendezvous.ErrConnection) || !strings.Contains(err.Error(), "store_port="+strconv.Itoa(port)) {
		t.Errorf("got %v", err)
	}
}

func TestRoundStoreOpenEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := testkit.Must(newRoundStores(params.Default(), logTo(t, "stores")))(t).Open(ctx, "", 0)
	if err == nil || r != nil {
		t.Errorf("got %v, %v", r, err)
	}
}

// While it is not known whose round comes next, new connections wait; then they
// get the new store, or, if the join was taken back, the old one.
func TestFixedPortHoldsNewConnections(t *testing.T) {
	for _, begins := range []bool{true, false} {
		t.Run("begins="+strconv.FormatBool(begins), func(t *testing.T) {
			s := testkit.Must(newRoundStores(params.Default(), logTo(t, "stores")))(t)
			port := testkit.FreePort(t)
			first, err := s.Open(t.Context(), "127.0.0.1", port)
			if err != nil {
				t.Fatal(err)
			}
			defer first.Close()
			begin(t, first)
			o := rendezvous.Outcome{StoreAddr: "127.0.0.1", StorePort: port}
			if err := dial(t, o).Set(t.Context(), "k", nil); err != nil {
				t.Fatal(err)
			}
			second, err := s.Open(t.Context(), "127.0.0.1", port)
			if err != nil {
				t.Fatal(err)
			}
			defer second.Close()
			held := make(chan bool, 1)
			go func() {
				c, err := tcpstore.Dial(t.Context(), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), tcpstore.ClientOptions{})
				if err != nil {
					t.Error(err)
					held <- false
					return
				}
				defer c.Close()
				ok, err := c.Check(t.Context(), []string{"k"})
				if err != nil {
					t.Error(err)
				}
				held <- ok
			}()
			// It cannot be served before this.
			if begins {
				begin(t, second)
			} else if err := second.Close(); err != nil {
				t.Error(err)
			}
			if sees := <-held; sees == begins {
				t.Errorf("the connection sees the old store's key: %v", sees)
			}
		})
	}
}

func TestClosingAShutGateEndsTheServer(t *testing.T) {
	s := testkit.Must(newRoundStores(params.Default(), logTo(t, "stores")))(t)
	port := testkit.FreePort(t)
	first, err := s.Open(t.Context(), "127.0.0.1", port)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Open(t.Context(), "127.0.0.1", port)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := errors.Join(second.Close(), first.Close()); err != nil {
		t.Error(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection was answered")
	}
}

// begin begins a round whose store is plain.
func begin(t *testing.T, rs member.RoundStore) {
	t.Helper()
	o := rendezvous.Outcome{Round: 1, StoreAddr: "host", StorePort: rs.Port()}
	here, err := rs.Begin(o)
	if err != nil || here.StoreAddr != o.StoreAddr || here.StorePort != o.StorePort {
		t.Errorf("workers of a plain store are sent to %s:%d, %v", here.StoreAddr, here.StorePort, err)
	}
}
