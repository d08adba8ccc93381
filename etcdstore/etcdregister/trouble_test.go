package etcdregister

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/etcdstore"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdserver"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// gateway is a web server before an etcd, which may answer by itself.
type gateway struct {
	endpoint string
	instead  atomic.Int64 // the status to answer; 0: what the etcd says
	answered atomic.Int64 // how often
}

func newGateway(t *testing.T, target string) *gateway {
	t.Helper()
	both := new(http.Protocols)
	both.SetUnencryptedHTTP2(true)
	onwards := &http.Transport{Protocols: both}
	proxy := httputil.NewSingleHostReverseProxy(testkit.Must(url.Parse("http://" + target))(t))
	proxy.Transport, proxy.FlushInterval, proxy.ErrorLog = onwards, -1, log.New(io.Discard, "", 0)
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	g := &gateway{}
	web := &http.Server{Protocols: both, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := g.instead.Load(); status != 0 {
			g.answered.Add(1)
			http.Error(w, "out of luck", int(status))
			return
		}
		proxy.ServeHTTP(w, r)
	})}
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	g.endpoint = l.Addr().String()
	served := make(chan error)
	go func() { served <- web.Serve(l) }()
	t.Cleanup(func() { web.Close(); <-served; onwards.CloseIdleConnections() })
	return g
}

// A gateway that has nothing behind it for a while ends no job, whatever it says.
func TestGatewayWithoutBackend(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	g := newGateway(t, config.Endpoints[0])
	through := config
	through.Endpoints = []string{g.endpoint}
	s, r := mustOpen(t, through), aRegister(t, through)
	ctx := testkit.Within(t, time.Minute)
	for _, status := range []int{http.StatusBadGateway, http.StatusNotFound, http.StatusForbidden} {
		before := g.answered.Load()
		g.instead.Store(int64(status))
		done := make(chan error, 2)
		go func() { done <- s.Set(ctx, "k", []byte(fmt.Sprint(status))) }()
		go func() { done <- r.add(ctx, "x") }()
		testkit.Eventually(t, "the gateway has answered", func() bool { return g.answered.Load() >= before+4 })
		g.instead.Store(0)
		testkit.Check(t, <-done)
		testkit.Check(t, <-done)
		testkit.Equal(t, string(testkit.Must(s.Get(ctx, "k"))(t)), fmt.Sprint(status))
	}
	holds(t, r, "x,x,x")
	g.instead.Store(http.StatusNotFound)
	refused(t, through, rendezvous.ErrInvalid, "no etcd", "404", "client port") // the first call of a client fails at once
}

// duringRefusals has the store and the register write while every call is refused, until better
// mends it.
func duringRefusals(ctx context.Context, t *testing.T, s *etcdstore.Store, r *Register, what string, better func()) {
	t.Helper()
	done := make(chan error, 2)
	go func() { done <- s.Set(ctx, "k", []byte(what)) }()
	go func() { done <- r.add(ctx, what) }()
	for seen := 0; seen < 3; { // refusals, as long as they last
		time.Sleep(200 * time.Millisecond)
		short, cancel := context.WithTimeout(ctx, time.Second)
		if _, err := r.read(short); err != nil {
			seen++
		}
		cancel()
	}
	better()
	testkit.Check(t, <-done)
	testkit.Check(t, <-done)
}

