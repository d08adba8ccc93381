package control

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// beat sends a heartbeat with a report and waits until the server has taken it.
func (wn *wireNode) beat(r training.Report) {
	wn.t.Helper()
	wn.beatWith(&r)
}

// beatWith sends a heartbeat, with a report unless that is nil, as beat does.
func (wn *wireNode) beatWith(r *training.Report) {
	wn.t.Helper()
	wn.send(wire.Beat{Echo: true, Training: r})
	for {
		switch f := wn.next().(type) {
		case wire.Beat:
			return
		case wire.Notice, wire.Progress, wire.Reply:
		default:
			wn.t.Fatalf("got %+v instead of an echo", f)
		}
	}
}

func steps(round uint64, smallest, largest int64, change, stalled time.Duration) training.Report {
	return training.Report{
		Round: round, Workers: 8, Reporting: 8, Smallest: smallest, Largest: largest, SinceFirst: time.Minute,
		SinceChange: change, SinceSlowest: stalled, PerStep: 3100 * time.Millisecond,
	}
}

// TestProgressOfARun follows what the heartbeats of two nodes say through two rounds.
func TestProgressOfARun(t *testing.T) {
	atOnce(t)
	const s = time.Second
	server := newFakeServer(t, Config{})
	a, b := twoNodes(t, server)
	if r := server.oneRun(t); r.Progress != nil || r.Members[0].Progress != nil {
		t.Errorf("before a step: %+v", r.Progress)
	}
	if v := scrape(t, server.addr); v["rallypoint_run_training_step{run=run}"] != 0 {
		t.Errorf("before a step: %v", v)
	}

	a.beat(steps(1, 41200, 41200, s, s))
	b.beat(steps(1, 41198, 41198, 2*s, 2*s))
	server.clock.Advance(s / 2)
	r := server.oneRun(t)
	if want := (ProgressStatus{Step: 41200, SmallestStep: 41198, SecondsPerStep: 3.1, ChangeAgeS: 1.5, Nodes: 2}); r.Progress == nil || *r.Progress != want {
		t.Errorf("in step: %+v, want %+v", r.Progress, want)
	}
	if want := (NodeProgressStatus{41198, 41198, 3.1, 2.5, 2.5, 8, 8, false}); *r.Members[1].Progress != want {
		t.Errorf("the second: %+v, want %+v", r.Members[1].Progress, want)
	}
	wantValues(t, scrape(t, server.addr), map[string]float64{
		"run_training_step{run=run}": 41200, "run_training_seconds_per_step{run=run}": 3.1, "run_training_change_age_seconds{run=run}": 1.5,
		"training_lost_seconds_total{cause=node_lost}": 0,
	})

	a.beat(steps(1, 41200, 41200, 40*s, 40*s))
	b.beat(steps(1, 41198, 41198, 40*s, 40*s))
	r = server.oneRun(t)
	if want := (BehindStatus{Rank: 1, Node: "b", Label: "b", Steps: 2, ForS: 40}); r.Progress.Behind == nil || *r.Progress.Behind != want {
		t.Errorf("one stands: %+v, want %+v", r.Progress.Behind, want)
	}

	// A rank is slow if of all nodes that run it is known how much they wait.
	slow := func(waits ...training.Waits) *SlowStatus {
		for i, n := range []*wireNode{a, b} {
			report := steps(1, 41200, 41200, 40*s, 40*s)
			report.Waits = waits[i]
			n.beat(report)
		}
		return server.oneRun(t).Progress.Slow
	}
	if got := slow(training.NewWaits(0, []float64{0.3, 0.03}), training.Waits{}); got != nil {
		t.Errorf("one node says nothing of waits: %+v", got)
	}
	wantSlow := SlowStatus{Rank: 1, Node: "a", Label: "a", Waits: 0.03, Others: 0.3, Text: "rank 1 (a) slows the job down: it waits for others 3 % of the time, each other rank at least 30 %"}
	if got := slow(training.NewWaits(0, []float64{0.3, 0.03}), training.NewWaits(2, []float64{0.4, 0.5})); got == nil || *got != wantSlow {
		t.Errorf("got %+v, want %+v", got, wantSlow)
	}

	// The second node is lost; a third takes its place.
	c := dialNode(t, server.addr)
	c.enter(testHello("c", "s3", controltest.Params("", 2)))
	c.ask(1, controltest.Join())
	b.conn.Close()
	awaitEvents[rendezvous.Disconnect](t, server.rec, 1)
	server.clock.Advance(controltest.Params("", 2).ReconnectGrace)
	awaitEvents[rendezvous.TimerFired](t, server.rec, 1)
	if r := server.oneRun(t); r.Progress == nil || r.Progress.Nodes != 1 || r.Progress.Slow != nil || r.Progress.Behind != nil || r.Members[1].Progress != nil {
		t.Errorf("one is lost: %+v", r.Progress)
	}
	a.ask(2, controltest.Join())
	server.awaitRound(t, 2)
	if r := server.oneRun(t); r.Round != 2 || r.Progress != nil {
		t.Errorf("in a new round: %+v", r.Progress)
	}
	server.clock.Advance(9*s - controltest.Params("", 2).ReconnectGrace)
	a.beat(training.Report{Round: 2, Workers: 8, Reporting: 8, Smallest: 41150, Largest: 41150, SinceFirst: s, SinceChange: s, SinceSlowest: s})
	c.beat(training.Report{Round: 2, Workers: 8, Reporting: 8, Smallest: 41150, Largest: 41150})
	wantValues(t, scrape(t, server.addr), map[string]float64{
		"run_training_step{run=run}": 41150, "run_training_seconds_per_step{run=run}": 0,
		"training_lost_seconds_total{cause=node_lost}": 9.5, "training_lost_seconds_total{cause=worker_failed}": 0,
	})
}

