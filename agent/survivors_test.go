package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// able is a worker that says that it can regroup, then who it is, and waits.
const able = `[ -e "$OLD.$RANK" ] || printf '\001' | dd of=$RALLYPOINT_WORLD_FILE bs=1 seek=32 conv=notrunc 2>/dev/null
echo $$ $RANK $RALLYPOINT_ROUND $RALLYPOINT_WORLD_FILE > $SAY; exec sleep 100`

// someone is what a worker has said.
type someone struct {
	pid, rank, round int
	record           string
}

// regrouping is an agent whose workers can regroup.
type regrouping struct{ *harness }

func newRegrouping(t *testing.T, workers int) *regrouping {
	s := newHarness(t, workers, able)
	s.spec.Regroup, s.spec.RegroupGrace, s.spec.MaxRestarts, s.spec.ShutdownTimeout = true, time.Minute, 2, 0
	return &regrouping{s}
}

// hearFrom returns what that many workers said, by rank.
func (r *regrouping) hearFrom(n int) map[int]someone {
	r.t.Helper()
	said := make(map[int]someone)
	for range n {
		var s someone
		if _, err := fmt.Sscan(r.hear(), &s.pid, &s.rank, &s.round, &s.record); err != nil {
			r.t.Fatal(err)
		}
		said[s.rank] = s
	}
	return said
}

