package agent

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/agent/telemetry"
	"rallypoint/internal/testkit"
	"rallypoint/internal/wake"
)

// hangingStep is a job of Python that makes steps until it is told to hang: then rank 3 waits in
// load for a line, and all others for it. It begins to step again after that line.
const hangingStep = `
import select, struct, threading
record = open(os.environ["RALLYPOINT_PROGRESS_FILE"], "r+b", buffering=0)
hang = open(os.environ["GO"] + ".hang", "rb", buffering=0)
go = open(os.environ["GO"] + ".go" + os.environ["RANK"], "rb", buffering=0)
step = 0
def train():
    global step
    step += 1
    record.seek(16)
    if os.environ["RANK"] == "0":  # the ranks do not keep step
        record.write(struct.pack("<q", step))
def load():
    select.select([go], [], [])
def wait():
    select.select([go], [], [])
if os.environ["RANK"] == "0":
    open(os.environ["SAY"], "w").write("%d\n" % os.getpid())
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    sys.exit(0)
while not select.select([hang], [], [], 0.01)[0]:
    train()
if os.environ["RANK"] == os.environ.get("BUSY"):
    record.seek(40)
    record.write(struct.pack("<Q", 1 << 62))
    open(os.environ["SAY"], "w").write(record.name + "\n")
if os.environ["RANK"] == "2" and "DEBUGGER" in os.environ:
    import pdb
    pdb.Pdb(stdin=open(os.environ["DEBUGGER"]), stdout=open(os.devnull, "w")).set_trace()
load() if os.environ["RANK"] == "3" else wait()
while True:
    train()
    select.select([], [], [], 0.01)
`

// hangHarness is an agent of four such workers. hang has them hang; resume lets them continue.
func hangHarness(t *testing.T, onHang OnHang, restarts int, notify func(Event), environ ...string) (s *harness, log *testkit.Log, hang, resume func()) {
	t.Helper()
	s = pythonWorkers(t, 4, false, hangingStep)
	base := filepath.Join(t.TempDir(), "gate")
	open := func(name string) *os.File {
		if err := unix.Mkfifo(base+name, 0o600); err != nil {
			t.Fatal(err)
		}
		pipe := testkit.Must(os.OpenFile(base+name, os.O_RDWR, 0))(t)
		t.Cleanup(func() { pipe.Close() })
		return pipe
	}
	gate := open(".hang")
	var goes []*os.File
	for rank := range 4 {
		goes = append(goes, open(fmt.Sprintf(".go%d", rank)))
	}
	var logger *slog.Logger
	logger, log = testkit.NewLog(t)
	s.spec.HangTimeout, s.spec.OnHang, s.spec.MaxRestarts = 1500*time.Millisecond, onHang, restarts
	s.spec.Environ = append(s.spec.Environ, "GO="+base, telemetry.EnvHealthPort+"=0")
	s.spec.Environ = append(s.spec.Environ, environ...)
	s.spec.Notify, s.spec.Events = notify, &eventLog{more: wake.New()}
	a, err := New(s.spec, "train.py", s.rdzv, logger)
	testkit.Check(t, err)
	s.agent = a
	hang = func() {
		testkit.Eventually(t, "the agent has seen two steps", func() bool { return time.Duration(a.hangs.limit.Load()) == s.spec.HangTimeout })
		testkit.Must(gate.WriteString("x"))(t)
	}
	resume = func() {
		for _, pipe := range goes {
			testkit.Must(pipe.WriteString("x"))(t)
		}
	}
	return s, log, hang, resume
}

// TestHangIsNamed: the rank that holds up the others is named with its line in the log, in the
// report that heartbeats carry, and at the health port, until the job steps again.
func TestHangIsNamed(t *testing.T) {
	t.Parallel()
	notified := make(chan string, 8)
	s, log, hang, resume := hangHarness(t, HangStacks, 0, func(e Event) {
		if e.Kind == EventStalled {
			notified <- e.Text
		}
	})
	events := s.spec.Events.(*eventLog)
	s.start()
	_, url, _ := strings.Cut(log.Await(t, "metrics: http://", 1)[0], "metrics: ")
	url, _, _ = strings.Cut(url, `"`)
	hang()
	line := log.Await(t, " load; 3 others are at train.py:", 1)[0]
	if !strings.Contains(line, "no step for ") || !strings.Contains(line, ": rank 3 (") || !strings.Contains(line, ") is at train.py:") {
		t.Error(line)
	}
	text := s.rdzv.report().Stalled
	if text == "" || !strings.Contains(line, text) {
		t.Errorf("the report says %q", text)
	}
	if len(log.With("where the workers are:", "> load  ")) == 0 {
		t.Error(log)
	}
	shows := func(path, part string) { // soon after the log does
		t.Helper()
		testkit.Eventually(t, path+" shows "+part, func() bool {
			_, body := get(t, url+path)
			return strings.Contains(strings.ReplaceAll(body, `": "`, `":"`), part)
		})
	}
	shows("/status", `"stalled":"no step for `)
	shows("/metrics", "\nrallypoint_agent_stalled 1\n")
	resume()
	log.Await(t, "the job makes steps again", 1)
	told := <-notified
	for next := <-notified; next != ""; next = <-notified {
		told = next
	}
	if told != text || events.count("job stalled") == 0 || events.count("job steps again") == 0 {
		t.Errorf("told %q, events %q", told, events.all)
	}
	if text := s.rdzv.report().Stalled; text != "" {
		t.Errorf("the report still says %q", text)
	}
	shows("/metrics", "\nrallypoint_agent_stalled 0\n")
	s.agent.Signal(unix.SIGTERM)
	if err := s.wait(); err == nil {
		t.Error("a signal ended it without an error")
	}
}

