package telemetry

import (
	"math"
	"strconv"
	"time"

	"rallypoint/agent/progress"
	"rallypoint/core/training"
	"rallypoint/internal/promtext"
)

// ProgressStatus is how far the workers of this node have come (docs/progress.md).
type ProgressStatus struct {
	Round          uint64  `json:"round"`
	Step           int64   `json:"step"` // the largest of a worker
	SmallestStep   int64   `json:"smallest_step"`
	Reporting      int     `json:"reporting_workers"`
	SecondsPerStep float64 `json:"seconds_per_step"` // 0: not known yet
	ChangeAge      float64 `json:"change_age_s"`     // since any worker's step changed
	Counted        bool    `json:"counted"`          // the steps are those that torch's optimizers have made since the workers' start
}

func progressStatus(r *training.Report) *ProgressStatus {
	if r == nil || r.Reporting == 0 {
		return nil
	}
	return &ProgressStatus{
		Round: r.Round, Step: r.Largest, SmallestStep: r.Smallest, Reporting: r.Reporting,
		SecondsPerStep: rounded(r.PerStep), ChangeAge: rounded(r.SinceChange), Counted: r.Counted,
	}
}

// rounded rounds to a thousandth of a second, a short duration to a thousandth of that.
func rounded(d time.Duration) float64 {
	if d < time.Second {
		return math.Round(d.Seconds()*1e6) / 1e6
	}
	return math.Round(d.Seconds()*1e3) / 1e3
}

// FollowProgress makes the workers' progress a part of the status.
func (st *StatusTracker) FollowProgress(t *progress.Tracker) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.progress = t
}

// progressMetrics writes the metrics of the workers' steps, before the first step only whether
// the job has hung.
func (st *StatusTracker) progressMetrics(m *promtext.Buffer, p *ProgressStatus, stalled string) {
	hung := 0.0
	if stalled != "" {
		hung = 1
	}
	m.Single("rallypoint_agent_stalled", "gauge", "1 while the job makes no step, as the status says with where its workers are; else 0.", hung)
	if p != nil {
		m.Single("rallypoint_agent_training_step", "gauge", "The largest training step that a worker of this node has reported in the last round.", float64(p.Step))
		m.Single("rallypoint_agent_training_smallest_step", "gauge", "The smallest of the workers' steps.", float64(p.SmallestStep))
		m.Single("rallypoint_agent_training_seconds_per_step", "gauge", "Time of a step, over the last ones; 0 if it is not known yet.", p.SecondsPerStep)
		m.Single("rallypoint_agent_training_change_age_seconds", "gauge", "For how long no worker of this node has reported another step.", p.ChangeAge)
	}
	st.mu.Lock()
	tracker := st.progress
	st.mu.Unlock()
	if base, shares := tracker.Waits(); len(shares) > 0 {
		const wait = "rallypoint_agent_worker_wait_ratio"
		m.Family(wait, "gauge", "The share of its time that a worker waits for other ranks; a slow rank waits least.")
		for i, share := range shares {
			m.Sample(wait, share, "rank", strconv.Itoa(base+i))
		}
	}
	const lost = "rallypoint_agent_training_lost_seconds_total"
	m.Family(lost, "counter", "Time between the last step of a round and the first of the next, by why there was a next.")
	for _, cause := range []progress.Cause{progress.CauseFailure, progress.CauseRegroup} {
		m.Sample(lost, tracker.Lost(cause).Seconds(), "cause", progress.CauseNames[cause])
	}
}
