package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// fakeServer accepts one connection after another and hands them to the test.
func fakeServer(t *testing.T) (addr string, conns <-chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Check(t, err)
	accepted := make(chan net.Conn)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case accepted <- conn:
			case <-t.Context().Done():
				conn.Close()
			}
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String(), accepted
}

// take reads want from conn.
func take(t *testing.T, conn net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %x, %v, want %x", got, err, want)
	}
}

// welcome answers the handshake as a server of torch does.
func welcome(t *testing.T, conn net.Conn) {
	t.Helper()
	welcomeBy(t, conn, replyNotReady)
}

// welcomeBy answers the handshake, and then whether reads of missing keys are.
func welcomeBy(t *testing.T, conn net.Conn, missingOK byte) {
	t.Helper()
	take(t, conn, append(appendHello(nil), byte(opPing)))
	echo(t, conn)
	take(t, conn, msg(opCheck, 1, probeKey))
	conn.Write([]byte{missingOK})
}

// echo answers a PING whose opcode was read.
func echo(t *testing.T, conn net.Conn) {
	t.Helper()
	var nonce [4]byte
	if _, err := io.ReadFull(conn, nonce[:]); err != nil {
		t.Error(err)
	}
	conn.Write(nonce[:])
}

// dialFake connects a client to a fake server of torch that is played by the test.
func dialFake(t *testing.T, addr string, conns <-chan net.Conn) (*Client, net.Conn) {
	t.Helper()
	return dialServer(t, addr, conns, replyNotReady)
}

func dialServer(t *testing.T, addr string, conns <-chan net.Conn, missingOK byte) (*Client, net.Conn) {
	t.Helper()
	type result struct {
		c   *Client
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := Dial(t.Context(), addr, ClientOptions{})
		done <- result{c, err}
	}()
	conn := <-conns
	t.Cleanup(func() { conn.Close() })
	welcomeBy(t, conn, missingOK)
	r := <-done
	testkit.Check(t, r.err)
	r.c.cancelGrace = guard
	t.Cleanup(func() { r.c.Close() })
	return r.c, conn
}

// TestClientFallsBack: a server which closes on PING is one of torch 2.2-2.4.
func TestClientFallsBack(t *testing.T) {
	addr, conns := fakeServer(t)
	done := make(chan error, 1)
	go func() {
		c, err := Dial(t.Context(), addr, ClientOptions{})
		if err == nil {
			err = c.Set(t.Context(), "k", []byte("v"))
			c.Close()
		}
		done <- err
	}()
	conn := <-conns
	take(t, conn, append(appendHello(nil), byte(opPing)))
	conn.Close()
	conn = <-conns
	defer conn.Close()
	take(t, conn, append(appendHello(nil), msg(opCheck, 1, probeKey)...))
	conn.Write([]byte{replyNotReady})
	take(t, conn, append(msg(opSet, "/k", "v"), msg(opCheck, 0)...))
	conn.Write([]byte{replyReady})
	testkit.Check(t, <-done)
}

// TestClientRetriesConnecting: after a refused and an odd answer it comes back.
func TestClientRetriesConnecting(t *testing.T) {
	addr, conns := fakeServer(t)
	lines, logger := newLog()
	done := make(chan error, 1)
	go func() {
		c, err := Dial(t.Context(), addr, ClientOptions{Logger: logger})
		if err == nil {
			c.Close()
		}
		done <- err
	}()
	for range 2 {
		conn := <-conns
		take(t, conn, append(appendHello(nil), byte(opPing)))
		conn.Write([]byte("\xff\xff\xff\xff\xff"))
		conn.Close()
	}
	conn := <-conns
	defer conn.Close()
	welcome(t, conn)
	testkit.Check(t, <-done)
	if len(lines.With("trying on")) != 1 || len(lines.With("connected", "attempts=3")) != 1 {
		t.Errorf("the lines are\n%s", lines)
	}
}

func TestClientCannotConnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Check(t, err)
	addr := l.Addr().String()
	l.Close()
	lines, logger := newLog()
	ctx, cancel := context.WithCancel(t.Context())
	done := testkit.Go(func() error {
		_, err := Dial(ctx, addr, ClientOptions{Logger: logger})
		return err
	})
	lines.Next(t)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
	if _, err := Dial(t.Context(), "no port", ClientOptions{}); err == nil {
		t.Error("an address without port")
	}
}

// TestClientMeetsSilence: the error of a peer that accepts and says nothing is about that, and not about a call of
// the system.
func TestClientMeetsSilence(t *testing.T) {
	addr, conns := fakeServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := testkit.Go(func() error { _, err := Dial(ctx, addr, ClientOptions{}); return err })
	conn := <-conns
	defer conn.Close()
	take(t, conn, append(appendHello(nil), byte(opPing)))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no answer in time") || strings.Contains(err.Error(), "raw-read") {
		t.Error(err)
	}
}