// TestHangIsRestarted: the rank is ended and named, and the budget is charged.
func TestHangIsRestarted(t *testing.T) {
	t.Parallel()
	s, log, hang, _ := hangHarness(t, HangRestart, 1, nil)
	s.start()
	hang()
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if len(log.With("the job hung (no step for ", "then the worker of rank 3 ", " was ended for it (--on-hang restart)", "restart 1 of 1")) != 1 {
		t.Error(log)
	}
	if s.agent.Result().Restarts != 1 {
		t.Errorf("%d restarts were charged", s.agent.Result().Restarts)
	}
}

// TestVictimOfAHang: a hang that a worker gives up first, by a time-out of its own, is told with
// the suspect of the hang, not as the failure of the one that gave up.
func TestVictimOfAHang(t *testing.T) {
	t.Parallel()
	s, log, hang, _ := hangHarness(t, HangReport, 0, nil)
	s.start()
	hang()
	log.Await(t, " load; 3 others", 1)
	testkit.Check(t, unix.Kill(s.hearPids(1)[0], unix.SIGKILL))
	failures := s.failed(s.wait())
	root := failures[failure.RootCause(failures)]
	if root.Rank != 0 || !strings.HasPrefix(root.Summary(), "the job hung (no step for ") || !strings.Contains(root.Summary(), "rank 3 (") ||
		!strings.Contains(root.Summary(), "); then the worker of rank 0 (") {
		t.Error(root.Summary())
	}
}

// TestFailureAfterAStandstill: a worker that gives up before anybody has said that the job hangs is
// told with the time in which there was no step; one that fails while the job steps is not.
func TestFailureAfterAStandstill(t *testing.T) {
	t.Parallel()
	for name, stands := range map[string]bool{"5": true, "0": false} {
		s := pythonWorkers(t, 2, false, `
import struct
if os.environ["RANK"] == "1":
    time.sleep(1000)
record = open(os.environ["RALLYPOINT_PROGRESS_FILE"], "r+b", buffering=0)
for step in range(100):
    record.seek(16)
    record.write(struct.pack("<q", step))
    time.sleep(0.01)
time.sleep(float(os.environ["STANDS"]))
sys.exit(1)
`)
		s.spec.HangTimeout = HangOff
		s.spec.Environ = append(s.spec.Environ, "STANDS="+name)
		a, err := New(s.spec, "train.py", s.rdzv, slog.New(slog.DiscardHandler))
		testkit.Check(t, err)
		s.agent = a
		s.start()
		failures := s.failed(s.wait())
		root := failures[failure.RootCause(failures)]
		said := strings.Contains(root.Summary(), "; the job had made no step for ") && strings.Contains(failure.Report("train.py", failures, ""), "\n  standstill: the job had made no step for ")
		if root.Rank != 0 || said != stands || (root.Still > 0) != stands {
			t.Errorf("%s: %s", name, root.Summary())
		}
	}
}

// TestBusyIsNoHang: while one rank has announced that it makes no step, nothing hangs, however long
// the others wait; once that is over the same silence is a hang.
func TestBusyIsNoHang(t *testing.T) {
	t.Parallel()
	s, log, hang, _ := hangHarness(t, HangReport, 0, nil, "BUSY=2")
	s.start()
	hang()
	record := s.hear()
	for !strings.HasPrefix(record, "/") { // the other line is a pid
		record = s.hear()
	}
	testkit.Eventually(t, "the workers have been silent for long", func() bool {
		return s.rdzv.report().SinceChange > 2*s.spec.HangTimeout
	})
	if found := log.With("no step for ", " load; "); len(found) != 0 {
		t.Error(found)
	}
	file := testkit.Must(os.OpenFile(record, os.O_WRONLY, 0))(t)
	testkit.Must(file.WriteAt(make([]byte, 8), 40))(t)
	testkit.Check(t, file.Close())
	log.Await(t, " load; 3 others", 1)
	s.agent.Signal(unix.SIGTERM)
	_ = s.wait()
}

