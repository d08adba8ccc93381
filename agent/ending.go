package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/background"
)

// ending is how an attempt ends in a round, and decides what follows. It is one goroutine's.
type ending struct {
	*attempt
	how      outcome
	said     string // the first failure, as this node has announced it; "": it has announced none
	leaves   bool   // this node leaves the run to the others, see othersContinue
	unfit    bool   // as unfit, see Spec.Leave
	struck   bool   // its failure counts for Spec.Leave
	hopeless bool   // another start would fail in the same way
}

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

// finish stops the rest of the attempt and decides what comes next.
func (e *ending) finish() (again bool, err error) {
	e.still = e.progress.Standstill()
	e.leaves = e.othersContinue()
	e.announceStop()
	why := ""
	if e.how != allSucceeded {
		why = e.why()
	}
	if e.how == mustRegroup {
		e.publish(telemetry.Leaving{Reason: why})
	}
	e.halt(why)
	if stop := e.interrupted(); stop != nil {
		e.publishEnds(nil)
		return false, stop
	}
	switch e.how {
	case allSucceeded:
		e.lastFailures = e.kept()
		e.publishEnds(e.lastFailures)
		return false, e.exitBarrier()
	case mustRegroup:
		e.readPeers()
		e.lastFailures = e.assignment.peers
		if peers := e.lastFailures; len(peers) > 0 {
			e.publish(telemetry.PeerFailed{Root: &peers[0]})
			if !e.rdzv.Closed() && !strings.Contains(why, peers[0].Worker()) {
				e.log.Warn("what happened: " + peers[0].Summary())
			}
		}
		return true, nil
	}
	return e.afterFailure()
}

// halt stops the rest of the attempt, and whatever serves its workers.
func (e *ending) halt(why string) {
	sig, grace := unix.SIGTERM, e.spec.ShutdownTimeout
	stopping := telemetry.Stopping{Why: why}
	var stop *SignalError
	if e.how == mustInterrupt && errors.As(e.interrupted(), &stop) {
		sig, grace = stop.Signal, e.interrupts.grace // set before the first signal was announced
		stopping.Warning = fmt.Sprintf("Received %d death signal, shutting down workers", sig) + e.interrupts.impatience()
	}
	if e.how == mustRegroup {
		stopping.Warning = "stopping the workers: " + why
	}
	e.publish(stopping)
	e.worlds.lose(why)
	published := e.publishFirst()
	began := time.Now()
	o := process.StopOptions{Signal: sig, Grace: grace, Hurry: e.interrupts.forced, BeforeKill: e.logLastStacks}
	if e.sleepDetector.Timeout > 0 {
		o.Look, o.LookEvery = func() { e.unkillableWorkers() }, e.sleepDetector.Period(e.spec.MonitorInterval)
	}
	e.note(e.workers.Stop(o))
	e.giveUpStuck()
	e.logFlightRecords()
	if e.how != allSucceeded && e.how != mustInterrupt {
		e.stepDone(telemetry.StepStop, began, nil)
	}
	published()
	e.endRecords()
	e.guard.Watch(nil)
	if e.watchdog != nil {
		e.watchdog.Stop()
		e.publish(telemetry.WatchdogActed{Name: "watchdog stopped"})
	}
	e.roundOver()
	e.closeFiles()
	e.keepCulprit()
}

func (e *ending) roundOver() {
	e.changed, e.restarts.asked = roundCauses[e.how], false
	e.noteFailure(e.announcedStop())
}

// carries reports whether the attempt lives on after its round.
func (e *ending) carries() bool {
	switch e.how {
	case someFailed: // which the loss of a node may have caused
		return (e.restarts.left() || e.lossSeen()) && e.canCarry()
	case mustRegroup:
		return !e.rdzv.Closed() && e.requeued(nil) == nil && e.canCarry()
	}
	return false
}

// carry has the workers leave their round. Those that have failed are replaced in the next one. After an
// error the workers are still to be stopped.
func (e *ending) carry() (again bool, err error) {
	e.leaveRound()
	e.still = e.progress.Standstill()
	e.noteFirstStep()
	if e.asks != "" {
		e.announceAsked(e.asks)
		e.asks = ""
	}
	e.announceStop()
	published := e.publishFirst()
	e.vacate()
	if e.how == someFailed {
		again, err = e.afterFailure()
	} else {
		e.publish(telemetry.Leaving{Reason: e.rdzv.Reason()})
		e.log.Warn("the workers regroup: " + e.rdzv.Reason())
		for _, p := range e.failures {
			e.log.Warn(e.describe(p).Summary() + "; it is replaced, and not counted: the round had ended")
		}
		again, err = true, e.interrupted()
	}
	published()
	e.roundOver()
	e.keepCulprit()
	e.failures, e.hang, e.lastStacks = nil, "", nil
	followers := e.followers
	e.followers = newFollowers()
	e.questions.Go(followers.end)
	return again, err
}

