package roundstore

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
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

// load has clients use a store and others come to it until its end, which reports the faults.
func load(t *testing.T, o rendezvous.Outcome, clients int, use func(c *tcpstore.Client, turn int) error) (end func() (turns int)) {
	t.Helper()
	var turns atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	place := net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort))
	for i := range clients {
		wg.Go(func() {
			var staying *tcpstore.Client
			defer func() {
				if staying != nil {
					staying.Close()
				}
			}()
			for turn := 0; ; turn++ {
				select {
				case <-stop:
					return
				default:
				}
				c := staying
				if c == nil || i%2 == 1 { // half of them come again for each turn
					var err error
					if c, err = tcpstore.Dial(testkit.Within(t, patience), place, tcpstore.ClientOptions{}); err != nil {
						t.Errorf("client %d, turn %d: %v", i, turn, err)
						return
					}
				}
				err := use(c, turn)
				if i%2 == 1 {
					c.Close()
				} else {
					staying = c
				}
				if err != nil {
					t.Errorf("client %d, turn %d: %v", i, turn, err)
					return
				}
				turns.Add(1)
			}
		})
	}
	await := func(n int64) {
		t.Helper()
		want := turns.Load() + n
		testkit.Eventually(t, "the clients go on", func() bool { return turns.Load() >= want || t.Failed() })
	}
	await(int64(clients))
	return func() int {
		await(int64(clients))
		close(stop)
		wg.Wait()
		return int(turns.Load())
	}
}

// TestOldKeyUnderLoad changes the token of a job in either order of its nodes, while workers
// behind a forwarder use their connections and open others: none is refused. In the end the
// old token opens nothing.
func TestOldKeyUnderLoad(t *testing.T) {
	old, fresh := strings.Repeat("old token ", 4), strings.Repeat("new token ", 4)
	for name, steps := range map[string][][2][]string{ // the tokens of the store's node and of the other one
		"store first": {{{fresh, old}, {old}}, {{fresh, old}, {fresh, old}}, {{fresh}, {fresh, old}}, {{fresh}, {fresh}}},
		"store last":  {{{old}, {fresh, old}}, {{fresh, old}, {fresh, old}}, {{fresh, old}, {fresh}}, {{fresh}, {fresh}}},
	} {
		t.Run(name, func(t *testing.T) {
			files := [2]string{testkit.TokenFile(t), testkit.TokenFile(t)}
			put := func(lines [2][]string) {
				for i, file := range files {
					testkit.Check(t, os.WriteFile(file+".new", []byte(strings.Join(lines[i], "\n")+"\n"), 0o600))
					testkit.Check(t, os.Rename(file+".new", file))
				}
			}
			put([2][]string{{old}, {old}})
			a, b := newNode(t, files[0], false), newNode(t, files[1], true)
			real, _, _ := a.serve(t, "127.0.0.1", 0, 1)
			at, _ := b.reach(t, real)
			for _, step := range steps {
				end := load(t, at, 4, func(c *tcpstore.Client, turn int) error {
					value := []byte(strconv.Itoa(turn))
					if err := c.Set(testkit.Within(t, patience), "key", value); err != nil {
						return err
					}
					_, err := c.Get(testkit.Within(t, patience), "key")
					return err
				})
				put(step)
				end()
			}
			if n := a.totals().Refused["authentication"]; n != 0 || len(b.log.With("WARN")) > 0 {
				t.Errorf("%d refused: %s %s", n, a.log, b.log)
			}
			testkit.Check(t, os.WriteFile(files[1]+".new", []byte(old+"\n"), 0o600))
			stale := newNode(t, files[1]+".new", true)
			stale.protected.address = func(secret.StoreName) netip.Addr { return netip.MustParseAddr("127.77.77.77") }
			here, way := stale.reach(t, real)
			wantNone(t, "the old token", here)
			if err := way.(*forward.Forwarder).Err(); rendezvous.CodeOf(err) != rendezvous.CodeAuth {
				t.Errorf("the old token: %v", err)
			}
		})
	}
}

