package peer

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/internal/testkit"
)

// TestPortOfADevice has a stranger bind his socket to the loopback device, which lets this user's
// have the same four ends at one time. This user's waits in SYN_SENT, or has the stranger's reset by
// its SYN: he is let in neither way.
func TestPortOfADevice(t *testing.T) {
	peertest.NeedRoot(t)
	l := listen(t, "127.0.0.1:0")
	to, port := netip.MustParseAddrPort(l.Addr().String()), testkit.FreePort(t)
	dial := func(uid int, device string) (fd int, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
			if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
				return
			}
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			if device != "" {
				err = unix.BindToDevice(fd, device)
			}
			if err == nil {
				err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: to.Addr().As4()})
			}
			if err == nil {
				err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
			}
		}()
		<-done
		return fd, err
	}
	stranger, err := dial(peertest.Stranger, "lo")
	defer unix.Close(stranger)
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		t.Skipf("a user cannot bind a socket to a device here: %v", err)
	}
	server, err := l.Accept()
	testkit.Check(t, err)
	defer server.Close()
	own, err := dial(os.Geteuid(), "")
	defer unix.Close(own)
	if !errors.Is(err, unix.EINPROGRESS) {
		t.Fatalf("this user's, which nobody answers: %v", err)
	}
	for name, ask := range map[string]func(*diag, netip.AddrPort, netip.AddrPort) (socket, error){"sock_diag": lookUp, "/proc": byTables} {
		c := NewLoopbackCheck(params.LoopbackUsers{})
		c.lookUp = ask
		if c.Admit(server) == nil {
			t.Errorf("%s: a stranger is let in", name)
		}
	}
}
