package agent

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/agent/telemetry"
	"rallypoint/agent/watchdog"
)

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

// fellAsleep reports whether a worker is stuck in uninterruptible sleep.
func fellAsleep(p *process.Process) bool { return p.Stuck && strings.Contains(p.Fault, "(state D)") }

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
