package process

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// WorkerGroup is the workers of one attempt. Its methods are for one goroutine.
type WorkerGroup struct {
	log     *slog.Logger
	forker  *Forker
	reaper  *Reaper
	Procs   []*Process
	exits   *exits
	watches sync.WaitGroup
}

// Launch describes one worker to start.
type Launch struct {
	Local int
	Argv  []string
	Env   []string
	Files []uintptr // stdin, stdout, stderr
	CPUs  []int     // nil: all of this process
	// Site is a folder of NewSite: the worker, if it is an interpreter of Python, counts the steps
	// of torch's optimizers into its progress record and answers where it is; "": neither.
	Site string
}

// StartError ends a run because workers could not be started.
type StartError struct {
	LocalRank int // -1: it is not about one of them
	Err       error
}

func (e *StartError) Error() string {
	if e.LocalRank < 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("cannot start local rank %d: %v", e.LocalRank, e.Err)
}

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// StartWorkers starts the workers, each in its own session. If one cannot be started, the others
// are killed and the error names it. t, which may be nil, forks those that can be forked.
func StartWorkers(f *Forker, s *Reaper, t *Template, workers []Launch, log *slog.Logger) (*WorkerGroup, error) {
	w := &WorkerGroup{log: log, forker: f, reaper: s, exits: newExits()}
	var err error
	if w.Procs, err = w.start(t, workers); err != nil {
		w.Stop(StopOptions{Signal: unix.SIGKILL, quiet: true})
		return nil, err
	}
	return w, nil
}

// StartAside starts a group that runs alongside another one, which it leaves alone whatever fails, and
// whose end leaves it alone. EndAside ends it, by the marker that its processes have in their environment.
func StartAside(f *Forker, workers []Launch, marker string, log *slog.Logger) (*WorkerGroup, error) {
	w := &WorkerGroup{log: log, forker: f, exits: newExits()}
	var err error
	w.Procs, err = w.start(nil, workers)
	for _, p := range w.Procs {
		f.keepSession(p.Pid)
	}
	if err != nil {
		w.EndAside(marker)
		return nil, err
	}
	return w, nil
}

// start starts workers, and returns those that were: all of them, unless there is an error.
func (w *WorkerGroup) start(t *Template, workers []Launch) (procs []*Process, err error) {
	for i, pid := range t.fork(workers) {
		l := workers[i]
		if pid == 0 && err == nil {
			var failed error
			if pid, failed = w.forker.start(l.Argv, l.observed(), l.Files, l.CPUs); failed != nil {
				err = &StartError{l.Local, failed}
			}
		}
		if pid == 0 {
			continue
		}
		p := &Process{Local: l.Local, Pid: pid, pidfd: openPidfd(pid), exited: make(chan struct{})}
		procs = append(procs, p)
		w.watches.Go(func() { p.watch(w.exits.add) })
	}
	return procs, err
}

// Replace starts workers in the places of those that have ended, and kills what these have left in
// their process groups; what has left its group runs on until Stop.
func (w *WorkerGroup) Replace(t *Template, workers []Launch) error {
	for _, l := range workers {
		p := w.Procs[l.Local]
		if !w.reaper.keep {
			p.SignalGroup(unix.SIGKILL)
		}
		w.forker.reap(p.Pid)
		p.reaped = true
		p.unwatch()
	}
	procs, err := w.start(t, workers)
	for _, p := range procs {
		w.Procs[p.Local] = p
	}
	if err != nil { // their pids may be given to others
		w.Procs = slices.DeleteFunc(w.Procs, func(p *Process) bool { return p.reaped })
	}
	return err
}

// Ended has a token while TakeEnded may have something.
func (w *WorkerGroup) Ended() <-chan struct{} { return w.exits.wake }

// TakeEnded returns the workers that have ended since the last call.
func (w *WorkerGroup) TakeEnded() []*Process { return w.exits.take() }

// StopOptions says how to stop a worker group.
type StopOptions struct {
	Signal unix.Signal
	Grace  time.Duration   // between the signal and SIGKILL, one for all workers; 0: none
	Hurry  context.Context // when it ends: SIGKILL at once; nil: it does not
	// BeforeKill, unless it is nil, is called with the workers that have not exited within Grace,
	// before they are killed.
	BeforeKill func([]*Process)
	// Look, unless it is nil, is called each LookEvery while workers are waited for, and sets
	// Stuck of those that are.
	Look      func()
	LookEvery time.Duration
	ticks     <-chan time.Time // of LookEvery
	quiet     bool             // no lines about single workers
}

