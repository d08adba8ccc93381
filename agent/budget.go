package agent

import (
	"fmt"
	"math"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/agent/progress"
	"rallypoint/internal/wording"
)

// Keys of a round by which its agents agree on what ends the job: idleKey counts the agents that stop
// because of its budget, and the last of them writes idleAllKey.
const (
	idleKey    = "rallypoint/no_progress"
	idleAllKey = idleKey + "/all"
)

// maxWindowRestarts limits the restarts of a budget with a window, since each role info carries
// the age of each.
const maxWindowRestarts = 1000

// noStep is the step of a round in which no worker reported one.
const noStep = -1

// budget is what an agent knows about the job's restarts and rounds besides their count. Each
// agent sends its own to agent 0, which replies with the job's.
type budget struct {
	// Ages are those of the restarts inside the window, in seconds; none without a window.
	Ages []float64 `json:"restart_ages,omitempty"`

	Round uint64 `json:"round,omitempty"` // in which the next two were agreed on
	Step  int64  `json:"step"`            // the highest of the round before that
	Idle  int    `json:"idle"`            // rounds in a row up to then that ended without a higher step

	Ran      bool  `json:"ran,omitempty"`      // workers of this node ran in Round
	Recorded bool  `json:"recorded,omitempty"` // and each had a record
	Last     int64 `json:"last"`               // the highest step of these; noStep: none
	Asked    bool  `json:"asked,omitempty"`    // to regroup, by a drain or a scale: no worker of this node failed
}

// agreeBudget combines the agents' budgets into the job's; nil stands for an agent without one.
// Steps come only from agents that were in the last round, since a returning spare knows those of
// an earlier one.
func agreeBudget(infos []*budget) budget {
	job := budget{Step: noStep}
	for _, b := range infos {
		if b == nil {
			continue
		}
		if len(b.Ages) > len(job.Ages) {
			job.Ages = b.Ages
		}
		if b.Round >= job.Round {
			job.Round, job.Step, job.Idle = b.Round, b.Step, b.Idle
		}
	}
	ran, recorded, asked, last := false, true, true, int64(noStep)
	for _, b := range infos {
		if b != nil && b.Ran && b.Round == job.Round {
			ran, recorded, asked, last = true, recorded && b.Recorded, asked && b.Asked, max(last, b.Last)
		}
	}
	switch {
	case !ran || !recorded:
	case last > job.Step:
		job.Idle, job.Step = 0, last
	case !asked: // else it is as if there had been no such round
		job.Idle, job.Step = job.Idle+1, last
	}
	return job
}

// restarts counts the job's restarts, and says how many are left. The agents agree on it at the
// beginning of each round; a failure of this node since then is charged at the next one.
type restarts struct {
	spec *Spec
	now  func() time.Time // by which they are in the window

	agreed    int         // charged to the job's budget
	recent    []time.Time // of these, when those inside the window were
	job       budget      // see take
	charged   bool        // this node adds one
	chargedAt time.Time
	delayed   int  // of agreed: those whose RestartDelay has passed
	asked     bool // the last round was ended by a drain or a scale, and no worker of this node failed
}

// own returns what this node reports about the rounds so far; nil without a budget.
func (r *restarts) own(records *progress.Tracker) *budget {
	if r.spec.RestartWindow <= 0 && r.spec.MaxNoProgress <= 0 { // the count alone
		return nil
	}
	b := r.job
	b.Ages = nil
	now := r.now()
	for _, at := range r.inWindow(now) {
		b.Ages = append(b.Ages, now.Sub(at).Seconds())
	}
	round, last, recorded := records.Highest()
	b.Ran, b.Recorded, b.Last, b.Asked = round == b.Round && round > 0, recorded, last, r.asked
	return &b
}

// take adopts the budget that the agents agreed on at the beginning of a round. own is what this
// node reported, and job is nil if agent 0 knows no budgets. It returns a *NoProgressError if the
// job must end.
func (r *restarts) take(round uint64, own, job *budget) error {
	if own == nil {
		return nil
	}
	if job == nil {
		alone := agreeBudget([]*budget{own})
		job = &alone
	}
	now := r.now()
	r.recent = nil
	for _, age := range job.Ages[:min(len(job.Ages), maxWindowRestarts)] {
		if age >= 0 && age <= r.spec.RestartWindow.Seconds() {
			r.recent = append(r.recent, now.Add(-time.Duration(age*float64(time.Second))))
		}
	}
	r.job = budget{Round: round, Step: job.Step, Idle: job.Idle}
	if r.spec.MaxNoProgress == 0 || job.Idle < r.spec.MaxNoProgress {
		return nil
	}
	return &NoProgressError{Rounds: job.Idle, Step: job.Step}
}

