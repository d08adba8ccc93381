package backend

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent"
	"rallypoint/agent/logs"
	"rallypoint/core/params"
	"rallypoint/core/store"
)

// job is agents of two workers each, which are shell scripts: they write lines to $SAY and
// wait for what the test writes to FIFOs.
type job struct {
	t      *testing.T
	dir    string
	said   *bufio.Reader
	mu     sync.Mutex
	agents []*agent.Agent
	done   []chan struct{}
	errs   []error                                                     // valid once done is closed
	to     logs.StreamSpec                                             // see logs.Spec.Redirects
	dial   func(ctx context.Context, addr string) (store.Store, error) // see agent.Spec
}

func newJob(t *testing.T) *job {
	j := &job{t: t, dir: t.TempDir()}
	say := j.fifo("say")
	if err := say.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	j.said = bufio.NewReader(say)
	return j
}

// fifo makes a FIFO that does not block who opens it.
func (j *job) fifo(name string) *os.File {
	j.t.Helper()
	path := filepath.Join(j.dir, name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		j.t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { pipe.Close() })
	return pipe
}

// start starts the agent of one more node.
func (j *job) start(rdzv agent.Rendezvous, restarts int, script string) {
	j.t.Helper()
	node := fmt.Sprint(len(j.agents))
	spec := agent.Spec{
		RunID: "job", Role: "r", Argv: []string{"sh", "-c", script}, Workers: 2, NoMacros: true, MaxRestarts: restarts,
		Environ:         []string{"PATH=" + os.Getenv("PATH"), "DIR=" + j.dir, "SAY=" + filepath.Join(j.dir, "say"), "NODE=" + node},
		MonitorInterval: 10 * time.Millisecond, ShutdownTimeout: time.Hour, ExitBarrierTimeout: time.Minute, LostNodeTimeout: time.Minute,
	}
	spec.DialStore = j.dial
	spec.Logs.Redirects = j.to
	spec.Logs.Dir = filepath.Join(j.dir, "logs"+node)
	a, err := agent.New(spec, "script", rdzv, slog.New(slog.NewTextHandler(testWriter{j.t, "agent " + node}, nil)))
	if err != nil {
		j.t.Fatal(err)
	}
	done, at := make(chan struct{}), len(j.agents)
	j.agents, j.done, j.errs = append(j.agents, a), append(j.done, done), append(j.errs, nil)
	go func() {
		defer close(done)
		err := a.Run(context.Background())
		j.mu.Lock()
		defer j.mu.Unlock()
		j.errs[at] = err
	}()
	j.t.Cleanup(func() { // after a failure
		a.Stop(unix.SIGTERM, 0)
		a.Stop(unix.SIGKILL, 0)
		<-done
	})
}

// wait waits for the end of a node's agent and returns its error.
func (j *job) wait(node int) error {
	<-j.done[node]
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.errs[node]
}

// hear returns the next n lines of workers, sorted.
func (j *job) hear(n int) []string {
	j.t.Helper()
	var lines []string
	for range n {
		line, err := j.said.ReadString('\n')
		if err != nil {
			j.t.Fatal(err)
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	slices.Sort(lines)
	return lines
}

func (j *job) want(lines ...string) {
	j.t.Helper()
	if got := j.hear(len(lines)); !slices.Equal(got, lines) {
		j.t.Errorf("the workers said %q, want %q", got, lines)
	}
}

// stubborn is a worker that says when it got SIGTERM, and ends when the test says so.
const stubborn = `trap 'echo "$NODE.$LOCAL_RANK TERM" > $SAY; read go < $DIR/release; exit 0' TERM
	echo "$NODE.$LOCAL_RANK up $TORCHELASTIC_RESTART_COUNT" > $SAY; while :; do sleep 0.1; done`

// stopped says when it got SIGTERM, and ends by it.
const stopped = `trap 'echo "$NODE.$LOCAL_RANK TERM" > $SAY; exit 3' TERM
	echo "$NODE.$LOCAL_RANK up $TORCHELASTIC_RESTART_COUNT" > $SAY; while :; do sleep 0.1; done`

// failing fails when the test says so.
const failing = `echo "$NODE.$LOCAL_RANK up $TORCHELASTIC_RESTART_COUNT" > $SAY; read go < $DIR/fail; exit 7`

// again ends a script's second round well.
const again = `[ $RALLYPOINT_ROUND = 2 ] && { echo "$NODE.$LOCAL_RANK up $TORCHELASTIC_RESTART_COUNT" > $SAY; exit 0; }
	`

// wherever runs a test in each place where two nodes can meet, static jobs included.
func wherever(t *testing.T, f func(t *testing.T, open func(rank int) agent.Rendezvous)) {
	everywhere(t, func(t *testing.T, r *run) {
		f(t, func(rank int) agent.Rendezvous {
			return r.node(fmt.Sprint("n", rank), 2, 2, fmt.Sprint("node_rank=", rank))
		})
	})
	t.Run("static", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		endpoint := "static://" + l.Addr().String()
		l.Close()
		f(t, func(rank int) agent.Rendezvous {
			p := params.Default()
			p.RunID, p.Min, p.Max, p.NodeRank, p.Endpoint = "job", 2, 2, rank, endpoint
			n, err := Open(p, slog.New(slog.NewTextHandler(testWriter{t, fmt.Sprint("n", rank)}, nil)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { n.Close() })
			return n
		})
	})
}

// TestParallelStop: when a worker fails, all nodes stop their workers at once, and not one
// node after the other: the workers of another node get SIGTERM while one of the failing
// node has not ended by it. It costs one restart.
func TestParallelStop(t *testing.T) {
	wherever(t, func(t *testing.T, open func(int) agent.Rendezvous) {
		j := newJob(t)
		fail, release := j.fifo("fail"), j.fifo("release")
		j.start(open(0), 1, again+`[ $LOCAL_RANK = 0 ] || { `+failing+`
			}
			`+stubborn)
		j.start(open(1), 1, again+stopped)
		j.want("0.0 up 0", "0.1 up 0", "1.0 up 0", "1.1 up 0")
		fmt.Fprintln(fail, "go")
		j.want("0.0 TERM", "1.0 TERM", "1.1 TERM")
		fmt.Fprintln(release, "go")
		j.want("0.0 up 1", "0.1 up 1", "1.0 up 1", "1.1 up 1")
		for node := range j.agents {
			if err := j.wait(node); err != nil {
				t.Errorf("node %d: %v", node, err)
			}
		}
	})
}
