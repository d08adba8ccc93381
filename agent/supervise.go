package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/agent/stacks"
	"rallypoint/agent/telemetry"
	"rallypoint/agent/watchdog"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
	"rallypoint/internal/wake"
)

// supervise waits until something ends an attempt in its round. Exits of workers and changes of the
// rendezvous are events.
func supervise(t *attempt) outcome {
	var tick, look <-chan time.Time
	if t.spec.Metrics != nil { // which has a number for each interval
		tick = time.Tick(t.spec.MonitorInterval)
	}
	if t.sleepDetector.Timeout > 0 {
		look = time.Tick(t.sleepDetector.Period(t.spec.MonitorInterval))
	}
	defer t.watchStore()()
	departure := newDeparture(t)
	defer followDirectives(t, departure)()
	hangs, stopWatch := watchHang(t)
	defer stopWatch()
	steps := wake.New() // the workers make some
	defer watchWaits(t, steps)()
	defer t.running.Store(false)
	sample := time.NewTimer(progress.SampleInterval)
	defer sample.Stop()
	var patience <-chan time.Time // with a worker that the watchdog sent a signal

	if end := t.endOf(); end != 0 { // by a worker that was not replaced
		return end
	}
	for {
		if departure.due(t.mustRegroup()) && !t.allSucceeded() { // workers that have succeeded need no other round
			return mustRegroup
		}
		select {
		case <-departure.look:
			departure.endOverdue()
		case <-t.interrupts.first.Done():
			return mustInterrupt
		case <-t.workers.Ended():
			t.note(t.workers.TakeEnded())
			if end := t.endOf(); end != 0 {
				if end == someFailed {
					hangs.lookBack()
				}
				return end
			}
		case <-t.watchdog.Expiries():
			for _, o := range t.watchdog.Take() {
				t.reapOverdue(o)
			}
			if patience == nil {
				patience = time.After(t.spec.ShutdownTimeout)
			}
		case <-patience:
			patience = nil
			t.workers.KillOverdue()
		case <-look:
			if t.unkillableWorkers() {
				return unkillable
			}
		case <-sample.C:
			sample.Reset(min(t.progress.Sample(), hangs.look()))
			t.noteFirstStep()
			if t.progress.Stepping() {
				steps.Set()
			}
			if departure.isAsked() {
				return mustRegroup
			}
		case h := <-hangs.heard:
			hangs.take(h)
			if t.asks != "" {
				return mustRegroup
			}
		case <-t.resized:
			for _, files := range t.files() {
				files.Resized()
			}
		case <-t.pulse: // the health port asks whether the agent is alive
		case <-t.rdzv.Changed():
		case <-tick:
			t.publish(telemetry.Monitored{State: telemetry.StateHealthy})
		}
	}
}

// allSucceeded reports whether all workers have ended well, also before that is noted; after supervise,
// or in its goroutine.
func (t *attempt) allSucceeded() bool {
	return !slices.ContainsFunc(t.workers.Procs, func(p *process.Process) bool { return !p.HasExited() || p.Code != 0 || p.Fault != "" })
}

// endOf returns how the ended workers decide an attempt; 0: it continues.
func (t *attempt) endOf() outcome {
	over := len(t.ended) == len(t.workers.Procs)
	switch {
	case over && (len(t.failures) == 0 || t.keeps()):
		return allSucceeded
	case len(t.failures) == 0 || t.keeps():
		return 0
	case t.announcedStop().Round != 0 && !(t.spec.Keep && t.announcedStop().Leaving): // it ended by that
		return mustRegroup
	}
	return someFailed
}

// note takes workers that have ended.
func (t *attempt) note(ended []*process.Process) {
	for _, p := range ended {
		t.publish(telemetry.WorkerExited{Worker: p})
		t.ended[p.Local] = p
		if p.Code == 0 && p.Fault == "" {
			t.succeeded++
		} else {
			t.outputs[p.Local].Shared.Ended()
			t.failures = append(t.failures, p)
			if !p.Stopped.Load() {
				p.Memory = t.oom.Note()
			}
			if t.running.Load() && t.keeps() {
				t.keepsWithout(p)
			}
		}
	}
}