// The server's certificate is exchanged before this side knows its authority, and the
// client's own before the server takes it: jobs continue.
func TestCertificatesAreExchangedWhileAJobRuns(t *testing.T) {
	t.Parallel()
	a, next := newAuthority(t), newAuthority(t)
	for _, authority := range []*authority{a, next} {
		authority.sign("server", func(*x509.Certificate) {})
		authority.sign("client", func(*x509.Certificate) {})
	}
	replace := func(name string, from *authority, source string) []byte {
		t.Helper()
		old := testkit.Must(os.ReadFile(a.file(name)))(t)
		testkit.Check(t, os.WriteFile(a.file(name), testkit.Must(os.ReadFile(from.file(source)))(t), 0o600))
		return old
	}
	testkit.Check(t, os.WriteFile(a.file("trust.pem"), testkit.Must(os.ReadFile(a.file("ca.pem")))(t), 0o600))
	at := a.startTLS("server", "--client-cert-auth", "--trusted-ca-file", a.file("ca.pem"))
	network := etcdtest.NewLink(t, at)
	config := etcdclient.Config{
		Endpoints: []string{network.Endpoint}, TLS: true, CACert: a.file("trust.pem"), Cert: a.file("client.pem"), Key: a.file("client.key"),
		Timeout: time.Minute, Prefix: "/test",
	}
	s, r := mustOpen(t, config), aRegister(t, config)
	ctx := testkit.Within(t, time.Minute)
	during := func(what string, worse, better func()) {
		t.Helper()
		worse()
		network.Close() // all connect again
		network.Open()
		duringRefusals(ctx, t, s, r, what, better)
	}
	during("server's", func() {
		replace("server.pem", next, "server.pem")
		replace("server.key", next, "server.key")
	}, func() {
		testkit.Check(t, os.WriteFile(a.file("trust.pem"), testkit.Must(os.ReadFile(next.file("ca.pem")))(t), 0o600))
	})
	var cert, key []byte
	during("client's", func() {
		cert = replace("client.pem", next, "client.pem")
		key = replace("client.key", next, "client.key")
	}, func() {
		testkit.Check(t, os.WriteFile(a.file("client.pem"), cert, 0o600))
		testkit.Check(t, os.WriteFile(a.file("client.key"), key, 0o600))
	})
	holds(t, r, "server's,client's")
	// A file that is just being written is no reason to end a job either.
	var own *rendezvous.Error
	testkit.Check(t, os.WriteFile(a.file("client.pem"), nil, 0o600))
	network.Close()
	network.Open()
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := r.add(short, "x"); !errors.As(err, &own) || !own.Code.Retryable() || !strings.Contains(err.Error(), "ssl_cert") {
		t.Error(err)
	}
}

// A watch that had to be opened again when the token had run out tells of changes.
func TestExpiredTokenBlindsNoWatch(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t, "--auth-token-ttl", "1")
	c := testkit.Must(etcdclient.New(etcdclient.Config{Endpoints: []string{server.Endpoint()}}))(t)
	defer c.Close()
	makeUsers(t, c, "secret word")
	network := etcdtest.NewLink(t, server.Endpoint())
	config := etcdclient.Config{
		Endpoints: []string{server.Endpoint()}, User: "job", Password: "secret word", Prefix: "/rallypoint", Timeout: 20 * time.Second,
	}
	cut := config
	cut.Endpoints = []string{network.Endpoint}
	r, far := aRegister(t, config), aRegister(t, cut)
	await := watched(t, far)
	addTexts(t, r, "1")
	await("1")
	time.Sleep(1200 * time.Millisecond) // the token runs out, and the watch breaks
	network.Close()
	network.Open()
	addTexts(t, r, "2")
	await("2")
}

// Calls and watches continue by the one endpoint of three that is good.
func TestBadEndpointsOfThree(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	silentPort := testkit.Must(etcdserver.HoldPort())(t)
	defer silentPort.Release()
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	stranger := newGateway(t, config.Endpoints[0])
	stranger.instead.Store(http.StatusNotFound)
	config.Endpoints = []string{fmt.Sprintf("127.0.0.1:%d", silentPort.Number), config.Endpoints[0], silent.Addr().String(), stranger.endpoint}
	for range 5 {
		s := testkit.Must(etcdstore.Open(testkit.Within(t, testkit.Patience), config))(t)
		r := aRegister(t, config)
		for i := range 10 {
			testkit.Check(t, s.Set(testkit.Within(t, testkit.Patience), fmt.Sprint(i), nil))
			addTexts(t, r, fmt.Sprint(i))
		}
		testkit.Check(t, s.Close())
		r.Close()
	}
}

// etcd's own proxy carries everything, renewals of leases included.
func TestThroughEtcdsProxy(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	port := testkit.Must(etcdserver.HoldPort())(t)
	defer port.Release()
	at := fmt.Sprintf("127.0.0.1:%d", port.Number)
	p, err := etcdserver.StartProcess(etcdtest.Binary(t), []string{"grpc-proxy", "start", "--endpoints", config.Endpoints[0], "--listen-addr", at, "--advertise-client-url", at}, nil)
	testkit.Check(t, err)
	t.Cleanup(func() {
		p.Stop(0)
		if t.Failed() {
			t.Log(p.Output)
		}
	})
	direct := mustOpen(t, config)
	config.Endpoints = []string{at}
	config.TTL = 2 * time.Second
	s, r := mustOpen(t, config), aRegister(t, config)
	r.wrote = time.Now().Add(-time.Hour) // it has a lease from the beginning
	ctx := testkit.Within(t, time.Minute)
	await := watched(t, r)
	testkit.Check(t, s.Set(ctx, "k", []byte("v")))
	n := 0
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
		addTexts(t, r, "x")
		n++
		testkit.Check(t, direct.Wait(ctx, []string{"k"})) // it hangs on a lease
	}
	holds(t, r, strings.Repeat("x,", n-1)+"x")
	addTexts(t, r, "last")
	await("last")
}

