package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"rallypoint/agent/logs"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/core/world"
	"rallypoint/internal/wording"
)

// canCarry reports whether the workers of an attempt can continue in another round: all have said so,
// those that have failed, too, or have begun beside such workers; and none has ended well, which
// nothing can replace.
func (a *Agent) canCarry(t *attempt) bool {
	if t.worlds == nil || t.succeeded > 0 {
		return false
	}
	for local, r := range t.worlds {
		if !t.able[local] {
			said, err := r.Read()
			t.able[local] = err == nil && said.Can
		}
		if !t.able[local] {
			return false
		}
	}
	return true
}

// carries reports whether an attempt lives on after a round that has ended in that way.
func (a *Agent) carries(t *attempt, v outcome) bool {
	switch v {
	case someFailed: // which the loss of a node may have caused
		return (a.restarts.left() || a.lossSeen()) && a.canCarry(t)
	case mustRegroup:
		return !a.rdzv.Closed() && a.requeued(nil) == nil && a.canCarry(t)
	}
	return false
}

// carry has the workers of an attempt leave their round. Those that have failed are replaced in the
// next one.
func (a *Agent) carry(t *attempt, v outcome) (again bool, err error) {
	a.carried = t
	a.tellCarried()
	t.still = a.progress.Standstill()
	a.noteFirstStep()
	if t.asks != "" {
		a.announceAsked(t.asks)
		t.asks = ""
	}
	v = a.announceStop(t, v)
	published := a.publishFirst(t, v)
	t.vacate()
	if v == someFailed {
		again, err = a.afterFailure(t, v)
	} else {
		a.publish(telemetry.Leaving{Reason: a.rdzv.Reason()})
		a.log.Warn("the workers regroup: " + a.rdzv.Reason())
		for _, p := range t.failures {
			a.log.Warn(a.describe(t, p).Summary() + "; it is replaced, and not counted: the round had ended")
		}
		again, err = true, a.interrupted()
	}
	published()
	a.changed, a.asked = roundCauses[v], false
	a.noteFailure()
	a.keepCulprit(t)
	t.failures, t.failure = nil, ""
	t.hang, t.lastStacks = nil, nil
	followers := t.followers
	t.followers = newFollowers()
	t.questions.Go(followers.end)
	if err != nil {
		err = errors.Join(err, a.abandon(err))
	}
	return again, err
}

// announceAsked tells the other nodes that a worker of this one asks for another round.
func (a *Agent) announceAsked(reason string) {
	ctx, cancel := a.untilImpatient(announcePatience)
	defer cancel()
	if err := a.rdzv.AnnounceStop(ctx, rendezvous.AnnounceStop{Round: a.assignment.Round, Reason: reason}); err != nil {
		a.log.Info("the other nodes could not be told yet: " + reason + ": " + err.Error())
	}
}

// vacate gives up the places of workers that have failed.
func (t *attempt) vacate() {
	for _, p := range t.failures {
		t.vacant = append(t.vacant, p.Local)
		delete(t.ended, p.Local)
	}
	slices.Sort(t.vacant)
	t.vacant = slices.Compact(t.vacant)
}

// tellCarried tells the workers that are carried over that the last round is over.
func (a *Agent) tellCarried() {
	t := a.carried
	if t == nil {
		return
	}
	for _, p := range t.workers.Procs {
		if p.HasExited() {
			continue
		}
		if err := t.worlds[p.Local].End(a.assignment.Round); err != nil {
			a.log.Warn(fmt.Sprintf("the worker of local rank %d cannot be told that its world changes: %v", p.Local, err))
		}
	}
}

