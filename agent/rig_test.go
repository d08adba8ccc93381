package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/agent/logs"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/training"
	"rallypoint/internal/promtext"
	"rallypoint/internal/testkit"
	"rallypoint/internal/wake"
)

// rounds is a rendezvous that the test steers.
type rounds struct {
	world int
	port  int // of the workers' store; 0: 1

	mu      sync.Mutex
	round   uint64
	waiting int
	closed  bool
	refusal error               // of the next Next
	blocked bool                // Next waits until its context ends
	joining chan struct{}       // gets a token for each blocked Next
	dropped map[uint64][]string // of each round's outcome
	resized map[uint64]bool     // a drain or a scale has ended the round before
	keys    map[uint64]*store.Memory
	ending  rendezvous.Ending
	ended   int

	announced []string // the reasons of AnnounceStop
	stubborn  error    // of Shutdown

	command rendezvous.Command      // set by SetCommand
	report  func() *training.Report // set by CarryTraining
	news    wake.Signal             // of Changed
}

// streamsOf are the streams of all local ranks that -r and -t call by a number.
func streamsOf(t *testing.T, number string) logs.StreamSpec {
	t.Helper()
	return testkit.Must(logs.ParseStreamSpec(number))(t)
}

func newRounds(world int) *rounds {
	return &rounds{world: world, keys: map[uint64]*store.Memory{}, joining: make(chan struct{}, 1), news: wake.New()}
}

