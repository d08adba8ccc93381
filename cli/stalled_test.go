package cli

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// stalledReader is a pipe whose reader has stopped: a log collector that hangs, a terminal after
// Ctrl-S.
type stalledReader struct {
	t           *testing.T
	read, write *os.File
}

func newStalledReader(t *testing.T) *stalledReader {
	t.Helper()
	read, write, err := os.Pipe()
	testkit.Check(t, err)
	s := &stalledReader{t, read, write}
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	s.fill()
	return s
}

// fill fills the pipe.
func (s *stalledReader) fill() {
	s.t.Helper()
	fd := int(s.write.Fd())
	var err error
	testkit.Check(s.t, unix.SetNonblock(fd, true))
	for size := 4096; size > 0; size /= 2 {
		for err == nil {
			_, err = unix.Write(fd, make([]byte, size))
		}
		err = nil
	}
	testkit.Check(s.t, unix.SetNonblock(fd, false))
}

// rest reads what comes until all writers have ended.
func (s *stalledReader) rest() string {
	s.t.Helper()
	s.write.Close()
	testkit.Check(s.t, s.read.SetReadDeadline(time.Now().Add(4*testkit.Patience)))
	text, err := io.ReadAll(s.read)
	testkit.Check(s.t, err)
	return strings.ReplaceAll(string(text), "\x00", "")
}

// stalled has a command's stdout and stderr be such a pipe.
func (n *nodeProcess) stalled(t *testing.T) *stalledReader {
	s := newStalledReader(t)
	n.Stdout, n.Stderr = s.write, s.write
	return s
}

// TestSignalWithStalledStderr: SIGTERM reaches the workers although nobody reads the agent's output,
// and the agent ends. Workers that write there themselves are held.
func TestSignalWithStalledStderr(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{"plain": nil, "tee": {"-t", "3"}, "folded": {"--fold-logs"}, "events": {"--event-log-handler=console"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			p := h.command(`trap 'echo told >$SAY; exit 0' TERM; head -c 300000 /dev/zero >&2 & echo ready >$SAY; sleep 100 & wait`, append(options, "--shutdown-timeout=1")...)
			p.Env = append(p.Env, "LOGLEVEL=DEBUG")
			p.stalled(t)
			testkit.Check(t, p.Start())
			if line := h.readLine(); line != "ready" {
				t.Fatalf("the worker says %q", line)
			}
			testkit.Check(t, p.Process.Signal(syscall.SIGTERM))
			if line := h.readLine(); line != "told" {
				t.Errorf("the worker says %q", line)
			}
			if code := p.end(); code == 0 {
				t.Error("the agent ends with 0")
			}
		})
	}
}

// TestRestartWithStalledStderr: a failed worker is started again.
func TestRestartWithStalledStderr(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.command(`echo round $RALLYPOINT_ROUND >$SAY; [ $RALLYPOINT_ROUND = 2 ] && exit 0; echo failing >&2; head -c 300000 /dev/zero >&2 & sleep 0.1; exit 3`, "--max-restarts=1")
	s := newStalledReader(t)
	p.Stderr = s.write
	testkit.Check(t, p.Start())
	for _, want := range []string{"round 1", "round 2"} {
		if line := h.readLine(); line != want {
			t.Fatalf("the worker says %q, want %q", line, want)
		}
	}
	code := p.end()
	if text := s.rest(); code != 0 {
		t.Errorf("it ends with %d, and had said %s", code, text)
	}
}

// TestRegroupWithStalledStderr: a failure on another node brings the next round.
func TestRegroupWithStalledStderr(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := hostedNodes(t, "--nproc-per-node=1", "--max-restarts=1")
	gate := filepath.Join(h.dir, "go") // rank 1 fails once both have spoken: a node that hears of it earlier starts no worker
	testkit.Check(t, unix.Mkfifo(gate, 0o600))
	script := `echo round $RALLYPOINT_ROUND >$SAY; [ $RALLYPOINT_ROUND = 2 ] && exit 0; echo x >&2; [ $RANK = 1 ] && { read go <` + gate + `; exit 1; }; exec sleep 100`
	host := h.command(script, options(0)...)
	host.Env = append(host.Env, "LOGLEVEL=DEBUG")
	host.stalled(t)
	testkit.Check(t, host.Start())
	other := h.run(script, options(1)...)
	for said, want := range []string{"round 1", "round 1", "round 2", "round 2"} {
		if line := h.readLine(); line != want {
			t.Fatalf("a worker says %q, want %q", line, want)
		}
		if said == 1 {
			testkit.Check(t, os.WriteFile(gate, []byte("go\n"), 0))
		}
	}
	if a, b := host.end(), other.end(); a != 0 || b != 0 {
		t.Errorf("they end with %d and %d: %s", a, b, other.stderr.String())
	}
}

// TestServeWithStalledOutput: jobs meet at a server whose output nobody reads. What it could not
// write is counted in one line when it is read again, and it ends when it is told to.
func TestServeWithStalledOutput(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := newStalledReader(t)
	serve := &nodeProcess{Cmd: exec.Command(os.Args[0], "serve", "--listen", "127.0.0.1:0", "--log-level", "debug", "--record", h.dir+"/history")}
	serve.Env = append(os.Environ(), asCommand+"=1")
	out := testkit.Must(serve.StdoutPipe())(t)
	serve.Stderr = s.write
	testkit.Check(t, serve.Start())
	line := make([]byte, 100)
	n := testkit.Must(out.Read(line))(t)
	_, addr, _ := strings.Cut(strings.TrimSpace(string(line[:n])), " listening on ")
	for _, id := range []string{"a", "b", "c"} {
		node := h.run("exit 0", "--nnodes=1", "--rdzv-endpoint="+addr, "--rdzv-id="+id)
		if code := node.end(); code != 0 {
			t.Fatalf("job %s ends with %d: %s", id, code, node.stderr.String())
		}
	}
	testkit.Check(t, serve.Process.Signal(syscall.SIGTERM))
	text := make(chan string)
	go func() { text <- s.rest() }()
	if code := serve.end(); code != 0 {
		t.Errorf("the server ends with %d", code)
	}
	if got := <-text; !regexp.MustCompile(`(?s)run.?=a.*run.?=b.*run.?=c`).MatchString(got) {
		t.Errorf("it says %s", got)
	}
	auditHistory(t, h.dir+"/history")
}

// TestServeEndsWithStalledOutput: SIGTERM ends a server whose output nobody reads, from its first
// line on.
func TestServeEndsWithStalledOutput(t *testing.T) {
	t.Parallel()
	s := newStalledReader(t)
	addr := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	serve := &nodeProcess{Cmd: exec.Command(os.Args[0], "serve", "--listen", addr, "--log-level", "debug", "--data-dir", t.TempDir())}
	serve.Env = append(os.Environ(), asCommand+"=1")
	serve.Stdout, serve.Stderr = s.write, s.write
	testkit.Check(t, serve.Start())
	testkit.Eventually(t, "it listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	testkit.Check(t, serve.Process.Signal(syscall.SIGTERM))
	if code := serve.end(); code != 0 {
		t.Errorf("the server ends with %d", code)
	}
}
