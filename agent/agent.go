package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
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
	"rallypoint/core/training"
	"rallypoint/internal/background"
	"rallypoint/internal/descriptors"
	"rallypoint/internal/host"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/promtext"
	"rallypoint/internal/wake"
)

// Agent runs the workers of one node. Make it by New and run it once by Run;
// Signal, Stop, Direct and Resized may be called from anywhere at any time, the rest is Run's.
type Agent struct {
	spec  Spec
	name  string // of the entry point, for reports
	rdzv  Rendezvous
	log   *slog.Logger
	began time.Time
	ran   time.Duration // once the run has ended

	interrupts    interrupts
	signals       *signalDirector
	cgroup        *process.Cgroup // of the workers; nil: none
	forker        *process.Forker
	reaper        *process.Reaper
	guard         *process.ParentDeathGuard
	template      *process.Template // of the workers; nil: none
	site          string            // see process.Launch; "": none
	logs          *logs.Tree
	console       *logs.Console
	bus           *telemetry.Bus
	status        *telemetry.StatusTracker
	pulse         chan struct{} // received from while the workers run, to show that the agent is alive
	resized       wake.Signal   // holds a token when the terminal has another size
	sleepDetector *process.SleepDetector
	timers        string // path of the watchdog's FIFO; "" if it is off
	oom           process.OOMCounter
	reachAfter    time.Duration // see watchStore
	dialStore     func(ctx context.Context, address string) (net.Conn, error)
	holdPatience  time.Duration // see directives

	short      bool              // it has warned that the workers' connections will not fit
	running    atomic.Bool       // the workers of an attempt run or are about to, and are not being stopped
	progress   *progress.Tracker // nil before Run
	waitWindow time.Duration     // of progress, if a test has another one
	hangs      training.HangDetector
	failed     training.Failure // by which a round of the job has ended last, but for its age
	failedAt   time.Time
	culprit    culprit
	hangLimit  atomic.Int64                // of hangs, in nanoseconds, for other goroutines; 0: the job is not judged
	stood      atomic.Pointer[stacks.Node] // where the workers stood, as it was seen last; nil: they make steps
	changed    progress.Cause              // why the last attempt is over
	stepped    uint64                      // the last round in which it has seen a step
	asked      bool                        // it ended by a drain or a scale, and no worker of this node failed

	restarts     restarts
	leaving      leaving
	checks       checkWatch
	lastFailures []failure.Failure // by which the last attempt ended, as far as they are known

	last       *attempt    // nil before the first
	carried    *attempt    // whose workers wait for the next round; nil: there are none
	stopped    bool        // the workers of the last attempt were stopped, and none were started since
	err        error       // of the run, once it has ended
	unneeded   string      // why it ended without needing this node any more; "": it did not
	assignment *assignment // in the last round; nil before the first
	there      *Arrivals   // answers the liveness barriers of that round
	again      time.Time   // when the last attempt ended that another one follows; zero: none
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
	a := &Agent{
		spec: spec, name: name, rdzv: rdzv, log: log, interrupts: newInterrupts(), console: logs.NewConsole(spec.Streams), oom: process.NewOOMCounter("/"),
		reachAfter: reachAfter, dialStore: dialStore, holdPatience: holdPatience, status: telemetry.NewStatusTracker(run), pulse: make(chan struct{}), resized: wake.New(),
		sleepDetector: process.NewSleepDetector(process.UninterruptibleTimeout(spec.Environ)), timers: watchdog.FIFOPath(spec.Environ),
	}
	var others []telemetry.Consumer
	if spec.Notify != nil {
		others = append(others, listener(spec.Notify))
	}
	a.bus = telemetry.NewBus(run, a.status, others...)
	a.signals = newSignalDirector(a)
	a.checks.a = a
	a.restarts = restarts{spec: &a.spec, now: time.Now, job: budget{Step: noStep}}
	a.leaving = leaving{rule: spec.Leave, now: time.Now}
	a.hangs.Timeout = max(spec.HangTimeout, 0)
	return a, nil
}

// nodeSerial tells apart the agents of one process.
var nodeSerial atomic.Int32