// noteLate takes the workers that have failed while they waited for a round, before its ranks are
// agreed on: they are replaced in it if the budget has room for that.
func (a *Agent) noteLate() {
	t := a.carried
	if t == nil {
		return
	}
	a.note(t, t.workers.TakeEnded())
	if len(t.failures) == 0 || !a.restarts.charged && !a.restarts.left() {
		return
	}
	root := (&FailedError{Name: a.name, Failures: a.failures(t)}).Root()
	t.vacate()
	a.publish(telemetry.AttemptFailed{Root: root})
	a.publish(telemetry.Restarting{Text: root.Summary() + "; " + a.restarts.charge(len(t.vacant))})
	t.failures = nil
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

// resume continues the attempt that is carried over in a new round: its workers get their places
// there, and those that have failed are replaced.
func (a *Agent) resume() (*attempt, error) {
	t := a.carried
	a.progress.Continue(a.assignment.Round, a.changed, t.vacant)
	t.entering = make(map[int]bool)
	for local, r := range t.worlds {
		if slices.Contains(t.vacant, local) {
			continue
		}
		t.entering[local] = true
		if err := r.Move(a.world(local)); err != nil {
			a.log.Warn(fmt.Sprintf("the worker of local rank %d cannot be told its new world: %v", local, err))
		}
	}
	continuing := len(t.entering)
	if len(t.vacant) > 0 {
		if err := a.awaitTemplate(); err != nil {
			return nil, err
		}
		if err := a.replace(t); err != nil {
			return nil, startError(err)
		}
	}
	for local := range t.able {
		t.able[local] = true
	}
	started := len(t.vacant)
	a.carried, t.vacant = nil, nil
	a.running.Store(true)
	s := a.assignment
	text := fmt.Sprintf("%s of this node: ranks %d to %d of %d", wording.Count(continuing, "worker continues", "workers continue"), s.ranks.base, s.ranks.base+a.spec.Workers-1, s.ranks.world)
	if started > 0 {
		text += fmt.Sprintf("; %s, after %s", wording.Count(started, "was replaced", "were replaced"), a.restarts.String())
	}
	a.publish(telemetry.WorkersStarted{Workers: t.workers.Procs, Summary: text})
	return t, nil
}

// replace starts workers in the vacant places.
func (a *Agent) replace(t *attempt) error {
	before := t.files()
	t.renewStacks(a)
	a.guard.Starting()
	files, launches, err := a.prepare(t, t.vacant)
	if err == nil {
		err = t.workers.Replace(a.template, launches)
	}
	files.Started()
	a.guard.Watch(t.workers.Procs)
	after := t.files()
	if files != nil && !slices.Contains(after, files) {
		files.Close()
	}
	for _, f := range before {
		if !slices.Contains(after, f) {
			t.questions.Go(f.Close)
		}
	}
	t.oom.Reset()
	return err
}

// files are the open files of the attempt's workers.
func (t *attempt) files() (all []*logs.Attempt) {
	for _, f := range t.logs {
		if f != nil && !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

var errNotAll = errors.New("a worker of the job cannot regroup, so that all begin again")

var errStuck = errors.New("no signal ends a worker of this node, and none is started beside it: the node leaves")

// abandon stops the workers that are carried over, since there is no round for them. It returns errStuck if one of
// them may still live.
func (a *Agent) abandon(why error) error {
	t := a.carried
	if t == nil {
		return nil
	}
	a.carried = nil
	v := mustRegroup
	if a.interrupted() != nil {
		v = mustInterrupt
	}
	a.halt(t, v, why.Error())
	a.stopped = true
	if v == mustInterrupt {
		a.publishEnds(t, nil)
	}
	if t.workers.AnyStuck() {
		return errStuck
	}
	return nil
}

// world is the place of a worker in the round.
func (a *Agent) world(local int) world.World {
	s := a.assignment
	w := world.World{
		Round: s.Round, Rank: s.ranks.base + local, Size: s.ranks.world, LocalRank: local, LocalSize: a.spec.Workers, Node: s.group, Nodes: s.groups,
		Carried: s.ranks.carried, StoreAddr: s.StoreAddr, StorePort: s.StorePort, Generation: s.Generation,
	}
	if a.spec.VirtualRank {
		w.LocalRank = 0
	}
	return w
}

// openWorlds makes the world records of workers that are about to start. Without them the job runs as
// well, and restarts its workers.
func (a *Agent) openWorlds(t *attempt, locals []int) {
	folder := a.progress.Folder()
	switch {
	case !a.spec.Regroup:
		return
	case folder == "":
		a.log.Warn("the workers cannot regroup, since there is no folder for their records")
		return
	}
	if t.worlds == nil {
		t.worlds = make([]*world.Record, a.spec.Workers)
	}
	for _, local := range locals {
		r, err := world.Create(filepath.Join(folder, fmt.Sprintf("%d.%d.world", a.assignment.Round, local)), a.world(local))
		if err != nil {
			a.log.Warn("the workers cannot regroup: " + err.Error())
			t.removeWorlds()
			return
		}
		if t.worlds[local] != nil {
			t.worlds[local].Remove()
		}
		t.worlds[local] = r
		t.able[local] = a.assignment.ranks.carried > 0
	}
}

func (t *attempt) removeWorlds() {
	for _, r := range t.worlds {
		if r != nil {
			r.Remove()
		}
	}
	t.worlds = nil
}

func (t *attempt) worldPath(local int) string {
	if t.worlds == nil {
		return ""
	}
	return t.worlds[local].Path()
}

// lose tells the workers that there is no other round for them.
func (t *attempt) lose(why string) {
	for _, r := range t.worlds {
		_ = r.Lose(why) // they are about to be stopped
	}
}
