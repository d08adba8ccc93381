package forward

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// bareLink is a link of a loop that does not run. It returns the peers of both ends.
func bareLink(t *testing.T, l *loop) (k *link, peers [2]int) {
	t.Helper()
	k = &link{gone: func() {}}
	for i := range k.ends {
		pair := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
		k.ends[i] = end{link: k, other: &k.ends[1-i], fd: int32(pair[0])}
		peers[i] = pair[1]
		t.Cleanup(func() { unix.Close(pair[1]) })
	}
	l.add(k)
	t.Cleanup(func() { l.cut(k, false) })
	return k, peers
}

func bareLoop(t *testing.T) *loop {
	t.Helper()
	l := testkit.Must(newLoop())(t)
	t.Cleanup(l.events.Close)
	return l
}

// received is what has come to a socket.
func received(t *testing.T, fd int) []byte {
	t.Helper()
	b := make([]byte, 64<<10)
	n, err := unix.Read(fd, b)
	if err != nil && err != unix.EAGAIN {
		t.Fatal(err)
	}
	return b[:max(n, 0)]
}

// TestBatchIsBounded: the first piece of a batch waits for so many others and no more.
func TestBatchIsBounded(t *testing.T) {
	l := bareLoop(t)
	k, peers := bareLink(t, l)
	for i := range maxPieces {
		if got := received(t, peers[i%2]); len(got) > 0 {
			t.Fatalf("%d bytes were sent before piece %d", len(got), i)
		}
		l.push(&k.ends[i%2], []byte{byte(i)})
	}
	if a, b := received(t, peers[0]), received(t, peers[1]); len(a)+len(b) != maxPieces {
		t.Errorf("%d and %d bytes were sent after %d pieces", len(a), len(b), maxPieces)
	}
}

// TestBatchOfAClosedSocket: a piece for a link that has been cut since goes nowhere, least of all to
// the connection that has got the number of its descriptor.
func TestBatchOfAClosedSocket(t *testing.T) {
	l := bareLoop(t)
	k, _ := bareLink(t, l)
	l.push(&k.ends[0], []byte("late"))
	fd := int(k.ends[0].fd)
	l.cut(k, true)
	other := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(other[0])
	defer unix.Close(other[1])
	if other[0] != fd {
		got := testkit.Must(unix.FcntlInt(uintptr(other[0]), unix.F_DUPFD_CLOEXEC, fd))(t)
		defer unix.Close(got)
		if got != fd && other[1] != fd {
			t.Skipf("the number %d is taken by another part of this process", fd)
		}
	}
	l.flush()
	for _, fd := range other {
		if got := received(t, fd); len(got) > 0 {
			t.Errorf("another connection got %q", got)
		}
	}
}

// TestPushToASlowSocket: pieces after those that a socket has no room for wait their turn, and are
// not kept without end.
func TestPushToASlowSocket(t *testing.T) {
	l := bareLoop(t)
	k, peers := bareLink(t, l)
	e := &k.ends[0]
	testkit.Check(t, unix.SetsockoptInt(int(e.fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 1))
	var want, got []byte
	push := func(size int) {
		b := make([]byte, size)
		_, _ = rand.Read(b)
		want = append(want, b...)
		l.push(e, b)
	}
	for range 2 * maxPieces {
		push(maxPiece / 2)
	}
	push(maxPiece + 1)
	push(1)
	l.flush()
	if len(e.unsent) == 0 {
		t.Fatal("the socket has room for all")
	}
	for range 2 * len(want) {
		got = append(got, received(t, peers[0])...)
		if len(e.unsent) == 0 {
			break
		}
		if l.resume(e) {
			push(3) // after what has waited
			l.flush()
		}
	}
	if got = append(got, received(t, peers[0])...); !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came, not the %d that were sent", len(got), len(want))
	}
	for range maxUnsent/maxPiece + 2*maxPieces {
		push(maxPiece)
	}
	if l.flush(); !k.over {
		t.Errorf("%d bytes are kept", len(e.unsent))
	}
}

// TestForwarderOfABrokenRecordBehindAnother: good data before a record that cannot be read gets
// to the worker.
func TestForwarderOfABrokenRecordBehindAnother(t *testing.T) {
	config := testkit.Must(secret.ServerTLS())(t)
	s := newFar(t, false, func(c Conn) {
		below := &together{Conn: c}
		secured := tls.Server(below, config)
		b := make([]byte, 1)
		if _, err := io.ReadFull(secured, b); err != nil {
			return
		}
		_, _ = secured.Write([]byte("good"))
		_, _ = below.held.Write(append([]byte{23, 3, 3, 0, 32}, make([]byte, 32)...))
		below.flush()
		_, _ = io.Copy(io.Discard, c)
	})
	f, _ := newForwarder(t, s, func(o *Options) { o.Dial = s.dialTLS })
	c := worker(t, f.Addr())
	_, _ = io.WriteString(c, "x")
	b := make([]byte, 4)
	if n, err := io.ReadFull(c, b); err != nil {
		t.Errorf("%q came, %v", b[:n], err)
	}
	wantReset(t, "a record that cannot be read", c)
}

