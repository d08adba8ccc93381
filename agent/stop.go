package agent

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/agent/process"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
	"rallypoint/internal/host"
)

// leaves reports whether this node, which cannot stop one of its workers, leaves the run to the
// others: there are enough of them, a restart is left in the budget, and no node of the round was
// lost before (docs/decisions/0118). Under Spec.Keep the others also continue without one whose
// workers have all failed, if they cannot be started again.
func (a *Agent) leaves(v outcome) bool {
	if a.spec.Keep && v == someFailed {
		return a.assignment.groups > 1 && (!a.restarts.left() || a.rdzv.NodesWaiting() > 0)
	}
	if v != unkillable || !a.restarts.left() || a.rdzv.NodesWaiting() > 0 {
		return false
	}
	return a.othersAreEnough()
}

// othersAreEnough reports whether the nodes of the round would be enough without this one.
func (a *Agent) othersAreEnough() bool {
	least := a.rdzv.MinNodes()
	return least > 0 && a.assignment.groups > least
}

// mayRestart reports whether the budget allows another start, and it may go better than this one.
func (a *Agent) mayRestart(t *attempt) bool {
	return !t.hopeless && a.restarts.left()
}

// announcePatience bounds how long the stop of the workers waits until the other nodes
// have been told. An answer takes one exchange with the control plane; one that is cut off
// gives none.
const announcePatience = 500 * time.Millisecond

// announceStop tells the other nodes that this one is about to stop its workers, and
// returns how the attempt ends: a failure that comes while another node leaves followed
// from that. A node alone tells of failures, too: the status has them from here.
func (a *Agent) announceStop(t *attempt, v outcome) outcome {
	if v == allSucceeded || v == mustRegroup || v == mustInterrupt && a.assignment.groups < 2 {
		return v
	}
	stop := rendezvous.AnnounceStop{Round: a.assignment.Round, Leaving: v == mustInterrupt || t.leaves}
	if v == mustInterrupt {
		stop.Reason = a.interrupted().Error()
	} else {
		first := a.announcedFailure(t)
		changed, _, _ := a.progress.Pulse()
		t.failure, t.hopeless = first.Summary(), v == someFailed && first.Unguarded() && changed.IsZero()
		stop.Reason = t.failure
	}
	asks := a.asksToLeave(t, v)
	switch {
	case asks:
		stop.Away = a.spec.Leave.Window
	case v == someFailed && a.mayRestart(t):
		stop.Reason += "; " + a.restarts.text(a.restarts.used()+1)
	}
	ctx, cancel := a.untilImpatient(announcePatience)
	defer cancel()
	a.answeredStop(t, asks, a.rdzv.AnnounceStop(ctx, stop))
	if s := a.announcedStop(); v == someFailed && !t.leaves && s.Leaving && s.Rank != a.assignment.group {
		return mustRegroup
	}
	return v
}

// announcedStop is the announced stop of this node's round; its Round is 0 if none is
// known.
func (a *Agent) announcedStop() rendezvous.RoundStop {
	return a.rdzv.Stopped(a.assignment.Round)
}

// noteFailure keeps by which failure the round ends, if it does by one.
func (a *Agent) noteFailure() {
	if s := a.announcedStop(); s.Round != 0 && !s.Leaving {
		a.failed, a.failedAt = training.Failure{Round: s.Round, Text: s.Reason}, time.Now()
	}
}

// reportedFailure is the last failure as this node reports it, for a status of the job that no
// control plane has, or one that has not seen it: one node of a round does.
func (a *Agent) reportedFailure() training.Failure {
	if a.assignment.group != 0 || a.failed.Round == 0 {
		return training.Failure{}
	}
	f := a.failed
	f.Age = time.Since(a.failedAt)
	return f
}

// readPatience bounds how long the other nodes are not told of a failure because the
// worker's log is being read: the file system may be a remote one that has failed.
const readPatience = 100 * time.Millisecond

// announcedFailure is the first failure of an attempt with the last output of its worker.
func (a *Agent) announcedFailure(t *attempt) *failure.Failure {
	f := a.firstFailure(t)
	if len(t.failures) == 0 {
		return f
	}
	type output struct {
		text   []byte
		shared bool
	}
	read, of := make(chan output, 1), t.outputs[f.LocalRank]
	t.reading.Go(func() {
		text, shared := of.LastStderr()
		read <- output{text, shared}
	})
	select {
	case o := <-read:
		f.Stderr, f.SharedOutput = o.text, o.shared
	case <-time.After(readPatience):
	}
	return f
}

// firstFailure describes the worker whose failure ends an attempt, as far as that is known
// without asking a name server or reading what it wrote.
func (a *Agent) firstFailure(t *attempt) *failure.Failure {
	var first *process.Process
	if len(t.failures) > 0 {
		first = t.failures[0]
	} else { // the one that cannot be killed
		for _, p := range t.workers.Procs {
			if p.Fault != "" {
				first = p
				break
			}
		}
	}
	if first == nil {
		return &failure.Failure{Host: host.NameOf(a.spec.Host), Hang: t.hangText()}
	}
	f := a.describe(t, first)
	f.Hang, f.Still, f.Stood = t.hangText(), t.still, t.stood
	return f
}

// describe is firstFailure of one worker.
func (a *Agent) describe(t *attempt, p *process.Process) *failure.Failure {
	f := &failure.Failure{
		Rank: a.assignment.ranks.base + p.Local, LocalRank: p.Local, Pid: p.Pid, ExitCode: -int(unix.SIGKILL),
		Host: host.NameOf(a.spec.Host), Time: time.Now(), ErrorFile: process.NotAvailable, Message: p.Fault, Asleep: fellAsleep(p),
	}
	if p.HasExited() { // else its watch may be writing these
		f.ExitCode, f.Time = p.Code, p.At
		f.OOM = p.Memory != "" && p.Code == -int(unix.SIGKILL)
	}
	return f
}

// lossSeen reports whether a node of the round is known to be lost. It is called after a failure
// of this node, whose own announcement also makes nodes wait.
func (a *Agent) lossSeen() bool {
	if a.rdzv.NodesWaiting() == 0 {
		return false
	}
	if s := a.announcedStop(); s.Round != 0 {
		return s.Lost
	}
	return true
}

// recordPatience bounds how long a node waits, with its workers stopped, for the report of
// the failure that another node has announced and may not live to write.
const recordPatience = 2 * time.Second

// awaitCulprit waits until the node that announced the stop has published its failure.
func (a *Agent) awaitCulprit(ctx context.Context) {
	s := a.announcedStop()
	if s.Round == 0 || s.Leaving || s.Rank == a.assignment.group {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	_ = failure.AwaitPublished(ctx, a.assignment.keys, s.Round, s.Rank)
}
