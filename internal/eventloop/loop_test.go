package eventloop

import (
	"encoding/binary"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// TestPut: put items wake the loop once until it has taken them; nothing is lost at the end.
func TestPut(t *testing.T) {
	l := testkit.Must(NewLoop[*socket, []int]())(t)
	defer l.Close()
	put := func(n int) bool { return l.Put(func(held *[]int) { *held = append(*held, n) }) }
	woken := func() uint64 {
		var count [8]byte
		if _, err := unix.Read(l.poller.wakeFD, count[:]); err == unix.EAGAIN {
			return 0
		} else if err != nil {
			t.Fatal(err)
		}
		return binary.NativeEndian.Uint64(count[:])
	}
	for i := range 2 { // also after the loop has taken something
		for n, want := range []uint64{1, 0} {
			if !put(n + 1) {
				t.Fatal("an open inbox took nothing")
			}
			if got := woken(); got != want {
				t.Errorf("round %d: put %d woke %d times", i, n+1, got)
			}
		}
		if got := l.taken(false); !slices.Equal(got, []int{1, 2}) {
			t.Errorf("round %d: took %v", i, got)
		}
	}
	if got := l.taken(false); got != nil || woken() != 0 {
		t.Errorf("took %v twice", got)
	}
	put(3)
	if got := l.Shut(); !slices.Equal(got, []int{3}) {
		t.Errorf("the last was %v", got)
	}
	if put(4) {
		t.Error("a closed inbox took something")
	}
}

// socket records what a loop has it do.
type socket struct {
	name string
	loop *Loop[*socket, []int]
	did  *[]string
}

func (s *socket) Event(uint32) {
	*s.did = append(*s.did, "event "+s.name)
	s.loop.Queue(s)
}

func (s *socket) Step() { *s.did = append(*s.did, "step "+s.name) }

// TestTurn: a turn handles events, then steps what was queued before it; what its events queue
// has its turn next, without a wait. A removed socket has no events.
func TestTurn(t *testing.T) {
	l := testkit.Must(NewLoop[*socket, []int]())(t)
	defer l.Close()
	var did []string
	var fds []int
	for _, name := range []string{"a", "b"} {
		pair := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
		defer unix.Close(pair[0])
		defer unix.Close(pair[1])
		testkit.Check(t, l.Add(int32(pair[0]), &socket{name, l, &did}))
		fds = append(fds, pair[:]...)
	}
	turn := func(want ...string) {
		t.Helper()
		did = nil
		testkit.Check(t, l.Turn(true, time.Now().Add(-time.Second), func(in []int) {
			for _, n := range in {
				did = append(did, "took "+strconv.Itoa(n))
			}
		}))
		if !slices.Equal(did, want) {
			t.Errorf("a turn did %q, not %q", did, want)
		}
	}
	turn("event a", "event b") // they have room
	l.Put(func(in *[]int) { *in = append(*in, 7) })
	turn("took 7", "step a", "step b")
	turn()
	testkit.Must(unix.Write(fds[1], []byte("x")))(t)
	turn("event a")
	turn("step a")
	l.Remove(int32(fds[0]))
	testkit.Must(unix.Write(fds[1], []byte("x")))(t)
	testkit.Must(unix.Write(fds[3], []byte("x")))(t)
	turn("event b")
	if left := slices.Collect(l.All()); len(left) != 1 || left[0].name != "b" {
		t.Errorf("%d sockets are left", len(left))
	}
}

// hook has a test handle the events of a socket.
type hook struct{ event func(uint32) }

func (h *hook) Event(events uint32) { h.event(events) }
func (h *hook) Step()               {}

// TestReusedDescriptor: a socket that take adds gets no event of one that had its descriptor before.
func TestReusedDescriptor(t *testing.T) {
	l := testkit.Must(NewLoop[*hook, bool]())(t)
	defer l.Close()
	pair := func() (here, there int) {
		fds := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
		return fds[0], fds[1]
	}
	first, firstPeer := pair()
	second, secondPeer := pair()
	next, nextPeer := pair()
	for _, fd := range []int{first, firstPeer, second, next, nextPeer} {
		defer unix.Close(fd)
	}
	turn := func(take func(bool)) {
		t.Helper()
		testkit.Check(t, l.Turn(true, time.Now().Add(-time.Second), take))
	}
	ended, got := false, uint32(0)
	testkit.Check(t, l.Add(int32(first), &hook{func(events uint32) {
		if events&unix.EPOLLIN != 0 {
			l.Remove(int32(second))
			testkit.Check(t, unix.Close(second))
			ended = true
		}
	}}))
	testkit.Check(t, l.Add(int32(second), &hook{func(uint32) {}}))
	turn(func(bool) {}) // they have room
	testkit.Must(unix.Write(firstPeer, []byte("x")))(t)
	l.Put(func(in *bool) { *in = true })
	testkit.Check(t, unix.Close(secondPeer))
	turn(func(bool) {
		if !ended {
			t.Fatal("the order of the events is another")
		}
		testkit.Check(t, unix.Dup3(next, second, unix.O_CLOEXEC))
		testkit.Check(t, l.Add(int32(second), &hook{func(events uint32) { got |= events }}))
	})
	turn(func(bool) {})
	if got != unix.EPOLLOUT {
		t.Errorf("its events are %#x", got)
	}
}
