package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// writing is a job that writes to both streams and waits for the test; rank 3 fails by then, in its
// first round.
const writing = `
echo "out of $RANK"
printf '\033[31merr\033[0m of %s\n' $RANK >&2
echo up > $SAY
until [ -e fail ]; do sleep 0.2; done
if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
	[ $RANK != 3 ] || { echo "ValueError: bad batch" >&2; exit 3; }
	exec sleep 1000
fi
until [ -e finish ]; do sleep 0.2; done
`

// writingJob is such a job of two nodes with two workers each.
func writingJob(t *testing.T, options ...string) (h *harness, endpoint string, nodes []*nodeProcess) {
	t.Helper()
	h = newHarness(t)
	options = elastic(t, "2", append([]string{"--nproc-per-node=2", "--max-restarts=1"}, options...)...)
	for range 2 {
		nodes = append(nodes, h.run(writing, options...))
	}
	for range 4 {
		testkit.Equal(t, h.readLine(), "up")
	}
	return h, strings.TrimPrefix(options[1], "--rdzv-endpoint="), nodes
}

// logsOf asks until all nodes answer.
func logsOf(t *testing.T, args ...string) (l backend.Logs) {
	t.Helper()
	testkit.Eventually(t, "all nodes answer", func() bool {
		code, stdout, stderr := execute(t, append([]string{"logs", "--json", "--timeout", "1m"}, args...)...)
		if code != 0 {
			t.Fatal(stderr)
		}
		testkit.Check(t, json.Unmarshal([]byte(stdout), &l))
		return len(l.Silent) == 0
	})
	return l
}

// TestLogs: what the workers of both nodes wrote is shown, whether it goes to files, passes the
// agent, or is said not to be kept; that of the worker which failed first is kept when the next
// round runs.
func TestLogs(t *testing.T) {
	for _, c := range []struct {
		name, stdout string
		options      []string
	}{
		{"default", "", nil},
		{"files", "out of 3\n", []string{"-r", "3"}},
		{"copied", "out of 3\n", []string{"-t", "3"}},
		{"folded", "out of 3\n", []string{"--fold-logs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, endpoint, nodes := writingJob(t, c.options...)
			var l backend.Logs
			testkit.Eventually(t, "the workers' output has passed", func() bool {
				l = logsOf(t, endpoint, "--rank", "3")
				return slices.ContainsFunc(l.Streams, func(s backend.LogStream) bool { return s.Text == "err of 3\n" })
			})
			if l.Schema != 1 || l.Round != 1 || l.Nodes != 2 || l.RunID != "none" || len(l.Streams) != 2 {
				t.Errorf("%+v", l)
			}
			if s := l.Streams[0]; s.Stream != "stdout" || s.Text != c.stdout || strings.Contains(s.Why, "the agent's pipe") == (c.stdout != "") {
				t.Errorf("%+v", s)
			}
			if l = logsOf(t, endpoint); len(l.Streams) != 8 && c.name != "default" || l.Streams[0].Ranks[0] != 0 {
				t.Errorf("%+v", l)
			}
			code, _, stderr := execute(t, "logs", endpoint, "--culprit")
			if code == 0 || !strings.Contains(stderr, "is known to have failed") {
				t.Errorf("code %d: %s", code, stderr)
			}
			code, _, stderr = execute(t, "logs", endpoint, "--rank", "4")
			if code == 0 || !strings.Contains(stderr, "has no rank 4: ranks 0 to 3 have answered") {
				t.Errorf("code %d: %s", code, stderr)
			}
			testkit.WriteFile(t, h.dir+"/fail", nil)
			for range 4 {
				testkit.Equal(t, h.readLine(), "up")
			}
			l = logsOf(t, endpoint, "--culprit")
			if l.Round != 1 || !strings.Contains(l.Failure, "worker of rank 3") || !strings.HasSuffix(l.Failure, "exited with code 3: ValueError: bad batch") ||
				len(l.Streams) != 2 || l.Streams[0].Text != c.stdout || l.Streams[1].Text != "err of 3\nValueError: bad batch\n" || l.Streams[1].Ranks[0] != 3 {
				t.Errorf("%+v", l)
			}
			code, stdout, stderr := execute(t, "logs", endpoint, "--culprit")
			if code != 0 || !strings.HasPrefix(stdout, "run \"none\", round 1: worker of rank 3 (") || !strings.Contains(stdout, ": stderr <==\nerr of 3\nValueError: bad batch\n") ||
				strings.Contains(stdout, "stdout of rank 3: it goes to the agent's pipe without passing the agent") == (c.stdout != "") {
				t.Errorf("code %d: %s%s", code, stdout, stderr)
			}
			testkit.WriteFile(t, h.dir+"/finish", nil)
			for _, p := range nodes {
				p.expect(t, 0)
			}
		})
	}
}

