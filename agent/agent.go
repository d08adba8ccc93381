package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
	"rallypoint/internal/descriptors"
	"rallypoint/internal/host"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/promtext"
	"rallypoint/internal/wake"
)

// Agent runs the workers of one node. Make it by New and run it once by Run;
// Signal, Stop, Direct and Resized may be called from anywhere at any time, the rest is Run's.
type Agent struct {
	*launcher
	*history
	hangs   *hangs
	checks  *checks
	signals *signalDirector

	short    bool      // it has warned that the workers' connections will not fit
	last     *attempt  // nil before the first
	carried  *attempt  // whose workers wait for the next round; nil: there are none
	stopped  bool      // the workers of the last attempt were stopped, and none were started since
	err      error     // of the run, once it has ended
	unneeded string    // why it ended without needing this node any more; "": it did not
	there    func()    // ends the answers to the liveness barriers of the last round
	again    time.Time // when the last attempt ended that another one follows; zero: none
}

// New makes an agent. name is the entry point's in reports (see EntryPoint). log receives
// messages for users. The agent owns the rendezvous, and Run ends it.
func New(spec Spec, name string, rdzv Rendezvous, log *slog.Logger) (*Agent, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	spec.setDefaults()
	spec.Environ = withoutOuter(spec.Environ)
	if spec.Streams == nil {
		spec.Streams = linequeue.NewStreams(spec.Stdout, spec.Stderr)
		spec.Streams.Report(func(text string) { log.Warn(text) })
	}
	run := &telemetry.Run{
		ID: spec.RunID, Role: spec.Role, Host: spec.Host, Backend: spec.Backend, Argv: spec.Argv, MaxRestarts: spec.MaxRestarts, Serial: nodeSerial.Add(1) - 1,
		Events: spec.Events, RdzvEvents: spec.RdzvEvents, Metrics: spec.Metrics, Spans: spec.Spans, Log: log,
	}
	n := &node{
		spec: spec, name: name, rdzv: rdzv, log: log, tuning: tuning{reachAfter: reachAfter, dialStore: dialStore, holdPatience: holdPatience},
		interrupts: newInterrupts(), pulse: make(chan struct{}), resized: wake.New(), status: telemetry.NewStatusTracker(run),
	}
	n.restarts = restarts{spec: &n.spec, now: time.Now, job: budget{Step: noStep}}
	var others []telemetry.Consumer
	if spec.Notify != nil {
		others = append(others, listener(spec.Notify))
	}
	n.bus = telemetry.NewBus(run, n.status, others...)
	l := newLauncher(n)
	h := &hangs{HangDetector: training.HangDetector{Timeout: max(spec.HangTimeout, 0)}, shownAt: noStep}
	return &Agent{
		launcher: l, history: &history{leaving: leaving{rule: spec.Leave, now: time.Now}}, hangs: h,
		checks: &checks{launcher: l}, signals: newSignalDirector(n), there: func() {},
	}, nil
}

// nodeSerial tells apart the agents of one process.
var nodeSerial atomic.Int32

// Resized tells that the terminal that is the agent's stderr may have another size
// (SIGWINCH): those of the workers follow. Without it they do so when a worker writes.
func (a *Agent) Resized() {
	a.resized.Set()
}

// Signal is Stop with the grace of ShutdownTimeout, unless OnSignal says what else sig asks
// for.
func (a *Agent) Signal(sig unix.Signal) {
	if !a.signals.take(sig) {
		a.Stop(sig, a.spec.ShutdownTimeout)
	}
}

// Stop makes the agent end its run: it sends sig to the workers, waits up to
// grace for their end and kills them then. A call within 5 s of the first is the
// same request; a later one kills the workers at once, and so does, at any
// time, SIGKILL, a grace of 0, and a second SIGINT from the keyboard of a terminal.
// It returns at once; Run then returns a *SignalError.
func (a *Agent) Stop(sig unix.Signal, grace time.Duration) { a.interrupts.request(sig, grace) }

// Direct gives the run a directive. The error says why it was not given. It may be called from
// anywhere at any time.
func (a *Agent) Direct(ctx context.Context, d rendezvous.Direct) error { return a.direct(ctx, d) }

