package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/agent/stacks"
	"rallypoint/agent/telemetry"
	"rallypoint/agent/watchdog"
	"rallypoint/core/rendezvous"
	"rallypoint/core/world"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
	"rallypoint/internal/host"
	"rallypoint/internal/ownfile"
)

// attempt is one start of this node's workers. Under Spec.Regroup it lives on over rounds: those that
// run keep their processes, and the others are replaced (docs/decisions/0150).
type attempt struct {
	workers   *process.WorkerGroup
	logs      []*logs.Attempt // by local rank: those started together have one
	watchdog  *watchdog.Watchdog
	oom       process.OOMCounter // since the workers were started
	outputs   []logs.Worker
	streams   []*logs.Stream
	reading   sync.WaitGroup           // of an output, for the announcement of its worker's failure
	questions sync.WaitGroup           // their goroutine
	followers *followers               // of the workers' output
	ended     map[int]*process.Process // by local rank
	failures  []*process.Process       // ended badly, in the order in which it was seen
	failure   string                   // the first of them, as this node has announced it
	succeeded int
	leaves    bool // this node leaves the run to the others, see Agent.leaves
	unfit     bool // as unfit, see Spec.Leave
	struck    bool // its failure counts for Spec.Leave
	hopeless  bool // another start would fail in the same way

	stacks   []*ownfile.File // into which the workers write theirs, by local rank; nil: there are none
	worlds   []*world.Record // by local rank; nil: the workers cannot regroup
	able     []bool          // by local rank: the worker has said that it can regroup, or it began beside such workers
	vacant   []int           // local ranks whose workers have ended and are to be replaced
	entering map[int]bool    // local ranks whose workers are still to enter this round
	asks     string          // says that a worker waits for another round while this one stands; "": none does
	directed uint64          // the number of the last directive that the workers were given

	hang       *stacks.Hang   // the job makes no step any more; nil: it does, as far as is known
	still      time.Duration  // without a step when it ended; 0: the job made steps
	stood      string         // where the workers of the job were then; "": that is not known
	lastStacks []stacks.Group // of workers that were killed after their grace, or of that hang
}

// outcome is how an attempt ends.
type outcome int

const (
	allSucceeded  outcome = iota + 1
	someFailed            // a worker ended with a code other than 0, or by a signal
	mustRegroup           // the nodes have to form a new round
	mustInterrupt         // a signal came
	unkillable            // a worker cannot be stopped any more
)

// outcomeStates are the states of the workers that end an attempt, as metrics have them; an
// interrupt is none.
var outcomeStates = map[outcome]string{
	allSucceeded: telemetry.StateSucceeded, someFailed: telemetry.StateFailed,
	mustRegroup: telemetry.StateHealthy, unkillable: telemetry.StateUnhealthy,
}

// roundCauses are the causes of the round that follows an attempt.
var roundCauses = map[outcome]progress.Cause{someFailed: progress.CauseFailure, unkillable: progress.CauseFailure, mustRegroup: progress.CauseRegroup}

// awaitTemplate waits until workers can be forked, if the node forks them: a cold one would import
// the same. It ends with the round.
func (a *Agent) awaitTemplate() error {
	if a.template == nil {
		return nil
	}
	ctx, cancel := a.untilRegroup()
	defer cancel()
	a.template.Prepare(ctx.Done())
	if ctx.Err() != nil {
		return a.cutShort()
	}
	return nil
}

// start starts the workers of the round.
func (a *Agent) start() (*attempt, error) {
	if err := a.awaitTemplate(); err != nil {
		return nil, err
	}
	n := a.spec.Workers
	t := &attempt{
		logs: make([]*logs.Attempt, n), outputs: make([]logs.Worker, n), able: make([]bool, n),
		oom: a.oom, ended: make(map[int]*process.Process), followers: newFollowers(),
	}
	t.oom.Reset()
	var all []int
	for local := range n {
		all = append(all, local)
	}
	files, launches, err := a.prepare(t, all)
	if stop := a.interrupted(); err != nil && stop != nil {
		files.Close()
		t.removeRecords()
		return nil, stop
	}
	if err == nil && a.timers != "" {
		if t.watchdog, err = watchdog.Serve(a.timers, a.log); err == nil {
			a.publish(telemetry.WatchdogActed{Name: "watchdog started"})
		}
	}
	if err == nil {
		a.guard.Starting()
		a.running.Store(true)
		t.workers, err = process.StartWorkers(a.forker, a.reaper, a.template, launches, a.log)
	}
	files.Started()
	if err != nil {
		a.running.Store(false)
		a.guard.Watch(nil)
		t.watchdog.Stop()
		files.Close()
		t.removeRecords()
		return nil, startError(err)
	}
	a.last, a.stopped = t, false
	a.guard.Watch(t.workers.Procs)
	a.publish(telemetry.WorkersStarted{Workers: t.workers.Procs, Summary: a.startLine(t)})
	return t, nil
}