// TestForwarderOfAForgedEnd: the end of a TCP stream, which a machine in the middle can send, is no
// end of what it carries. A worker that takes the end for that of a message gets no shorter one.
func TestForwarderOfAForgedEnd(t *testing.T) {
	wantResetAfter(t, "a stream that ends between two records without close_notify", nil)
}

// TestForwarderOfASilentReset: a connection that breaks where nothing is received from it ends its
// link: after the end of its stream, and while the other end does not read.
func TestForwarderOfASilentReset(t *testing.T) {
	both(t, func(t *testing.T, secured bool) {
		ended, filled, next := make(chan struct{}), make(chan struct{}), make(chan struct{})
		f, _ := newForwarder(t, newFar(t, secured, func(c Conn) {
			b := make([]byte, 1)
			switch _, _ = io.ReadFull(c, b); b[0] {
			case 'e':
				_, _ = io.Copy(io.Discard, c)
				close(ended)
				<-next // says nothing
			case 'm':
				sent, err := 0, error(nil)
				go func() { // until all buffers are full, and the reset
					for part := make([]byte, 1<<20); err == nil; _, err = c.Write(part) {
						sent += len(part)
						if sent == 2<<20 {
							close(filled)
						}
					}
					if sent < 2<<20 {
						close(filled)
					}
				}()
				<-filled
				closeRaw(c)
			}
		}), func(o *Options) {
			o.Accept = admitting(func(c net.Conn) error { return c.(*net.TCPConn).SetWriteBuffer(1) })
		})
		c := worker(t, f.Addr())
		_, _ = io.WriteString(c, "e")
		testkit.Check(t, c.CloseWrite())
		<-ended
		closeRaw(c)
		testkit.Eventually(t, "the link of a worker that has broken off behind its end is cut", func() bool { return f.open() == 0 })
		close(next)
		c = worker(t, f.Addr())
		testkit.Check(t, c.SetReadBuffer(8<<10))
		_, _ = io.WriteString(c, "m")
		<-filled
		testkit.Eventually(t, "the link of a store that has broken off before a worker that does not read is cut", func() bool { return f.open() == 0 })
	})
}

// TestForwarderOfTamperedRecords: of what a store sends, and a machine in the middle drops, swaps,
// repeats or adds to, the worker gets what came before, and then a reset. Change-cipher-spec records
// say nothing in TLS 1.3, and are left out.
func TestForwarderOfTamperedRecords(t *testing.T) {
	plain := func(kind byte, body string) []byte {
		return append([]byte{kind, 3, 3, 0, byte(len(body))}, body...)
	}
	for name, attack := range map[string]struct {
		order func(r [][]byte) [][]byte
		want  string // "": all
	}{
		"dropped":         {func(r [][]byte) [][]byte { return [][]byte{r[0], r[2], r[3]} }, "11"},
		"swapped":         {func(r [][]byte) [][]byte { return [][]byte{r[0], r[2], r[1], r[3]} }, "11"},
		"repeated":        {func(r [][]byte) [][]byte { return [][]byte{r[0], r[0], r[1], r[2], r[3]} }, "11"},
		"another's data":  {func(r [][]byte) [][]byte { return [][]byte{r[0], r[1], plain(23, "22"), r[2], r[3]} }, "1122"},
		"another's end":   {func(r [][]byte) [][]byte { return [][]byte{r[0], plain(21, "\x01\x00")} }, "11"},
		"end before data": {func(r [][]byte) [][]byte { return [][]byte{r[0], r[3]} }, "11"},
		"nothing said": {func(r [][]byte) [][]byte {
			return [][]byte{r[0], plain(20, "\x01"), r[1], plain(20, "\x01"), r[2], r[3]}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := testkit.Must(secret.ServerTLS())(t)
			s := newFar(t, false, func(c Conn) {
				below := &together{Conn: c}
				secured := tls.Server(below, config)
				if _, err := io.ReadFull(secured, make([]byte, 1)); err != nil {
					return
				}
				var records [][]byte
				take := func() {
					records = append(records, bytes.Clone(below.held.Bytes()))
					below.held.Reset()
				}
				for _, said := range []string{"11", "22", "33"} {
					_, _ = io.WriteString(secured, said)
					take()
				}
				_ = secured.CloseWrite()
				take()
				_, _ = below.Write(bytes.Join(attack.order(records), nil))
				below.flush()
				_, _ = io.Copy(io.Discard, c)
			})
			f, _ := newForwarder(t, s, func(o *Options) { o.Dial = s.dialTLS })
			c := worker(t, f.Addr())
			_, _ = io.WriteString(c, "x")
			if attack.want == "" {
				if got, err := io.ReadAll(c); string(got) != "112233" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
				return
			}
			got := make([]byte, len(attack.want))
			if n, err := io.ReadFull(c, got); err != nil || string(got) != attack.want {
				t.Errorf("got %q, %v", got[:n], err)
			}
			wantReset(t, "behind what was changed", c)
		})
	}
}