// Run takes part in rounds and runs the workers until they have all succeeded, until they have
// failed more often than MaxRestarts allows, or until Signal or the end of ctx (which is SIGTERM).
// When it returns, all workers and their descendants have exited, and the rendezvous has ended.
//
// Errors: *FailedError (workers of this node failed), *PeerError (the run ended
// because of another node), *NoProgressError, *RequeueError, *SignalError, *StartError (workers could not be
// started), or an error of the rendezvous. A node that was not needed ends without error.
func (a *Agent) Run(ctx context.Context) error {
	a.err = a.run(ctx)
	a.signals.stop()
	a.console.Flush()
	a.publish(telemetry.Ended{Err: a.err})
	return a.err
}

func (a *Agent) run(ctx context.Context) (err error) {
	unhook := context.AfterFunc(ctx, func() { a.Signal(unix.SIGTERM) })
	defer unhook()
	a.began = time.Now()
	a.publish(telemetry.Created{})
	if err = a.open(); err != nil {
		return a.end(err)
	}
	defer a.close()
	a.rdzv.SetCommand(a.spec.command(a.name))
	a.status.FollowProgress(a.progress)
	a.rdzv.CarryTraining(a.progress.Report)
	getenv := process.Getenv(a.spec.Environ)
	health := telemetry.NewHealth(telemetry.HealthConfig{
		Address: getenv(telemetry.EnvHealthPort), Status: a.status, Pulse: a.pulse, StopLimit: 2 * a.spec.ShutdownTimeout, Users: a.spec.LoopbackUsers, Log: a.log, Metrics: a.expose,
	})
	defer health.Close()
	reported := telemetry.ReportTrainJob(getenv, a.status, a.log)
	defer func() { reported(err == nil && a.unneeded == "") }()

	if err = a.checks.checkNode(checkJoin); err == nil {
		a.holdTemplate() // after the checks, which end all that they find to be none of this agent's
		stop := a.checks.watch()
		err = a.rounds()
		stop()
	}
	err = a.asRunEnded(err)
	a.ran = time.Since(a.began)
	a.publish(telemetry.RunDone{Err: err, Failure: errors.As(err, new(*FailedError))})
	err = a.end(err)
	result, failed := err, errors.As(err, new(*FailedError))
	switch {
	case err == nil || failed:
		a.publish(telemetry.Measured{Failed: failed})
		result = nil
	case errors.Is(err, rendezvous.ErrGraceful) && !errors.Is(err, errStuck):
		a.unneeded = err.Error()
		level := slog.LevelInfo
		if a.last == nil {
			level = slog.LevelWarn
		}
		a.log.Log(context.Background(), level, a.unneededText())
		result, err = nil, nil
	}
	a.stepDone(telemetry.StepRun, a.began, result)
	return err
}

// expose adds to the metrics of the health port.
func (a *Agent) expose(b *promtext.Buffer) {
	b.Single("rallypoint_agent_hang_limit_seconds", "gauge", "Time without a step after which the job is said to hang; 0 while it is not watched.", time.Duration(a.hangs.limit.Load()).Seconds())
	a.rdzv.Expose(b)
	if a.spec.Expose != nil {
		a.spec.Expose(b)
	}
}

func (a *Agent) rounds() error {
	defer func() { a.there() }()
	for {
		again, err := a.round()
		if err != nil || !again {
			return err
		}
	}
}

// round joins the next round and runs one attempt in it. It reports whether
// another has to follow.
func (a *Agent) round() (again bool, err error) {
	began := time.Now()
	t, err := a.initialize()
	a.stepDone(telemetry.StepInitialize, began, err)
	switch {
	case errors.Is(err, errRegroup):
		if a.carried != nil {
			a.carried.leaveRound()
		}
		return true, nil
	case !a.again.IsZero():
		a.stepDone(telemetry.StepRestart, a.again, err)
		a.again = time.Time{}
	}
	if err != nil {
		return false, errors.Join(err, a.abandon(err))
	}
	e := &ending{attempt: t, how: supervise(t)}
	if state := outcomeStates[e.how]; state != "" {
		a.publish(telemetry.Monitored{State: state})
	}
	ended := time.Now()
	first := e.how == someFailed && (a.announcedStop().Round == 0 || a.announcedStop().Rank == a.assignment.group)
	if e.carries() {
		a.again, a.carried = ended, t
		if again, err = e.carry(); err != nil {
			err = errors.Join(err, a.abandon(err))
		}
		return again, err
	}
	a.stopped = true
	if again, err = e.finish(); again {
		a.again = ended
		if first {
			err = a.checks.checkAgain()
		}
	}
	return again, err
}

