package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/discovery"
	"rallypoint/core/control/wire"
	"rallypoint/internal/testkit"
)

// TestSilentControlPlane connects to one that hangs after its welcome, as a
// stopped process does: the kernel still takes what is sent to it. The node says
// so and reconnects; to one without echoes it stays.
func TestSilentControlPlane(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns, done, gaveUp := make(chan net.Conn), make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	defer l.Close()
	wg.Go(func() {
		for features := []string{wire.FeatureEcho}; ; features = nil { // the second one is older
			conn, err := l.Accept()
			if err != nil {
				return
			}
			in := wire.FrameReader{In: bufio.NewReader(conn)}
			_, _ = in.In.Discard(wire.PreambleLen)
			_, _ = in.NextFrame(wire.MaxFrame)
			if features == nil {
				select {
				case <-gaveUp: // it answers no second connection
				case <-done:
				}
			}
			if wire.EndedByPeer(conn) {
				conn.Close()
				continue
			}
			lease := int64(60 * time.Millisecond)
			conn.Write(wire.AppendFrame(wire.Preamble{High: 1, Low: 1}.Bytes(), wire.Welcome{Version: 1, Features: features, Server: "x", Lease: lease, Resumed: true}))
			select {
			case conns <- conn:
			case <-done:
				conn.Close()
				return
			}
		}
	})
	obs := controltest.NewObserver()
	c := newTestClient(t, controltest.Params(l.Addr().String(), 1), obs)
	if err := c.Connect(controltest.Context(t)); err == nil {
		first := <-conns
		defer first.Close()
		obs.Await(t, "that the control plane is silent", func(e any) bool {
			lost, ok := e.(controltest.ConnectionChange)
			return ok && lost.Err != nil && strings.Contains(lost.Err.Error(), "has been silent for")
		})
		close(gaveUp)
		second := <-conns
		defer second.Close()
		obs.Await(t, "that it is back", func(e any) bool { back, ok := e.(controltest.ConnectionChange); return ok && back.Err == nil })
		frames := wire.FrameReader{In: bufio.NewReader(second)}
		for range 3 * silentAfter {
			f, err := frames.NextFrame(wire.MaxFrame)
			if b, ok := f.(wire.Beat); err != nil || !ok || b.Echo {
				t.Fatalf("an older control plane is sent %+v, %v", f, err)
			}
		}
	} else {
		t.Fatal(err)
	}
}

// TestBeatsOfAStoppedNode lets all beats of a connection come late at once, as in
// a process that was stopped: it is not given up for that.
func TestBeatsOfAStoppedNode(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	go io.Copy(io.Discard, theirs)
	found := &discovery.Conn{PeekedConn: wire.PeekedConn{Conn: ours}, Welcome: wire.Welcome{Features: []string{wire.FeatureEcho}}}
	l := &conn{Conn: found, out: wire.NewOutbox(ours, math.MaxInt, nil, nil), finder: (*discovery.Finder)(nil)}
	for range silentAfter - 1 {
		l.lookAgain(3 * time.Hour)
	}
	l.heard.Store(true)
	for range silentAfter {
		l.lookAgain(3 * time.Hour)
	}
	if cause := l.out.Cause(); cause != nil {
		t.Fatal(cause)
	}
	l.lookAgain(3 * time.Hour)
	if cause := l.out.Cause(); cause == nil || !strings.Contains(cause.Error(), "silent for 6h0m0s") {
		t.Errorf("the cause is %v", cause)
	}
}

// besideFinder opens second connections as a test says.
type besideFinder struct {
	Finder
	beside func() (*discovery.Conn, error)
}

func (f besideFinder) HasVoters() bool { return false }

func (f besideFinder) Beside(context.Context, *discovery.Conn, func() bool) (*discovery.Conn, error) {
	return f.beside()
}

// whenAsked is an end by the peer; it calls the function once somebody asks which end it is.
type whenAsked struct{ once func() }

func (whenAsked) Error() string { return "ended" }

func (e whenAsked) Is(target error) bool {
	e.once()
	return target == io.EOF
}

// TestSecondConnectionIsGivenUp: a server that goes on may read the hello of a second connection that its node
// has just given up, or gives up while the first one ends for it. The node opens another one.
func TestSecondConnectionIsGivenUp(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("before the end: %t", before), func(t *testing.T) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs)
			third := &discovery.Conn{}
			tries := 0
			given := make(chan struct{})
			giveUp := sync.OnceFunc(func() { close(given) })
			f := besideFinder{beside: func() (*discovery.Conn, error) {
				if tries++; tries == 1 {
					<-given
					return nil, discovery.ErrUnanswered
				}
				return third, nil
			}}
			found := &discovery.Conn{PeekedConn: wire.PeekedConn{Conn: ours}, Welcome: wire.Welcome{Features: []string{wire.FeatureEcho}, Lease: int64(3 * time.Hour)}}
			l := newConn(t.Context(), found, f)
			defer l.close()
			for range secondAfter {
				l.lookAgain(3 * time.Hour)
			}
			if before {
				giveUp()
				testkit.Eventually(t, "the second connection is given up", func() bool {
					l.mu.Lock()
					defer l.mu.Unlock()
					return l.gaveUp
				})
			}
			if got := l.replacement(whenAsked{giveUp}); got != third {
				t.Errorf("the first connection is replaced by %v", got)
			}
		})
	}
}