func (r *rounds) Next(ctx context.Context) (rendezvous.Outcome, error) {
	r.mu.Lock()
	blocked, refusal := r.blocked, r.refusal
	r.mu.Unlock()
	if blocked {
		select {
		case r.joining <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return rendezvous.Outcome{}, rendezvous.ErrCanceled
	}
	if refusal != nil {
		return rendezvous.Outcome{}, refusal
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	r.waiting = 0
	o := rendezvous.Outcome{Round: r.round, World: r.world, StoreAddr: "127.0.0.1", StorePort: max(r.port, 1), Dropped: r.dropped[r.round], ByDirective: r.resized[r.round]}
	return o, nil
}

func (r *rounds) Expose(b *promtext.Buffer) {
	b.Single("rallypoint_test_number", "gauge", "Of the rendezvous.", 7)
}

func (r *rounds) NodesWaiting() int { r.mu.Lock(); defer r.mu.Unlock(); return r.waiting }
func (*rounds) OnlyLost() bool      { return false }
func (*rounds) Planned() bool       { return false }
func (r *rounds) Closed() bool      { r.mu.Lock(); defer r.mu.Unlock(); return r.closed }
func (r *rounds) Reason() string    { return "the test says so" }

func (r *rounds) Keys(round uint64) store.Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys[round] == nil {
		r.keys[round] = store.NewMemory(store.NewEngine(store.Limits{}))
	}
	return r.keys[round]
}

func (r *rounds) Changed() <-chan struct{} { return r.news }

func (r *rounds) Finish(context.Context) error { return nil }

// What follows is of a rendezvous that knows no stops and no directives; tests that need them
// embed rounds.

func (*rounds) MinNodes() int { return 0 }
func (r *rounds) AnnounceStop(_ context.Context, stop rendezvous.AnnounceStop) error {
	r.announced = append(r.announced, stop.Reason)
	return nil
}
func (*rounds) Stopped(uint64) rendezvous.RoundStop                     { return rendezvous.RoundStop{} }
func (*rounds) ReportHeld(context.Context, uint64, string, int64) error { return nil }
func (*rounds) ReportSaved(context.Context, uint64, string) error       { return nil }
func (*rounds) Requeued() (reason string, requeued bool)                { return "", false }

func (*rounds) Direct(context.Context, rendezvous.Direct) error {
	return rendezvous.Errorf(rendezvous.CodeInvalid, "the nodes of this job cannot be given directives")
}

func (r *rounds) DrainUnfit(ctx context.Context, d rendezvous.Direct) error { return r.Direct(ctx, d) }

func (*rounds) Directive() (rendezvous.DirectiveNotice, <-chan struct{}) {
	return rendezvous.DirectiveNotice{}, nil
}

func (r *rounds) SetCommand(c rendezvous.Command) { r.command = c }

func (r *rounds) CarryTraining(report func() *training.Report) { r.report = report }

func (r *rounds) Shutdown(_ context.Context, ending rendezvous.Ending, _ string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ending = ending
	r.ended++
	return r.stubborn
}

// set changes what the rendezvous says.
func (r *rounds) set(change func()) {
	r.mu.Lock()
	change()
	r.mu.Unlock()
	r.news.Set()
}

// harness is one agent under test. Its workers are shell scripts, which may write
// lines to the pipe $SAY.
type harness struct {
	t     *testing.T
	spec  Spec
	rdzv  *rounds
	agent *Agent
	said  *bufio.Reader
	done  chan struct{}
	err   error
}

// newHarness prepares an agent with a number of workers that run a script.
func newHarness(t *testing.T, workers int, script string) *harness {
	t.Helper()
	dir := t.TempDir()
	say := filepath.Join(dir, "say")
	if err := unix.Mkfifo(say, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(say, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	return &harness{
		t: t, rdzv: newRounds(1), said: bufio.NewReader(pipe), done: make(chan struct{}),
		spec: Spec{
			RunID: "run", Role: "r", Argv: []string{"sh", "-c", script}, Workers: workers, NoMacros: true,
			Environ: []string{"PATH=" + os.Getenv("PATH"), "SAY=" + say}, MonitorInterval: 10 * time.Millisecond,
			ShutdownTimeout: time.Minute, ExitBarrierTimeout: time.Minute,
			Logs: logs.Spec{Dir: filepath.Join(dir, "logs")},
		},
	}
}

// goFile makes the FIFO that the script knows as $GO and waits at, and returns its path.
func (h *harness) goFile() string {
	h.t.Helper()
	path := h.spec.Logs.Dir + ".go"
	if err := unix.Mkfifo(path, 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.spec.Environ = append(h.spec.Environ, "GO="+path)
	return path
}

// prepare makes the agent, which start does otherwise.
func (h *harness) prepare() {
	h.t.Helper()
	a, err := New(h.spec, "test", h.rdzv, slog.New(slog.DiscardHandler))
	if err != nil {
		h.t.Fatal(err)
	}
	h.agent = a
}

func (h *harness) start() {
	h.t.Helper()
	if h.agent == nil {
		h.prepare()
	}
	a := h.agent
	go func() {
		defer close(h.done)
		h.err = a.Run(h.t.Context())
	}()
}

// wait waits for the end of the run and returns its error.
func (h *harness) wait() error {
	<-h.done
	if h.rdzv.ended != 1 {
		h.t.Errorf("the rendezvous was ended %d times", h.rdzv.ended)
	}
	return h.err
}

func (h *harness) run() error {
	h.t.Helper()
	h.start()
	return h.wait()
}

// hear returns the next line that a worker said.
func (h *harness) hear() string {
	h.t.Helper()
	line, err := h.said.ReadString('\n')
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// hearPids reads n lines of pids.
func (h *harness) hearPids(n int) []int {
	h.t.Helper()
	var pids []int
	for range n {
		for _, field := range strings.Fields(h.hear()) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				h.t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// expectGone fails if one of the processes still exists.
func expectGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if state, ok := processState(pid); ok {
			t.Errorf("process %d is still there, in state %c", pid, state)
		}
	}
}

// processState is the state letter of a process; ok is false if there is none.
func processState(pid int) (state byte, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte{' '})
	if err != nil || !found || len(rest) == 0 {
		return 0, false
	}
	return rest[0], true
}

// failed returns the failures of a run that ended by them.
func (h *harness) failed(err error) []failure.Failure {
	h.t.Helper()
	var failed *FailedError
	if !errors.As(err, &failed) {
		h.t.Fatalf("the run ended with %v", err)
	}
	if h.rdzv.ending != rendezvous.EndFailed {
		h.t.Errorf("the rendezvous was ended with %v", h.rdzv.ending)
	}
	return failed.Failures
}

// logFiles lists the log folder without the job's own name.
func (h *harness) logFiles() string {
	h.t.Helper()
	var names []string
	jobs, _ := filepath.Glob(h.spec.Logs.Dir + "/run_????????")
	for _, job := range jobs {
		found, _ := filepath.Glob(job + "/*/*/*")
		for _, path := range found {
			text, _ := os.ReadFile(path)
			names = append(names, fmt.Sprintf("%s=%q", strings.TrimPrefix(path, job+"/"), text))
		}
	}
	return strings.Join(names, " ")
}
