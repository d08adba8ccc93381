package agent

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// stuckWorkers says which workers are asleep, and reports whether one has been for
// too long.
func (a *Agent) unkillableWorkers(t *attempt) bool {
	sleeping, stuck := a.sleepDetector.look(t.workers.procs, time.Now())
	for _, p := range sleeping {
		a.log.Warn(fmt.Sprintf("the worker of local rank %d (pid %d) is in uninterruptible sleep (state D)", p.local, p.pid))
	}
	for _, p := range stuck {
		p.Fault = fmt.Sprintf("The worker has been in uninterruptible sleep (state D) for %v. ", a.sleepDetector.timeout)
		a.log.Error(fmt.Sprintf("the worker of local rank %d (pid %d) has been in uninterruptible sleep (state D) for %v: giving up on this node",
			p.local, p.pid, a.sleepDetector.timeout))
	}
	return len(stuck) > 0
}

// overdueMessage is how the message of a failure by the watchdog begins.
const overdueMessage = "The timer"

// reapOverdue ends the worker that a process with an expired timer is or belongs
// to (A90); that it fails by it is a failure like any other (W8).
func (a *Agent) reapOverdue(t *attempt, o Overdue) {
	for i := range o.timers {
		a.recordWatchdog("timer expired", &o.timers[i])
		if i == o.fatal {
			break
		}
	}
	if o.fatal < 0 {
		first := &o.timers[0]
		a.log.Warn(fmt.Sprintf("the timer %q of process %d has expired; it asked for no signal, so nothing is done", first.scope, first.pid))
		return
	}
	timer := &o.timers[o.fatal]
	p := t.workers.workerOf(timer.pid)
	if p == nil {
		a.log.Info(fmt.Sprintf("the timer %q of process %d has expired; no worker is or has such a process any more", timer.scope, timer.pid))
		return
	}
	late := max(time.Since(timer.at), 0).Round(time.Millisecond)
	a.log.Error(fmt.Sprintf("the timer %q of process %d expired %v ago: ending the worker of local rank %d with %s",
		timer.scope, timer.pid, late, p.local, SignalName(timer.signal)))
	if p.Fault == "" {
		p.Fault = fmt.Sprintf(overdueMessage+" %q of process %d expired, %v overdue. ", timer.scope, timer.pid, late)
	}
	if timer.pid != p.pid {
		_ = unix.Kill(timer.pid, timer.signal) // read as the worker's descendant just now
	}
	p.signalGroup(timer.signal)
	a.recordWatchdog("kill worker process", timer)
}
