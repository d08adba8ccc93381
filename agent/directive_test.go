package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// directing is a rendezvous whose directives the test gives.
type directing struct {
	*rounds

	mu      sync.Mutex
	notice  rendezvous.DirectiveNotice
	changed chan struct{}
	silent  error // of reports
	looks   int   // of the agent at the notice

	held, saved chan string // what was reported, as ID@STEP and ID
}

func (d *directing) Directive() (rendezvous.DirectiveNotice, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looks++
	return d.notice, d.changed
}

// applied waits until the agent has done what follows from the notice.
func (d *directing) applied(t *testing.T) {
	t.Helper()
	looks := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.looks
	}
	before := looks()
	testkit.Eventually(t, "the agent has looked again, and once more behind that", func() bool { return looks() >= before+2 })
}

func (d *directing) ReportHeld(_ context.Context, round uint64, id string, step int64) error {
	d.held <- fmt.Sprintf("%s@%d in round %d", id, step, round)
	return d.silent
}

func (d *directing) ReportSaved(_ context.Context, round uint64, id string) error {
	d.saved <- fmt.Sprintf("%s in round %d", id, round)
	return d.silent
}

// say shows the agent a directive.
func (d *directing) say(n rendezvous.DirectiveNotice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notice = n
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *directing) ask(id string) {
	d.say(rendezvous.DirectiveNotice{ID: id, Kind: rendezvous.DirectiveSave, Round: 1, Within: time.Hour})
}

func (d *directing) agree(id string, step int64) {
	d.say(rendezvous.DirectiveNotice{ID: id, Kind: rendezvous.DirectiveSave, Round: 1, Within: time.Hour, Agreed: true, Step: step,
		Text: "save within 1h0m0s, asked for by admin carol: her disk: it is full", By: "admin carol", Reason: "her disk: it is full"})
}

// puppet is a worker's record in the hands of the test, which follows docs/progress-record.md.
type puppet struct {
	t    *testing.T
	path string
	mem  []byte
}

func newPuppet(t *testing.T, path string) *puppet {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, 64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return &puppet{t, path, mem}
}

func (p *puppet) word(offset int) uint64       { return binary.LittleEndian.Uint64(p.mem[offset:]) }
func (p *puppet) set(offset int, value uint64) { binary.LittleEndian.PutUint64(p.mem[offset:], value) }
func (p *puppet) state() byte                  { return p.mem[32] }

// report reports a step and waits while it is held; it returns whether that took a directive.
func (p *puppet) report(step int64) bool {
	p.set(40, 1)
	p.set(16, uint64(step))
	for p.mem[24] == 1 {
		p.set(32, p.word(24)&^0xff|1)
		time.Sleep(time.Millisecond) // as a worker does
	}
	about := p.word(24) &^ 0xff
	if p.mem[24] != 2 || p.word(32) == about|2 || p.word(32) == about|3 || step < int64(p.word(48)) {
		return false
	}
	p.set(32, about|2)
	return true
}

func (p *puppet) save() { p.set(32, p.word(32)&^0xff|3) }

// start reports a step in a goroutine of its own, and returns when it is held.
func (p *puppet) start(step int64) (taken chan bool) {
	p.t.Helper()
	taken = make(chan bool, 1)
	go func() { taken <- p.report(step) }()
	testkit.Eventually(p.t, "the worker is held", func() bool { return p.state() == 1 })
	return taken
}

// file is the worker's directive file; nil if there is none.
func (p *puppet) file() *progress.Directive {
	text, err := os.ReadFile(p.path + ".directive")
	if err != nil {
		return nil
	}
	d := new(progress.Directive)
	if err := json.Unmarshal(text, d); err != nil {
		p.t.Error(err)
	}
	return d
}

// directed is an agent whose workers' records the test has.
type directed struct {
	*harness
	rdzv    *directing
	workers []*puppet
	log     *logText
}

