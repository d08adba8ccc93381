package forward

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// TestForwarderRecordsAcrossBuffers: records that arrive cut anywhere, and many at once, become
// the bytes that the store has sent, and its end.
func TestForwarderRecordsAcrossBuffers(t *testing.T) {
	for name, cuts := range map[string][]int{
		"bytes":          {1, 2, 1, 1, 3},
		"heads":          {5, 200},
		"records":        {16<<10 + 22},
		"almost records": {16<<10 + 21, 1, 16<<10 + 23},
		"as it comes":    {1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			sizes := []int{1, 100, 16<<10 + 1}
			if name != "bytes" {
				sizes = append(sizes, 16<<10-1, 16<<10, carried-1, carried, carried+1, 200<<10, 1<<20)
			}
			var all bytes.Buffer
			for _, size := range sizes {
				_, _ = io.CopyN(&all, rand.Reader, int64(size))
			}
			config := testkit.Must(secret.ServerTLS())(t)
			s := newFar(t, false, func(c Conn) {
				secured := tls.Server(&testkit.Pieces{Conn: c, Of: cuts}, config)
				rest := all.Bytes()
				for _, size := range sizes {
					_, _ = secured.Write(rest[:size])
					rest = rest[size:]
				}
				_ = secured.CloseWrite()
				_, _ = io.Copy(io.Discard, secured)
			})
			f, _ := newForwarder(t, s, func(o *Options) { o.Dial = s.dialTLS })
			c := worker(t, f.Addr())
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, all.Bytes()) {
				t.Errorf("%d of %d bytes came, or others: %v", len(got), all.Len(), err)
			}
		})
	}
}

// TestForwarderOfABrokenRecord: a store that ends inside a record has broken off.
func TestForwarderOfABrokenRecord(t *testing.T) {
	wantResetAfter(t, "a store that ends inside a record", []byte{23, 3, 3, 1, 0, 9})
}

// wantResetAfter has a store that has answered send these bytes as they are, and end its stream.
func wantResetAfter(t *testing.T, what string, last []byte) {
	t.Helper()
	f, _ := newForwarder(t, newFar(t, true, func(c Conn) {
		b := make([]byte, 1)
		_, _ = io.ReadFull(c, b)
		_, _ = c.Write(b)
		_, _ = io.ReadFull(c, b)
		raw := below(c).(*net.TCPConn)
		_, _ = raw.Write(last)
		_ = raw.CloseWrite()
		_, _ = io.Copy(io.Discard, raw)
	}))
	c := worker(t, f.Addr())
	_, _ = io.WriteString(c, "x")
	testkit.Must(io.ReadFull(c, make([]byte, 1)))(t)
	_, _ = io.WriteString(c, "y")
	wantReset(t, what, c)
}

// TestForwarderSlowWorker: a worker that does not read holds its store back, and no other
// worker; it gets every byte when it reads.
func TestForwarderSlowWorker(t *testing.T) {
	both(t, func(t *testing.T, secured bool) {
		const much = 32 << 20
		var sent atomic.Int64
		stuck := make(chan struct{})
		f, _ := newForwarder(t, newFar(t, secured, func(c Conn) {
			b := make([]byte, 1)
			if _, err := io.ReadFull(c, b); err != nil || b[0] != 'm' {
				_, _ = c.Write(b)
				return
			}
			for part := make([]byte, 1<<20); sent.Load() < much; sent.Add(int64(len(part))) {
				if sent.Load() == 2<<20 {
					close(stuck)
				}
				if _, err := c.Write(part); err != nil {
					return
				}
			}
			_ = c.CloseWrite()
			_, _ = c.Read(b)
		}))
		slow := worker(t, f.Addr())
		_, _ = io.WriteString(slow, "m")
		<-stuck
		for range 100 {
			wantServed(t, f)
		}
		if sent.Load() >= much {
			t.Error("the store could send all of it")
		}
		if n, err := io.Copy(io.Discard, slow); n != much || err != nil {
			t.Errorf("%d of %d bytes, %v", n, much, err)
		}
	})
}