// TestLogsFollowed: who follows sees each line once, the last ones of a worker that fails, and the
// next round, until the job has ended.
func TestLogsFollowed(t *testing.T) {
	t.Parallel()
	h, endpoint, nodes := writingJob(t, "-t", "3")
	read, write := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		var notes strings.Builder
		code := Main(context.Background(), []string{"rallypoint", "logs", endpoint, "-f", "--timeout", "1m"}, write, &notes)
		write.Close()
		ended <- code
	}()
	lines := bufio.NewScanner(read)
	var all []string
	follow := func(n int) {
		t.Helper()
		for range n {
			if !lines.Scan() {
				t.Fatalf("it ended after %q", all)
			}
			all = append(all, lines.Text())
		}
	}
	follow(8)
	slices.Sort(all)
	if want := []string{"[0] err of 0", "[0] out of 0", "[1] err of 1", "[1] out of 1", "[2] err of 2", "[2] out of 2", "[3] err of 3", "[3] out of 3"}; !slices.Equal(all, want) {
		t.Fatalf("%q", all)
	}
	testkit.WriteFile(t, h.dir+"/fail", nil)
	follow(1)
	testkit.Equal(t, all[8], "[3] ValueError: bad batch")
	follow(8)
	slices.Sort(all[9:])
	if !slices.Equal(all[:8], all[9:]) {
		t.Errorf("%q", all[9:])
	}
	for range 4 {
		testkit.Equal(t, h.readLine(), "up")
	}
	testkit.WriteFile(t, h.dir+"/finish", nil)
	if lines.Scan() {
		t.Errorf("another line: %q", lines.Text())
	}
	testkit.Equal(t, <-ended, 0)
	for _, p := range nodes {
		p.expect(t, 0)
	}
}

// TestFollowersWhoHangUp: a client whose terminal is gone leaves its place to another one, also where the workers
// write nothing by which its agent would miss it.
func TestFollowersWhoHangUp(t *testing.T) {
	t.Parallel()
	h, endpoint, nodes := writingJob(t, "-t", "3")
	for range 5 { // one more than an agent takes
		cmd := exec.Command(os.Args[0], "logs", endpoint, "-f", "--timeout", "1m")
		cmd.Env = []string{testkit.EndAtOnce, asCommand + "=1"}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		lines := bufio.NewScanner(testkit.Must(cmd.StdoutPipe())(t))
		testkit.Check(t, cmd.Start())
		for range 8 {
			if !lines.Scan() {
				_ = cmd.Wait()
				t.Fatal(stderr.String())
			}
		}
		testkit.Check(t, cmd.Process.Signal(unix.SIGHUP))
		for lines.Scan() {
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v, %s", err, stderr.String())
		}
	}
	testkit.WriteFile(t, h.dir+"/finish", nil)
	testkit.WriteFile(t, h.dir+"/fail", nil)
	for _, p := range nodes {
		p.expect(t, 0)
	}
}

// TestLogsRefused says what is wrong, and what to do.
func TestLogsRefused(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := control.Start(control.Config{}, l)
	defer s.Close()
	for want, args := range map[string][]string{
		"ENDPOINT":                        {},
		"needs a port":                    {"static://127.0.0.1"},
		"there is no run":                 {l.Addr().String(), "-f"},
		"knows no run \"x\"":              {l.Addr().String(), "--rdzv-id", "x"},
		"--timeout":                       {l.Addr().String(), "--timeout", "-1s"},
		"no such file":                    {l.Addr().String(), "--token-file", "/nowhere/token"},
		"nothing listens at":              {"127.0.0.1:1"},
		"cannot be combined with --culpr": {l.Addr().String(), "--rank", "3", "--culprit"},
		"nor --follow with":               {l.Addr().String(), "-f", "--json"},
		"0 or above":                      {l.Addr().String(), "--rank", "-2"},
	} {
		if code, _, stderr := execute(t, append([]string{"logs"}, args...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d, %s", args, code, stderr)
		}
	}
}

// TestFollowedThroughAnOutage: who follows a job waits for its next round also while its control plane does not
// answer, as when another node takes over; one that stays silent ends it, and that is said.
func TestFollowedThroughAnOutage(t *testing.T) {
	defer func(before time.Duration) { followPause = before }(followPause)
	followPause = time.Millisecond
	for name, c := range map[string]struct {
		answers int32 // from this one on it answers
		round   uint64
		says    string
	}{"short": {2, 2, "does not answer"}, "for good": {1000, 0, "stays silent"}} {
		var asked atomic.Int32
		addr := talker(t, func(conn net.Conn) {
			if asked.Add(1) >= c.answers {
				answering(200, "application/json", `{"schema": 1, "runs": [{"run_id": "job", "phase": "running", "round": 2}]}`)(conn)
			}
		})
		var notes strings.Builder
		run, err := queryOf(t, addr).nextRound(t.Context(), 1, &notes)
		if err != nil || (run == nil) != (c.round == 0) || run != nil && run.Round != c.round || !strings.Contains(notes.String(), c.says) {
			t.Errorf("%s: %+v, %v, says %q", name, run, err, notes.String())
		}
	}
}