// Stop stops the workers that still run and whatever they left behind, reaps them, and returns
// once they and their descendants have exited. The grace belongs to the workers: their helpers get
// the signal after them (see delivery). A worker that even SIGKILL does not end is Stuck after
// another grace, and left behind. It returns the workers that TakeEnded has not returned before.
func (w *WorkerGroup) Stop(o StopOptions) []*Process {
	o.Hurry = cmp.Or(o.Hurry, context.Background())
	d := w.signal(o)
	defer d.close()
	grace, cancel := context.WithTimeout(o.Hurry, o.Grace)
	defer cancel()
	if o.Look != nil {
		ticks := time.NewTicker(o.LookEvery)
		defer ticks.Stop()
		o.ticks = ticks.C
	}
	if o.Signal != unix.SIGKILL {
		w.awaitExits(grace, d, o)
		w.beforeKill(o)
		if w.forceExits(d, o) {
			grace, cancel = context.WithTimeout(o.Hurry, min(o.Grace, helperGrace))
			defer cancel()
		}
	}
	w.awaitDeath(o)
	w.reap(grace, d)
	ended := w.TakeEnded()
	w.watches.Wait()
	return append(ended, w.TakeEnded()...)
}

// helperGrace is how long the helpers of a worker that was killed have from the signal to SIGKILL.
const helperGrace = time.Second

// signal sends the options' signal to the workers, and to the children of those that are shells.
func (w *WorkerGroup) signal(o StopOptions) *delivery {
	d := newDelivery(o, w)
	for _, p := range w.Procs {
		switch ended := p.HasExited(); {
		case ended && (w.reaper.keep || !d.wide && p.pidfd != nil): // awaitExits and endOrphans look at what it has left
		case d.wide || p.pidfd == nil && (ended || isShell(p.Pid)):
			if !ended {
				p.Stopped.Store(true)
			}
			p.SignalGroup(o.Signal)
		case isShell(p.Pid):
			d.shells = append(d.shells, p.Pid)
		}
	}
	children := w.reaper.members(d.shells) // before the shells end
	for _, p := range w.Procs {
		if p.HasExited() {
			continue
		}
		p.Stopped.Store(true)
		if why := foreign(p.Pid); why != "" {
			w.log.Warn(fmt.Sprintf("process %d of local rank %d %s", p.Pid, p.Local, why))
		} else if !o.quiet {
			w.log.Debug(fmt.Sprintf("Sending process %d closing signal %s", p.Pid, SignalName(o.Signal)))
		}
		if !d.wide {
			p.Signal(o.Signal)
		}
	}
	d.pass(children)
	return d
}

// EndAside is an immediate Stop of a group of StartAside. It ends the processes, their process groups,
// and all processes with marker in their environment, which only descendants of the group may have.
func (w *WorkerGroup) EndAside(marker string) {
	for _, p := range w.Procs {
		p.Stopped.Store(!p.HasExited())
		p.SignalGroup(unix.SIGKILL)
	}
	EndMarked(marker)
	w.awaitDeath(StopOptions{})
	for _, p := range w.Procs {
		if p.HasExited() {
			w.forker.reap(p.Pid)
			p.reaped = true
		}
		p.unwatch()
	}
	w.watches.Wait()
}

// Abandon returns the workers that Stop has left behind, and counts them as killed.
func (w *WorkerGroup) Abandon() (left []*Process) {
	for _, p := range w.Procs {
		if !p.HasExited() { // its watch has ended
			p.Code, p.At = -int(unix.SIGKILL), time.Now()
			left = append(left, p)
		}
	}
	return left
}

// stick notes that no signal ends a worker, or what a shell has started that is one.
func (p *Process) stick(why string) {
	p.Stuck, p.Fault = true, cmp.Or(p.Fault, why)
}

// AnyStuck reports whether a worker is or was stuck.
func (w *WorkerGroup) AnyStuck() bool {
	return slices.ContainsFunc(w.Procs, func(p *Process) bool { return p.Stuck })
}

// KillOverdue kills the workers that the watchdog's signal did not end.
func (w *WorkerGroup) KillOverdue() {
	for _, p := range w.Procs {
		if p.Fault != "" && !p.HasExited() {
			p.SignalGroup(unix.SIGKILL)
		}
	}
}

// awaitExits waits until every worker has ended or is stuck, or grace ends, and passes the
// signal on to what those that have ended leave in their groups, and to what shells have wrapped.
func (w *WorkerGroup) awaitExits(grace context.Context, d *delivery, o StopOptions) {
	for {
		var ended []int
		for _, p := range w.Procs {
			switch {
			case !p.HasExited():
				continue
			case p.pidfd != nil && !w.reaper.keep:
				ended = append(ended, p.Pid)
			case p.Stopped.Load() && !d.wide && !d.passed[p.Pid]:
				d.passed[p.Pid] = true
				p.SignalGroup(d.sig)
			}
		}
		if !slices.ContainsFunc(w.Procs, func(p *Process) bool { return !p.HasExited() && !p.Stuck }) {
			return
		}
		d.pass(w.reaper.members(append(ended, d.shells...)))
		select {
		case <-d.wake:
		case <-o.ticks:
			o.Look()
		case <-grace.Done():
			return
		}
	}
}

