package tcpstore

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/secret"
	"rallypoint/internal/eventloop"
	"rallypoint/internal/testkit"
)

// writer makes the records of one side of a TLS 1.3 connection, which crypto/tls does not
// make for anyone: updates of the key, empty ones.
type writer struct {
	t      testing.TB
	hash   func() hash.Hash
	keyLen int
	secret []byte
	number uint64
}

// newWriter takes over the sending side of a client that logged its keys and has sent so
// many records by them.
func newWriter(t testing.TB, conn *tls.Conn, keys string, sent uint64) *writer {
	t.Helper()
	if fips140.Enforced() {
		t.Skip("records cannot be made by hand in FIPS mode")
	}
	w := &writer{t: t, number: sent}
	switch suite := conn.ConnectionState().CipherSuite; suite {
	case tls.TLS_AES_128_GCM_SHA256:
		w.hash, w.keyLen = sha256.New, 16
	case tls.TLS_AES_256_GCM_SHA384:
		w.hash, w.keyLen = sha512.New384, 32
	default:
		t.Skipf("%s has no AES", tls.CipherSuiteName(suite))
	}
	for line := range strings.Lines(keys) {
		if fields := strings.Fields(line); fields[0] == "CLIENT_TRAFFIC_SECRET_0" {
			w.secret = testkit.Must(hex.DecodeString(fields[2]))(t)
		}
	}
	return w
}

func (w *writer) expand(label string, n int) []byte {
	w.t.Helper()
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(append(info, byte(6+len(label))), "tls13 "+label...)
	return testkit.Must(hkdf.Expand(w.hash, w.secret, string(append(info, 0)), n))(w.t)
}

// record seals one; kind is 22 for a message of the handshake, 23 for data.
func (w *writer) record(kind byte, content string) []byte {
	w.t.Helper()
	aead := testkit.Must(cipher.NewGCM(testkit.Must(aes.NewCipher(w.expand("key", w.keyLen)))(w.t)))(w.t)
	nonce := w.expand("iv", 12)
	number := binary.BigEndian.AppendUint64(make([]byte, 4), w.number)
	for i := range nonce {
		nonce[i] ^= number[i]
	}
	w.number++
	plain := append([]byte(content), kind)
	head := []byte{23, 3, 3, 0, 0}
	binary.BigEndian.PutUint16(head[3:], uint16(len(plain)+aead.Overhead()))
	return aead.Seal(head, nonce, plain, head[:eventloop.RecordHead:eventloop.RecordHead])
}

// keyUpdate is a message by which the next key counts; ask wants the same of the peer.
func (w *writer) keyUpdate(ask byte) []byte {
	w.t.Helper()
	r := w.record(22, string([]byte{24, 0, 0, 1, ask}))
	w.secret, w.number = w.expand("traffic upd", w.hash().Size()), 0
	return r
}

// logged opens a connection whose keys are known.
func logged(t testing.TB, s *Server) (rawTLS, *writer) {
	t.Helper()
	conn := testkit.Must(net.Dial("tcp", s.Addr().String()))(t).(*net.TCPConn)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(guard))
	var keys bytes.Buffer
	config := secret.ClientTLS()
	config.KeyLogWriter = &keys
	r := rawTLS{tls.Client(conn, config), conn, t}
	testkit.Check(t, r.Handshake())
	said := proofOf(t, r.Conn, goodKey, thisRound)
	testkit.Must(r.Write(said))(t)
	testkit.Must(io.ReadFull(r, make([]byte, len(said))))(t)
	return r, newWriter(t, r.Conn, keys.String(), 1)
}

// TestKeyUpdate: what a read makes TLS send is sent, though no reply is due, and both sides go
// on with their new keys.
func TestKeyUpdate(t *testing.T) {
	s, _ := newSecureServer(t, Options{})
	r, w := logged(t, s)
	raw := testkit.Must(r.below.SyscallConn())(t)
	unread := func() (n int) {
		raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		return n
	}
	testkit.Must(r.below.Write(w.record(23, string(hello))))(t)
	r.exchange(nil, hello[6:])
	for range 3 {
		testkit.Must(r.below.Write(w.keyUpdate(1)))(t)
		testkit.Eventually(t, "the answer is there", func() bool { return unread() > 0 })
		testkit.Must(r.below.Write(w.record(23, string(appendPing(nil, 7)))))(t)
		r.exchange(nil, []byte{7, 0, 0, 0})
	}
	// In one write with requests before and after it, and cut.
	sent := append(w.record(23, string(appendPing(nil, 8))), w.keyUpdate(1)...)
	sent = append(append(sent, w.keyUpdate(0)...), w.record(23, string(appendPing(nil, 9)))...)
	for _, b := range sent {
		testkit.Must(r.below.Write([]byte{b}))(t)
	}
	r.exchange(nil, []byte{8, 0, 0, 0, 9, 0, 0, 0})
}

// TestEmptyRecords: some are passed over, and more are not.
func TestEmptyRecords(t *testing.T) {
	s, lines := newSecureServer(t, Options{})
	r, w := logged(t, s)
	var sent []byte
	for range 10 {
		sent = append(sent, w.record(23, "")...)
	}
	testkit.Must(r.below.Write(append(sent, w.record(23, string(hello))...)))(t)
	r.exchange(nil, hello[6:])
	for range 100 {
		r.below.Write(w.record(23, ""))
	}
	if line := lines.Next(t); !strings.Contains(line, "too many ignored records") || !strings.Contains(line, "reason=bad_record") {
		t.Errorf("the line is %s", line)
	}
	if _, err := io.Copy(io.Discard, r.below); err != nil && errors.Is(err, unix.ETIMEDOUT) {
		t.Error(err)
	}
}
