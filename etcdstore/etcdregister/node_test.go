package etcdregister

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/testkit"
	"rallypoint/roundstore"
)

// openMember makes a node over an etcd.
func openMember(config etcdclient.Config, p params.Params, log *slog.Logger) (*member.Member, error) {
	r, err := New(config, p.RunID)
	if err != nil {
		return nil, err
	}
	return roundstore.OpenRegister(p, r, func() string { return "127.0.0.1" }, r.Close, log)
}

func nodeParams(name string, min, max int) params.Params {
	p := params.Default()
	p.RunID, p.Endpoint, p.NodeID, p.Min, p.Max = "job", "etcd://test", name, min, max
	p.LeaseTimeout, p.LastCallTimeout = 2*time.Second, 500*time.Millisecond
	return p
}

// playNode is a node in a process of its own, which obeys what is written to it:
//
//	next     joins the next round and says "ROUND RANK WORLD"
//	waiting  says why, once there is a reason to regroup
//	add N    adds to a key of the round and says the sum
//	success  ends its part well
func playNode(args []string) int {
	var config etcdclient.Config
	config.Endpoints, config.Prefix, config.Timeout = strings.Split(args[0], ","), args[1], 30*time.Second
	least, _ := strconv.Atoi(args[3])
	most, _ := strconv.Atoi(args[4])
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", args[2])
	p := nodeParams(args[2], least, most)
	p.LastCallTimeout = testkit.Patience // the first round has all nodes, however late one of them starts
	m, err := openMember(config, p, log)
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	defer m.Close()
	ctx := context.Background()
	round := uint64(0)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		order, argument, _ := strings.Cut(lines.Text(), " ")
		switch order {
		case "next":
			o, err := m.Next(ctx)
			if round = o.Round; err != nil {
				fmt.Println("error", err)
			} else {
				fmt.Println(o.Round, o.Rank, o.World)
			}
		case "waiting":
			for m.NodesWaiting() == 0 {
				time.Sleep(5 * time.Millisecond)
			}
			fmt.Println(m.Reason())
		case "add":
			n, _ := strconv.ParseInt(argument, 10, 64)
			sum, err := m.Keys(round).Add(ctx, "sum", n)
			fmt.Println(sum, err)
		case "success":
			fmt.Println("ended", m.Shutdown(ctx, rendezvous.EndSuccess, ""))
			return 0
		}
	}
	return 0
}

// nodeProcess is the other end of playNode.
type nodeProcess struct {
	t     testing.TB
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	log   *testLog
}

func startNode(t testing.TB, config etcdclient.Config, name string, min, max int) *nodeProcess {
	t.Helper()
	n := &nodeProcess{t: t, name: name, lines: make(chan string, 100)}
	n.cmd = exec.Command(os.Args[0], strings.Join(config.Endpoints, ","), config.Prefix, name, strconv.Itoa(min), strconv.Itoa(max))
	n.cmd.Env = append(os.Environ(), roleVariable+"=node")
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.log = &testLog{t: t, changed: make(chan struct{})}
	n.cmd.Stderr = n.log
	n.in = testkit.Must(n.cmd.StdinPipe())(t)
	out := testkit.Must(n.cmd.StdoutPipe())(t)
	testkit.Check(t, n.cmd.Start())
	go func() {
		defer close(n.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			n.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		n.log.end()
	})
	return n
}

// testLog shows what a process writes, while the test runs.
type testLog struct {
	mu      sync.Mutex
	t       testing.TB
	text    string
	changed chan struct{}
}

func (tl *testLog) Write(b []byte) (int, error) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.text += string(b)
	close(tl.changed)
	tl.changed = make(chan struct{})
	if tl.t != nil {
		tl.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

// logged waits until the node has logged the text.
func (n *nodeProcess) logged(text string) {
	n.t.Helper()
	for late := time.After(60 * time.Second); ; {
		n.log.mu.Lock()
		seen, changed := strings.Contains(n.log.text, text), n.log.changed
		n.log.mu.Unlock()
		if seen {
			return
		}
		select {
		case <-changed:
		case <-late:
			n.t.Fatalf("%s does not log %q", n.name, text)
		}
	}
}

func (tl *testLog) end() {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.t = nil
}

func (n *nodeProcess) tell(order string) {
	n.t.Helper()
	_, err := fmt.Fprintln(n.in, order)
	testkit.Check(n.t, err)
}

func (n *nodeProcess) heard() string {
	n.t.Helper()
	select {
	case line, ok := <-n.lines:
		if !ok {
			n.t.Fatalf("%s has ended", n.name)
		}
		return line
	case <-time.After(60 * time.Second):
		n.t.Fatalf("%s does not answer", n.name)
	}
	return ""
}

// silent checks that the node has nothing to say.
func (n *nodeProcess) silent() {
	n.t.Helper()
	select {
	case line := <-n.lines:
		n.t.Fatalf("%s says %q", n.name, line)
	default:
	}
}

func (n *nodeProcess) signal(sig syscall.Signal) { testkit.Check(n.t, n.cmd.Process.Signal(sig)) }

// kill ends the process as kill -9 does.
func (n *nodeProcess) kill() {
	n.signal(syscall.SIGKILL)
	_ = n.cmd.Wait()
}

func tellAll(nodes []*nodeProcess, order string) {
	for _, n := range nodes {
		n.tell(order)
	}
}

// met checks that the nodes, all of which join, are one round, and returns
// its number.
func met(t testing.TB, nodes []*nodeProcess) (round int) {
	t.Helper()
	ranks := map[int]bool{}
	for i, n := range nodes {
		line := n.heard()
		var r, rank, world int
		if _, err := fmt.Sscan(line, &r, &rank, &world); err != nil {
			t.Fatalf("%s: %s", n.name, line)
		}
		if i == 0 {
			round = r
		}
		if r != round || world != len(nodes) || rank < 0 || rank >= world || ranks[rank] {
			t.Fatalf("%s: %s; the round is %d with %d nodes, ranks %v are taken", n.name, line, round, len(nodes), ranks)
		}
		ranks[rank] = true
	}
	return round
}