func (w *WorkerGroup) allExited() bool {
	return !slices.ContainsFunc(w.Procs, func(p *Process) bool { return !p.HasExited() })
}

// beforeKill shows the workers that have not ended, unless they are killed at once anyway.
func (w *WorkerGroup) beforeKill(o StopOptions) {
	if o.Hurry.Err() != nil {
		return
	}
	left := slices.DeleteFunc(slices.Clone(w.Procs), (*Process).HasExited)
	if o.BeforeKill != nil && o.Grace > 0 && len(left) > 0 {
		o.BeforeKill(left)
	}
}

// forceExits kills the workers that are still there. It reports whether the rest of their groups
// has got the signal only now, and not been killed with them.
func (w *WorkerGroup) forceExits(d *delivery, o StopOptions) (late bool) {
	for _, p := range w.Procs {
		if p.HasExited() {
			continue
		}
		if !o.quiet && foreign(p.Pid) == "" {
			w.log.Warn(fmt.Sprintf("Unable to shutdown process %d via %s, forcefully exiting via %s",
				p.Pid, SignalName(o.Signal), SignalName(unix.SIGKILL)))
		}
		if d.wide || p.pidfd == nil || w.reaper.keep || o.Hurry.Err() != nil {
			p.SignalGroup(unix.SIGKILL)
			continue
		}
		late = true
		p.Signal(unix.SIGKILL)
		p.SignalGroup(o.Signal)
	}
	d.wide = d.wide || late
	return late
}

// leastDeathWait is how long a killed process has at least until it is given up:
// also without a grace the kernel needs a moment.
var leastDeathWait = 10 * time.Second

// stuckDeathWait is how long a stuck worker has to end by SIGKILL after all.
const stuckDeathWait = time.Second

// awaitDeath waits for killed workers, and leaves behind those that do not end. It does not wait for
// one that this process may not signal.
func (w *WorkerGroup) awaitDeath(o StopOptions) {
	began := time.Now()
	for _, p := range w.Procs {
		for left := false; !left && !p.HasExited(); {
			wait := max(o.Grace, leastDeathWait)
			switch {
			case foreign(p.Pid) != "":
				wait = 0
			case p.Stuck:
				wait = stuckDeathWait
			}
			limit := time.NewTimer(wait - time.Since(began))
			select {
			case <-p.exited:
			case <-o.ticks:
				o.Look()
			case <-limit.C:
				left = true
				w.leaveBehind(p)
			}
			limit.Stop()
		}
	}
}

// leaveBehind gives up a worker that SIGKILL has not ended. Its helpers may not be stuck.
func (w *WorkerGroup) leaveBehind(p *Process) {
	w.log.Error(fmt.Sprintf("process %d of local rank %d %s; it is left behind", p.Pid, p.Local, unended(p.Pid)))
	p.stick("The worker " + unended(p.Pid) + ". ")
	p.SignalGroup(unix.SIGKILL)
	w.forker.keep(p.Pid) // for the reaper, which waits for what the workers have left
}

// reap collects the workers' exit status, and ends the processes that they left behind.
func (w *WorkerGroup) reap(grace context.Context, d *delivery) {
	groups := make([]int, 0, len(w.Procs))
	for _, p := range w.Procs {
		if !p.reaped && p.HasExited() {
			w.forker.reap(p.Pid)
			p.reaped = true
			groups = append(groups, p.Pid)
		}
		p.unwatch()
	}
	stuck := w.reaper.endOrphans(grace, groups, d)
	for _, p := range w.Procs {
		if slices.Contains(stuck, p.Pid) && slices.Contains(d.wraps, p.Pid) {
			p.stick("A process that the worker has started has not ended by SIGKILL. ")
		}
	}
}

// maxAncestors bounds the way from a process to the worker that it belongs to.
const maxAncestors = 64

// WorkerOf returns the running worker that a process is or descends from; nil for
// any other process.
func (w *WorkerGroup) WorkerOf(pid int) *Process {
	for range maxAncestors {
		for _, p := range w.Procs {
			if p.Pid == pid {
				if p.HasExited() {
					return nil
				}
				return p
			}
		}
		stat, ok := readStat(pid)
		if !ok || stat.parent <= 1 {
			return nil
		}
		pid = stat.parent
	}
	return nil
}