// TestDebuggedIsNoHang: while someone debugs a worker nothing hangs, however long the others wait;
// once he lets it go the silence that follows is a hang. pdb runs in the worker, the other debugger
// attaches to it.
func TestDebuggedIsNoHang(t *testing.T) {
	t.Parallel()
	debug := func(t *testing.T, s *harness, log *testkit.Log, hang, letGo func()) {
		t.Helper()
		hang()
		held := 4 * s.spec.HangTimeout
		testkit.Eventually(t, "the workers have been silent for long", func() bool { return s.rdzv.report().SinceChange > held })
		if found := log.With("no step for "); len(found) != 0 {
			t.Error(found)
		}
		letGo()
		_, silent, _ := strings.Cut(log.Await(t, " load; 3 others", 1)[0], "no step for ")
		silent, _, _ = strings.Cut(silent, " s: ")
		if seconds := testkit.Must(strconv.ParseFloat(silent, 64))(t); seconds >= held.Seconds() {
			t.Errorf("the time in the debugger counts: %v s", seconds)
		}
		s.agent.Signal(unix.SIGTERM)
		_ = s.wait()
	}
	t.Run("pdb", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "debugger")
		testkit.Check(t, unix.Mkfifo(path, 0o600))
		debugger := testkit.Must(os.OpenFile(path, os.O_RDWR, 0))(t)
		defer debugger.Close()
		s, log, hang, _ := hangHarness(t, HangReport, 0, nil, "DEBUGGER="+path)
		s.start()
		debug(t, s, log, hang, func() { testkit.Must(debugger.WriteString("continue\n"))(t) })
	})
	t.Run("attached", func(t *testing.T) {
		t.Parallel()
		s, log, hang, _ := hangHarness(t, HangReport, 0, nil)
		s.start()
		debug(t, s, log, hang, s.attach())
	})
}

// attach has a debugger attach to the worker of rank 0, until letGo.
func (h *harness) attach() (letGo func()) {
	h.t.Helper()
	debugger := exec.Command("python3", "-c", attaches, strconv.Itoa(h.hearPids(1)[0]))
	in, out := testkit.Must(debugger.StdinPipe())(h.t), testkit.Must(debugger.StdoutPipe())(h.t)
	testkit.Check(h.t, debugger.Start())
	if said, _ := bufio.NewReader(out).ReadString('\n'); said != "attached\n" {
		_, _ = in.Close(), debugger.Wait()
		h.agent.Signal(unix.SIGTERM)
		_ = h.wait()
		h.t.Skip("ptrace: ", said)
	}
	return func() {
		testkit.Check(h.t, in.Close())
		testkit.Check(h.t, debugger.Wait())
	}
}

// attaches is a debugger that holds a process until its stdin ends.
const attaches = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.ptrace(0x4206, int(sys.argv[1]), None, None)  # PTRACE_SEIZE
print(os.strerror(ctypes.get_errno()) if failed else "attached", flush=True)
sys.stdin.read()
`

// TestStandstillBeforeAFailure: where the workers stood is known of them all when one gives up before
// anybody has said that the job hangs, and that of the one which held up the others is in the report.
func TestStandstillBeforeAFailure(t *testing.T) {
	t.Parallel()
	s, log, hang, _ := hangHarness(t, HangReport, 0, nil)
	s.agent.hangs.Timeout, s.spec.HangTimeout = time.Hour, time.Hour
	s.start()
	hang()
	testkit.Eventually(t, "it is known where the workers stand", func() bool { return s.agent.hangs.stood.Load() != nil })
	testkit.Check(t, unix.Kill(s.hearPids(1)[0], unix.SIGKILL))
	failures := s.failed(s.wait())
	root := failures[failure.RootCause(failures)]
	if want := "; before that the job stood still (no step for "; root.Rank != 0 || !strings.Contains(root.Summary(), want) || !strings.Contains(root.Summary(), ": rank 3 (") || !strings.HasSuffix(root.Summary(), " wait)") {
		t.Error(root.Summary())
	}
	report := failure.Report("train.py", failures, "")
	if !strings.Contains(report, "\n  standstill: the job stood still before this failure: no step for ") || !strings.Contains(report, "last stack: (while the job stood still)\n    > load  ") {
		t.Error(report)
	}
	if found := log.With("no step for "); len(found) != 0 {
		t.Error("it was said to hang: ", found)
	}
}