// inWindow are the times of the restarts inside the window, with one that is still to be charged.
func (r *restarts) inWindow(now time.Time) []time.Time {
	var recent []time.Time
	for _, at := range r.recent {
		if now.Sub(at) <= r.spec.RestartWindow {
			recent = append(recent, at)
		}
	}
	if r.charged && r.spec.RestartWindow > 0 && len(recent) < maxWindowRestarts {
		recent = append(recent, r.chargedAt)
	}
	return recent
}

// commit charges the restart that this node adds before the agents have agreed on it, since that exchange may be
// cut short.
func (r *restarts) commit() {
	r.agreed, r.recent, r.charged = r.used(), r.inWindow(r.now()), false
}

// used is the count as far as this node knows it.
func (r *restarts) used() int {
	if r.charged {
		return r.agreed + 1
	}
	return r.agreed
}

// counted is how many count against the budget now.
func (r *restarts) counted() int {
	if r.spec.RestartWindow > 0 {
		return len(r.inWindow(r.now()))
	}
	return r.used()
}

func (r *restarts) left() bool { return r.counted() < r.spec.MaxRestarts }

// expired is how many have left the window, as agreed in the last round.
func (r *restarts) expired() int {
	if r.spec.RestartWindow > 0 {
		return max(0, r.agreed-len(r.recent))
	}
	return 0
}

// delay is the pause before the workers are started after a restart was agreed on.
func (r *restarts) delay() time.Duration {
	if r.agreed <= r.delayed {
		return 0
	}
	return restartDelay(r.spec.RestartDelay, r.counted()-1)
}

// restartDelay is the pause before the restart after some others.
func restartDelay(first time.Duration, before int) time.Duration {
	d := first
	for ; before > 0 && d > 0 && d < maxRestartDelay; before-- {
		d = min(2*d, maxRestartDelay)
	}
	return d
}

// charge counts a restart because of a failure of this node, and says it in words. replaced is how
// many workers alone are started again; 0: all.
func (r *restarts) charge(replaced int) string {
	r.charged, r.chargedAt = true, r.now()
	what := "restarting the workers: "
	if replaced > 0 {
		what = "replacing " + wording.Count(replaced, "worker", "workers") + ", the others continue: "
	}
	return what + r.text(r.used())
}

// text names the nth restart of this node's workers.
func (r *restarts) text(n int) string {
	if r.spec.RestartWindow > 0 {
		return fmt.Sprintf("restart %d, at most %d in %v", n, r.spec.MaxRestarts, r.spec.RestartWindow)
	}
	return fmt.Sprintf("restart %d of %d", n, r.spec.MaxRestarts)
}

func (r *restarts) noneLeft() string {
	switch {
	case r.spec.MaxRestarts == 0:
		return "no restarts left: give --max-restarts"
	case r.spec.RestartWindow > 0:
		return fmt.Sprintf("no restarts left: --max-restarts allows %d in %v", r.spec.MaxRestarts, r.spec.RestartWindow)
	}
	return fmt.Sprintf("no restarts left: --max-restarts allows %d", r.spec.MaxRestarts)
}

// String says how many were charged.
func (r *restarts) String() string {
	if r.spec.RestartWindow > 0 {
		return fmt.Sprintf("%d restarts, at most %d in %v", r.agreed, r.spec.MaxRestarts, r.spec.RestartWindow)
	}
	return fmt.Sprintf("%d of %d restarts", r.agreed, r.spec.MaxRestarts)
}

// possible reports whether agent 0 can have made it.
func (b *budget) possible() bool { return b.Idle >= 0 && b.Idle <= math.MaxInt32 }

// jobBudget combines those of the agents; nil if none of them has one.
func jobBudget(infos []roleInfo) *budget {
	budgets := make([]*budget, len(infos))
	any := false
	for i := range infos {
		budgets[i] = infos[i].Budget
		any = any || budgets[i] != nil
	}
	if !any {
		return nil
	}
	job := agreeBudget(budgets)
	return &job
}

// NoProgressError ends a run whose rounds make no progress (Spec.MaxNoProgress). All nodes of the
// round end with it.
type NoProgressError struct {
	Rounds   int               // that ended in a row without a higher step than the one before
	Step     int64             // the highest of the last one; -1: no worker reported a step
	Name     string            // of the entry point
	Failures []failure.Failure // by which the last round ended, as far as they are known here
}

func (e *NoProgressError) Error() string {
	at := fmt.Sprintf("the last one at step %d", e.Step)
	if e.Step == noStep {
		at = "in the last one no worker reported a step; workers report by rallypoint.progress"
	}
	rounds := fmt.Sprintf("%d rounds in a row have", e.Rounds)
	if e.Rounds == 1 {
		rounds = "a round has"
	}
	return fmt.Sprintf("no progress: %s ended without a higher step than the one before (%s); the job is stopped", rounds, at)
}

// Report is the report of the failures by which the last round ended; "" if none is known.
func (e *NoProgressError) Report() string { return failure.Report(e.Name, e.Failures, "") }
