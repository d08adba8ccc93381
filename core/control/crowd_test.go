package control

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// serveWith makes the test binary a control plane that stores nothing, with so many
// descriptors; 0 is as many as there are. Its log goes to stderr.
const serveWith = "RALLYPOINT_TEST_SERVE_WITH"

func serveCrowd(descriptors string) {
	var n uint64
	if _, err := fmt.Sscan(descriptors, &n); err == nil && n > 0 {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	l, err := wire.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := Start(Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}, l)
	fmt.Println(l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
}

// host is a control plane in a process of its own.
type host struct {
	addr string
	cmd  *exec.Cmd
	log  *testkit.Log
}

func newHost(t *testing.T, descriptors int) *host {
	t.Helper()
	h := &host{cmd: exec.Command(os.Args[0]), log: &testkit.Log{}}
	h.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", serveWith, descriptors))
	h.cmd.Stderr = h.log
	in, err := h.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = h.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	h.addr = strings.TrimSpace(line)
	return h
}

// flood opens connections that do something, and opens each again when it has
// ended; it returns when all were opened once. They end with the test.
func flood(t *testing.T, count int, do func(i int, conn net.Conn), addr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all, first sync.WaitGroup
	first.Add(count)
	for i := range count {
		all.Go(func() {
			opened := sync.OnceFunc(first.Done)
			defer opened()
			for ctx.Err() == nil {
				var dialer net.Dialer
				conn, err := dialer.DialContext(ctx, "tcp", addr)
				if err != nil {
					select { // the control plane is busy with the others
					case <-ctx.Done():
					case <-time.After(100 * time.Millisecond):
					}
					continue
				}
				opened()
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				do(i, conn)
				stop()
				conn.Close()
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	first.Wait()
}

func saysNothing(_ int, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// saysLittle sends a byte a second: of a hello, or of an HTTP request.
func saysLittle(i int, conn net.Conn) {
	text := string(wire.AppendFrame(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes(), testHello("x", "x", controltest.Params("", 1))))
	if i%2 == 0 {
		text = "GET /healthz HTTP/1.1\r\nHost: a.name.that.takes.its.time\r\n\r\n"
	}
	for at := range len(text) {
		if _, err := conn.Write([]byte{text[at]}); err != nil {
			return
		}
		time.Sleep(time.Second) // what it is about
	}
}

// readsNothing is a node that asks for much.
func readsNothing(lives *atomic.Int64) func(int, net.Conn) {
	value := make([]byte, 16<<10)
	return func(i int, conn net.Conn) {
		conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		p := controltest.Params("", 1)
		p.RunID = fmt.Sprint("slow", lives.Add(1))
		requests := wire.AppendFrame(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes(), testHello("slow", "s", p))
		add := func(number uint64, ev rendezvous.Event) {
			f, _ := wire.NewRequest(ev, number, 0)
			requests = wire.AppendFrame(requests, f)
		}
		add(1, controltest.Join())
		add(2, rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{value}})
		for number := uint64(3); number < 40; number++ {
			add(number, rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"k"}})
		}
		if _, err := conn.Write(requests); err != nil {
			return
		}
		beats := wire.AppendFrame(nil, wire.Beat{})
		for {
			time.Sleep(time.Second)
			if _, err := io.CopyN(io.Discard, conn, 1<<10); err != nil {
				return
			}
			if _, err := conn.Write(beats); err != nil {
				return
			}
		}
	}
}

// TestCrowd has a run meet, lose a node, take in another one, count together and
// finish while a control plane is beset by connections that say nothing, by nodes
// that do not read, and by clients that send a byte a second. A client that is cut off
// comes again.
func TestCrowd(t *testing.T) {
	silent, slow, dribbling, rounds := 500, 50, 10, 4
	if long {
		silent, slow, dribbling, rounds = 10000, 1000, 50, 60
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if need := uint64(silent + slow + dribbling + 500); limit.Cur < need {
		t.Skipf("%d descriptors a process are allowed, this needs %d (ulimit -n)", limit.Cur, need)
	}
	h := newHost(t, 0)
	flood(t, silent, saysNothing, h.addr)
	flood(t, slow, readsNothing(new(atomic.Int64)), h.addr)
	flood(t, dribbling, saysLittle, h.addr)

	most := 0.0 // that beset it at one time
	began := time.Now()
	for round := 0; round < rounds || long && time.Since(began) < 2*helloTimeout; round++ {
		meetAmong(t, h.addr, fmt.Sprint("good", round))
		most = max(most, scrape(t, h.addr)["rallypoint_connections{kind=other}"])
	}
	// A machine that has much else to do does not get them all back in time.
	if t.Logf("%v connections beset it at one time", most); most < float64(silent)/4 {
		t.Errorf("only %v connections beset it at one time, of %d", most, silent)
	}
	if code, _, body := get(t, h.addr, "/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	numbers := scrape(t, h.addr)
	if n := numbers["rallypoint_stalls_total"]; n > 0 {
		t.Logf("leases were judged late %v times", n)
	}
	if long {
		if n := numbers["rallypoint_refused_total{reason=silent}"]; n < float64(silent) {
			t.Errorf("only %v were cut off because they say nothing, want %d at least", n, silent)
		}
	}
	if lines := h.log.All(); strings.Count(strings.Join(lines, ""), "level=WARN") > 5*int(refusals) {
		t.Errorf("the log has %d lines:\n%s", len(lines), strings.Join(lines, ""))
	}
}

// meetAmong has a run of three meet, change twice, and finish.
func meetAmong(t *testing.T, addr, id string) {
	t.Helper()
	limit := time.Minute
	if long {
		limit = 10 * time.Minute // among 10000 connections, on a machine with much else to do
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	p := controltest.Guest(addr, 2)
	p.RunID, p.Max = id, 3
	p.LeaseTimeout, p.ReconnectGrace = time.Minute, 0
	clients := make([]*client.Client, 3)
	for i := range clients {
		clients[i] = client.New(p, controltest.NewObserver(), nil, nil)
		defer func() {
			gone, cancel := context.WithCancel(context.Background())
			cancel()
			clients[i].Close(gone)
		}()
		if err := clients[i].Connect(ctx); err != nil {
			t.Fatal(err)
		}
	}
	round := func(number uint64, of []*client.Client) {
		t.Helper()
		calls := make([]*member.Call, len(of))
		for i, c := range of {
			calls[i] = c.Start(controltest.Join())
		}
		for i, call := range calls {
			o, err := controltest.AwaitOutcome(ctx, call)
			if err != nil || o.Round != number || o.World != len(of) {
				t.Fatalf("node %d of round %d: %+v, %v", i, number, o, err)
			}
		}
		for i, c := range of {
			result, err := c.Start(rendezvous.KeyRequest{Round: number, Op: store.OpAdd, Keys: []string{"sum"}, Amount: 1}).Wait(ctx)
			if err != nil || result.(rendezvous.KeyResult).Number != int64(i+1) {
				t.Fatalf("node %d of round %d counts %v, %v", i, number, result, err)
			}
		}
	}
	round(1, clients)
	round(2, clients)
	if _, err := clients[2].Start(rendezvous.Leave{Ending: rendezvous.EndLeave}).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	round(3, clients[:2])
	for _, ev := range []rendezvous.Event{rendezvous.Finish{}, rendezvous.Leave{Ending: rendezvous.EndSuccess}} {
		for _, c := range clients[:2] {
			if _, err := c.Start(ev).Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestOutOfDescriptors: where silent connections take all descriptors they are cut
// off early, so that a node gets in, which continues undisturbed. The log has a line
// or two about it, and the process does not spin.
func TestOutOfDescriptors(t *testing.T) {
	const descriptors, silent = 64, 300
	h := newHost(t, descriptors)
	ctx := controltest.Context(t)
	good := connected(t, controltest.Guest(h.addr, 1), controltest.NewObserver())
	controltest.Outcome(t, good.Start(controltest.Join()))
	flood(t, silent, saysNothing, h.addr)
	h.log.Await(t, "cannot accept a connection", 1)
	if _, err := good.Start(rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{nil}}).Wait(ctx); err != nil {
		t.Errorf("who was there before is not served: %v", err)
	}
	p := controltest.Guest(h.addr, 1)
	p.RunID = "another"
	late := newTestClient(t, p, controltest.NewObserver())
	patient, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := late.Connect(patient); err != nil {
		t.Fatalf("a node that comes late does not get in: %v", err)
	}
	h.log.Await(t, errShed.Error(), 1)
	var lines []string
	for _, line := range h.log.All() {
		if strings.Contains(line, "cannot accept") || strings.Contains(line, "accepts connections again") {
			lines = append(lines, line)
		}
	}
	if len(lines) > 10 {
		t.Errorf("%d lines about it: %v", len(lines), lines)
	}
}