func (e *ending) why() string {
	switch e.how {
	case mustInterrupt:
		return e.interrupted().Error()
	case mustRegroup:
		return cmp.Or(e.rdzv.Reason(), e.asks)
	case unkillable:
		return "a worker cannot be stopped any more"
	}
	return "a worker failed"
}

// othersContinue reports whether this node, which cannot stop one of its workers, leaves the run to the
// others: there are enough of them, a restart is left in the budget, and no node of the round was
// lost before (docs/decisions/0118). Under Spec.Keep the others also continue without one whose
// workers have all failed, if they cannot be started again.
func (e *ending) othersContinue() bool {
	if e.spec.Keep && e.how == someFailed {
		return e.assignment.groups > 1 && (!e.restarts.left() || e.rdzv.NodesWaiting() > 0)
	}
	return e.how == unkillable && e.restarts.left() && e.rdzv.NodesWaiting() == 0 && e.othersAreEnough()
}

// mayRestart reports whether the budget allows another start, and it may go better than this one.
func (e *ending) mayRestart() bool { return !e.hopeless && e.restarts.left() }

// announcePatience bounds how long the stop of the workers waits until the other nodes
// have been told. An answer takes one exchange with the control plane; one that is cut off
// gives none.
const announcePatience = 500 * time.Millisecond

// announceStop tells the other nodes that this one is about to stop its workers, so that they take failures
// that follow for a consequence of that. A single node announces its failures as well, because the status
// learns of them in no other way.
func (e *ending) announceStop() {
	if e.how == allSucceeded || e.how == mustRegroup || e.how == mustInterrupt && e.assignment.groups < 2 {
		return
	}
	stop := rendezvous.AnnounceStop{Round: e.assignment.Round, Leaving: e.how == mustInterrupt || e.leaves}
	if e.how == mustInterrupt {
		stop.Reason = e.interrupted().Error()
	} else {
		first := e.announcedFailure()
		changed, _, _ := e.progress.Pulse()
		e.said, e.hopeless = first.Summary(), e.how == someFailed && first.Unguarded() && changed.IsZero()
		stop.Reason = e.said
	}
	asks := e.asksToLeave()
	switch {
	case asks:
		stop.Away = e.spec.Leave.Window
	case e.how == someFailed && e.mayRestart():
		stop.Reason += "; " + e.restarts.text(e.restarts.used()+1)
	}
	ctx, cancel := e.untilImpatient(announcePatience)
	defer cancel()
	e.answered(asks, e.rdzv.AnnounceStop(ctx, stop))
	if s := e.announcedStop(); e.how == someFailed && !e.leaves && s.Leaving && s.Rank != e.assignment.group {
		e.how = mustRegroup
	}
}

// asksToLeave notes a failure of this node's workers, and reports whether the node asks to
// leave the run as unfit. A failure after a standstill does not count: the workers that fail
// first then are those that waited for one that hangs elsewhere.
func (e *ending) asksToLeave() bool {
	switch {
	case e.leaving.rule.Failures == 0:
		return false
	case e.how == unkillable:
		return true
	case e.how != someFailed:
		return false
	case e.still > 0 || e.hang != "":
		e.log.Info(fmt.Sprintf("the failure does not count for --on-failure leave: the workers had made no step for %v, the cause may be another node", e.still.Round(time.Second)))
		return false
	}
	e.struck = true
	return e.leaving.strike()
}

// answered handles the reply to the announcement of a stop: err answers a node that asked to
// leave. A failure that followed another node's stop or loss does not count.
func (e *ending) answered(asked bool, err error) {
	if s := e.announcedStop(); e.struck && s.Round != 0 && (s.Rank != e.assignment.group || s.Lost) {
		e.leaving.strikes = e.leaving.strikes[:len(e.leaving.strikes)-1]
	}
	switch {
	case asked && err == nil:
		e.leaves, e.unfit = true, true
	case asked && rendezvous.CodeOf(err) == rendezvous.CodeInvalid:
		e.log.Warn("this node stays in the run: " + err.Error())
		e.publish(telemetry.Stays{})
	case err != nil:
		e.leaving.later = asked
		e.log.Info("the other nodes could not be told yet that this one stops its workers: " + err.Error())
	}
}

