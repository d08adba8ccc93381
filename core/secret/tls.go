package secret

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"

	"rallypoint/core/rendezvous"
)

// Curves of the key exchange. In FIPS mode crypto/tls leaves out those that are not allowed. The
// hybrid default of crypto/tls makes a handshake 1.7 times as expensive, to protect data that is
// worthless in a year. A client asks for P-256 only (docs/decisions/0068), because crypto/tls
// uses its own order, not that of a list.
var (
	serverCurves = []tls.CurveID{tls.CurveP256, tls.X25519}
	clientCurves = []tls.CurveID{tls.CurveP256}
)

// ServerTLS makes the settings of one server. Its certificate is drawn now and proves
// nothing: the proof over the connection's exporter does.
func ServerTLS() (*tls.Config, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, CurvePreferences: serverCurves,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{certificate(public, private)}, PrivateKey: private}},
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
	}, nil
}

// The parts of a server's certificate in DER, without its key and signature. They are the same
// for all servers. x509.CreateCertificate would make the same certificate, but the library 50 KB
// larger.
const (
	certificateHead = "\x30\x81\xad"
	certificateBody = "\x30\x61\xa0\x03\x02\x01\x02\x02\x01\x01\x30\x05\x06\x03\x2b\x65\x70\x30\x00" + // version 3, serial 1, Ed25519, no name
		"\x30\x20\x17\x0d700101000000Z\x18\x0f22000101000000Z\x30\x00" + // from 1970 to 2200: clocks do not matter
		"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00" // an Ed25519 key follows
	certificateTail = "\x30\x05\x06\x03\x2b\x65\x70\x03\x41\x00" // an Ed25519 signature of the body follows
)

// certificate is one that signs itself.
func certificate(public ed25519.PublicKey, private ed25519.PrivateKey) []byte {
	body := append([]byte(certificateBody), public...)
	return slices.Concat([]byte(certificateHead), body, []byte(certificateTail), ed25519.Sign(private, body))
}

// clientTLS are the settings of the connecting end, shared by all connections.
var clientTLS = &tls.Config{
	MinVersion: tls.VersionTLS13, CurvePreferences: clientCurves, InsecureSkipVerify: true,
	SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
}

// storeTLS are those of a round store's client, which asks for it in its hello (ALPN).
var storeTLS = func() *tls.Config {
	c := clientTLS.Clone()
	c.NextProtos = []string{storeProtocol}
	return c
}()

const storeProtocol = "rallypoint-store"

// AsksForStore reports whether a TLS hello is DialStore's, so that a port that also serves a
// control plane can tell what a connection is for. Security does not depend on it, since each
// proof is for one purpose.
func AsksForStore(hello []byte) bool {
	return bytes.Contains(hello, []byte(storeProtocol))
}

// ClientTLS returns the settings of the connecting end. The certificate is not verified: a server
// proves itself by the proof over the connection's exporter, before the client believes anything
// from it.
func ClientTLS() *tls.Config { return clientTLS.Clone() }

// OpenTLS makes the TLS handshake of the connecting end, and may block until the connection's
// deadline. Its last message goes out together with the first write to the result, which must come
// before any read: a proof, which the other end awaits.
func OpenTLS(conn net.Conn) (*tls.Conn, error) { return openTLS(conn, clientTLS) }

func openTLS(conn net.Conn, config *tls.Config) (*tls.Conn, error) {
	below := &clientConn{Conn: conn, shaking: true}
	secured := tls.Client(below, config)
	err := secured.Handshake()
	below.shaking = false
	if err != nil {
		_ = below.flush() // why, if TLS has said it
		return nil, err
	}
	return secured, nil
}

// clientConn is the connection below the TLS connection of a client. During the handshake it
// holds written data back until something is read, so that both ends handle fewer packets.
type clientConn struct {
	net.Conn
	shaking bool
	held    []byte
}

// NetConn returns the connection below.
func (c *clientConn) NetConn() net.Conn { return c.Conn }

func (c *clientConn) Read(b []byte) (int, error) {
	if c.shaking {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Read(b)
}

func (c *clientConn) Write(b []byte) (int, error) {
	switch {
	case c.shaking:
		c.held = append(c.held, b...)
		return len(b), nil
	case c.held == nil:
		return c.Conn.Write(b)
	}
	c.held = append(c.held, b...)
	if err := c.flush(); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (c *clientConn) flush() error {
	held := c.held
	c.held = nil
	if len(held) == 0 {
		return nil
	}
	_, err := c.Conn.Write(held)
	return err
}

// exporterLen is the length of a connection's exporter in bytes.
const exporterLen = 32

// Exporter returns the secret of a TLS connection that only its two ends can derive.
func Exporter(conn *tls.Conn) ([]byte, error) {
	state := conn.ConnectionState()
	return state.ExportKeyingMaterial("EXPORTER-rallypoint", nil, exporterLen)
}

// ExplainTLS says what a client's failed TLS handshake means. The peer should be a Rallypoint of
// the given kind, "control plane" or "round store". A peer without a token answers the handshake
// with its preamble.
func ExplainTLS(err error, kind string, addr net.Addr, token *Token) error {
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &plain) && [len(Magic)]byte(plain.RecordHeader[:len(Magic)]) == Magic:
		return rendezvous.Errorf(rendezvous.CodeAuth,
			"authentication failed: the %s at %s has no token, but this process was given one (%s): start the %s with it, too, or give none here",
			kind, addr, token.Describe(), kind)
	case errors.As(err, &plain):
		return fmt.Errorf("what listens at %s is no Rallypoint %s with a token: it answers TLS with %s", addr, kind, HexStart(plain.RecordHeader[:]))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%s closed the connection in the TLS handshake: it is no Rallypoint %s with a token, or it is ending: %w", addr, kind, noEOF(err))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	return fmt.Errorf("the TLS handshake with %s failed: %w", addr, err)
}

// noEOF turns the end of a stream inside a message into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