// startError is an error for which workers could not be started.
func startError(err error) error {
	if start := new(process.StartError); errors.As(err, &start) {
		return err
	}
	return &process.StartError{LocalRank: -1, Err: err}
}

// prepare prepares the start of workers: their files, which the caller closes also after an error,
// and their commands.
func (a *Agent) prepare(t *attempt, locals []int) (*logs.Attempt, []process.Launch, error) {
	files, err := a.logs.Attempt(a.restarts.agreed)
	if err != nil {
		return nil, nil, err
	}
	sets, err := a.plan(t, files, locals)
	if err != nil {
		return files, nil, err
	}
	launches, names, err := a.launches(t, files, sets, locals)
	if err == nil {
		err = files.Follow(a.console, names)
	}
	return files, launches, err
}

// plan decides where the workers write that are to be started, and makes the variables of all.
func (a *Agent) plan(t *attempt, files *logs.Attempt, locals []int) (sets [][][2]string, err error) {
	planner := a.spec.Logs.Planner
	if planner == nil {
		if files.Plan, err = files.Layout(a.spec.Workers, locals); err != nil {
			return nil, err
		}
	}
	s := a.assignment
	if t.workers == nil {
		a.progress.Begin(s.Round, a.spec.Workers, a.changed)
		t.openStacks(a)
	}
	a.progress.SetFailure(a.reportedFailure())
	a.openWorlds(t, locals)
	for local := range a.spec.Workers {
		p := place{
			assignment: s, local: local, restarts: a.restarts.agreed, timers: a.timers, world: t.worldPath(local),
			progress: a.progress.Path(local), directive: a.progress.DirectivePath(local), stacks: t.stackPath(local),
		}
		if files.Plan != nil {
			p.errorFile = files.Plan.Workers[local].ErrorFile
		}
		sets = append(sets, additions(&a.spec, p))
	}
	if planner != nil {
		if files.Plan, err = a.askPlanner(planner, sets); err != nil {
			return nil, err
		}
	}
	files.Plan.Show(a.spec.Logs.GlobalRanks, s.ranks.base)
	if a.logs.Mark != "" { // no folder tells the workers of this run from others
		for local := range sets {
			sets[local] = append(sets[local], [2]string{logs.EnvMark, a.logs.Mark})
		}
	}
	return sets, nil
}

// askPlanner has the plug-in decide where the workers write, and puts the variables as it left them
// into sets.
func (a *Agent) askPlanner(planner *logs.Planner, sets [][][2]string) (*logs.Plan, error) {
	envs := make([]map[string]string, len(sets))
	for local, set := range sets {
		envs[local] = make(map[string]string, len(set))
		for _, v := range set {
			envs[local][v[0]] = v[1]
		}
		delete(envs[local], logs.EnvErrorFile) // the plug-in's to set
	}
	ctx, cancel := a.untilInterrupt(0)
	defer cancel()
	plan, envs, err := planner.Plan(ctx, envs)
	for local, env := range envs {
		sets[local] = nil
		for _, name := range slices.Sorted(maps.Keys(env)) {
			sets[local] = append(sets[local], [2]string{name, env[name]})
		}
	}
	return plan, err
}

