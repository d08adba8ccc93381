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
	return aead.Seal(head, nonce, plain, head[:recordHead:recordHead])
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
	// In one write with requests before and behind it, and cut.
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

// sendAndClose returns the bytes in which a client sends n bytes, and its end, to far.
func sendAndClose(t *testing.T, client *tls.Conn, far net.Conn, n int) []byte {
	t.Helper()
	go func() { // a client's Write waits for the pipe's reader
		client.Write(bytes.Repeat([]byte("a"), n))
		client.Close()
	}()
	return testkit.Must(io.ReadAll(far))(t)
}

// pipedTLS opens a TLS connection whose server reads as a loop's connections do; far is what
// the client's bytes arrive at.
func pipedTLS(t *testing.T) (server *tls.Conn, below *records, client *tls.Conn, far net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	below = &records{conn: far}
	server = tls.Server(below, testkit.Must(secret.ServerTLS())(t))
	client = tls.Client(near, secret.ClientTLS())
	done := testkit.Go(server.Handshake)
	testkit.Check(t, client.Handshake())
	testkit.Check(t, <-done)
	if !below.enterLoop() {
		t.Fatal("crypto/tls has read a record in part")
	}
	return server, below, client, far
}

// TestTLSCallsAgain: what a loop's connections stand on. crypto/tls takes a temporary error
// for "call again", at any place, reads a record by what it has got of it, and has none left
// when it returns less than there was room for.
func TestTLSCallsAgain(t *testing.T) {
	server, below, client, far := pipedTLS(t)
	buffer := make([]byte, 64<<10)
	wantNothing := func() {
		t.Helper()
		if n, err := server.Read(buffer); n != 0 || err != error(notYet{}) {
			t.Fatalf("%d bytes, %v, where nothing has come", n, err)
		}
	}
	wantNothing()
	sent := sendAndClose(t, client, far, 20000)
	first := wholeRecord(sent)
	if want := recordHead + 16<<10 + 17; first != want {
		t.Fatalf("the first record has %d bytes, want %d", first, want)
	}
	for i := range first - 1 {
		below.in = append(below.in, sent[i])
		if wholeRecord(below.in) != 0 {
			t.Fatalf("%d of %d bytes are a record", i+1, first)
		}
		if i%100 == 0 {
			wantNothing()
		}
	}
	below.in = append(below.in, sent[first-1])
	got := 0
	for _, room := range []int{1, 1000, 16<<10 - 1001} {
		n, err := server.Read(buffer[:room])
		if n != room || err != nil {
			t.Fatalf("%d bytes, %v, want %d", n, err, room)
		}
		got += n
	}
	if got != 16<<10 || len(below.in) != 0 {
		t.Fatalf("%d bytes read, %d left", got, len(below.in))
	}
	wantNothing()
	below.in = sent[first:]
	if n, err := server.Read(buffer); n != 20000-16<<10 || err != nil || below.left != 0 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if n, err := server.Read(buffer); n != 0 || err != io.EOF {
		t.Fatalf("%d bytes, %v, want the end", n, err)
	}
	testkit.Check(t, server.CloseWrite())
	if len(below.out) == 0 {
		t.Error("the end is not sent")
	}
	if _, err := server.Write([]byte("x")); err == nil {
		t.Error("it writes behind the end")
	}
}
