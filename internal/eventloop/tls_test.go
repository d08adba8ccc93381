package eventloop

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
func pipedTLS(t *testing.T) (server *tls.Conn, below *Records, client *tls.Conn, far net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	below = NewRecords(far)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	testkit.Check(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certificate := testkit.Must(x509.CreateCertificate(rand.Reader, template, template, public, private))(t)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: private}},
	}
	server, client = tls.Server(below, config), tls.Client(near, config)
	done := testkit.Go(server.Handshake)
	testkit.Check(t, client.Handshake())
	testkit.Check(t, <-done)
	testkit.Must(NewTLS(server))(t)
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
	if want := RecordHead + 16<<10 + 17; first != want {
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
	if len(below.Out) == 0 {
		t.Error("the end is not sent")
	}
	if _, err := server.Write([]byte("x")); err == nil {
		t.Error("it writes behind the end")
	}
}

// TestNewTLSRefuses: a connection that does not stand over records would block the loop.
func TestNewTLSRefuses(t *testing.T) {
	near, _ := net.Pipe()
	if got, err := NewTLS(tls.Client(near, nil)); got != nil || err == nil {
		t.Errorf("%v, %v", got, err)
	}
	below := NewRecords(near)
	below.left = 1
	if got, err := NewTLS(tls.Client(below, nil)); got != nil || err == nil {
		t.Errorf("with a part of a record read: %v, %v", got, err)
	}
}

// TestRecordsDeadline: until it is in a loop a connection keeps the deadlines that it is given.
func TestRecordsDeadline(t *testing.T) {
	near, _ := net.Pipe()
	below := NewRecords(near)
	for name, set := range map[string]func(time.Time) error{"both": below.SetDeadline, "read": below.SetReadDeadline} {
		testkit.Check(t, set(time.Unix(1, 0)))
		if n, err := below.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		testkit.Check(t, set(time.Time{}))
	}
	testkit.Check(t, below.SetWriteDeadline(time.Unix(1, 0)))
	if n, err := below.Write([]byte("x")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: %d bytes, %v", n, err)
	}
}