// launches prepares the start of some workers; sets are the variables that all get.
func (a *Agent) launches(t *attempt, to *logs.Attempt, sets [][][2]string, locals []int) ([]process.Launch, []logs.Names, error) {
	s := a.assignment
	standard, err := to.StandardStreams()
	if err != nil {
		return nil, nil, err
	}
	var launches []process.Launch
	var names []logs.Names
	descriptors := make([][]uintptr, a.spec.Workers)
	for _, local := range locals {
		w, err := to.Worker(local)
		if err != nil {
			return nil, nil, err
		}
		files := slices.Clone(standard)
		if w.Out != nil {
			files[1] = w.Out.Fd()
		}
		switch {
		case a.spec.Logs.Fold:
			if err := to.FoldConsole(&w, s.ranks.base+local, a.console, a.spec.Stdout, a.spec.Stderr); err != nil {
				return nil, nil, err
			}
			if w.Out != nil {
				files[1] = w.Out.Fd()
			}
		case !a.spec.KeepDaemons: // daemons outlive this process, through which the workers' stderr goes here
			if err := to.TeeStderr(&w, int(files[1]), a.console, a.spec.Stderr); err != nil {
				return nil, nil, err
			}
		}
		t.outputs[local], t.logs[local] = w, to
		if w.Err != nil {
			files[2] = w.Err.Fd()
		}
		descriptors[local] = files
		launches = append(launches, process.Launch{
			Local: local, Argv: arguments(&a.spec, local), Env: merge(a.spec.Environ, sets[local]), Files: files, CPUs: a.spec.cpus(local), Site: a.site,
		})
		names = append(names, logs.Names{Role: a.spec.Role, Host: host.NameOf(a.spec.Host), Local: local, Rank: s.ranks.base + local})
	}
	t.streams = append(logs.Without(t.streams, locals), to.Streams(t.outputs, descriptors)...)
	return launches, names, nil
}

// startLine says which workers were started, for the log.
func (a *Agent) startLine(t *attempt) string {
	s := a.assignment
	text := fmt.Sprintf("started %d workers: ranks %d to %d of %d", a.spec.Workers, s.ranks.base, s.ranks.base+a.spec.Workers-1, s.ranks.world)
	if a.spec.Workers == 1 {
		text = fmt.Sprintf("started a worker: rank %d of %d", s.ranks.base, s.ranks.world)
	}
	if a.restarts.agreed > 0 {
		text += ", after " + a.restarts.String()
	}
	if dir := t.logs[0].Dir; dir != "" && a.logs.Base == "" {
		text += ", logs in " + dir
	}
	return text
}

// supervise waits until something ends the attempt. Exits of workers and changes of the
// rendezvous are events.
func (a *Agent) supervise(t *attempt) outcome {
	var tick, look <-chan time.Time
	if a.spec.Metrics != nil { // which has a number for each interval
		tick = time.Tick(a.spec.MonitorInterval)
	}
	if a.sleepDetector.Timeout > 0 {
		look = time.Tick(a.sleepDetector.Period(a.spec.MonitorInterval))
	}
	defer a.watchStore()()
	departure := a.watchDeparture(t)
	defer a.followDirectives(t, departure)()
	hangs, stopWatch := a.watchHang(t)
	defer stopWatch()
	defer a.watchWaits(t)()
	defer a.running.Store(false)
	sample := time.NewTimer(progress.SampleInterval)
	defer sample.Stop()
	var patience <-chan time.Time // with a worker that the watchdog sent a signal

	if end := a.endOf(t); end != 0 { // by a worker that was not replaced
		return end
	}
	for {
		if departure.due(a.mustRegroup()) {
			return mustRegroup
		}
		select {
		case <-departure.look:
			departure.endOverdue()
		case <-a.interrupts.first.Done():
			return mustInterrupt
		case <-t.workers.Ended():
			a.note(t, t.workers.TakeEnded())
			if end := a.endOf(t); end != 0 {
				if end == someFailed {
					hangs.lookBack()
				}
				return end
			}
		case <-t.watchdog.Expiries():
			for _, o := range t.watchdog.Take() {
				a.reapOverdue(t, o)
			}
			if patience == nil {
				patience = time.After(a.spec.ShutdownTimeout)
			}
		case <-patience:
			patience = nil
			t.workers.KillOverdue()
		case <-look:
			if a.unkillableWorkers(t) {
				return unkillable
			}
		case <-sample.C:
			sample.Reset(min(a.progress.Sample(), hangs.look()))
			a.noteFirstStep()
			if departure.isAsked() {
				return mustRegroup
			}
		case h := <-hangs.heard:
			hangs.take(h)
		case <-a.resized:
			for _, files := range t.files() {
				files.Resized()
			}
		case <-a.pulse: // the health port asks whether the agent is alive
		case <-a.rdzv.Changed():
		case <-tick:
			a.publish(telemetry.Monitored{State: telemetry.StateHealthy})
		}
	}
}

