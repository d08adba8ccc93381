package cli

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// How often what was not lost arrives twice, or after the packet that was sent after it.
const doubled, overtaken = 0.01, 0.02

// lossyLink is what joins the machines of a network: each has one device, whose other end
// this process holds. Packets that it carries from one to another are lost at random, each
// way for itself, and what is not lost may be doubled or overtaken.
type lossyLink struct {
	seed    uint64
	share   atomic.Uint64 // of the packets is lost: the bits of a float64
	ends    map[[4]byte]*os.File
	carried atomic.Int64
	lost    atomic.Int64
	burst   atomic.Pointer[lossBurst]
	readers sync.WaitGroup
}

// lossBurst is a number of packets that are lost whatever share is lost else: the next ones
// that are to be.
type lossBurst struct {
	left atomic.Int64
	is   func(p tcpPacket) bool
}

// tcpPacket is a packet of TCP over IPv4.
type tcpPacket struct {
	from, to [4]byte
	fromPort int
	port     int  // that it goes to
	opens    bool // a connection
	carries  int  // so many bytes
}

// readTCP reads what a packet is; ok is false for other packets.
func readTCP(b []byte) (p tcpPacket, ok bool) {
	header := 4 * int(b[0]&15)
	if b[9] != unix.IPPROTO_TCP || len(b) < header+20 {
		return p, false
	}
	tcp := b[header:]
	const syn, ack = 2, 16
	return tcpPacket{
		from: [4]byte(b[12:16]), to: [4]byte(b[16:20]),
		fromPort: int(binary.BigEndian.Uint16(tcp)), port: int(binary.BigEndian.Uint16(tcp[2:])),
		opens: tcp[13]&(syn|ack) == syn, carries: len(tcp) - 4*int(tcp[12]>>4),
	}, true
}

// loseNext makes the link lose the next packets that are such.
func (l *lossyLink) loseNext(packets int64, is func(p tcpPacket) bool) *lossBurst {
	burst := &lossBurst{is: is}
	burst.left.Store(packets)
	l.burst.Store(burst)
	return burst
}

// over reports whether all of them were lost.
func (l *lossBurst) over() bool { return l.left.Load() <= 0 }

// takes counts a packet, if it is one of those.
func (l *lossBurst) takes(packet []byte) bool {
	if l == nil || l.over() {
		return false
	}
	p, ok := readTCP(packet)
	return ok && l.is(p) && l.left.Add(-1) >= 0
}

// newLossyNetwork makes a network of machines that such a link joins, or ends the test as missing()
// does where that is not allowed.
func newLossyNetwork(t *testing.T, machines int) (*network, *lossyLink) {
	t.Helper()
	n := &network{t: t, name: fmt.Sprintf("rptest%08x", rand.Uint32())}
	l := &lossyLink{seed: rand.Uint64(), ends: map[[4]byte]*os.File{}}
	t.Cleanup(l.close) // the last: all that runs there has ended
	for m := 1; m <= machines; m++ {
		if err := l.join(n, m); err != nil {
			missing(t, "no network of TUN devices: %v", err)
		}
	}
	t.Logf("the link's seed is %d", l.seed)
	for m := 1; m <= machines; m++ {
		random := rand.New(rand.NewPCG(l.seed, uint64(m)))
		end := l.ends[packetAddress(m)]
		l.readers.Go(func() { l.carry(end, random) })
	}
	return n, l
}

// join makes a machine whose only device is an end of the link.
func (l *lossyLink) join(n *network, machine int) error {
	if err := n.addNamespace(machine); err != nil {
		return err
	}
	end, err := inNamespace(n, machine, func() (*os.File, error) { return openTUN("eth0") })
	if err != nil {
		return err
	}
	l.ends[packetAddress(machine)] = end
	return n.shell(machine, fmt.Sprintf("ip link set lo up && ip address add %s/32 dev eth0 && ip link set eth0 up && ip route add default dev eth0", address(machine)))
}

// packetAddress is a machine's address as packets have it.
func packetAddress(machine int) [4]byte { return [4]byte(net.ParseIP(address(machine)).To4()) }

// inNamespace calls a function in a thread of a machine's network; what it opens stays there.
func inNamespace[T any](n *network, machine int, call func() (T, error)) (result T, err error) {
	inside, err := os.Open("/run/netns/" + n.namespace(machine))
	if err != nil {
		return result, err
	}
	defer inside.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread stays in the namespace and ends
		if err = unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("setns: %w", err)
			return
		}
		result, err = call()
	}()
	<-done
	return result, err
}

// openTUN makes a device and returns its other end: a packet a read, and a packet a write.
func openTUN(device string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(device)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("TUN device %s: %w", device, err)
	}
	return os.NewFile(uintptr(fd), device), nil
}

// lose makes the link lose this share of the packets from now on.
func (l *lossyLink) lose(share float64) { l.share.Store(math.Float64bits(share)) }

// carry carries what a machine sends until the link is closed.
func (l *lossyLink) carry(from *os.File, random *rand.Rand) {
	var buffer [1 << 16]byte
	var late []byte // is sent after the next packet
	for {
		n, err := from.Read(buffer[:])
		if err != nil {
			return
		}
		packet := buffer[:n]
		if n < 20 || packet[0]>>4 != 4 {
			continue // IPv6 looks for neighbours
		}
		l.carried.Add(1)
		if l.burst.Load().takes(packet) || random.Float64() < math.Float64frombits(l.share.Load()) {
			l.lost.Add(1)
			continue
		}
		if late == nil && random.Float64() < overtaken {
			late = append(late, packet...)
			continue
		}
		l.deliver(packet)
		if random.Float64() < doubled {
			l.deliver(packet)
		}
		if late != nil {
			l.deliver(late)
			late = nil
		}
	}
}

// deliver gives a packet to the machine that it is for. One to nowhere, or to a device that
// has no room, is lost.
func (l *lossyLink) deliver(packet []byte) {
	if to, ok := l.ends[[4]byte(packet[16:20])]; ok {
		_, _ = to.Write(packet)
	}
}

func (l *lossyLink) close() {
	for _, end := range l.ends {
		_ = end.Close()
	}
	l.readers.Wait()
}

// TestLossyLink sends some bytes over the link, which loses a tenth of the packets: they come
// whole, and TCP has sent some of them more than once.
func TestLossyLink(t *testing.T) {
	t.Parallel()
	n, link := newLossyNetwork(t, 2)
	link.lose(0.1)
	sent := make([]byte, 1<<18)
	for i := 0; i < len(sent); i += 8 {
		binary.LittleEndian.PutUint64(sent[i:], rand.Uint64())
	}
	listener := testkit.Must(inNamespace(n, 1, func() (net.Listener, error) { return net.Listen("tcp4", address(1)+":1000") }))(t)
	defer listener.Close()
	done := testkit.Go(func() error {
		c, err := inNamespace(n, 2, func() (net.Conn, error) { return net.Dial("tcp4", listener.Addr().String()) })
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(sent)
		return err
	})
	c := testkit.Must(listener.Accept())(t)
	defer c.Close()
	got := testkit.Must(io.ReadAll(c))(t)
	if err := <-done; err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d arrived, %v", len(got), len(sent), err)
	}
	carried, lost := link.carried.Load(), link.lost.Load()
	t.Logf("%d packets, %d lost", carried, lost)
	if lost == 0 || lost > carried/2 {
		t.Errorf("%d of %d packets were lost", lost, carried)
	}
}
