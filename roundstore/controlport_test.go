package roundstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/control/discovery"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

// onePort starts a control plane whose port is that of the round stores, too.
func onePort(t *testing.T, token string) (s *RoundStores, server *control.Server, addr string) {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := params.Default()
	hosts := true
	p.RunID, p.TokenFile, p.IsHost, p.StorePort = "job", token, &hosts, l.Addr().(*net.TCPAddr).Port
	s = testkit.Must(newRoundStores(p, logTo(t, "stores")))(t)
	config := control.Config{RunID: "job", Node: &p, TakeStore: s.shareControlPort([]net.Listener{l}), Log: logTo(t, "control plane")}
	if token != "" {
		config.Token = testkit.Must(secret.OpenToken(token, nil))(t)
	}
	server = control.Start(config, l)
	t.Cleanup(func() { server.Close() })
	return s, server, l.Addr().String()
}

// TestOnePort: a port serves HTTP, and the clients of the round store, also those that come before
// the store is open; another round gets a store of its own.
func TestOnePort(t *testing.T) {
	s, _, addr := onePort(t, "")
	early := testkit.Go(func() error {
		c, err := tcpstore.Dial(testkit.Within(t, patience), addr, tcpstore.ClientOptions{})
		if err == nil {
			err = errors.Join(c.Set(testkit.Within(t, patience), "key", []byte("1")), c.Close())
		}
		return err
	})
	for round := uint64(1); round <= 2; round++ {
		rs := testkit.Must(s.Open(t.Context(), "127.0.0.1", s.params.StorePort))(t)
		defer rs.Close()
		_, err := rs.Begin(rendezvous.Outcome{Round: round})
		testkit.Check(t, err)
		if round == 1 {
			testkit.Check(t, <-early)
		}
		c := testkit.Must(tcpstore.Dial(testkit.Within(t, patience), addr, tcpstore.ClientOptions{}))(t)
		there, err := c.Check(testkit.Within(t, patience), []string{"key"})
		if err != nil || there != (round == 1) || rs.Port() != s.params.StorePort {
			t.Errorf("round %d, port %d: %v, %v", round, rs.Port(), there, err)
		}
		testkit.Check(t, c.Close())
		testkit.Check(t, healthz(testkit.Within(t, patience), addr))
	}
}

// TestStoreWithHost: the store of a node that may host is at the control plane's port while that listens in
// this process at the store's address, and else at any.
func TestStoreWithHost(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := l.Addr().(*net.TCPAddr).Port
	p := params.Default()
	p.RunID, p.StorePort, p.StoreWithHost = "job", port, true
	s := testkit.Must(newRoundStores(p, logTo(t, "stores")))(t)
	at := func(host string) int {
		rs := testkit.Must(s.Open(t.Context(), host, p.StorePort))(t)
		t.Cleanup(func() { rs.Close() })
		_, err := rs.Begin(rendezvous.Outcome{Round: 1})
		testkit.Check(t, err)
		c := testkit.Must(tcpstore.Dial(testkit.Within(t, patience), net.JoinHostPort(host, strconv.Itoa(rs.Port())), tcpstore.ClientOptions{}))(t)
		if there, err := c.Check(testkit.Within(t, patience), []string{"key"}); there || err != nil {
			t.Errorf("a new store at %q has the key of another: %v", host, err)
		}
		testkit.Check(t, errors.Join(c.Set(testkit.Within(t, patience), "key", nil), c.Close()))
		return rs.Port()
	}
	if got := at("127.0.0.1"); got == port {
		t.Error("before the node hosts, the store takes the endpoint's port")
	}
	cfg := discovery.HostConfig{Params: p, Log: logTo(t, "control plane"), Standby: true}
	waiting := startHost(cfg, s, nil, testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t))
	defer waiting.Close()
	if got := at("127.0.0.1"); got == port {
		t.Error("a standby's store takes the endpoint's port")
	}
	cfg.Standby = false
	host := startHost(cfg, s, nil, l)
	for round := range 10 { // what a store listens on depends on the other members
		if got := at([]string{"127.0.0.1", ""}[round%2]); got != port {
			t.Errorf("round %d of the node that hosts has its store at port %d", round, got)
		}
	}
	if got := at("127.0.0.2"); got == port {
		t.Error("the store is said to be at an address where the control plane does not listen")
	}
	testkit.Check(t, host.Close())
	if got := at("127.0.0.1"); got == port {
		t.Error("the control plane's port is still the store's after its end")
	}
}

// TestOnePortEnds: a client that waits for a store does not keep the control plane from ending.
func TestOnePortEnds(t *testing.T) {
	_, server, addr := onePort(t, "")
	conn := testkit.Must(net.Dial("tcp", addr))(t)
	defer conn.Close()
	_, err := conn.Write([]byte{0})
	testkit.Check(t, err)
	testkit.Check(t, healthz(testkit.Within(t, patience), addr)) // accepted after it
	testkit.Check(t, server.Close())
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// bytewise sends one byte at a time.
type bytewise struct{ net.Conn }

func (b bytewise) Write(p []byte) (n int, err error) {
	for ; n < len(p) && err == nil; n++ {
		_, err = b.Conn.Write(p[n : n+1])
	}
	return n, err
}

// TestOnePortWithToken: by TLS the port tells a store's clients from the control plane's before
// either has proven anything, however their hello comes. Neither opens the other.
func TestOnePortWithToken(t *testing.T) {
	file := testkit.TokenFile(t)
	s, _, addr := onePort(t, file)
	token := testkit.Must(secret.OpenToken(file, nil))(t)
	rs := testkit.Must(s.Open(t.Context(), "127.0.0.1", s.params.StorePort))(t)
	defer rs.Close()
	o, err := rs.Begin(rendezvous.Outcome{Round: 1, Generation: "g", StoreAddr: "127.0.0.1", StorePort: s.params.StorePort})
	testkit.Check(t, err)
	if o.StorePort != s.params.StorePort || o.StoreAddr == "127.0.0.1" {
		t.Errorf("workers of this machine are sent to %s:%d", o.StoreAddr, o.StorePort)
	}
	name := nameOf("job", o)
	open := func(conn net.Conn, name secret.StoreName, purpose secret.Purpose) error {
		c, err := secret.DialStore(testkit.Within(t, patience), conn, token, name, purpose)
		if err == nil {
			c.NetConn().Close()
		}
		return err
	}
	for what, wrap := range map[string]func(net.Conn) net.Conn{
		"whole": func(c net.Conn) net.Conn { return c }, "byte by byte": func(c net.Conn) net.Conn { return bytewise{c} },
	} {
		conn := testkit.Must(net.Dial("tcp", addr))(t)
		if err := open(wrap(conn), name, secret.PurposeStore); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		conn.Close()
	}
	conn := testkit.Must(net.Dial("tcp", addr))(t)
	if err := open(conn, secret.StoreName{Run: "job", Round: 7}, secret.PurposeStore); rendezvous.CodeOf(err) != rendezvous.CodeRoundOver {
		t.Errorf("another round: %v", err)
	}
	conn.Close()
	conn = testkit.Must(net.Dial("tcp", addr))(t)
	if err := open(conn, name, secret.PurposeControl); rendezvous.CodeOf(err) != rendezvous.CodeAuth {
		t.Errorf("a proof for the control plane at the store: %v", err)
	}
	conn.Close()
	if err := healthz(testkit.Within(t, patience), addr); err != nil {
		t.Error(err)
	}
}

// healthz asks a control plane whether it is well, in plain.
func healthz(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/healthz", nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s, %w", resp.Status, err)
	}
	return nil
}
