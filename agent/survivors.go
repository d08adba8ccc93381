package agent

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"rallypoint/agent/telemetry"
	"rallypoint/core/world"
	"rallypoint/internal/wording"
)

// survival is what lets workers of an attempt continue in another round.
type survival struct {
	worlds   worlds
	able     []bool       // by local rank: the worker has said that it can regroup, or it began beside such workers
	vacant   []int        // local ranks whose workers have ended and are to be replaced
	entering map[int]bool // local ranks whose workers are still to enter this round
	asks     string       // says why the workers need another round while this one stands; "": they do not
}

// canCarry reports whether the workers of an attempt can continue in another round: all have said so,
// those that have failed, too, or have begun beside such workers; and none has ended well, which
// nothing can replace.
func (t *attempt) canCarry() bool {
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

// leaveRound tells the workers that the last round is over, and another one follows.
func (t *attempt) leaveRound() {
	for _, p := range t.workers.Procs {
		if !p.HasExited() {
			t.endWorld(p.Local)
		}
	}
}

// endWorld tells a worker to leave the round.
func (t *attempt) endWorld(local int) {
	if err := t.worlds[local].End(t.assignment.Round); err != nil {
		t.log.Warn(fmt.Sprintf("the worker of local rank %d cannot be told that its world changes: %v", local, err))
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

// noteLate takes the workers that have failed while they waited for a round, before its ranks are
// agreed on: they are replaced in it if the budget has room for that, or if the round goes on without a
// node, from whose loss that followed.
func (t *attempt) noteLate() {
	t.note(t.workers.TakeEnded())
	lost := len(t.assignment.Dropped) > 0
	if len(t.failures) == 0 || !lost && !t.restarts.charged && !t.restarts.left() {
		return
	}
	root := (&FailedError{Name: t.name, Failures: t.reports()}).Root()
	t.vacate()
	t.publish(telemetry.AttemptFailed{Root: root})
	if lost {
		t.log.Warn(root.Summary() + "; it followed from the loss of a node, so that it is replaced and not counted")
	} else {
		t.publish(telemetry.Restarting{Text: root.Summary() + "; " + t.restarts.charge(len(t.vacant))})
	}
	t.failures = nil
}

// resume continues the attempt in a new round: its workers get their places there, and those that have
// failed are replaced.
func (t *attempt) resume() error {
	t.progress.Continue(t.assignment.Round, t.changed, t.vacant)
	t.entering = make(map[int]bool)
	for local, r := range t.worlds {
		if slices.Contains(t.vacant, local) {
			continue
		}
		t.entering[local] = true
		if err := r.Move(t.world(local)); err != nil {
			t.log.Warn(fmt.Sprintf("the worker of local rank %d cannot be told its new world: %v", local, err))
		}
	}
	continuing := len(t.entering)
	if len(t.vacant) > 0 {
		if err := t.awaitTemplate(); err != nil {
			return err
		}
		if err := t.replace(); err != nil {
			return cmp.Or(t.interrupted(), startError(err))
		}
	}
	for local := range t.able {
		t.able[local] = true
	}
	s := t.assignment
	text := fmt.Sprintf("%s of this node: ranks %d to %d of %d", wording.Count(continuing, "worker continues", "workers continue"), s.ranks.base, s.ranks.base+t.spec.Workers-1, s.ranks.world)
	if started := len(t.vacant); started > 0 {
		text += fmt.Sprintf("; %s, after %s", wording.Count(started, "was replaced", "were replaced"), t.restarts.String())
	}
	t.vacant = nil
	t.running.Store(true)
	t.publish(telemetry.WorkersStarted{Workers: t.workers.Procs, Summary: text})
	return nil
}

// replace starts workers in the vacant places.
func (t *attempt) replace() error {
	before := t.files()
	t.guard.Starting()
	files, launches, err := t.prepare(t.vacant)
	if err == nil {
		err = t.workers.Replace(t.template, launches)
	}
	files.Started()
	t.guard.Watch(t.workers.Procs)
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

// openWorlds makes the world records of workers that are about to start. Without them the job runs as
// well, and restarts its workers.
func (t *attempt) openWorlds(locals []int) {
	folder := t.progress.Folder()
	switch {
	case !t.spec.Regroup:
		return
	case folder == "":
		t.log.Warn("the workers cannot regroup, since there is no folder for their records")
		return
	}
	if t.worlds == nil {
		t.worlds = make(worlds, t.spec.Workers)
	}
	for _, local := range locals {
		r, err := world.Create(filepath.Join(folder, fmt.Sprintf("%d.%d.world", t.assignment.Round, local)), t.world(local))
		if err != nil {
			t.log.Warn("the workers cannot regroup: " + err.Error())
			t.worlds.remove()
			t.worlds = nil
			return
		}
		if t.worlds[local] != nil {
			t.worlds[local].Remove()
		}
		t.worlds[local] = r
		t.able[local] = t.assignment.ranks.carried > 0
	}
}

// worlds are the world records of a node's workers, by local rank; nil: the workers cannot regroup.
type worlds []*world.Record

func (w worlds) remove() {
	for _, r := range w {
		if r != nil {
			r.Remove()
		}
	}
}

func (w worlds) path(local int) string {
	if w == nil {
		return ""
	}
	return w[local].Path()
}

// lose tells the workers that there is no other round for them.
func (w worlds) lose(why string) {
	for _, r := range w {
		_ = r.Lose(why) // they are about to be stopped
	}
}