// initialize joins the next round and starts an attempt, or resumes the one that is carried over.
func (a *Agent) initialize() (t *attempt, err error) {
	first := a.assignment == nil
	if err = a.takePlace(); err != nil {
		return nil, err
	}
	a.publish(telemetry.RanksAssigned{})
	if t = a.carried; t != nil && a.assignment.ranks.carried > 0 {
		began := time.Now()
		if err = t.resume(); err == nil {
			a.carried = nil
		}
		a.stepDone(telemetry.StepStart, began, err)
		return t, err
	}
	if err = a.abandon(errNotAll); err != nil {
		return nil, err
	}
	if !first {
		if err = a.pause(a.restarts.delay()); err != nil {
			return nil, err
		}
	}
	a.restarts.delayed = a.restarts.agreed
	began := time.Now()
	if err = a.awaitTemplate(); err == nil {
		t = newAttempt(a.launcher, a.history, a.hangs)
		if err = t.start(); err == nil {
			a.last, a.stopped = t, false
		}
	}
	a.stepDone(telemetry.StepStart, began, err)
	return t, err
}

func (a *Agent) takePlace() (err error) {
	began := time.Now()
	defer func() { a.stepDone(telemetry.StepRendezvous, began, err) }()
	a.publish(telemetry.Joining{})
	err = a.join()
	a.there() // while this node joins it still shows in the last round that it is alive
	if err != nil {
		return err
	}
	a.publish(telemetry.Joined{Took: time.Since(began)})
	a.there = AnswerBarriers(a.assignment.keys, a.assignment.groups)
	start := time.Now()
	err = a.takeRanks()
	a.stepDone(telemetry.StepRanks, start, err)
	return err
}

func (a *Agent) join() error {
	ctx, cancel := a.untilInterrupt(0)
	defer cancel()
	place := a.checks.wait(cancel, a.assignment != nil)
	o, err := a.rdzv.Next(ctx)
	err = place(err)
	if stop := a.interrupted(); stop != nil {
		a.publish(telemetry.JoinFailed{Err: stop, Interrupted: true})
		return stop
	}
	if err != nil {
		a.publish(telemetry.JoinFailed{Err: err})
		return a.refused(err)
	}
	a.restarts.asked = a.restarts.asked || o.ByDirective && a.changed == progress.CauseRegroup
	a.assignment = &assignment{Outcome: o, group: o.Rank, groups: o.World, keys: a.rdzv.Keys(o.Round)}
	if a.restarts.charged && len(o.Dropped) > 0 {
		a.log.Info("the failure of this node's workers followed from the loss of a node; it is not counted (" + a.restarts.String() + " used)")
		a.restarts.charged = false
	}
	return nil
}

// takeRanks learns the workers' ranks, and the restart count of the whole job.
func (a *Agent) takeRanks() error {
	if a.carried != nil {
		a.carried.noteLate()
	}
	a.restarts.commit()
	restarts, own := a.restarts.agreed, a.restarts.own(a.progress)
	s := a.assignment
	ctx, cancel := a.untilRegroup()
	defer cancel()
	if a.spec.Identical {
		s.ranks = identicalRanks(s.group, s.groups, a.spec.Workers, restarts)
	} else {
		info := roleInfo{Role: a.spec.Role, Rank: s.group, LocalWorldSize: a.spec.Workers, Restarts: restarts, Host: host.NameOf(a.spec.Host), Budget: own, Survivors: a.survivors()}
		r, err := agreeRanks(ctx, s.keys, info, s.groups)
		if err != nil {
			if a.interrupted() != nil || a.rdzv.NodesWaiting() > 0 || errors.Is(err, rendezvous.ErrRoundOver) || errors.Is(err, rendezvous.ErrEvicted) {
				return a.cutShort() // perhaps before NodesWaiting reports it
			}
			return fmt.Errorf("round %d: %w", s.Round, err)
		}
		s.ranks = r
	}
	a.warnOfShortage()
	a.restarts.agreed = s.ranks.restarts
	err := a.restarts.take(s.Round, own, s.ranks.budget)
	if idle := new(NoProgressError); errors.As(err, &idle) {
		a.awaitIdle(ctx)
		idle.Name, idle.Failures = a.name, a.lastFailures
	}
	return err
}