// TestForeignReports are reports that say what cannot be, or of a round that is not the
// last one. Their sender stays.
func TestForeignReports(t *testing.T) {
	server := newFakeServer(t, Config{})
	a, _ := twoNodes(t, server)
	for name, change := range map[string]func(*training.Report){
		"a later round":    func(r *training.Report) { r.Round = math.MaxUint64 },
		"an earlier round": func(r *training.Report) { r.Round = 0 },
		"negative":         func(r *training.Report) { r.Smallest = -1 },
		"order":            func(r *training.Report) { r.Largest = 1 },
		"age":              func(r *training.Report) { r.SinceChange = math.MaxInt64 },
	} {
		r := steps(1, 5, 6, 0, 0)
		change(&r)
		a.beat(r)
		if got := server.oneRun(t).Progress; got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	a.beat(steps(1, 5, math.MaxInt64, 0, 0))
	r := server.oneRun(t)
	if r.Progress == nil || r.Progress.Step != math.MaxInt64 {
		t.Errorf("got %+v", r.Progress)
	}
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), `"progress":{"step":9223372036854775807,`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestReportsOfAClient go with its heartbeats, on each of its connections.
func TestReportsOfAClient(t *testing.T) {
	rec := newRecorder(t)
	s, addr := testServer(t, Config{Trace: rec.record})
	proxy := newProxy(t, addr)
	p := controltest.Guest(proxy.addr, 1)
	p.LeaseTimeout = 300 * time.Millisecond
	c := newTestClient(t, p, controltest.NewObserver())
	report := steps(1, 7, 7, 0, 0)
	c.CarryTraining(func() *training.Report { return &report })
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	controltest.Outcome(t, c.Start(controltest.Join()))
	awaitStep(t, s, 7)
	second := steps(1, 8, 8, 0, 0)
	c.CarryTraining(func() *training.Report { return &second })
	proxy.stop()
	proxy.resume()
	awaitStep(t, s, 8)
	c.CarryTraining(func() *training.Report { return nil })
}

// awaitStep waits until the only run's only member is at a step.
func awaitStep(t *testing.T, s *Server, step int64) {
	t.Helper()
	for ctx := controltest.Context(t); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if runs := s.Status().Runs; len(runs) == 1 && runs[0].Progress != nil && runs[0].Progress.Step == step {
			return
		}
	}
	t.Fatalf("step %d does not come: %+v", step, s.Status())
}

// TestFailureIsReported: a control plane that has not seen the failure has it from a node, with the
// time at which it was; what it has seen itself counts.
func TestFailureIsReported(t *testing.T) {
	server := newFakeServer(t, Config{})
	_, b := twoNodes(t, server)
	failure := training.Failure{Round: 1, Age: time.Minute, Text: "worker of rank 3 exited with code 3"}
	b.beat(training.Report{Round: 1, Workers: 8, Failure: failure})
	r := server.oneRun(t)
	if f := r.LastFailure; f == nil || f.Round != 1 || f.Text != "round 1 stops: "+failure.Text || !f.At.Before(*r.RoundAt) || r.State != "running" || r.Progress != nil {
		t.Errorf("%+v, %+v", f, r)
	}
}

// TestStalledRun: what the nodes say of a hang is in the status and in the metrics, also before
// the first step of a round, until they say that the job steps again.
func TestStalledRun(t *testing.T) {
	atOnce(t)
	server := newFakeServer(t, Config{})
	a, b := twoNodes(t, server)
	const text = "no step for 65 s: rank 3 (gpu-b) stands in train.py:41 load_batch; 7 others wait in all_reduce"
	want := func(stalled string, metric float64) {
		t.Helper()
		state := "running"
		if stalled != "" {
			state = "stalled"
		}
		if r := server.oneRun(t); r.Stalled != stalled || r.State != state || r.Phase != rendezvous.PhaseRunning {
			t.Errorf("got %q in state %s, phase %s", r.Stalled, r.State, r.Phase)
		}
		wantValues(t, scrape(t, server.addr), map[string]float64{"run_stalled{run=run}": metric})
	}
	want("", 0)
	b.beat(training.Report{Round: 1, Workers: 8, Stalled: text})
	want(text, 1)
	if r := server.oneRun(t); r.Progress != nil || r.Members[1].Progress != nil {
		t.Errorf("a step was reported: %+v", r.Progress)
	}
	b.beat(steps(1, 7, 7, time.Second, time.Second))
	want("", 0)
	r := steps(1, 7, 7, time.Minute, time.Minute)
	r.Stalled = text
	a.beat(r)
	want(text, 1)
	if r := server.oneRun(t); r.Progress == nil || r.Progress.Step != 7 {
		t.Errorf("the progress: %+v", r.Progress)
	}
	b.beat(r)
	a.beat(steps(1, 8, 8, time.Second, time.Second))
	want(text, 1) // as the other says still
	b.beatWith(nil)
	want(text, 1) // its workers have made steps: what it said last holds
	b.beat(training.Report{Round: 1, Workers: 8, Stalled: text})
	b.beatWith(nil)
	want("", 0)
	changes := server.oneRun(t).Changes
	var told []string
	for _, c := range changes[len(changes)-4:] {
		told = append(told, c.Text)
	}
	if again := "makes steps again, 0s after it was found stalled"; !slices.Equal(told, []string{"stalled: " + text, again, "stalled: " + text, again}) {
		t.Errorf("the changes: %q", told)
	}
}