// TestRoundChangesUnderLoad has rounds follow each other at a fixed port, as the store's node
// sees it first and the other later, while workers behind the forwarders use their stores and
// come to them. Each finds its own round's store or none, and nothing is left of a round.
func TestRoundChangesUnderLoad(t *testing.T) {
	token, port := testkit.TokenFile(t), testkit.FreePort(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	before := descriptors(t)
	var last, lastWay io.Closer
	var lastHere rendezvous.Outcome
	var ended []<-chan error
	for round := uint64(1); round <= 4; round++ {
		real, atA, rs := a.serve(t, "127.0.0.1", port, round)
		mine := strconv.FormatUint(round, 10)
		near := dial(t, atA)
		testkit.Check(t, near.Set(t.Context(), "round", []byte(mine)))
		near.Close()
		at, way := b.reach(t, real)
		if last != nil { // whose workers were there all the time
			if c, err := dialRaw(lastHere); err == nil {
				if v, err := c.get("round"); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the last round's listener beside the store answers %q, %v", v, err)
				}
				c.Close()
			}
			testkit.Check(t, errors.Join(last.Close(), lastWay.Close()))
		}
		started := make(chan struct{}, 4)
		for i := range 4 {
			ended = append(ended, testkit.Go(func() error {
				for turn := 0; ; turn++ {
					done, err := useOnce(at, mine, i%2 == 0, func() {
						if turn == 0 {
							started <- struct{}{}
						}
					})
					if done {
						return err
					}
				}
			}))
		}
		for range 4 {
			select {
			case <-started:
			case <-time.After(patience):
				t.Fatal("the workers of a round do not get to their store")
			}
		}
		last, lastWay, lastHere = rs, way, atA
	}
	testkit.Check(t, errors.Join(lastWay.Close(), last.Close()))
	for _, done := range ended {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	testkit.Eventually(t, "all descriptors are closed", func() bool { return descriptors(t) <= before })
}

// useOnce opens a connection to the store of a round and reads which round it is, once, or until
// the connection ends. It reports whether the round is over.
func useOnce(at rendezvous.Outcome, mine string, on bool, answered func()) (over bool, err error) {
	c, err := dialRaw(at)
	if err != nil {
		return true, nil
	}
	defer c.Close()
	for first := true; on || first; first = false {
		v, err := c.get("round")
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return true, fmt.Errorf("a worker of round %s hangs", mine)
		case err != nil:
			return true, nil
		case v != mine:
			return true, fmt.Errorf("a worker of round %s found %q", mine, v)
		}
		if first {
			answered()
		}
	}
	return false, nil
}