// publish hands a message to the sinks of the agent's telemetry.
func (a *Agent) publish(message telemetry.Message) {
	state := telemetry.State{Restarts: a.restarts.agreed, Used: a.restarts.used(), Expired: a.restarts.expired(), Ran: a.ran}
	if s := a.assignment; s != nil {
		state.Place = &telemetry.Place{
			Outcome: s.Outcome, Group: s.group, Groups: s.groups,
			FirstRank: s.ranks.base, Workers: s.ranks.world, RoleRank: s.ranks.roleBase, RoleWorld: s.ranks.roleWorld,
			Members: s.members,
		}
	}
	a.bus.Publish(state, message)
}

// stepDone publishes the end of a step.
func (a *Agent) stepDone(s telemetry.Step, began time.Time, err error) {
	a.publish(telemetry.StepDone{Step: s, Took: time.Since(began), Err: err})
}

// Resized tells that the terminal that is the agent's stderr may have another size
// (SIGWINCH): those of the workers follow. Without it they do so when a worker writes.
func (a *Agent) Resized() {
	a.resized.Set()
}

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
	if a.logs, err = logs.NewTree(&a.spec.Logs, a.spec.RunID, a.log); err != nil {
		return a.end(&process.StartError{LocalRank: -1, Err: err})
	}
	defer func() { background.Within(linequeue.StallLimit, a.logs.Close) }()
	if !a.spec.KeepDaemons {
		a.cgroup = process.NewCgroup()
	}
	a.rdzv.SetCommand(a.spec.command(a.name))
	a.followProgress()
	defer a.progress.Close()
	a.forker = process.NewForker(a.cgroup)
	defer a.forker.Close()
	defer a.cgroup.Close()
	a.reaper = process.NewReaper(a.forker, a.spec.Subreaper, a.spec.KeepDaemons, a.logs.Marker(), a.log)
	defer a.reaper.Close()
	if !a.spec.KeepDaemons {
		if a.guard, err = process.NewParentDeathGuard(a.forker, a.logs.Marker(), a.timers, a.logs.Base, a.cgroup.Folder(), a.progress.Folder(), a.log); err != nil {
			a.log.Warn("if this process is killed, what its workers have started keeps running: " + err.Error())
		}
		defer a.guard.Close()
	}
	a.makeSite()
	defer func() { a.template.Close() }()
	address, _ := process.LookupEnv(a.spec.Environ, telemetry.EnvHealthPort)
	config := telemetry.HealthConfig{Address: address, Status: a.status, Pulse: a.pulse, StopLimit: 2 * a.spec.ShutdownTimeout, Users: a.spec.LoopbackUsers, Log: a.log}
	config.Metrics = func(b *promtext.Buffer) {
		b.Single("rallypoint_agent_hang_limit_seconds", "gauge", "Time without a step after which the job is said to hang; 0 while it is not watched.", time.Duration(a.hangLimit.Load()).Seconds())
		a.rdzv.Expose(b)
		if a.spec.Expose != nil {
			a.spec.Expose(b)
		}
	}
	health := telemetry.NewHealth(config)
	defer health.Close()
	reported := telemetry.ReportTrainJob(func(name string) string { value, _ := process.LookupEnv(a.spec.Environ, name); return value }, a.status, a.log)
	defer func() { reported(err == nil) }()

	if err = a.checkNode(checkJoin); err == nil {
		a.holdTemplate() // after the checks, which end all that they find to be none of this agent's
		stop := a.watchChecks()
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
	case errors.Is(err, rendezvous.ErrGraceful):
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

// makeSite writes the Python module that counts the workers' optimizer steps, next to their
// progress records.
func (a *Agent) makeSite() {
	if !a.spec.CountSteps || a.progress.Folder() == "" {
		return
	}
	var err error
	if a.site, err = process.NewSite(a.progress.Folder()); err != nil {
		a.log.Warn("the steps of optimizers are not counted: " + err.Error())
	}
}

// holdTemplate starts the workers' template, which imports while the nodes meet.
func (a *Agent) holdTemplate() {
	if !a.spec.Warm {
		return
	}
	argv, differ := arguments(&a.spec, 0), false
	for local := range a.spec.Workers {
		differ = differ || !slices.Equal(argv, arguments(&a.spec, local))
	}
	a.template = process.NewTemplate(a.forker, a.reaper, a.guard, process.TemplateConfig{
		Argv: argv, Differ: differ, Environ: merge(a.spec.Environ, nil), Marker: a.logs.Marker(), Folder: a.progress.Folder(),
		Preload: a.spec.Preload, Timeout: cmp.Or(a.spec.PreloadTimeout, process.DefaultPreloadTimeout),
	}, a.log)
}

// followProgress begins to follow how far the workers are.
func (a *Agent) followProgress() {
	a.progress = progress.NewTracker(a.spec.Environ, a.log)
	a.progress.WaitWindow = cmp.Or(a.waitWindow, a.progress.WaitWindow)
	a.status.FollowProgress(a.progress)
	a.rdzv.CarryTraining(a.progress.Report)
}

// rounds runs one attempt after another.
func (a *Agent) rounds() error {
	defer func() { a.there.Stop() }()
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
		a.tellCarried()
		return true, nil
	case !a.again.IsZero():
		a.stepDone(telemetry.StepRestart, a.again, err)
		a.again = time.Time{}
	}
	if err != nil {
		return false, errors.Join(err, a.abandon(err))
	}
	v := a.supervise(t)
	if state := outcomeStates[v]; state != "" {
		a.publish(telemetry.Monitored{State: state})
	}
	ended := time.Now()
	first := v == someFailed && (a.announcedStop().Round == 0 || a.announcedStop().Rank == a.assignment.group)
	if a.carries(t, v) {
		a.again = ended
		return a.carry(t, v)
	}
	if again, err = a.finish(t, v); again {
		a.again = ended
		if first {
			err = a.checkAgain()
		}
	}
	return again, err
}

