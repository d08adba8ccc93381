// Command flood has so many processes of another user connect to a store and reset, as fast as they
// can, while this user connects, and prints how long that takes him: flood N [HOLD], where each
// keeps HOLD connections open before it resets them. It needs root.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

const (
	connections = 300 // of this user, one after the other
	stranger    = 1234567
	tooLong     = 20 * time.Second
)

func main() {
	strike := flag.Int("strike", 0, "be one of these, at this port")
	flag.Parse()
	n, err := strconv.Atoi(flag.Arg(0))
	check(err)
	hold := 0
	if flag.NArg() > 1 {
		hold, err = strconv.Atoi(flag.Arg(1))
		check(err)
	}
	if *strike != 0 {
		strikes(*strike, hold)
	}
	flooded(n, hold)
}

// flooded has this user open a store's connections, each to its first reply, while others connect.
func flooded(strikers, hold int) {
	s, err := tcpstore.Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), tcpstore.Options{
		Logger: slog.New(slog.DiscardHandler), Accept: peer.NewLoopbackCheck(params.LoopbackUsers{}).Accept,
	})
	check(err)
	port := s.Addr().(*net.TCPAddr).Port
	for range strikers {
		cmd := exec.Command("/proc/self/exe", fmt.Sprintf("-strike=%d", port), "1", strconv.Itoa(hold))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}, Pdeathsig: syscall.SIGKILL}
		check(cmd.Start())
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
	}
	time.Sleep(time.Second) // until all strike
	var took []time.Duration
	failed := 0
	refused, cpu, begun := s.Stats().Refused["other_user"], used(), time.Now()
	for range connections {
		ctx, cancel := context.WithTimeout(context.Background(), tooLong)
		start := time.Now()
		c, err := tcpstore.Dial(ctx, s.Addr().String(), tcpstore.ClientOptions{})
		cancel()
		if err != nil {
			failed++
			continue
		}
		took = append(took, time.Since(start))
		c.Close()
	}
	all := time.Since(begun)
	refused = s.Stats().Refused["other_user"] - refused
	slices.Sort(took)
	fmt.Printf("%d strikers, hold %d: %d of %d failed; ", strikers, hold, failed, connections)
	if n := len(took); n > 0 {
		fmt.Printf("median %v, 95%% %v, worst %v; ", took[n/2], took[n*95/100], took[n-1])
	}
	fmt.Printf("%.0f refused a second, %.1f us of CPU a refusal\n", float64(refused)/all.Seconds(), float64((used()-cpu).Microseconds())/float64(max(1, refused)))
}

// strikes connects, sends a byte and resets, for ever.
func strikes(port, hold int) {
	to := &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	open := make([]int, 0, hold+1)
	for {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		check(err)
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Connect(fd, to)
		_, _ = unix.Write(fd, []byte{0})
		if open = append(open, fd); len(open) > hold {
			for _, fd := range open {
				_ = unix.Close(fd)
			}
			open = open[:0]
		}
	}
}

func used() time.Duration {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func check(err error) {
	if err != nil {
		log.Print(err)
		os.Exit(1)
	}
}
