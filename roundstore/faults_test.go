package roundstore

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
	"rallypoint/tcpstore/forward"
)

// roleVariable makes the test binary another process of a job: the store's node, or one that
// forwards to it. It says where it is reached, and lives until its stdin ends.
const (
	roleVariable       = "RALLYPOINT_TEST_ROUNDSTORE_ROLE"
	generationVariable = "RALLYPOINT_TEST_ROUNDSTORE_GENERATION"
)

// generation is that of the rounds: of this run of the tests, so that its stores have
// addresses of their own.
var generation = cmp.Or(os.Getenv(generationVariable), fmt.Sprint("g", os.Getpid()))

func play(role string, args []string) int {
	at, err := playRole(role, args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(at)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// playRole serves a store, whose token args name, or forwards to the one at a port.
func playRole(role string, args []string) (at netip.AddrPort, err error) {
	s, err := newStores(args[0], role == "forwarder", slog.New(slog.DiscardHandler))
	if err != nil {
		return at, err
	}
	o := rendezvous.Outcome{Generation: generation, Round: 1, World: 2, StoreAddr: "127.0.0.1"}
	if role == "forwarder" {
		if o.StorePort, err = strconv.Atoi(args[1]); err == nil {
			o, _, err = s.Reach(context.Background(), o)
		}
		return netip.AddrPortFrom(netip.MustParseAddr(o.StoreAddr), uint16(o.StorePort)), err
	}
	rs, err := s.Open(context.Background(), o.StoreAddr, 0)
	if err != nil {
		return at, err
	}
	o.StorePort = rs.Port()
	_, err = rs.Begin(o)
	return netip.AddrPortFrom(netip.MustParseAddr(o.StoreAddr), uint16(o.StorePort)), err
}

// process is a process of a role.
type process struct {
	*exec.Cmd
	t  *testing.T
	at rendezvous.Outcome
}

func start(t *testing.T, role string, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(testkit.Must(os.Executable())(t), args...), t: t}
	p.Env = append(os.Environ(), roleVariable+"="+role, generationVariable+"="+generation)
	p.Stderr = os.Stderr
	stdin := testkit.Must(p.StdinPipe())(t)
	stdout := testkit.Must(p.StdoutPipe())(t)
	testkit.Check(t, p.Start())
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		stdin.Close()
		_ = p.Wait()
	})
	line := testkit.Must(bufio.NewReader(stdout).ReadString('\n'))(t)
	at := testkit.Must(netip.ParseAddrPort(strings.TrimSpace(line)))(t)
	p.at = rendezvous.Outcome{Generation: generation, Round: 1, World: 2, StoreAddr: at.Addr().String(), StorePort: int(at.Port())}
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.Process.Signal(s) }

// stop stops the process and returns when it does nothing any more.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	testkit.Eventually(p.t, "the process is stopped", func() bool {
		stat := testkit.ReadFile(p.t, fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
		return bytes.Contains(stat, []byte(") T "))
	})
}

// raw is a worker's connection as torch's client has it, which ends where ours would connect
// again.
type raw struct{ net.Conn }

func dialRaw(o rendezvous.Outcome) (raw, error) {
	c, err := net.Dial("tcp", net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort)))
	if err != nil {
		return raw{}, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = io.WriteString(c, "\x00\xce\xf7\x85\x3c") // VALIDATE
	return raw{c}, err
}

// get returns what a key holds.
func (r raw) get(key string) (string, error) {
	request := append([]byte{3}, text("/"+key)...) // GET
	if _, err := r.Write(request); err != nil {
		return "", err
	}
	var n [8]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return "", err
	}
	value := make([]byte, binary.LittleEndian.Uint64(n[:]))
	_, err := io.ReadFull(r, value)
	return string(value), err
}

// wait begins to wait for a key.
func (r raw) wait(key string) error {
	_, err := r.Write(slices.Concat([]byte{6, 1, 0, 0, 0, 0, 0, 0, 0}, text("/"+key))) // WAIT for one key
	return err
}

func text(s string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(s))), s...)
}