// Authentication is switched on, and off, while a job runs that has a user.
func TestAuthenticationIsSwitchedOnLater(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	plainConfig := etcdclient.Config{Endpoints: []string{server.Endpoint()}}
	c := testkit.Must(etcdclient.New(plainConfig))(t)
	defer c.Close()
	config := etcdclient.Config{
		Endpoints: plainConfig.Endpoints, User: "job", Password: "secret word", Prefix: "/rallypoint", Timeout: 20 * time.Second, TTL: 10 * time.Second,
	}
	s, a, b := mustOpen(t, config), aRegister(t, config), aRegister(t, config)
	ctx := testkit.Within(t, time.Minute)
	await := watched(t, b)
	use := func(n int) {
		t.Helper()
		testkit.Check(t, s.Set(ctx, "k", []byte(fmt.Sprint(n))))
		addTexts(t, a, fmt.Sprint(n))
		await(fmt.Sprint(n))
	}
	use(1)
	makeUsers(t, c, "secret word")
	use(2)
	root := config
	root.User, root.Prefix = "root", ""
	r := testkit.Must(etcdclient.New(root))(t)
	defer r.Close()
	testkit.Check(t, r.Call(ctx, "switching it off", func(ctx context.Context) error {
		_, err := r.Etcd.AuthDisable(ctx)
		return err
	}))
	use(3)
}

// A password in a file is read again: it may change while a job runs.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t, "--auth-token-ttl", "1")
	c := testkit.Must(etcdclient.New(etcdclient.Config{Endpoints: []string{server.Endpoint()}}))(t)
	defer c.Close()
	makeUsers(t, c, "first word")
	file := t.TempDir() + "/password"
	write := func(word string) { t.Helper(); testkit.Check(t, os.WriteFile(file, []byte(word+"\n"), 0o600)) }
	write("first word")
	config := etcdclient.Config{Endpoints: []string{server.Endpoint()}, User: "job", PasswordFile: file, Prefix: "/rallypoint", Timeout: 20 * time.Second}
	s := mustOpen(t, config)
	ctx := testkit.Within(t, time.Minute)
	testkit.Check(t, s.Set(ctx, "k", []byte("1")))
	root := config
	root.User, root.Prefix, root.PasswordFile, root.Password = "root", "", "", "first word"
	r := testkit.Must(etcdclient.New(root))(t)
	defer r.Close()
	testkit.Check(t, r.Call(ctx, "changing the password", func(ctx context.Context) error {
		_, err := r.Etcd.UserChangePassword(ctx, "job", "second word")
		return err
	}))
	done := make(chan error, 1)
	go func() { done <- s.Set(ctx, "k", []byte("2")) }()
	select {
	case err := <-done: // the token was good still
		testkit.Check(t, err)
	case <-time.After(1500 * time.Millisecond):
	}
	write("second word")
	testkit.Check(t, s.Set(ctx, "k", []byte("3")))
	write("")
	refused(t, config, rendezvous.ErrInvalid, "password_file", "is empty")
	write("wrong word")
	refused(t, config, rendezvous.ErrInvalid, "invalid user ID or password", "check the user name")
}

// A watch leaves a member that says nothing any more for one that does.
func TestWatchLeavesASilentMember(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	ways := []*etcdtest.Link{etcdtest.NewLink(t, config.Endpoints[0]), etcdtest.NewLink(t, config.Endpoints[0])}
	through := config
	through.Endpoints = []string{ways[0].Endpoint, ways[1].Endpoint}
	a, r := aRegister(t, config), aRegister(t, through)
	await := watched(t, r)
	for i, way := range ways {
		way.Freeze(true)
		addTexts(t, a, fmt.Sprint(i))
		await(fmt.Sprint(i))
		way.Freeze(false)
	}
}

// Errors are in a user's words, not in those of gRPC and of Go.
func TestErrorsSayNothingOfTheTools(t *testing.T) {
	t.Parallel()
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	silentPort := testkit.Must(etcdserver.HoldPort())(t)
	defer silentPort.Release()
	early := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t) // ends each connection
	go func() {
		for {
			conn, err := early.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	defer early.Close()
	for _, at := range []string{silent.Addr().String(), fmt.Sprintf("127.0.0.1:%d", silentPort.Number), early.Addr().String()} {
		_, err := etcdstore.Open(testkit.Within(t, time.Minute), etcdclient.Config{Endpoints: []string{at}, Timeout: time.Second})
		if err == nil {
			t.Fatal("it opened")
		}
		for _, word := range []string{"context", "rpc error", "desc =", "transport", "balancer", "code ="} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%q is in: %v", word, err)
			}
		}
	}
}