// initialize joins the next round and starts an attempt.
func (a *Agent) initialize() (t *attempt, err error) {
	first := a.assignment == nil
	if err = a.takePlace(); err != nil {
		return nil, err
	}
	a.publish(telemetry.RanksAssigned{})
	if a.carried != nil && a.assignment.ranks.carried > 0 {
		began := time.Now()
		t, err = a.resume()
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
	t, err = a.start()
	a.stepDone(telemetry.StepStart, began, err)
	return t, err
}

// takePlace joins the next round and learns the ranks in it.
func (a *Agent) takePlace() (err error) {
	began := time.Now()
	defer func() { a.stepDone(telemetry.StepRendezvous, began, err) }()
	a.publish(telemetry.Joining{})
	err = a.join()
	a.there.Stop() // of the last round: while this node joins it still shows there that it is alive
	a.there = nil
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

// join waits for a place in the next round.
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
	a.asked = a.asked || o.ByDirective && a.changed == progress.CauseRegroup
	a.assignment = &assignment{Outcome: o, group: o.Rank, groups: o.World, keys: a.rdzv.Keys(o.Round)}
	if a.restarts.charged && len(o.Dropped) > 0 {
		a.log.Info("the failure of this node's workers followed from the loss of a node; it is not counted (" + a.restarts.String() + " used)")
		a.restarts.charged = false
	}
	return nil
}

// errRegroup tells that the nodes have to form a new round.
var errRegroup = errors.New("the nodes have to regroup")

// cutShort is why a wait was not completed that ends with the first signal and with the round.
func (a *Agent) cutShort() error {
	if stop := a.interrupted(); stop != nil {
		return stop
	}
	a.publish(telemetry.Leaving{Reason: a.rdzv.Reason()})
	return errRegroup
}

// takeRanks learns the workers' ranks, and the restart count of the whole job.
func (a *Agent) takeRanks() error {
	a.noteLate()
	restarts, own := a.restarts.used(), a.restarts.own(a.progress, a.asked)
	a.restarts.charged = false
	s := a.assignment
	ctx, cancel := a.untilRegroup()
	defer cancel()
	if a.spec.Identical {
		s.ranks = identicalRanks(s.group, s.groups, a.spec.Workers, restarts)
	} else {
		info := roleInfo{Role: a.spec.Role, Rank: s.group, LocalWorldSize: a.spec.Workers, Restarts: restarts, Host: host.NameOf(a.spec.Host), Budget: own, Survivors: a.survivors()}
		r, err := agreeRanks(ctx, s.keys, info, s.groups)
		if err != nil {
			a.restarts.agreed = restarts // else this charge would be lost
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

// untilRegroup returns a context that ends with the first signal, or when the
// nodes have to regroup.
func (a *Agent) untilRegroup() (context.Context, context.CancelFunc) {
	ctx, cancel := a.untilInterrupt(0)
	return ctx, background.Run(ctx, func(ctx context.Context) {
		defer cancel()
		for a.rdzv.NodesWaiting() == 0 {
			select {
			case <-a.rdzv.Changed():
			case <-ctx.Done():
				return
			}
		}
	})
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