// TestForwarderHalfCloseBehindMuch: the end of a stream comes after all that was sent before,
// however long that waits.
func TestForwarderHalfCloseBehindMuch(t *testing.T) {
	both(t, func(t *testing.T, secured bool) {
		const much = 16 << 20
		read := make(chan struct{})
		f, _ := newForwarder(t, newFar(t, secured, func(c Conn) {
			<-read
			n, _ := io.Copy(io.Discard, c)
			if n == much {
				_, _ = io.WriteString(c, "all")
			}
			_ = c.CloseWrite()
		}))
		c := worker(t, f.Addr())
		done := testkit.Go(func() error {
			if _, err := c.Write(make([]byte, much)); err != nil {
				return err
			}
			return c.CloseWrite()
		})
		close(read)
		if all, err := io.ReadAll(c); string(all) != "all" || err != nil {
			t.Errorf("the worker got %q, %v", all, err)
		}
		testkit.Check(t, <-done)
		testkit.Eventually(t, "the link has ended", func() bool { return f.open() == 0 })
	})
}

// TestForwarderCannotCarry: a connection that the loop cannot take over is reset, at both ends,
// and leaves nothing behind.
func TestForwarderCannotCarry(t *testing.T) {
	ended := make(chan error, 1)
	s := newFar(t, true, func(c Conn) {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	})
	f, _ := newForwarder(t, s, func(o *Options) {
		o.Dial = func(ctx context.Context, _ int) (Conn, error) {
			c, err := Dialer().DialContext(ctx, "tcp", s.l.Addr().String())
			if err != nil {
				return nil, err
			}
			secured := tls.Client(c, secret.ClientTLS()) // not over records
			return secured, secured.HandshakeContext(ctx)
		}
	})
	idle := testkit.Descriptors(t)
	wantNoConnection(t, f.Addr())
	if err := <-ended; err == nil {
		t.Error("the store's end is open")
	}
	testkit.Eventually(t, "nothing is left", func() bool { return f.open() == 0 && testkit.Descriptors(t) <= idle })
}

// TestForwarderWithoutDescriptorForTheLoop: a connection that is open at both ends when there
// is no descriptor left is reset, and the next one is carried.
func TestForwarderWithoutDescriptorForTheLoop(t *testing.T) {
	s := newFar(t, true, echo)
	var old syscall.Rlimit
	testkit.Check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	restore := func() { testkit.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)) }
	defer restore()
	var none atomic.Bool
	f, lines := newForwarder(t, s, func(o *Options) {
		o.Dial = func(ctx context.Context, port int) (Conn, error) {
			c, err := s.dial(ctx, port)
			if none.Swap(false) {
				_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: old.Max})
			}
			return c, err
		}
	})
	wantServed(t, f)
	none.Store(true)
	wantNoConnection(t, f.Addr())
	restore()
	lines.Await(t, "it cannot be carried, though the store is reached: too many open files", 1)
	wantServed(t, f)
	testkit.Eventually(t, "nothing is left", func() bool { return f.open() == 0 })
}

// together is a connection that sends what is written to it at once, when it is flushed.
type together struct {
	net.Conn
	held bytes.Buffer
}

func (t *together) Write(b []byte) (int, error) { return t.held.Write(b) }

func (t *together) flush() {
	_ = t.SetWriteDeadline(time.Now().Add(guard)) // crypto/tls lets no write follow its end
	_, _ = t.held.WriteTo(t.Conn)
}

func (t *together) Read(b []byte) (int, error) {
	t.flush()
	return t.Conn.Read(b)
}