type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}
func (l *logText) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.text.String() }

// newDirected starts an agent with workers that run until the test ends them, and say when
// they are sent SIGUSR2.
func newDirected(t *testing.T, workers int, change func(*harness), prepare ...func(*Agent)) *directed {
	s := newHarness(t, workers, `trap 'echo "signal $LOCAL_RANK" >$SAY' USR2; trap 'exit 0' TERM
		echo $LOCAL_RANK $RALLYPOINT_PROGRESS_FILE $RALLYPOINT_DIRECTIVE_FILE >$SAY
		while [ ! -e $END ] && [ ! -e $END.$LOCAL_RANK ]; do sleep 0.02; done`)
	end := filepath.Join(t.TempDir(), "end")
	s.spec.Environ = append(s.spec.Environ, "END="+end, progress.EnvDir+"="+t.TempDir())
	if change != nil {
		change(s)
	}
	d := &directed{
		harness: s, log: new(logText), workers: make([]*puppet, workers),
		rdzv: &directing{rounds: s.rdzv, changed: make(chan struct{}), held: make(chan string, 9), saved: make(chan string, 9)},
	}
	a, err := New(s.spec, "test", d.rdzv, slog.New(slog.NewTextHandler(d.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		f(a)
	}
	s.agent = a
	s.start()
	for range workers {
		var local int
		var path, file string
		if _, err := fmt.Sscan(s.hear(), &local, &path, &file); err != nil || file != path+".directive" {
			t.Fatalf("%q, %q: %v", path, file, err)
		}
		d.workers[local] = newPuppet(t, path)
	}
	t.Cleanup(func() {
		d.endWorkers("")
		<-s.done
	})
	return d
}

// endWorkers has one worker end, by its local rank, or all.
func (d *directed) endWorkers(which string) {
	for _, entry := range d.spec.Environ {
		if path, ok := strings.CutPrefix(entry, "END="); ok {
			_ = os.WriteFile(path+which, nil, 0o600)
		}
	}
}

func (d *directed) want(c chan string, want string) {
	d.t.Helper()
	if got := <-c; got != want {
		d.t.Errorf("reported %s, want %s", got, want)
	}
}

func (d *directed) steps(worker int, from, to int64) (at []int64) {
	for step := from; step <= to; step++ {
		if d.workers[worker].report(step) {
			at = append(at, step)
		}
	}
	return at
}

// TestDirectiveAtOneStep: workers that differ by three steps get it at the same one; one
// that reports none gets it at once, by its file and the signal.
func TestDirectiveAtOneStep(t *testing.T) {
	d := newDirected(t, 4, func(s *harness) { s.spec.DirectiveSignal = unix.SIGUSR2 })
	d.workers[0].report(9)
	d.workers[1].report(13)
	d.workers[2].report(12)
	d.rdzv.ask("d1")
	d.want(d.rdzv.held, "d1@14 in round 1")
	held := d.workers[0].start(10)
	d.rdzv.agree("d1", 15)
	if <-held {
		t.Error("a worker got it before its step")
	}
	if line := d.hear(); line != "signal 3" {
		t.Errorf("heard %q", line)
	}
	if f := d.workers[3].file(); f == nil || f.ID != "d1" || f.Kind != "save" || *f.Step != 15 || f.By != "admin carol" || f.Reason != "her disk: it is full" || f.Deadline == nil {
		t.Errorf("its file has %+v", f)
	}
	got := fmt.Sprint(d.steps(0, 11, 20), d.steps(1, 14, 20), d.steps(2, 13, 20))
	if got != "[15] [15] [15]" {
		t.Errorf("they got it at %s", got)
	}
	heard := map[string]bool{d.hear(): true, d.hear(): true, d.hear(): true}
	if len(heard) != 3 || heard["signal 3"] {
		t.Errorf("heard %v", heard)
	}
	for _, w := range d.workers[:3] {
		w.save()
	}
	d.want(d.rdzv.saved, "d1 in round 1")
	d.rdzv.say(rendezvous.DirectiveNotice{})
	testkit.Eventually(t, "nothing is asked any more", func() bool { return d.workers[0].word(24) == 0 && d.workers[3].file() == nil })
	for _, part := range []string{"delivered to the workers of this node, at step 15", "the workers of this node have saved"} {
		if !strings.Contains(d.log.String(), part) {
			t.Errorf("the log does not say %q: %s", part, d.log)
		}
	}
}

// TestDirectiveBeforeTheFirstReport: a worker that opens its record after the others were held waits
// in its first report, too, and gets the directive at the step of the others. With all of them
// late none has passed its first report when the directive comes.
func TestDirectiveBeforeTheFirstReport(t *testing.T) {
	for name, c := range map[string]struct {
		before int64 // that the first worker reports before the directive; 0: none
		held   string
		agreed int64
		want   string
	}{
		"one is late":  {1, "d1@2 in round 1", 2, "[2]"},
		"all are late": {0, "d1@-1 in round 1", -1, "[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDirected(t, 2, nil)
			if c.before > 0 {
				d.workers[0].report(c.before)
			}
			d.rdzv.ask("d1")
			d.want(d.rdzv.held, c.held)
			first := d.workers[0].start(c.before + 1)
			late := d.workers[1].start(1)
			d.rdzv.agree("d1", c.agreed)
			got := [2][]int64{}
			for i, taken := range []chan bool{first, late} {
				if from := []int64{c.before + 1, 1}[i]; <-taken {
					got[i] = append(got[i], from)
				} else {
					got[i] = append(got[i], d.steps(i, from+1, 9)...)
				}
			}
			if fmt.Sprint(got) != "["+c.want+" "+c.want+"]" {
				t.Errorf("they got it at %v", got)
			}
		})
	}
}

// TestHeldAt: a worker that waits can get the directive at the step at which it waits, any
// other at the next one.
func TestHeldAt(t *testing.T) {
	d := newDirected(t, 2, nil)
	f := &directives{records: d.agent.progress, workers: []*directedWorker{{process: new(process.Process)}, {process: &process.Process{Local: 1}}}}
	if got := f.heldAt(1); got != -1 {
		t.Errorf("without a step it is %d", got)
	}
	if err := d.agent.progress.Hold(0, progress.Asked{Number: 1}); err != nil {
		t.Fatal(err)
	}
	held := d.workers[0].start(10)
	for _, c := range []struct{ other, want int64 }{{8, 10}, {9, 10}, {10, 11}, {math.MaxInt64, math.MaxInt64}} {
		d.workers[1].report(c.other)
		if got := f.heldAt(1); got != c.want {
			t.Errorf("the other one at %d: %d", c.other, got)
		}
	}
	if got := f.heldAt(2); got != math.MaxInt64 {
		t.Errorf("%d", got)
	}
	if err := d.agent.progress.Clear(0); err != nil {
		t.Fatal(err)
	}
	<-held
}

// TestCanceledInTheAgreement lets the workers go, and a later one starts over.
func TestCanceledInTheAgreement(t *testing.T) {
	d := newDirected(t, 2, nil, func(a *Agent) { a.holdPatience = time.Hour })
	d.workers[0].report(5)
	d.workers[1].report(5)
	d.rdzv.ask("d1")
	d.want(d.rdzv.held, "d1@6 in round 1")
	held := d.workers[0].start(6)
	d.rdzv.say(rendezvous.DirectiveNotice{ID: "d1", Round: 0}) // the round is about to end
	if <-held {
		t.Error("it got a directive that was taken back")
	}
	d.rdzv.ask("d2")
	d.want(d.rdzv.held, "d2@7 in round 1")
	held = d.workers[0].start(7)
	d.rdzv.say(rendezvous.DirectiveNotice{}) // it was canceled
	if <-held {
		t.Error("it got a directive that was canceled")
	}
	d.rdzv.ask("d3")
	d.want(d.rdzv.held, "d3@8 in round 1")
	d.rdzv.agree("d3", 8)
	for i := range d.workers {
		testkit.Eventually(t, "it is released", func() bool { return d.workers[i].mem[24] == 2 })
		if got := d.steps(i, 6, 9); fmt.Sprint(got) != "[8]" {
			t.Errorf("they got it at %v", got)
		}
	}
	d.rdzv.ask("d4")
	d.want(d.rdzv.held, "d4@10 in round 1")
	held = d.workers[0].start(10)
	d.rdzv.agree("d3", 8) // it was canceled, and the one before stands still: not all have saved
	testkit.Eventually(t, "the worker goes on", func() bool { return len(held) > 0 })
	if <-held {
		t.Error("it got a directive that was canceled")
	}
	for i := range d.workers {
		if got := d.steps(i, 10, 12); len(got) > 0 {
			t.Errorf("they got it again at %v", got)
		}
	}
}

// TestTwoDirectives: the second one waits until all have the first.
func TestTwoDirectives(t *testing.T) {
	d := newDirected(t, 2, nil)
	d.workers[0].report(5)
	d.workers[1].report(5)
	d.rdzv.ask("d1")
	d.want(d.rdzv.held, "d1@6 in round 1")
	d.rdzv.agree("d1", 8)
	if got := d.steps(0, 6, 8); fmt.Sprint(got) != "[8]" {
		t.Errorf("it got it at %v", got)
	}
	d.rdzv.ask("d2")
	d.rdzv.applied(t)
	select {
	case held := <-d.rdzv.held:
		t.Errorf("held for %s, while a worker has not got the one before", held)
	default:
	}
	if got := d.steps(1, 6, 8); fmt.Sprint(got) != "[8]" {
		t.Errorf("the other got it at %v", got)
	}
	d.want(d.rdzv.held, "d2@9 in round 1")
	d.rdzv.agree("d2", -1)
	for i := range 2 {
		w := d.workers[i]
		testkit.Eventually(t, "it is released", func() bool { return w.mem[24] == 2 })
		if got := d.steps(i, 9, 12); fmt.Sprint(got) != "[9]" {
			t.Errorf("it got the second at %v", got)
		}
		w.save()
	}
	// Who has saved at the later step has saved for both.
	got := map[string]bool{<-d.rdzv.saved: true, <-d.rdzv.saved: true}
	if !got["d1 in round 1"] || !got["d2 in round 1"] {
		t.Errorf("saved: %v", got)
	}
}

// TestSavedWhileTheNextIsAsked: a worker's answer to the first directive counts, also when its
// record asks for the next one already.
func TestSavedWhileTheNextIsAsked(t *testing.T) {
	d := newDirected(t, 1, nil)
	w := d.workers[0]
	w.report(5)
	d.rdzv.ask("d1")
	d.want(d.rdzv.held, "d1@6 in round 1")
	d.rdzv.agree("d1", 6)
	testkit.Eventually(t, "it is released", func() bool { return w.mem[24] == 2 })
	if !w.report(6) {
		t.Error("it did not get the first")
	}
	given := w.word(32) &^ 0xff
	d.rdzv.ask("d2")
	d.want(d.rdzv.held, "d2@7 in round 1")
	w.set(32, given|3)
	d.want(d.rdzv.saved, "d1 in round 1")
	d.rdzv.agree("d2", 7)
	testkit.Eventually(t, "it is released", func() bool { return w.mem[24] == 2 })
	if got := d.steps(0, 7, 9); fmt.Sprint(got) != "[7]" {
		t.Errorf("it got the second at %v", got)
	}
	w.save()
	d.want(d.rdzv.saved, "d2 in round 1")
}

// TestAgreedOnceHandedOver: the agreed step is handed over, whatever the nodes say then.
func TestAgreedOnceHandedOver(t *testing.T) {
	d := newDirected(t, 1, nil)
	d.workers[0].report(5)
	d.rdzv.ask("d1")
	d.want(d.rdzv.held, "d1@6 in round 1")
	d.rdzv.agree("d1", 8)
	testkit.Eventually(t, "it is released", func() bool { return d.workers[0].mem[24] == 2 })
	d.rdzv.say(rendezvous.DirectiveNotice{})
	if got := d.steps(0, 6, 12); fmt.Sprint(got) != "[8]" {
		t.Errorf("it got it at %v", got)
	}
	testkit.Eventually(t, "nothing is asked any more", func() bool { return d.workers[0].word(24) == 0 })
}

// TestNoAgreement: workers are not held longer than the agent's patience; what is agreed
// after it they get as soon as they can.
func TestNoAgreement(t *testing.T) {
	e := newDirected(t, 1, nil, func(a *Agent) { a.holdPatience = 50 * time.Millisecond })
	e.rdzv.silent = errors.New("the control plane is out of reach")
	e.workers[0].report(5)
	e.rdzv.ask("d1")
	e.want(e.rdzv.held, "d1@6 in round 1")
	if <-e.workers[0].start(6) {
		t.Error("it got a directive that was not agreed")
	}
	e.workers[0].report(7)
	e.rdzv.agree("d1", 6)
	testkit.Eventually(t, "it is released", func() bool { return e.workers[0].mem[24] == 2 })
	if got := e.steps(0, 8, 12); fmt.Sprint(got) != "[8]" {
		t.Errorf("it got it at %v", got)
	}
	for _, part := range []string{"could not be told yet at which step its workers are held: the control plane is out of reach", "have not agreed on a step within 50ms"} {
		if !strings.Contains(e.log.String(), part) {
			t.Errorf("the log does not say %q: %s", part, e.log)
		}
	}
}

// TestDeadlineWhileHeld: no worker is held beyond the time of what it is held for, also where
// the nodes say nothing of its end.
func TestDeadlineWhileHeld(t *testing.T) {
	d := newDirected(t, 1, nil, func(a *Agent) { a.holdPatience = time.Hour })
	d.workers[0].report(5)
	d.rdzv.say(rendezvous.DirectiveNotice{ID: "d1", Kind: rendezvous.DirectiveDrain, Round: 1, Within: 100 * time.Millisecond})
	d.want(d.rdzv.held, "d1@6 in round 1")
	if d.workers[0].report(6) {
		t.Error("it got a directive that was not agreed")
	}
	const text = "have not agreed on a step within 100ms"
	testkit.Eventually(t, "the log says "+text, func() bool { return strings.Contains(d.log.String(), text) })
}

// TestWorkerEndsBeforeItsStep: the others continue, and what they have saved counts.
func TestWorkerEndsBeforeItsStep(t *testing.T) {
	d := newDirected(t, 2, nil)
	d.workers[0].report(5)
	d.workers[1].report(5)
	d.rdzv.ask("d1")
	d.want(d.rdzv.held, "d1@6 in round 1")
	d.rdzv.agree("d1", 8)
	d.endWorkers(".1")
	testkit.Eventually(t, "it is released", func() bool { return d.workers[0].mem[24] == 2 })
	if got := d.steps(0, 6, 9); fmt.Sprint(got) != "[8]" {
		t.Errorf("it got it at %v", got)
	}
	d.workers[0].save()
	d.want(d.rdzv.saved, "d1 in round 1")
}

// TestRoundEndsWhileHeld lets the workers go, which are asked to end at the same time.
func TestRoundEndsWhileHeld(t *testing.T) {
	d := newDirected(t, 1, nil)
	d.workers[0].report(5)
	d.rdzv.ask("d1")
	d.want(d.rdzv.held, "d1@6 in round 1")
	held := d.workers[0].start(6)
	d.agent.Signal(unix.SIGTERM)
	if <-held {
		t.Error("it got a directive that was not agreed")
	}
	<-d.done
}

// TestEndingDirectiveStands: a directive that ends the attempt is not taken back from workers that have
// saved, when the nodes know it no more: they would train on until they are stopped.
func TestEndingDirectiveStands(t *testing.T) {
	records := progress.NewTracker([]string{progress.EnvDir + "=" + t.TempDir()}, slog.New(slog.DiscardHandler))
	defer records.Close()
	records.Begin(1, 1, progress.CauseStart)
	worker := newPuppet(t, records.Path(0))
	ending := true
	d := &directive{DirectiveNotice: rendezvous.DirectiveNotice{ID: "d1", Kind: rendezvous.DirectiveDrain}, number: 1, deadline: time.Now().Add(time.Hour), saved: true}
	w := &directedWorker{process: &process.Process{}, pending: []*directive{d}}
	f := &directives{records: records, workers: []*directedWorker{w}, agreed: []*directive{d}, ending: func() bool { return ending }}
	f.arm(w, progress.Answer{Holds: true}, nil)
	f.taken(w)
	for range 2 {
		f.drop("")
		if shown := worker.mem[24] == 2 && worker.file() != nil; shown != ending || len(f.agreed) > 0 != ending {
			t.Errorf("the attempt ends: %v, and the directive stands: %v, %d", ending, shown, len(f.agreed))
		}
		ending = false
	}
}

// TestDeadline forgets what a worker never came to.
func TestDeadline(t *testing.T) {
	d := newDirected(t, 1, nil)
	d.workers[0].report(5)
	d.rdzv.say(rendezvous.DirectiveNotice{ID: "d1", Kind: rendezvous.DirectiveSave, Round: 1, Within: time.Millisecond, Agreed: true, Step: 1000})
	testkit.Eventually(t, "it is asked", func() bool { return d.workers[0].word(48) == 1000 })
	testkit.Eventually(t, "nothing is asked any more", func() bool { return d.workers[0].word(24) == 0 && d.workers[0].file() == nil })
	if d.workers[0].report(1000) {
		t.Error("it got a directive that is over")
	}
}

// TestDirectiveFileInTheWay: the worker learns what its record can say, and the log why not more.
func TestDirectiveFileInTheWay(t *testing.T) {
	d := newDirected(t, 1, nil)
	if err := os.MkdirAll(filepath.Join(d.workers[0].path+".directive", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.workers[0].report(5)
	d.rdzv.agree("d1", 6)
	testkit.Eventually(t, "it is released", func() bool { return d.workers[0].mem[24] == 2 })
	if got := d.steps(0, 6, 9); fmt.Sprint(got) != "[6]" {
		t.Errorf("it got it at %v", got)
	}
	if !strings.Contains(d.log.String(), "sees the request, but not its author and reason: ") || !strings.Contains(d.log.String(), "directive: file exists") {
		t.Errorf("the log has %s", d.log)
	}
}

// TestSpoiledRecord: a worker without a record gets the signal, and holds no others up.
func TestSpoiledRecord(t *testing.T) {
	d := newDirected(t, 2, func(s *harness) { s.spec.DirectiveSignal = unix.SIGUSR2 })
	d.workers[0].report(5)
	d.workers[1].report(700)
	d.workers[1].mem[0] = 'x'
	d.rdzv.ask("d1")
	d.want(d.rdzv.held, "d1@6 in round 1")
	d.rdzv.agree("d1", 6)
	if line := d.hear(); line != "signal 1" {
		t.Errorf("heard %s", line)
	}
	if got := d.steps(0, 6, 9); fmt.Sprint(got) != "[6]" {
		t.Errorf("it got it at %v", got)
	}
	if line := d.hear(); line != "signal 0" {
		t.Errorf("heard %s", line)
	}
}