// noteFirstStep publishes the first training step of a round.
func (a *Agent) noteFirstStep() {
	if round, at := a.progress.FirstStep(); !at.IsZero() && round > a.stepped {
		a.stepped = round
		a.publish(telemetry.FirstStep{At: at})
	}
}

// allSucceeded reports whether all workers have ended well; after supervise, or in its goroutine.
func (t *attempt) allSucceeded() bool { return t.succeeded == len(t.workers.Procs) }

// endOf returns how the ended workers decide an attempt; 0: it continues.
func (a *Agent) endOf(t *attempt) outcome {
	over := len(t.ended) == len(t.workers.Procs)
	switch {
	case over && (len(t.failures) == 0 || a.keeps(t)):
		return allSucceeded
	case len(t.failures) == 0 || a.keeps(t):
		return 0
	case a.announcedStop().Round != 0 && !(a.spec.Keep && a.announcedStop().Leaving): // it ended by that
		return mustRegroup
	}
	return someFailed
}

// note takes workers that have ended.
func (a *Agent) note(t *attempt, ended []*process.Process) {
	for _, p := range ended {
		a.publish(telemetry.WorkerExited{Worker: p})
		t.ended[p.Local] = p
		if p.Code == 0 && p.Fault == "" {
			t.succeeded++
		} else {
			t.outputs[p.Local].Shared.Ended()
			t.failures = append(t.failures, p)
			if !p.Stopped {
				p.Memory = t.oom.Note()
			}
			if a.running.Load() && a.keeps(t) {
				a.keepsWithout(t, p)
			}
		}
	}
}

// finish stops the rest of the attempt and decides what comes next.
func (a *Agent) finish(t *attempt, v outcome) (again bool, err error) {
	t.still = a.progress.Standstill()
	t.leaves = a.leaves(v)
	v = a.announceStop(t, v)
	why := ""
	if v != allSucceeded {
		why = a.whyStopping(t, v)
	}
	if v == mustRegroup {
		a.publish(telemetry.Leaving{Reason: why})
	}
	v = a.halt(t, v, why)
	a.stopped = true
	if stop := a.interrupted(); stop != nil {
		a.publishEnds(t, nil)
		return false, stop
	}
	switch v {
	case allSucceeded:
		a.lastFailures = a.kept(t)
		a.publishEnds(t, a.lastFailures)
		return false, a.exitBarrier()
	case mustRegroup:
		a.readPeers()
		a.lastFailures = a.assignment.peers
		if len(a.lastFailures) > 0 {
			a.publish(telemetry.PeerFailed{Root: &a.lastFailures[0]})
		}
		if peers := a.assignment.peers; len(peers) > 0 && !a.rdzv.Closed() && !strings.Contains(why, peers[0].Worker()) {
			a.log.Warn("what happened: " + peers[0].Summary())
		}
		return true, nil
	}
	return a.afterFailure(t, v)
}

// halt stops the rest of the attempt, and returns how it ends.
func (a *Agent) halt(t *attempt, v outcome, why string) outcome {
	sig, grace := unix.SIGTERM, a.spec.ShutdownTimeout
	stopping := telemetry.Stopping{Why: why}
	var stop *SignalError
	if v == mustInterrupt && errors.As(a.interrupted(), &stop) {
		sig, grace = stop.Signal, a.interrupts.grace // set before the first signal was announced
		stopping.Warning = fmt.Sprintf("Received %d death signal, shutting down workers", sig) + a.interrupts.impatience()
	}
	if v == mustRegroup {
		stopping.Warning = "stopping the workers: " + why
	}
	a.publish(stopping)
	t.lose(why)
	published := a.publishFirst(t, v)
	began := time.Now()
	o := process.StopOptions{Signal: sig, Grace: grace, Hurry: a.interrupts.second, BeforeKill: a.lastStacks(t)}
	if a.sleepDetector.Timeout > 0 {
		o.Look, o.LookEvery = func() { a.unkillableWorkers(t) }, a.sleepDetector.Period(a.spec.MonitorInterval)
	}
	a.note(t, t.workers.Stop(o))
	v = a.giveUpStuck(t, v)
	if v != allSucceeded && v != mustInterrupt {
		a.stepDone(telemetry.StepStop, began, nil)
	}
	published()
	background.Within(filePatience, t.reading.Wait)
	a.progress.End()
	a.noteFirstStep()
	t.removeRecords()
	a.changed, a.asked = roundCauses[v], false
	a.guard.Watch(nil)
	if t.watchdog != nil {
		t.watchdog.Stop()
		a.publish(telemetry.WatchdogActed{Name: "watchdog stopped"})
	}
	a.noteFailure()
	t.followers.end()
	t.questions.Wait()
	for _, files := range t.files() {
		files.Close()
	}
	a.keepCulprit(t)
	return v
}