// keeps reports whether the failures of this attempt's workers end nothing: another worker runs or
// has succeeded, and Spec.Keep is set.
func (t *attempt) keeps() bool {
	return t.spec.Keep && len(t.failures) < len(t.workers.Procs)
}

// How often the agent samples whether workers that make steps wait, and after how many samples it checks
// whether they use a device.
const (
	waitLook       = 200 * time.Millisecond
	looksForDevice = 300
)

// watchWaits measures how much of their time the workers of an attempt wait for other ranks,
// until the returned function is called or a worker ends. It sleeps until steps is set, while they make
// none. It cannot measure workers that use a device (docs/decisions/0125).
func watchWaits(t *attempt, steps wake.Signal) (stop func()) {
	if t.progress.Folder() == "" || t.assignment.ranks.world < 2 || !stacks.KernelTellsWaits() {
		return func() {}
	}
	return background.Run(context.Background(), func(ctx context.Context) {
		waiting := make([]bool, len(t.workers.Procs))
		for look := 0; ; look++ {
			if !t.progress.Stepping() {
				select {
				case <-steps:
				case <-ctx.Done():
				}
			}
			if !backoff.Sleep(ctx, backoff.Jitter(waitLook)) {
				return
			}
			for i, p := range t.workers.Procs {
				if p.HasExited() || look%looksForDevice == 0 && stacks.UsesDevice(p.Pid) {
					t.progress.ForgetWaits()
					return
				}
				waiting[i] = stacks.WaitsForThread(p.Pid)
			}
			t.progress.NoteWaits(t.assignment.ranks.base, waiting)
		}
	})
}

// unkillableWorkers says which workers are asleep, and reports whether one has been for
// too long.
func (t *attempt) unkillableWorkers() bool {
	sleeping, stuck := t.sleepDetector.Look(t.workers.Procs, time.Now())
	for _, p := range sleeping {
		t.log.Warn(fmt.Sprintf("the worker of local rank %d (pid %d) is in uninterruptible sleep (state D)", p.Local, p.Pid))
	}
	for _, p := range stuck {
		if p.Stuck {
			continue
		}
		p.Stuck = true
		p.Fault = fmt.Sprintf("The worker has been in uninterruptible sleep (state D) for %v. ", t.sleepDetector.Timeout)
		t.log.Error(fmt.Sprintf("the worker of local rank %d (pid %d) has been in uninterruptible sleep (state D) for %v: giving up on this node",
			p.Local, p.Pid, t.sleepDetector.Timeout))
	}
	return len(stuck) > 0
}

// overdueMessage is how the message of a failure by the watchdog begins.
const overdueMessage = "The timer"

// reapOverdue ends the worker that a process with an expired timer is or belongs
// to; that it fails by it is a failure like any other.
func (t *attempt) reapOverdue(o watchdog.Overdue) {
	for i := range o.Timers {
		t.publish(telemetry.WatchdogActed{Name: "timer expired", Timer: &o.Timers[i]})
		if i == o.Fatal {
			break
		}
	}
	if o.Fatal < 0 {
		first := &o.Timers[0]
		t.log.Warn(fmt.Sprintf("the timer %q of process %d has expired; it asked for no signal, so nothing is done", first.Scope, first.Pid))
		return
	}
	timer := &o.Timers[o.Fatal]
	p := t.workers.WorkerOf(timer.Pid)
	if p == nil {
		t.log.Info(fmt.Sprintf("the timer %q of process %d has expired, but the process no longer belongs to a worker", timer.Scope, timer.Pid))
		return
	}
	late := max(time.Since(timer.At), 0).Round(time.Millisecond)
	t.log.Error(fmt.Sprintf("the timer %q of process %d expired %v ago: ending the worker of local rank %d with %s",
		timer.Scope, timer.Pid, late, p.Local, process.SignalName(timer.Signal)))
	p.Fault = cmp.Or(p.Fault, fmt.Sprintf(overdueMessage+" %q of process %d expired, %v overdue. ", timer.Scope, timer.Pid, late))
	if timer.Pid != p.Pid {
		_ = unix.Kill(timer.Pid, timer.Signal) // read as the worker's descendant just now
	}
	p.SignalGroup(timer.Signal)
	t.publish(telemetry.WatchdogActed{Name: "kill worker process", Timer: timer})
}