// TestClientWaitOverAtTimeout: a wait whose reply crosses the CANCEL_WAIT is done,
// and the connection stays in step.
func TestClientWaitOverAtTimeout(t *testing.T) {
	addr, conns := fakeServer(t)
	c, main := dialFake(t, addr, conns)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- c.Wait(ctx, []string{"k"}) }()
	take(t, main, msg(opCheck, 1, "/k"))
	main.Write([]byte{replyNotReady})
	conn := <-conns
	defer conn.Close()
	welcome(t, conn)
	take(t, conn, msg(opWait, 1, "/k"))
	cancel()
	take(t, conn, []byte{byte(opCancelWait)})
	conn.Write([]byte{replyStopWaiting, replyWaitCanceled})
	testkit.Check(t, <-result)

	go func() { result <- c.Barrier(t.Context(), "b", 2) }()
	take(t, conn, msg(opBarrier, "/b", 2))
	conn.Write([]byte{replyStopWaiting})
	testkit.Check(t, <-result)
}

// TestClientQueueWokenAtTimeout: a push that crosses the CANCEL_WAIT woke no other
// else, so its item is fetched all the same.
func TestClientQueueWokenAtTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		reply []byte
		want  error
	}{
		"there": {msg(0, 1, "item")[1:], nil},
		"taken": {msg(0, 0)[1:], context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			addr, conns := fakeServer(t)
			client, main := dialFake(t, addr, conns)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan error, 1)
			go func() { _, err := client.QueuePop(ctx, "q", true); result <- err }()
			take(t, main, msg(opQueuePop, "/q"))
			main.Write(msg(0, 0)[1:])
			conn := <-conns
			defer conn.Close()
			welcome(t, conn)
			take(t, conn, msg(opWait, 1, "/q"))
			cancel()
			take(t, conn, []byte{byte(opCancelWait)})
			conn.Write([]byte{replyStopWaiting, replyWaitCanceled})
			take(t, main, msg(opQueuePop, "/q"))
			main.Write(c.reply)
			if err := <-result; !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// TestClientQueueNamedAsKey: a key of the queue's name ends each wait at once, and
// the pop continues until there is an item.
func TestClientQueueNamedAsKey(t *testing.T) {
	s, _ := newServer(t, Options{})
	c, ctx := newClient(t, s), t.Context()
	testkit.Check(t, c.Set(ctx, "q", nil))
	result := make(chan error, 1)
	popping, cancel := context.WithCancel(ctx)
	pop := func() { _, err := c.QueuePop(popping, "q", true); result <- err }
	go pop()
	testkit.Eventually(t, "pops again", func() bool { return s.Stats().Ops["QUEUE_POP"] > 2 })
	testkit.Check(t, c.QueuePush(ctx, "q", nil))
	testkit.Check(t, <-result)
	go pop()
	popped := s.Stats().Ops["QUEUE_POP"]
	testkit.Eventually(t, "pops again", func() bool { return s.Stats().Ops["QUEUE_POP"] > popped+1 })
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestClientMutationIsNotRepeated: a lost reply is an error, and the next call
// connects again.
func TestClientMutationIsNotRepeated(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	result := make(chan error, 1)
	go func() { _, err := c.Add(t.Context(), "n", 1); result <- err }()
	take(t, conn, msg(opAdd, "/n", 1))
	conn.Close()
	if err := <-result; !errors.Is(err, store.ErrConnection) || !strings.Contains(err.Error(), `add "n" at `+addr) {
		t.Errorf("got %v", err)
	}

	go func() { _, err := c.Add(t.Context(), "n", 1); result <- err }()
	conn = <-conns
	defer conn.Close()
	welcome(t, conn)
	take(t, conn, msg(opAdd, "/n", 1))
	conn.Write(msg(0, 2)[1:])
	testkit.Check(t, <-result)
}

// TestClientReadIsRepeated: a call that changes nothing is sent once more after
// an idle connection turned out to be dead, but not for ever.
func TestClientReadIsRepeated(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	result := make(chan error, 1)
	go func() { _, err := c.NumKeys(t.Context()); result <- err }()
	take(t, conn, msg(opNumKeys))
	conn.Close()
	conn = <-conns
	welcome(t, conn)
	take(t, conn, msg(opNumKeys))
	conn.Close()
	if err := <-result; !errors.Is(err, store.ErrConnection) {
		t.Errorf("got %v", err)
	}
}

// TestClientOutOfStep: an answer that was not asked for ends the connection.
func TestClientOutOfStep(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	result := make(chan error, 1)
	go func() { result <- c.Set(t.Context(), "k", nil) }()
	take(t, conn, append(msg(opSet, "/k", ""), byte(opPing)))
	conn.Write([]byte("\x01\x02\x03\x04"))
	if err := <-result; !errors.Is(err, errOutOfStep) || !errors.Is(err, store.ErrConnection) {
		t.Errorf("got %v", err)
	}
	conn.Close()
	go func() { _, err := c.CompareSet(t.Context(), "k", nil, nil); result <- err }()
	conn = <-conns
	defer conn.Close()
	welcome(t, conn)
	take(t, conn, msg(opCompareSet, "/k", "", ""))
	conn.Write(msg(0, -1)[1:])
	if err := <-result; !errors.Is(err, errOutOfStep) {
		t.Errorf("got %v", err)
	}
}

// TestClientCanceledCall: a call in flight ends with its context, and costs the
// connection, whose stream is in an unknown place.
func TestClientCanceledCall(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { _, err := c.Add(ctx, "n", 1); result <- err }()
	take(t, conn, msg(opAdd, "/n", 1))
	queued, cancelQueued := context.WithCancel(t.Context())
	cancelQueued()
	if err := c.Set(queued, "k", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a call behind another: %v", err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Error(err)
	}
}
