package training

import (
	"sync"
	"time"
)

// Job is the progress of a run according to its nodes' reports. It is kept next to the run's
// machine and never stored, since the next heartbeats report it again. Its holder takes no other
// lock, so a heartbeat does not wait for anything else in the run.
type Job struct {
	mu       sync.Mutex
	round    uint64 // the last completed one
	cause    Cause  // of that round; NoCause: another control plane completed it
	reported bool   // a step of that round was reported
	counted  bool   // it has only optimizers' steps, if any
	step     int64  // the largest of it
	changed  time.Time
	perStep  time.Duration
	before   time.Time // when a step changed last in an earlier round; zero: not known
}

// Cause is why a round follows another one.
type Cause int

// The causes.
const (
	NoCause      Cause = iota
	WorkerFailed       // its nodes are those of the round before
	NodeLost           // the round before lost a node
	NodeJoined         // it has more nodes
	Causes
)

// CauseNames are the causes as metrics name them.
var CauseNames = [Causes]string{"", "worker_failed", "node_lost", "node_joined"}

// Begin notes that a round is the last completed one.
func (j *Job) Begin(round uint64, cause Cause) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if round == j.round {
		return
	}
	if j.reported && j.changed.After(j.before) {
		j.before = j.changed
	}
	j.round, j.cause, j.reported, j.counted, j.step, j.perStep = round, cause, false, true, 0, 0
}

// Take takes a report that came at that time. It returns the time that was lost between the
// round before and this one, with why, once a round; 0 if that is not known.
func (j *Job) Take(r *Report, at time.Time) (lost time.Duration, cause Cause) {
	j.mu.Lock()
	defer j.mu.Unlock()
	bare := r.Reporting == 0 && (r.Stalled != "" || r.Failed > 0 || r.Suspect != "" || r.Failure.Round > 0) // it says nothing of steps
	changed := at.Add(-r.SinceChange)
	if r.Round != j.round {
		if !bare && !j.reported && r.Round < j.round && changed.After(j.before) { // the last of a round that is over
			j.before = changed
		}
		return 0, NoCause
	}
	if bare {
		return 0, NoCause
	}
	if !j.reported {
		lost, cause = j.lostBefore(r, at), j.cause
		j.reported, j.changed = true, changed
	}
	switch {
	case j.counted && !r.Counted:
		j.step, j.counted = r.Largest, false
	case j.counted == r.Counted:
		j.step = max(j.step, r.Largest)
	}
	if !changed.Before(j.changed) {
		j.changed = changed
		if r.PerStep > 0 {
			j.perStep = r.PerStep
		}
	}
	return lost, cause
}

// lostBefore is the time before the first step of the round. The node knows it from its own
// workers; what those of others did meanwhile shortens it.
func (j *Job) lostBefore(r *Report, at time.Time) time.Duration {
	first := at.Add(-r.SinceFirst)
	before := j.before
	if r.Gap > 0 && first.Add(-r.Gap).After(before) {
		before = first.Add(-r.Gap)
	}
	if j.cause == NoCause || before.IsZero() {
		return 0
	}
	return max(0, first.Sub(before))
}

// Census is a Job at one moment.
type Census struct {
	Reported bool // a worker has reported a step in the last round
	Step     int64
	PerStep  time.Duration
	Change   time.Duration // since a step changed
}

// Census returns how far the run is. It costs O(1).
func (j *Job) Census(now time.Time) Census {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.reported {
		return Census{}
	}
	return Census{true, j.step, j.perStep, max(0, now.Sub(j.changed))}
}