// giveUpStuck counts the workers that the stop of an attempt has left behind: no worker is started again
// on a node where one of the last round may still live. The node leaves the run to the others if they are
// enough, and if what ended the attempt would not have ended the run.
func (e *ending) giveUpStuck() {
	e.note(e.workers.Abandon())
	if e.how != someFailed && e.how != mustRegroup || !e.workers.AnyStuck() {
		return
	}
	e.leaves = e.leaves || e.othersAreEnough() && (e.how == mustRegroup || e.restarts.left())
	e.how = unkillable
}

// publishFirst publishes to the other nodes the first failure of an attempt, while the
// workers are being stopped; a node that leaves has none to tell. The function that it returns waits until that is done.
func (e *ending) publishFirst() (wait func()) {
	if e.how != someFailed && e.how != unkillable || e.assignment.groups < 2 || e.leaves {
		return func() {}
	}
	f := *e.firstFailure()
	failed, stack := slices.Clone(e.failures), ""
	if len(failed) > 0 {
		stack = e.lastStack(failed[0]) // now: the stop finds stacks, too
	}
	var published sync.WaitGroup
	published.Go(func() { // ends by the limit of publishFailure
		if len(failed) > 0 {
			f, _ = e.report(failed[0], stack, inTime) // its error is logged with the report
		}
		e.publishFailure(&f)
	})
	return published.Wait
}

// keepCulprit keeps the last output of the worker that failed first, if none of another node
// failed before. The worker's files have been closed.
func (e *ending) keepCulprit() {
	s := e.announcedStop()
	if e.said == "" || len(e.failures) == 0 || s.Round != 0 && (s.Leaving || s.Rank != e.assignment.group) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readPatience)
	defer cancel()
	e.culprit = culprit{
		e.assignment.Round, e.said,
		logs.Read(ctx, logs.Among(e.streams, e.failures[0].Local), e.assignment.ranks.base, nil, logs.Kept),
	}
}

// afterFailure spends a restart, or ends the run.
func (e *ending) afterFailure() (again bool, err error) {
	own := &FailedError{Name: e.name, Failures: e.reports()}
	e.lastFailures = own.Failures
	root := own.Root()
	e.publish(telemetry.AttemptFailed{Root: root, Overdue: strings.HasPrefix(root.Message, overdueMessage)})
	if err := e.requeued(nil); err != nil {
		e.log.Warn("the failure is not counted, because the run had already ended: " + root.Summary())
		return false, err
	}
	switch {
	case e.how == unkillable || e.leaves || e.hopeless:
	case e.mayRestart():
		e.publish(telemetry.Restarting{Text: root.Summary() + "; " + e.restarts.charge(len(e.vacant))})
		return true, e.interrupted()
	case e.lostNode():
		e.log.Warn(root.Summary() + "; it followed from the loss of a node and is not counted: " + e.rdzv.Reason())
		return true, e.interrupted()
	}
	if err := e.requeued(nil); err != nil { // by its deadline, while this node waited for news
		e.log.Warn("the failure is not counted, because the run has ended meanwhile: " + root.Summary())
		return false, err
	}
	if stop := e.interrupted(); stop != nil {
		return false, stop
	}
	e.publishEnds(own.Failures)
	if path, _ := process.LookupEnv(e.spec.Environ, logs.EnvErrorFile); path != "" {
		var err error
		if !background.Within(filePatience, func() { err = root.Propagate(path) }) {
			e.log.Warn(fmt.Sprintf("the error file %s was not written within %v", path, filePatience))
		} else if err != nil {
			e.log.Warn(err.Error())
		}
	}
	e.readPeers()
	return false, &FailedError{
		Name: e.name, Failures: failure.WithPeers(own.Failures, e.assignment.peers, e.assignment.group), Next: e.spentText(), left: e.leaves, Unfit: e.unfit,
	}
}

func (e *ending) spentText() string {
	switch {
	case e.unfit:
		return e.spec.Leave.text(e.how)
	case e.leaves && e.spec.Keep:
		return "all workers of this node have failed, and it leaves the run to the others (--on-failure keep)"
	case e.leaves:
		return "this node cannot start its workers again and leaves the run to the others"
	case e.hopeless:
		return "the workers are not started again: they would fail in the same way"
	case e.restarts.left(): // a worker that no signal ends
		return "this node cannot start its workers again"
	}
	return e.restarts.noneLeft()
}