// whyStopping says why an attempt is ended, for events.
func (a *Agent) whyStopping(t *attempt, v outcome) string {
	switch v {
	case mustInterrupt:
		return a.interrupted().Error()
	case mustRegroup:
		return cmp.Or(a.rdzv.Reason(), t.asks)
	case unkillable:
		return "a worker cannot be stopped any more"
	}
	return "a worker failed"
}

// afterFailure spends a restart, or ends the run.
func (a *Agent) afterFailure(t *attempt, v outcome) (again bool, err error) {
	own := &FailedError{Name: a.name, Failures: a.failures(t)}
	a.lastFailures = own.Failures
	root := own.Root()
	a.publish(telemetry.AttemptFailed{Root: root, Overdue: strings.HasPrefix(root.Message, overdueMessage)})
	if err := a.requeued(nil); err != nil {
		a.log.Warn("the failure is not counted, because the run had already ended: " + root.Summary())
		return false, err
	}
	switch {
	case v == unkillable || t.leaves || t.hopeless:
	case a.mayRestart(t):
		a.publish(telemetry.Restarting{Text: root.Summary() + "; " + a.restarts.charge(len(t.vacant))})
		return true, a.interrupted()
	case a.lostNode():
		a.log.Warn(root.Summary() + "; it followed from the loss of a node and is not counted: " + a.rdzv.Reason())
		return true, a.interrupted()
	}
	if err := a.requeued(nil); err != nil { // by its deadline, while this node waited for news
		a.log.Warn("the failure is not counted, because the run has ended meanwhile: " + root.Summary())
		return false, err
	}
	if stop := a.interrupted(); stop != nil {
		return false, stop
	}
	a.publishEnds(t, own.Failures)
	if path, _ := process.LookupEnv(a.spec.Environ, logs.EnvErrorFile); path != "" {
		var err error
		if !background.Within(filePatience, func() { err = root.Propagate(path) }) {
			a.log.Warn(fmt.Sprintf("the error file %s was not written within %v", path, filePatience))
		} else if err != nil {
			a.log.Warn(err.Error())
		}
	}
	a.readPeers()
	return false, &FailedError{
		Name: a.name, Failures: failure.WithPeers(own.Failures, a.assignment.peers, a.assignment.group), Next: a.spentText(t, v), left: t.leaves, Unfit: t.unfit,
	}
}

// pause waits for d before the workers of a round are started; a signal ends the run, and
// the round may be over before. Every node of the round pauses, each with its place in it:
// the others stopped by the same failure, and wait for no node longer than regroup_timeout.
func (a *Agent) pause(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	ctx, cancel := a.untilRegroup()
	defer cancel()
	if backoff.Sleep(ctx, d) {
		return nil
	}
	return a.cutShort()
}

// failures makes the records of the workers that ended badly.
func (a *Agent) failures(t *attempt) []failure.Failure {
	failures := make([]failure.Failure, 0, len(t.failures))
	read := inTime
	for _, p := range t.failures {
		f, err := a.failure(t, p, read)
		if errors.Is(err, errNotRead) { // nor are the others' files
			read = func(func()) bool { return false }
		}
		if err != nil {
			a.log.Warn(err.Error())
		}
		failures = append(failures, f)
	}
	return failures
}

// inTime calls a function that reads a worker's files, and returns false if it gave up waiting.
func inTime(read func()) bool { return background.Within(filePatience, read) }

// errNotRead says that a file system has not answered.
var errNotRead = fmt.Errorf("what the worker wrote to files is missing in the report: its files could not be read within %v", filePatience)

