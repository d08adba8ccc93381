package secret

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// writesConn counts what is written.
type writesConn struct {
	net.Conn
	writes atomic.Int64
}

func (w *writesConn) Write(b []byte) (int, error) {
	w.writes.Add(1)
	return w.Conn.Write(b)
}

// TestOpeningWrites: a client opens a connection by two writes, the end of its handshake and
// its proof being one, and a server by two.
func TestOpeningWrites(t *testing.T) {
	near, far := pair(t)
	client, server := &writesConn{Conn: near}, &writesConn{Conn: far}
	done := accepting(t, server, testToken(t, goodToken), PurposeStore, testName)
	testkit.Must(DialStore(t.Context(), client, testToken(t, goodToken), testName, PurposeStore))(t)
	testkit.Check(t, (<-done).err)
	if c, s := client.writes.Load(), server.writes.Load(); c != 2 || s != 2 {
		t.Errorf("the client wrote %d times, the server %d times, want 2 and 2", c, s)
	}
}

// TestOpenTLSSaysWhy: a client that gives its handshake up tells the server why.
func TestOpenTLSSaysWhy(t *testing.T) {
	near, far := pair(t)
	config, other := testkit.Must(ServerTLS())(t), testkit.Must(ServerTLS())(t)
	config.Certificates[0].PrivateKey = other.Certificates[0].PrivateKey // no certificate of this key
	done := testkit.Go(func() error { return tls.Server(far, config).Handshake() })
	if _, err := OpenTLS(near); err == nil || !strings.Contains(err.Error(), "signature") {
		t.Error(err)
	}
	near.Close()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "remote error: tls: error decrypting message") {
		t.Error(err)
	}
}

// TestCertificate: a server's certificate is the one that crypto/x509 makes.
func TestCertificate(t *testing.T) {
	c := testkit.Must(ServerTLS())(t).Certificates[0]
	private := c.PrivateKey.(ed25519.PrivateKey)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	want := testkit.Must(x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private))(t)
	if !bytes.Equal(c.Certificate[0], want) {
		t.Errorf("% x, want % x", c.Certificate[0], want)
	}
}
