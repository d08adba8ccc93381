package etcdregister

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rallypoint/core/rendezvous"
	"rallypoint/etcdstore"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdserver"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// refused checks that opening a store and a register fails with one error of that kind,
// which says where, why and what to do.
func refused(t *testing.T, config etcdclient.Config, kind error, words ...string) {
	t.Helper()
	if config.Timeout == 0 {
		config.Timeout = time.Hour // the tests' own end comes first: what nothing helps against must end the tries before
	}
	config.Prefix = "/secret"
	_, errStore := etcdstore.Open(testkit.Within(t, 2*time.Minute), config)
	r, errRegister := New(config, "job")
	if errRegister == nil {
		_, errRegister = r.read(testkit.Within(t, 2*time.Minute))
		r.Close()
	}
	for _, err := range []error{errStore, errRegister} {
		if !errors.Is(err, kind) {
			t.Errorf("not %v: %v", kind, err)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q is missing in: %v", word, err)
			}
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	p := testkit.Must(etcdserver.HoldPort())(t) // nothing listens
	defer p.Release()
	at := fmt.Sprintf("127.0.0.1:%d", p.Number)
	refused(t, etcdclient.Config{Endpoints: []string{at}, Timeout: time.Second}, rendezvous.ErrConnection, at, "tried for 1.", "refused", "start etcd there")
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	refused(t, etcdclient.Config{Endpoints: []string{silent.Addr().String()}, Timeout: time.Second}, rendezvous.ErrConnection, silent.Addr().String(), "has a leader")
	refused(t, etcdclient.Config{}, rendezvous.ErrInvalid, "etcd://HOST")
	refused(t, etcdclient.Config{Endpoints: []string{"h:x"}}, rendezvous.ErrInvalid, "h:x")
}

func TestNotAnEtcd(t *testing.T) {
	web := &http.Server{Protocols: new(http.Protocols), Handler: http.NotFoundHandler()}
	web.Protocols.SetUnencryptedHTTP2(true)
	web.Protocols.SetHTTP1(true)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error)
	go func() { served <- web.Serve(l) }()
	defer func() { web.Close(); <-served }()
	refused(t, etcdclient.Config{Endpoints: []string{l.Addr().String()}}, rendezvous.ErrInvalid, "no etcd", "404", "client port")
}

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	return a
}

// sign makes a certificate and its key in files NAME.pem and NAME.key.
func (a *authority) sign(name string, change func(*x509.Certificate)) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	a.last++
	key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.last), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	change(template)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der := testkit.Must(x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer))(a.t)
	keyDER := testkit.Must(x509.MarshalPKCS8PrivateKey(key))(a.t)
	for suffix, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		testkit.Check(a.t, os.WriteFile(a.file(name+suffix), pem.EncodeToMemory(block), 0o600))
	}
	return testkit.Must(x509.ParseCertificate(der))(a.t), key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }

// startTLS starts an etcd that speaks TLS with the named certificate, and returns
// its endpoint.
func (a *authority) startTLS(cert string, args ...string) string {
	a.t.Helper()
	clients, peers := testkit.Must(etcdserver.HoldPort())(a.t), testkit.Must(etcdserver.HoldPort())(a.t)
	defer clients.Release()
	defer peers.Release()
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(clients.Number))
	p, err := etcdserver.StartProcess(etcdtest.Binary(a.t), append([]string{
		"--data-dir", a.t.TempDir(), "--unsafe-no-fsync", "--listen-client-urls", "https://" + at, "--advertise-client-urls", "https://" + at,
		"--listen-peer-urls", etcdserver.LocalURL(peers.Number), "--initial-advertise-peer-urls", etcdserver.LocalURL(peers.Number), "--initial-cluster", "default=" + etcdserver.LocalURL(peers.Number),
		"--cert-file", a.file(cert + ".pem"), "--key-file", a.file(cert + ".key"),
	}, args...), nil)
	testkit.Check(a.t, err)
	a.t.Cleanup(func() { p.Stop(0) })
	for ctx := testkit.Within(a.t, 30*time.Second); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", at); err == nil {
			conn.Close()
			return at
		}
		if ctx.Err() != nil {
			a.t.Fatalf("the etcd does not listen:\n%s", p.Output)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("server", func(*x509.Certificate) {})
	a.sign("client", func(*x509.Certificate) {})
	a.sign("old client", expired)
	other := newAuthority(t)
	other.sign("stranger", func(*x509.Certificate) {})
	at := a.startTLS("server", "--client-cert-auth", "--trusted-ca-file", a.file("ca.pem"))

	good := etcdclient.Config{Endpoints: []string{at}, TLS: true, CACert: a.file("ca.pem"), Cert: a.file("client.pem"), Key: a.file("client.key")}
	s := mustOpen(t, good)
	testkit.Check(t, s.Set(testkit.Within(t, 20*time.Second), "k", []byte("v")))
	with := func(change func(*etcdclient.Config)) etcdclient.Config {
		c := good
		change(&c)
		return c
	}
	refused(t, with(func(c *etcdclient.Config) { c.CACert = "" }), rendezvous.ErrInvalid, "unknown authority", "ca_cert")
	refused(t, with(func(c *etcdclient.Config) { c.CACert = other.file("ca.pem") }), rendezvous.ErrInvalid, "unknown authority", "ca_cert")
	refused(t, with(func(c *etcdclient.Config) { c.Cert, c.Key = "", "" }), rendezvous.ErrInvalid, "certificate", "ssl_cert_key")
	refused(t, with(func(c *etcdclient.Config) { c.Cert, c.Key = other.file("stranger.pem"), other.file("stranger.key") }), rendezvous.ErrInvalid, "ssl_cert")
	refused(t, with(func(c *etcdclient.Config) { c.Cert, c.Key = a.file("old client.pem"), a.file("old client.key") }), rendezvous.ErrInvalid, "ssl_cert", "expired", "renew")
	refused(t, with(func(c *etcdclient.Config) { c.Cert = a.file("missing.pem") }), rendezvous.ErrInvalid, "ssl_cert", "missing.pem")
	refused(t, with(func(c *etcdclient.Config) { c.CACert = a.file("client.key") }), rendezvous.ErrInvalid, "ca_cert", "no certificate")
	refused(t, with(func(c *etcdclient.Config) { c.Key = "" }), rendezvous.ErrInvalid, "ssl_cert_key")
	refused(t, with(func(c *etcdclient.Config) { c.TLS = false }), rendezvous.ErrInvalid, "etcds://")
	refused(t, etcdclient.Config{Endpoints: []string{at}, Timeout: time.Second}, rendezvous.ErrConnection, "etcds://")
	refused(t, with(func(c *etcdclient.Config) { c.Endpoints, c.Timeout = []string{shared.Endpoint(t)}, time.Second }), rendezvous.ErrConnection, "etcd://")
}

func TestCertificateOfTheServer(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("old", expired)
	a.sign("elsewhere", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"elsewhere"} })
	config := etcdclient.Config{TLS: true, CACert: a.file("ca.pem")}
	config.Endpoints = []string{a.startTLS("old")}
	refused(t, config, rendezvous.ErrInvalid, "expired", "renew the server's certificate")
	config.Endpoints = []string{a.startTLS("elsewhere")}
	refused(t, config, rendezvous.ErrInvalid, "certificate", "write the endpoint with a name")
}

func TestUsers(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t, "--auth-token-ttl", "1")
	at := etcdclient.Config{Endpoints: []string{server.Endpoint()}, Timeout: 20 * time.Second}
	ctx := testkit.Within(t, time.Minute)
	c := testkit.Must(etcdclient.New(at))(t)
	defer c.Close()
	// A user where none is asked for does no harm.
	early := at
	early.User, early.Password, early.Prefix = "early", "x", "/early"
	testkit.Check(t, mustOpen(t, early).Set(ctx, "k", nil))

	makeUsers(t, c, "secret word")

	refused(t, at, rendezvous.ErrInvalid, "user name is empty", "USER:PASSWORD@")
	config := at
	config.User, config.Password = "job", "wrong"
	refused(t, config, rendezvous.ErrInvalid, "invalid user ID or password", "check the user name")
	config.Password = "secret word"
	refused(t, config, rendezvous.ErrInvalid, "permission denied", "grant-permission", `"job"`)

	config.Prefix = "/rallypoint"
	s := mustOpen(t, config)
	testkit.Check(t, s.Set(ctx, "k", []byte("v")))
	r := aRegister(t, config)
	addTexts(t, r, "1")
	time.Sleep(2500 * time.Millisecond) // the token runs out
	testkit.Check(t, s.Set(ctx, "k", []byte("w")))
	addTexts(t, r, "2")
	holds(t, r, "1,2")
}

// makeUsers makes a root and a user "job", who may use what lies under /rallypoint/, and
// switches authentication on.
func makeUsers(t testing.TB, c *etcdclient.Client, password string) {
	t.Helper()
	ctx := testkit.Within(t, time.Minute)
	e := c.Etcd
	testkit.Must(e.RoleAdd(ctx, "root"))(t)
	testkit.Must(e.RoleAdd(ctx, "job"))(t)
	testkit.Must(e.RoleGrantPermission(ctx, "job", "/rallypoint/", clientv3.GetPrefixRangeEnd("/rallypoint/"), clientv3.PermissionType(clientv3.PermReadWrite)))(t)
	for _, user := range []string{"root", "job"} {
		testkit.Must(e.UserAdd(ctx, user, password))(t)
		testkit.Must(e.UserGrantRole(ctx, user, user))(t)
	}
	testkit.Must(e.AuthEnable(ctx))(t)
}