// survivors is how many workers of this node wait for a round; nil if it has stopped them, or if one
// has ended well.
func (a *Agent) survivors() *int {
	n := 0
	t := a.carried
	switch {
	case !a.spec.Regroup || a.stopped || t != nil && t.succeeded > 0:
		return nil
	case t != nil:
		for _, p := range t.workers.Procs {
			if !p.HasExited() {
				n++
			}
		}
	}
	return &n
}

// warnOfShortage warns once, on the node that runs the round's store, if the workers' connections
// will exceed its descriptor limit.
func (a *Agent) warnOfShortage() {
	if a.short || a.assignment.group != 0 {
		return
	}
	if text := descriptors.Shortage("the store of this round", a.assignment.ranks.world); text != "" {
		a.short = true
		a.log.Warn(text)
	}
}

var errNotAll = errors.New("a worker of the job cannot regroup, so that all begin again")

var errStuck = errors.New("no signal ends a worker of this node, and none is started beside it: the node leaves")

// abandon stops the workers that are carried over, since there is no round for them. It returns errStuck if one of
// them may still live.
func (a *Agent) abandon(why error) error {
	if a.carried == nil {
		return nil
	}
	e := &ending{attempt: a.carried, how: mustRegroup}
	a.carried = nil
	if a.interrupted() != nil {
		e.how = mustInterrupt
	}
	interrupted := e.how == mustInterrupt
	e.halt(why.Error())
	a.stopped = true
	if interrupted {
		e.publishEnds(nil)
	}
	if e.workers.AnyStuck() {
		return errStuck
	}
	return nil
}

// asRunEnded returns how this node ends after err has ended its rounds. If a directive has ended
// the run, every node ends that way, whatever has failed on it meanwhile (docs/decisions/0081).
func (a *Agent) asRunEnded(err error) error {
	requeued := a.requeued(nil)
	if requeued == nil || errors.As(err, new(*RequeueError)) || errors.Is(err, rendezvous.ErrGraceful) || errors.Is(err, rendezvous.ErrUnfit) {
		return err
	}
	a.log.Warn("this node's own result does not count, because the run had already ended: " + briefly(err))
	return requeued
}

// briefly is how a node ends, in one line.
func briefly(err error) string {
	var failed *FailedError
	switch {
	case err == nil:
		return "its workers succeeded, and not all of the others' had"
	case errors.As(err, &failed):
		return failed.Root().Summary()
	}
	return err.Error()
}

// refused adds to an error of the rendezvous the failures that other nodes published.
func (a *Agent) refused(err error) error {
	if requeued := a.requeued(err); requeued != nil {
		return requeued
	}
	if a.leaving.later && errors.Is(err, rendezvous.ErrUnfit) { // the answer of the control plane was late
		return &FailedError{Name: a.name, Failures: a.lastFailures, Next: a.leaving.rule.text(someFailed), left: true, Unfit: true}
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

// end ends this node's part in the run and returns the result. A signal cuts its waits short.
func (a *Agent) end(err error) error {
	a.publish(telemetry.Ending{})
	ending, reason := rendezvous.EndLeave, ""
	var failed *FailedError
	switch {
	case err == nil:
		ending = rendezvous.EndSuccess
	case errors.As(err, new(*NoProgressError)):
		ending, reason = rendezvous.EndFailed, err.Error()
	case errors.As(err, &failed):
		reason = failed.Root().Summary()
		if failed.Next != "" && !failed.left {
			reason += "; " + failed.Next
		}
		if !failed.left {
			ending = rendezvous.EndFailed
		}
	default:
		reason = err.Error()
	}
	cut := a.interrupts.first
	if a.interrupted() != nil {
		cut = a.interrupts.second
	}
	ctx, cancel := until(cut, 0)
	defer cancel()
	a.publish(telemetry.ShutDown{Ending: ending, Err: a.rdzv.Shutdown(ctx, ending, reason)})
	return a.asRunEnded(err) // the goodbye may have come after the end of the run
}