func kill(t *testing.T, s someone) {
	t.Helper()
	if err := unix.Kill(s.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// place is the round, rank and size that a worker finds in its record.
func (r *regrouping) place(s someone) (round, rank, size int) {
	b := testkit.Must(os.ReadFile(s.record))(r.t)
	at := b[64+int(b[24]&1)*448:]
	return int(binary.LittleEndian.Uint64(at)), int(binary.LittleEndian.Uint32(at[8:])), int(binary.LittleEndian.Uint32(at[12:]))
}

// end has a signal end the run.
func (r *regrouping) end() {
	r.t.Helper()
	r.agent.Stop(unix.SIGTERM, 0)
	if err := r.wait(); !errors.As(err, new(*SignalError)) {
		r.t.Errorf("the run ended with %v", err)
	}
}

// TestOthersContinue: a worker that dies is replaced, for one restart, and the others keep their
// processes and are told the new round.
func TestOthersContinue(t *testing.T) {
	s := newRegrouping(t, 3)
	s.spec.Logs.Redirects = streamsOf(t, "1")
	s.start()
	first := s.hearFrom(3)
	kill(t, first[1])
	second := s.hearFrom(1)
	if n := second[1]; n.round != 2 || n.pid == first[1].pid {
		t.Errorf("the replacement is %+v", n)
	}
	for _, rank := range []int{0, 2} {
		testkit.Eventually(t, "the survivor is told", func() bool {
			round, own, size := s.place(first[rank])
			return round == 2 && own == rank && size == 3
		})
		if _, running := processState(first[rank].pid); !running {
			t.Errorf("rank %d does not run any more", rank)
		}
	}
	s.end()
	expectGone(t, []int{first[0].pid, first[2].pid, second[1].pid})
	if got := s.logFiles(); !strings.Contains(got, "attempt_1/1/") || strings.Contains(got, "attempt_1/0/") {
		t.Errorf("the logs are %s", got)
	}
}

// TestBudgetOfReplacements: the worker that dies once more than the budget allows ends the run.
func TestBudgetOfReplacements(t *testing.T) {
	s := newRegrouping(t, 2)
	s.start()
	said := s.hearFrom(2)
	for range 2 {
		kill(t, said[0])
		said[0] = s.hearFrom(1)[0]
	}
	kill(t, said[0])
	if failures := s.failed(s.wait()); len(failures) != 2 || failures[0].LocalRank != 0 {
		t.Errorf("failures %+v", failures)
	}
	expectGone(t, []int{said[1].pid})
}

// TestOneCannot: a worker that has not said that it can regroup has all start anew.
func TestOneCannot(t *testing.T) {
	s := newRegrouping(t, 3)
	old := t.TempDir() + "/old"
	testkit.WriteFile(t, old+".2", nil)
	s.spec.Environ = append(s.spec.Environ, "OLD="+old)
	s.start()
	first := s.hearFrom(3)
	kill(t, first[0])
	for rank, n := range s.hearFrom(3) {
		if n.pid == first[rank].pid || n.round != 2 {
			t.Errorf("rank %d is %+v", rank, n)
		}
	}
	s.end()
}

// TestReplacementDiesBeforeItIsUp: it has said nothing, and the others continue all the same.
func TestReplacementDiesBeforeItIsUp(t *testing.T) {
	s := newRegrouping(t, 2)
	old := t.TempDir() + "/old"
	s.spec.Environ = append(s.spec.Environ, "OLD="+old)
	s.start()
	first := s.hearFrom(2)
	testkit.WriteFile(t, old+".1", nil) // the next one of rank 1 says nothing
	kill(t, first[1])
	second := s.hearFrom(1)
	kill(t, second[1])
	third := s.hearFrom(1)
	if third[1].round != 3 {
		t.Errorf("the second replacement is %+v", third[1])
	}
	if _, running := processState(first[0].pid); !running {
		t.Error("the survivor does not run any more")
	}
	s.end()
}

// TestSurvivorsOfTwoNodes: workers continue if the other node has kept its own, too, or is new; else
// all begin again.
func TestSurvivorsOfTwoNodes(t *testing.T) {
	none, some := 0, 1
	for name, c := range map[string]struct {
		other     *int
		continues bool
	}{"kept": {&some, true}, "new": {&none, true}, "stopped": {nil, false}} {
		t.Run(name, func(t *testing.T) {
			s := newRegrouping(t, 1)
			s.rdzv.world = 2
			for round := range 3 {
				info := roleInfo{Role: "r", Rank: 1, LocalWorldSize: 1, Survivors: c.other}
				text := testkit.Must(json.Marshal(info))(t)
				if err := s.rdzv.Keys(uint64(round+1)).Set(t.Context(), rendezvous.RoleInfoPrefix+"1", text); err != nil {
					t.Fatal(err)
				}
			}
			s.start()
			first := s.hearFrom(1)[0]
			s.rdzv.set(func() { s.rdzv.waiting = 1 })
			if c.continues {
				testkit.Eventually(t, "the survivor is told", func() bool { round, _, _ := s.place(first); return round == 2 })
			} else if second := s.hearFrom(1)[0]; second.round != 2 {
				t.Errorf("started anew: %+v", second)
			}
			if _, running := processState(first.pid); running != c.continues {
				t.Errorf("the first worker runs: %v", running)
			}
			s.end()
		})
	}
}

// TestSignalWhileAReplacementIsPlanned: a signal that comes while a plug-in decides where a replacement
// writes ends the run by that signal, and not as if no worker could be started.
func TestSignalWhileAReplacementIsPlanned(t *testing.T) {
	pair := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	s := newRegrouping(t, 2)
	s.spec.Logs = logs.Spec{Planner: logs.NewPlanner(ours, time.Hour)}
	s.start()
	questions := bufio.NewReader(theirs)
	ask := func() {
		_ = testkit.Must(questions.ReadString('\n'))(t)
	}
	ask()
	_ = testkit.Must(theirs.WriteString("{}\n"))(t)
	first := s.hearFrom(2)
	kill(t, first[1])
	ask()
	s.end()
	expectGone(t, []int{first[0].pid})
}

// TestResultWithoutAReplacement: of a worker whose neighbour could not be replaced it says where that one
// has written, and not the other.
func TestResultWithoutAReplacement(t *testing.T) {
	s := newRegrouping(t, 2)
	s.spec.Logs.Redirects = streamsOf(t, "1")
	shell := filepath.Join(t.TempDir(), "sh")
	testkit.Check(t, os.Symlink("/bin/sh", shell))
	s.spec.Argv[0] = shell
	s.start()
	first := s.hearFrom(2)
	testkit.Check(t, os.Remove(shell))
	kill(t, first[0])
	if err := s.wait(); !errors.As(err, new(*process.StartError)) {
		t.Errorf("the run ended with %v", err)
	}
	workers := s.agent.Result().Workers
	if len(workers) != 1 || workers[0].LocalRank != 1 || !strings.HasSuffix(workers[0].OutFile, "/1/stdout.log") {
		t.Errorf("workers %+v", workers)
	}
}

// TestNoOtherWorld: a survivor whose node is refused a round is told, and stopped.
func TestNoOtherWorld(t *testing.T) {
	s := newRegrouping(t, 1)
	s.start()
	first := s.hearFrom(1)[0]
	held := testkit.Must(os.Open(first.record))(t) // the agent removes it
	defer held.Close()
	s.rdzv.set(func() { s.rdzv.refusal, s.rdzv.waiting = rendezvous.Errorf(rendezvous.CodeClosed, "the end"), 1 })
	if err := s.wait(); !errors.As(err, new(*PeerError)) {
		t.Errorf("the run ended with %v", err)
	}
	expectGone(t, []int{first.pid})
	b := make([]byte, 2048)
	if _, err := held.ReadAt(b, 0); err != nil || b[25] != 1 || !strings.Contains(string(b[1024:]), "the end") || binary.LittleEndian.Uint64(b[16:]) != 1 {
		t.Errorf("lost: %d, over: %d, %q, %v", b[25], b[16], b[1024:1100], err)
	}
}

// awaited is a rendezvous whose second round waits for the test.
type awaited struct {
	*rounds
	complete chan struct{}
}

func (a awaited) Next(ctx context.Context) (rendezvous.Outcome, error) {
	if a.round == 1 {
		a.joining <- struct{}{}
		<-a.complete
	}
	return a.rounds.Next(ctx)
}

// TestFailureAfterALoss: a worker that fails while its node waits for a round without a node that was lost
// is replaced, also if no restart is left. Without such a loss it is a failure like any other.
func TestFailureAfterALoss(t *testing.T) {
	for _, lost := range []bool{true, false} {
		s := newRegrouping(t, 2)
		s.spec.MaxRestarts = 0
		if lost {
			s.rdzv.dropped = map[uint64][]string{2: {"b, lost"}}
		}
		r := awaited{s.rdzv, make(chan struct{})}
		a, err := New(s.spec, "test", r, discard())
		testkit.Check(t, err)
		s.agent = a
		s.start()
		first := s.hearFrom(2)
		s.rdzv.set(func() { s.rdzv.waiting = 1 })
		<-r.joining
		kill(t, first[1])
		testkit.Eventually(t, "its end is noted", func() bool { return len(a.carried.workers.Ended()) > 0 })
		close(r.complete)
		if !lost {
			s.failed(s.wait())
			continue
		}
		replaced := make(chan someone, 1)
		go func() { replaced <- s.hearFrom(1)[1] }() // ends with the worker's word
		select {
		case second := <-replaced:
			testkit.Equal(t, second.round, 2)
		case <-s.done:
			t.Fatalf("the run ended with %v", s.err)
		}
		if _, running := processState(first[0].pid); !running {
			t.Error("the survivor does not run any more")
		}
		s.end()
		if r := a.Result(); r.Restarts != 0 {
			t.Errorf("%d restarts", r.Restarts)
		}
	}
}

// TestStuckWhileDrained: a node that leaves a worker behind which no signal ends does not end well, also if
// it is drained. The worker is in a frozen group of version 1, if this machine has these.
func TestStuckWhileDrained(t *testing.T) {
	group, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "rallypoint-test-")
	if err != nil {
		t.Skip("no group of version 1 can be frozen here: ", err)
	}
	s := newRegrouping(t, 1)
	s.spec.Environ = append(s.spec.Environ, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.05")
	r := awaited{s.rdzv, make(chan struct{})}
	a, err := New(s.spec, "test", r, discard())
	testkit.Check(t, err)
	s.agent = a
	s.start()
	pid := s.hearFrom(1)[0].pid
	t.Cleanup(func() {
		testkit.WriteFile(t, group+"/freezer.state", []byte("THAWED"))
		_, _ = unix.Wait4(pid, nil, 0, nil)
		for os.Remove(group) != nil {
			runtime.Gosched()
		}
	})
	s.rdzv.set(func() { s.rdzv.refusal, s.rdzv.waiting = rendezvous.Errorf(rendezvous.CodeGraceful, "drained"), 1 })
	<-r.joining
	testkit.WriteFile(t, group+"/cgroup.procs", []byte(strconv.Itoa(pid)))
	testkit.WriteFile(t, group+"/freezer.state", []byte("FROZEN"))
	close(r.complete)
	if err := s.wait(); !errors.Is(err, errStuck) {
		t.Errorf("the run ended with %v", err)
	}
}

// TestShowsWhoHangs: workers leave their round once for a step to show which of them hangs, whether they report
// their steps or only their optimizers' are counted, and however many rounds they stay at it.
func TestShowsWhoHangs(t *testing.T) {
	const stepAt, countAt = 16, 56
	for name, offset := range map[string]int64{"reported": stepAt, "counted": countAt} {
		t.Run(name, func(t *testing.T) {
			a := inRound(t, newRounds(1), 0)
			a.progress = progress.NewTracker(a.spec.Environ, discard())
			defer a.progress.Close()
			a.progress.Begin(1, 1, progress.CauseStart)
			at := newAttempt(a.launcher, a.history, a.hangs)
			at.worlds, at.able = worlds{nil}, []bool{true}
			step := func(n uint64) {
				record := testkit.Must(os.OpenFile(a.progress.Path(0), os.O_WRONLY, 0))(t)
				_ = testkit.Must(record.WriteAt(binary.LittleEndian.AppendUint64(nil, n), offset))(t)
				testkit.Check(t, record.Close())
			}
			step(5)
			testkit.Equal(t, at.showsWhoHangs(), true)
			testkit.Equal(t, at.showsWhoHangs(), false)
			a.progress.Continue(2, progress.CauseRegroup, nil)
			testkit.Equal(t, at.showsWhoHangs(), false)
			step(6)
			testkit.Equal(t, at.showsWhoHangs(), true)
		})
	}
}

// TestGraceOfAHang: a worker that has to regroup hangs when it does nothing for as long as a job that
// hangs, if that is to end workers.
func TestGraceOfAHang(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		onHang            OnHang
		hang, grace, want time.Duration
	}{
		{HangReport, 10 * s, 30 * s, 30 * s},
		{HangRestart, HangOff, 30 * s, 30 * s},
		{HangRestart, 0, 30 * s, 30 * s},
		{HangRestart, 10 * s, 30 * s, 10 * s},
		{HangRestart, 2 * s, 30 * s, 5 * s},
		{HangRestart, 60 * s, 30 * s, 30 * s},
		{HangRestart, 2 * s, s, s},
	} {
		spec := Spec{OnHang: c.onHang, HangTimeout: c.hang, RegroupGrace: c.grace}
		if got := spec.regroupGrace(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestAgreedDeparture: all agents leave at the highest step that one of them can.
func TestAgreedDeparture(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.SliceOfN(rapid.Int64Range(-1, 1e6), 1, 8).Draw(t, "steps")
		keys := store.NewMemory(store.NewEngine(store.Limits{}))
		defer keys.Close()
		got := make([]int64, len(steps))
		var wg sync.WaitGroup
		for i, step := range steps {
			wg.Go(func() {
				a := &assignment{group: i, groups: len(steps), keys: keys}
				got[i], _ = a.agreeDeparture(t.Context(), step)
			})
		}
		wg.Wait()
		if slices.Max(got) != slices.Max(steps) || slices.Min(got) != slices.Max(steps) {
			t.Errorf("%v: %v", steps, got)
		}
	})
}

// TestSpoiledDeparture: what is no number is an error, and no step.
func TestSpoiledDeparture(t *testing.T) {
	keys := store.NewMemory(store.NewEngine(store.Limits{}))
	defer keys.Close()
	for key, group := range map[string]int{departurePrefix + strconv.Itoa(1): 0, departureKey: 1} {
		if err := keys.Set(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
		a := &assignment{group: group, groups: 2, keys: keys}
		if step, err := a.agreeDeparture(t.Context(), 5); err == nil || step != -1 && step != 0 {
			t.Errorf("%s: %d, %v", key, step, err)
		}
	}
}