// TestProofPassedOn has a man in the middle of a connection to a side port: the proof, passed
// on with a port of his, opens nothing, and no program of the store's node hears of him.
func TestProofPassedOn(t *testing.T) {
	token := testkit.TokenFile(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	real, atA, _ := a.serve(t, "127.0.0.1", 0, 1)
	port := real.StorePort + 1
	program := testkit.Must(net.Listen("tcp", net.JoinHostPort(atA.StoreAddr, strconv.Itoa(port))))(t)
	defer program.Close()
	reached := testkit.Go(func() error {
		c, err := program.Accept()
		if err == nil {
			c.Close()
		}
		return err
	})

	middle := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer middle.Close()
	settings := testkit.Must(secret.ServerTLS())(t)
	passed := testkit.Go(func() error {
		raw, err := middle.Accept()
		if err != nil {
			return err
		}
		defer raw.Close()
		near, err := net.Dial("tcp", net.JoinHostPort(real.StoreAddr, strconv.Itoa(real.StorePort)))
		if err != nil {
			return err
		}
		defer near.Close()
		_ = raw.SetDeadline(time.Now().Add(patience))
		_ = near.SetDeadline(time.Now().Add(patience))
		victim, store := tls.Server(raw, settings), tls.Client(near, secret.ClientTLS())
		proof := make([]byte, 4096)
		n, err := victim.Read(proof)
		if err != nil {
			return err
		}
		if _, err = store.Write(proof[:n]); err == nil {
			err = forward.AskPort(store, port)
		}
		_, _ = io.Copy(victim, store)
		return err
	})
	_, err := b.protected.dial(testkit.Within(t, patience), middle.Addr().String(), nameOf("job", real), port)
	if rendezvous.CodeOf(err) != rendezvous.CodeAuth {
		t.Errorf("a proof that was passed on: %v", err)
	}
	if err := <-passed; err != nil {
		t.Error("the man in the middle could not pass the proof on:", err)
	}
	a.log.Await(t, "authentication failed", 1)
	if n := a.totals().Refused["authentication"]; n != 1 {
		t.Errorf("%d refused", n)
	}
	program.Close()
	if err := <-reached; err == nil {
		t.Error("the program at the side port was reached")
	}
	if !echoesStore(t, atA) {
		t.Error("the round's own worker is not served")
	}
}

// echoesStore reports whether a store keeps a value.
func echoesStore(t *testing.T, o rendezvous.Outcome) bool {
	t.Helper()
	c := dial(t, o)
	v := []byte("healthy")
	err := c.Set(testkit.Within(t, patience), "healthy", v)
	got, err2 := c.Get(testkit.Within(t, patience), "healthy")
	return err == nil && err2 == nil && bytes.Equal(got, v)
}

// lossy is a network that loses one segment in ten, as TCP shows it to programs: nothing is
// missing, but what was lost comes late, and all after it, too.
func lossy(t *testing.T, target string, seed uint64) (addr string) {
	t.Helper()
	const segment, late = 1448, 20 * time.Millisecond
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var wg sync.WaitGroup
	carry := func(to, from net.Conn, random *rand.Rand) {
		defer to.Close()
		b := make([]byte, segment)
		for {
			n, err := from.Read(b)
			if random.IntN(10) == 0 {
				time.Sleep(time.Duration(random.Int64N(int64(late))))
			}
			for part := b[:n]; len(part) > 0; {
				cut := 1 + random.IntN(len(part))
				if _, err := to.Write(part[:cut]); err != nil {
					from.Close()
					return
				}
				part = part[cut:]
			}
			if err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for i := uint64(0); ; i++ {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", target)
			if err != nil {
				down.Close()
				continue
			}
			wg.Go(func() { carry(up, down, rand.New(rand.NewPCG(seed, 2*i))) })
			wg.Go(func() { carry(down, up, rand.New(rand.NewPCG(seed, 2*i+1))) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// TestLossyNetwork has workers behind a forwarder use their store over a network that loses one
// segment in ten: each reads what it and the others have written.
func TestLossyNetwork(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	token := testkit.TokenFile(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	real, atA, _ := a.serve(t, "127.0.0.1", 0, 1)
	host, port, _ := net.SplitHostPort(lossy(t, net.JoinHostPort(real.StoreAddr, strconv.Itoa(real.StorePort)), seed))
	across := real
	across.StoreAddr = host
	across.StorePort = testkit.Must(strconv.Atoi(port))(t)
	at, _ := b.reach(t, across)
	near := dial(t, atA)
	const workers, turns = 4, 6
	var wg sync.WaitGroup
	for i := range workers {
		c := dial(t, at)
		wg.Go(func() {
			for turn := range turns {
				key := fmt.Sprintf("%d/%d", i, turn)
				value := bytes.Repeat([]byte(key+"."), 1+turn*2000)
				if err := c.Set(testkit.Within(t, patience), key, value); err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				other := fmt.Sprintf("%d/%d", (i+1)%workers, turn)
				v, err := c.Get(testkit.Within(t, patience), other)
				if want := bytes.Repeat([]byte(other+"."), 1+turn*2000); err != nil || !bytes.Equal(v, want) {
					t.Errorf("%s: %d bytes, %v; want %d", other, len(v), err, len(want))
					return
				}
			}
		})
	}
	wg.Wait()
	if n, err := near.NumKeys(t.Context()); err != nil || n != workers*turns {
		t.Errorf("%d keys, %v", n, err)
	}
}
