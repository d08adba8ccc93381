package control

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// TestBadClients has a crowd that connects and says nothing, some that say one
// byte a second, and some that ask for much and read nothing. Two good nodes form
// rounds among them, and in the end only those two are left.
func TestBadClients(t *testing.T) {
	const silent, dribbling, deaf = 300, 20, 4
	s := newFakeServer(t, Config{})
	s.rec.leaveUnchecked()
	conns := make([]net.Conn, 0, silent+dribbling)
	for range silent + dribbling {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	for i := range deaf {
		deafNode(t, s, fmt.Sprint("deaf", i))
	}
	good := controltest.Params("", 2)
	a, b := dialNode(t, s.addr), dialNode(t, s.addr)
	a.enter(testHello("a", "s1", good))
	b.enter(testHello("b", "s2", good))
	number := uint64(0)
	round := func() {
		t.Helper()
		number++
		joinTogether(t, number, a, b)
	}
	second := func() { // for all; the good ones are heard
		s.clock.Advance(time.Second)
		for _, n := range []*wireNode{a, b} {
			n.send(wire.Beat{})
		}
	}
	round()

	hello := wire.AppendFrame(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes(), testHello("x", "x", good))
	for i := range int(helloTimeout/time.Second) + 1 {
		for _, conn := range conns[silent:] {
			_, _ = conn.Write(hello[i : i+1])
		}
		second()
		round()
	}
	for end := time.Now().Add(testkit.Patience); s.connections() > 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("more connections are left than those of the good nodes")
		}
		second() // until those that do not read have not done so for a lease
		round()
	}
	// One that has nothing more to say is as dead to its lease as one that does not read.
	if n := s.metrics.refused[refusedSlow].Load() + s.metrics.lost[lostLease].Load(); n != deaf {
		t.Errorf("%d were cut off because they do not read, want %d", n, deaf)
	}
	if n := s.metrics.refused[refusedSilent].Load(); n != silent+dribbling {
		t.Errorf("%d were cut off because they do not say who they are, want %d", n, silent+dribbling)
	}
	round()
}

func (f *fakeServer) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

// deafNode makes a node of its own run that asks for much, and reads none of it.
func deafNode(t *testing.T, s *fakeServer, run string) {
	t.Helper()
	p := controltest.Params("", 1)
	p.RunID, p.LeaseTimeout = run, 30*time.Second // before it the kernel ends nothing
	n := dialNode(t, s.addr)
	n.enter(testHello("a", "s", p))
	n.ask(1, controltest.Join())
	n.wantReply(1)
	n.ask(2, rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, 1<<20)}})
	n.wantReply(2)
	go func() { // it is cut off in the middle
		for number := uint64(3); number < 100; number++ {
			f, _ := wire.NewRequest(rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"k"}}, number, number-1)
			if _, err := n.conn.Write(wire.AppendFrame(nil, f)); err != nil {
				return
			}
		}
	}()
}

// joinTogether has all nodes join by their request of that number, and awaits the replies.
func joinTogether(t *testing.T, number uint64, nodes ...*wireNode) {
	t.Helper()
	for _, n := range nodes {
		n.ask(number, controltest.Join())
	}
	for _, n := range nodes {
		for {
			if r, ok := n.next().(wire.Reply); ok && r.Number == number {
				break
			}
		}
	}
}

// TestStrangersMakeRoom: connections that have not said who they are never have more than
// their part of the descriptors, and give way as soon as others wait: a client that waits after two
// crowds of silent ones is answered after two moments.
func TestStrangersMakeRoom(t *testing.T) {
	const most = 8
	for name, says := range map[string][]byte{"nothing": nil, "little": {secret.Magic[0]}} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t, Config{maxUnidentified: most})
			s.clock.Advance(time.Second)
			for range 3 * most {
				dialNode(t, s.addr).write(says)
			}
			ctx := controltest.Context(t)
			await := func(done func() bool) {
				t.Helper()
				for ; !done(); time.Sleep(100 * time.Microsecond) {
					if n := s.strangerCount(); n > most {
						t.Fatalf("%d strangers at one time", n)
					}
					if ctx.Err() != nil {
						t.Fatalf("%d strangers, %d were accepted", s.strangerCount(), s.metrics.accepted.Load())
					}
				}
			}
			await(func() bool { return s.metrics.accepted.Load() == most })
			answered := make(chan string, 1)
			go func() {
				n := dialNode(t, s.addr)
				n.write([]byte("GET /healthz HTTP/1.1\r\n\r\n"))
				line, _ := n.frames.In.ReadString('\n')
				answered <- line
			}()
			if says == nil {
				for crowd := uint64(2); crowd <= 3; crowd++ {
					s.clock.Advance(patienceWhenShort)
					await(func() bool { return s.metrics.accepted.Load() >= crowd*most })
				}
			}
			for line := ""; line == ""; {
				s.clock.Advance(patienceWhenShort)
				select {
				case line = <-answered:
				case <-time.After(time.Millisecond):
				case <-ctx.Done():
					t.Fatal("no answer")
				}
				if line != "" && !strings.Contains(line, "200 OK") {
					t.Errorf("the answer is %q", line)
				}
			}
			s.log.Await(t, errCrowd.Error(), 1)
			s.log.Await(t, errShed.Error(), 1)
		})
	}
}