// TestForwarderOfAllAtOnce: a store has sent its bytes, and their end, before they are carried,
// some in one record with the end of the opening, and more than the worker's socket has room
// for: no event tells of the first, nor of the end.
func TestForwarderOfAllAtOnce(t *testing.T) {
	for name, size := range map[string]int{"a record": 0, "more": 3*carried - 4096} {
		t.Run(name, func(t *testing.T) {
			config := testkit.Must(secret.ServerTLS())(t)
			sent := make(chan struct{})
			s := newFar(t, false, func(c Conn) {
				below := &together{Conn: c}
				secured := tls.Server(below, config)
				if secured.Handshake() != nil {
					return
				}
				_, _ = secured.Write(make([]byte, 10))
				if size > 0 {
					_, _ = secured.Write(make([]byte, size))
					_ = secured.CloseWrite()
				}
				below.flush()
				close(sent)
				_, _ = io.Copy(io.Discard, secured)
			})
			f, _ := newForwarder(t, s, func(o *Options) {
				o.Accept = admitting(func(c net.Conn) error { return c.(*net.TCPConn).SetWriteBuffer(1) }) // the least there is
				o.Dial = func(ctx context.Context, port int) (Conn, error) {
					c, err := s.dialTLS(ctx, port)
					if err != nil {
						return nil, err
					}
					_ = c.SetReadDeadline(time.Now().Add(guard))
					if _, err = io.ReadFull(c, make([]byte, 1)); err != nil {
						return nil, err
					}
					<-sent
					return c, nil
				}
			})
			c := worker(t, f.Addr())
			testkit.Check(t, c.SetReadBuffer(8<<10))
			if n, err := io.ReadFull(c, make([]byte, 9+size)); err != nil {
				t.Errorf("%d of %d bytes came, %v", n, 9+size, err)
			}
			if size > 0 {
				if n, err := c.Read(make([]byte, 1)); n > 0 || err != io.EOF {
					t.Errorf("at the end: %d bytes, %v", n, err)
				}
			}
		})
	}
}

// TestForwarderOfManyAtOnce: each of many workers gets its own bytes in their order, whether a
// loop collects them or sends them at once.
func TestForwarderOfManyAtOnce(t *testing.T) {
	both(t, func(t *testing.T, secured bool) {
		f, _ := newForwarder(t, newFar(t, secured, echo))
		var done []<-chan error
		for range 2*maxPieces + 1 {
			c := worker(t, f.Addr())
			done = append(done, testkit.Go(func() error {
				for _, size := range []int{1, 40, maxPiece - 22, maxPiece, maxPiece + 1, 7, 3 * maxPiece, 40, 256 << 10} {
					b, got := make([]byte, size), make([]byte, size)
					_, _ = rand.Read(b)
					written := testkit.Go(func() error { _, err := c.Write(b); return err })
					_, err := io.ReadFull(c, got)
					if err := errors.Join(<-written, err); err != nil {
						return err
					}
					if !bytes.Equal(got, b) {
						return fmt.Errorf("other bytes than the %d that were sent", size)
					}
				}
				return nil
			}))
		}
		for _, d := range done {
			testkit.Check(t, <-d)
		}
	})
}

// TestPushKeepsTheOrder: what a loop collects for a socket goes before what it sends at once.
func TestPushKeepsTheOrder(t *testing.T) {
	pair := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	l := testkit.Must(newLoop())(t)
	defer l.events.Close()
	e := &end{link: &link{}, fd: int32(pair[0])}
	var want []byte
	for _, size := range []int{1, maxPiece, maxPiece + 1, 2, 2 * maxPiece, 1} {
		b := make([]byte, size)
		_, _ = rand.Read(b)
		want = append(want, b...)
		l.push(e, b)
		clear(b) // it was lent
	}
	l.flush()
	got := make([]byte, len(want)+1)
	if n := testkit.Must(unix.Read(pair[1], got))(t); !bytes.Equal(got[:n], want) {
		t.Errorf("%d bytes came, not the %d that were sent", n, len(want))
	}
}