// failure makes the record of a worker that ended badly; with an error it is
// complete but for its files. read is inTime unless that has failed before.
func (a *Agent) failure(t *attempt, p *process.Process, read func(func()) bool) (failure.Failure, error) {
	f := *a.describe(t, p)
	f.Host, f.ExitCode, f.Time, f.Terminated, f.Message = host.FullNameOf(a.spec.Host), p.Code, p.At, p.Stopped && p.Fault == "", ""
	f.Stack, f.Hang, f.Still, f.Stood = t.lastStack(f.Rank), t.hangText(), t.still, t.stood
	of, complete := t.outputs[p.Local], f // the goroutine's, if it is late
	var completing error
	err := errNotRead
	if read(func() {
		complete.Stderr, complete.SharedOutput = of.LastStderr()
		completing = complete.Complete(of.ErrorFile)
	}) {
		f, err = complete, completing
	} else {
		_ = f.Complete("")
	}
	f.Message = p.Fault + f.Message
	if note := p.Memory; note != "" {
		f.Message += " (" + note + ")"
	}
	return f, err
}

// publishEnds publishes how the workers ended.
func (a *Agent) publishEnds(t *attempt, failures []failure.Failure) {
	a.ran = time.Since(a.began)
	a.publish(telemetry.WorkersEnded{Workers: t.workers.Procs, Succeeded: t.allSucceeded(), Failures: failures})
}

// exitBarrier reports to the other agents that this node's workers succeeded and waits
// for them. Nothing but a signal makes it fail.
func (a *Agent) exitBarrier() error {
	a.publish(telemetry.Finishing{})
	limit, wait := cmp.Or(a.spec.ExitBarrierTimeout, a.spec.ReportTimeout), a.spec.ExitBarrierTimeout > 0
	if a.assignment.groups > 1 && wait {
		slow := time.AfterFunc(quickBarrier, func() {
			a.log.Info(fmt.Sprintf("the workers of this node succeeded; waiting for the other nodes, at most %v", limit))
		})
		defer slow.Stop()
	}
	ctx, cancel := a.untilInterrupt(limit)
	defer cancel()
	ended, err := a.awaitExitBarrier(ctx, wait)
	if stop := a.interrupted(); stop != nil {
		return stop
	}
	switch {
	case err != nil:
		a.log.Error("Error waiting on exit barrier. The workers of this node succeeded: " + err.Error())
	case a.requeued(nil) != nil:
	case a.rdzv.Closed() && a.rdzv.NodesWaiting() > 0:
		a.log.Error(succeededBut + a.rdzv.Reason())
	case strings.HasPrefix(string(ended), rendezvous.ExitBarrierLost): // nobody has closed it yet
		a.log.Error(succeededBut + string(ended))
	}
	return nil
}

const succeededBut = "The workers of this node succeeded, but the run failed: "

// quickBarrier is how long the exit barrier takes without a word.
const quickBarrier = time.Second

// awaitExitBarrier returns what its last key has: how the other members have ended.
func (a *Agent) awaitExitBarrier(ctx context.Context, wait bool) (ended []byte, err error) {
	if !wait {
		return nil, a.rdzv.Finish(ctx)
	}
	return a.assignment.meet(ctx, rendezvous.ExitBarrierCount, rendezvous.ExitBarrierLast)
}

// refused adds to an error of the rendezvous the failures that other nodes published.
func (a *Agent) refused(err error) error {
	if requeued := a.requeued(err); requeued != nil {
		return requeued
	}
	if a.leaving.later && errors.Is(err, rendezvous.ErrUnfit) { // the answer of the control plane was late
		return &FailedError{Name: a.name, Failures: a.lastFailures, Next: a.unfitText(someFailed), left: true, Unfit: true}
	}
	if !errors.Is(err, rendezvous.ErrClosed) || a.assignment == nil {
		return err
	}
	next := ""
	if !a.restarts.left() {
		next = a.restarts.noneLeft()
	}
	return &PeerError{Err: err, Name: a.name, Failures: a.assignment.peers, Next: next}
}

// setDefaults gives the agent's own streams, and its messages' limit, their defaults.
func (s *Spec) setDefaults() {
	s.ReportTimeout = cmp.Or(s.ReportTimeout, 5*time.Second)
	s.Stdout = cmp.Or(s.Stdout, os.Stdout)
	s.Stderr = cmp.Or(s.Stderr, os.Stderr)
}