// wantValue asks for a key.
func wantValue(t *testing.T, c *tcpstore.Client, key, want string) {
	t.Helper()
	if v, err := c.Get(testkit.Within(t, patience), key); err != nil || string(v) != want {
		t.Errorf("%s is %q, %v; want %q", key, v, err, want)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	return len(testkit.Must(os.ReadDir("/proc/self/fd"))(t))
}

// wantPause stops a process in which a request is then under way: it waits, and has its answer
// when the process continues. A connection that comes meanwhile is served then, too.
func wantPause(t *testing.T, p *process, at rendezvous.Outcome, c *tcpstore.Client) {
	t.Helper()
	p.stop()
	waits := testkit.Go(func() error {
		v, err := c.Get(testkit.Within(t, patience), "key")
		if err == nil && string(v) != "value" {
			err = fmt.Errorf("got %q", v)
		}
		return err
	})
	comes := testkit.Go(func() error {
		late, err := tcpstore.Dial(testkit.Within(t, patience), net.JoinHostPort(at.StoreAddr, strconv.Itoa(at.StorePort)), tcpstore.ClientOptions{})
		if err == nil {
			err = errors.Join(late.Set(testkit.Within(t, patience), "late", []byte("too")), late.Close())
		}
		return err
	})
	select {
	case err := <-waits:
		t.Errorf("a stopped process answers: %v", err)
	case err := <-comes:
		t.Errorf("a stopped process serves: %v", err)
	case <-time.After(20 * time.Millisecond): // it cannot answer, however long this is
	}
	p.signal(syscall.SIGCONT)
	for what, done := range map[string]<-chan error{"a request that waited": waits, "a connection that came": comes} {
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestStoreProcessStopsAndDies stops the process of a store, which costs its workers time
// only, and kills it: the forwarder ends all connections, resets those that come, and is left
// with none.
func TestStoreProcessStopsAndDies(t *testing.T) {
	token := testkit.TokenFile(t)
	far := start(t, "store", token)
	b := newNode(t, token, true)
	at, way := b.reach(t, far.at)
	before := descriptors(t)
	var workers []*tcpstore.Client
	for range 4 {
		workers = append(workers, dial(t, at))
	}
	testkit.Check(t, workers[0].Set(t.Context(), "key", []byte("value")))
	wantPause(t, far, at, workers[1])

	plain := testkit.Must(dialRaw(at))(t)
	defer plain.Close()
	if v, err := plain.get("key"); err != nil || v != "value" {
		t.Errorf("%q, %v", v, err)
	}
	testkit.Check(t, plain.wait("never"))
	far.signal(syscall.SIGKILL)
	wantClosed(t, "a request that waits at a killed store", plain)
	plain.Close()
	for _, c := range workers {
		c.Close()
	}
	wantNone(t, "a worker that comes to a killed store", at)
	forwarder := way.(*forward.Forwarder)
	if forwarder.Err() == nil {
		t.Error("the forwarder knows of no fault")
	}
	testkit.Eventually(t, "all descriptors are closed", func() bool { return descriptors(t) <= before })
}

// TestForwarderProcessStopsAndDies stops and kills the process of an agent that forwards: its
// own workers wait, or lose their store, and those beside the store do not notice. The store
// is left with no connection of it.
func TestForwarderProcessStopsAndDies(t *testing.T) {
	token := testkit.TokenFile(t)
	a := newNode(t, token, false)
	real, atA, _ := a.serve(t, "127.0.0.1", 0, 1)
	near := dial(t, atA)
	testkit.Check(t, near.Set(t.Context(), "key", []byte("value")))
	open := func() int { return int(a.totals().Connections) }
	before := open()

	forwarder := start(t, "forwarder", token, strconv.Itoa(real.StorePort))
	far := dial(t, forwarder.at)
	wantValue(t, far, "key", "value")
	wantPause(t, forwarder, forwarder.at, far)
	forwarder.stop()
	wantValue(t, near, "key", "value") // while the other node says nothing
	forwarder.signal(syscall.SIGCONT)
	wantValue(t, near, "late", "too")

	plain := testkit.Must(dialRaw(forwarder.at))(t)
	defer plain.Close()
	testkit.Check(t, plain.wait("never"))
	testkit.Eventually(t, "it waits", func() bool { return a.totals().Waiters == 1 })
	forwarder.signal(syscall.SIGKILL)
	wantClosed(t, "a request through a killed forwarder", plain)
	testkit.Eventually(t, "the store has let go of what the forwarder carried", func() bool {
		return open() == before && a.totals().Waiters == 0
	})
	wantValue(t, near, "key", "value")
	// Another process of the node takes its place.
	again := start(t, "forwarder", token, strconv.Itoa(real.StorePort))
	wantValue(t, dial(t, again.at), "key", "value")
}
