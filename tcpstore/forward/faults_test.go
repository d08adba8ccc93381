package forward

import (
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/internal/testkit"
)

// connectTightly has a worker connect to a forwarder while this process can open one more
// descriptor: that of the accepted connection. It returns how the worker's connection ended.
// At rest the process has idle descriptors.
func connectTightly(t *testing.T, f *Forwarder, idle int) error {
	t.Helper()
	testkit.Eventually(t, "the connections before are closed", func() bool { return testkit.Descriptors(t) <= idle })
	undo := fill(t)
	defer undo()
	fd := testkit.Must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(guard))
	testkit.Check(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
	var old syscall.Rlimit
	testkit.Check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	tight := syscall.Rlimit{Cur: uint64(fd + 2), Max: old.Max}
	testkit.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &tight))
	defer func() { testkit.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)) }()
	a := f.Addr()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}); err != nil {
		return err
	}
	n, err := retryInterrupted(func() (int, error) { return unix.Read(fd, make([]byte, 1)) })
	if err == nil && n == 0 {
		err = io.EOF
	}
	return err
}

// fill takes the descriptors below the highest that is in use.
func fill(t *testing.T) (undo func()) {
	t.Helper()
	highest := 0
	for _, e := range testkit.Must(os.ReadDir("/proc/self/fd"))(t) {
		highest = max(highest, testkit.Must(strconv.Atoi(e.Name()))(t))
	}
	var taken []int
	for len(taken) == 0 || taken[len(taken)-1] <= highest {
		taken = append(taken, testkit.Must(unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0))(t))
	}
	return func() {
		for _, fd := range taken {
			unix.Close(fd)
		}
	}
}

// wantServed has a new worker get an answer.
func wantServed(t *testing.T, f *Forwarder) {
	t.Helper()
	c := worker(t, f.Addr())
	defer c.Close()
	_, _ = io.WriteString(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// TestForwarderWithoutDescriptorForTheStore: a connection for which the store cannot be
// reached, since there is no descriptor, is reset, and leaves nothing behind.
func TestForwarderWithoutDescriptorForTheStore(t *testing.T) {
	f, _ := newForwarder(t, newFar(t, true, echo))
	idle := testkit.Descriptors(t)
	wantServed(t, f)
	for range 3 {
		if err := connectTightly(t, f, idle); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("without a descriptor: %v; want a reset", err)
		}
		testkit.Eventually(t, "the forwarder knows why", func() bool { return errors.Is(f.Err(), syscall.EMFILE) })
	}
	wantServed(t, f)
	testkit.Check(t, f.Err())
	testkit.Eventually(t, "nothing is left", func() bool { return f.open() == 0 && testkit.Descriptors(t) <= idle })
}

// TestForwarderWithoutDescriptorForTheCheck: where it cannot be asked whose a connection is,
// it is refused, by a line that says why.
func TestForwarderWithoutDescriptorForTheCheck(t *testing.T) {
	s := newFar(t, false, echo)
	var refused Refusals
	f, lines := newForwarder(t, s, func(o *Options) {
		o.Admit, o.Refusals = peer.NewLoopbackCheck(params.LoopbackUsers{}).Admit, &refused
	})
	idle := testkit.Descriptors(t)
	wantServed(t, f)
	if err := connectTightly(t, f, idle); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without a descriptor: %v; want a closed connection", err)
	}
	lines.Await(t, "too many open files", 1)
	if n := len(s.dialed()); n != 1 || refused.Counts()["other_user"] != 1 {
		t.Errorf("%d connections went on to the store, %d were refused", n, refused.Counts()["other_user"])
	}
	wantServed(t, f)
}

// TestForwarderOfAStoreThatHangs: a store that accepts and says nothing holds up no other
// connection, and those that wait for it end with the forwarder.
func TestForwarderOfAStoreThatHangs(t *testing.T) {
	release := make(chan struct{})
	hangs := make(chan struct{}, 1)
	hangs <- struct{}{} // for the first that comes
	waiting := make(chan struct{})
	f, _ := newForwarder(t, newFar(t, true, func(c Conn) {
		select {
		case <-hangs:
			close(waiting)
			<-release
		default:
			echo(c)
		}
	}))
	defer close(release)
	stuck := worker(t, f.Addr())
	_, _ = io.WriteString(stuck, "x")
	<-waiting
	for range 3 {
		wantServed(t, f)
	}
	stuck.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // it has no answer, however long this is
	if n, err := stuck.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	stuck.SetReadDeadline(time.Now().Add(guard))
	testkit.Check(t, f.Close())
	if _, err := stuck.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection of a closed forwarder: %v", err)
	}
}
