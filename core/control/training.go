package control

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
	"rallypoint/internal/promtext"
)

// received is a node's last report of its workers' steps.
type received struct {
	training.Report
	at time.Time
}

// stalledIn is why a round makes no step, as the report has it; "": it does.
func (r *received) stalledIn(round uint64) string {
	if r == nil || r.Round != round {
		return ""
	}
	return r.Stalled
}

// reportTraining takes a node's report about its workers from a heartbeat. nil means that none
// has reported a step, and that they are not known to hang.
func (r *run) reportTraining(p *serverConn, report *training.Report) {
	was := p.training.Load()
	if report == nil {
		if was != nil && was.Reporting == 0 { // that was all it said
			p.training.Store(nil)
			r.observeStall(was.Round)
		}
		return
	}
	got := &received{*report, r.server.clock.Now()}
	p.training.Store(got)
	if lost, cause := r.training.Take(report, got.at); lost > 0 {
		r.server.metrics.trainingLost[cause].Add(int64(lost))
	}
	if (was.stalledIn(report.Round) == "") != (report.Stalled == "") {
		r.observeStall(report.Round)
	}
}

// observeStall records that the run stalls, once a node reports that of its round, or makes steps
// again, once none does.
func (r *run) observeStall(round uint64) {
	r.mu.Lock()
	defer r.unlock()
	c := &r.stats
	if round != c.census.Round {
		return
	}
	text := ""
	for _, p := range r.conns {
		text = cmp.Or(text, p.training.Load().stalledIn(round))
	}
	switch now := r.server.clock.Now(); {
	case text != "" && c.stalled.IsZero():
		c.stalled = now
		r.noteChange("stalled: " + text)
	case text == "" && !c.stalled.IsZero():
		r.noteChange(fmt.Sprintf("makes steps again, %v after it was found stalled", now.Sub(c.stalled).Round(time.Second)))
		c.stalled = time.Time{}
	}
}

// observeRoundLocked tells the reports' table which round is the last one, and why there is
// another than before the event; was is the census before it.
func (r *run) observeRoundLocked(was rendezvous.Census, ev rendezvous.Event, effects []rendezvous.Effect) {
	c := &r.stats
	_, gone := ev.(rendezvous.Leave)
	completed := false
	for _, e := range effects {
		switch e := e.(type) {
		case rendezvous.Drop:
			gone = true
		case rendezvous.Reply:
			o, ok := e.Result.(rendezvous.Outcome)
			completed = completed || ok && o.Round == c.census.Round
			gone = gone || ok && len(o.Dropped) > 0
		}
	}
	round, size := c.census.Round, c.census.Running+c.census.Unknown
	if round == c.reportsOf {
		c.lostSince = c.lostSince || c.census.Lost > was.Lost
		return
	}
	cause := training.NoCause
	if completed {
		switch {
		case c.lostSince || gone:
			cause = training.NodeLost
		case size > c.size:
			cause = training.NodeJoined
		default:
			cause = training.WorkerFailed
		}
	}
	c.reportsOf, c.size, c.lostSince, c.stalled = round, size, false, time.Time{}
	r.training.Begin(round, cause)
}

// ProgressStatus is how far a run is in its last round.
type ProgressStatus struct {
	Step           int64         `json:"step"` // the largest of a worker
	SmallestStep   int64         `json:"smallest_step"`
	SecondsPerStep float64       `json:"seconds_per_step"` // 0: not known yet
	ChangeAgeS     float64       `json:"change_age_s"`     // since any worker's step changed
	Nodes          int           `json:"nodes"`            // that have reported
	Behind         *BehindStatus `json:"behind"`           // the node that holds the others up; null: none does
	Counted        bool          `json:"counted"`          // the steps are those that torch's optimizers have made since the workers' start
	Slow           *SlowStatus   `json:"slow"`             // the rank for which all others wait; null: none is known
}

// SlowStatus is a worker that waits notably less for others than each other one.
type SlowStatus struct {
	Rank   int     `json:"rank"` // of the worker
	Node   string  `json:"node"`
	Label  string  `json:"label"`
	Waits  float64 `json:"waits"`  // the share of its time
	Others float64 `json:"others"` // the share that each other worker waits at least
	Text   string  `json:"text"`
}

// BehindStatus is a node whose slowest worker has made no step while others have.
type BehindStatus struct {
	Rank  int     `json:"rank"`
	Node  string  `json:"node"`
	Label string  `json:"label"`
	Steps int64   `json:"steps"` // below the largest
	ForS  float64 `json:"for_s"` // since it moved
}

// NodeProgressStatus is how far the workers of one node are in the last round.
type NodeProgressStatus struct {
	Step           int64   `json:"step"` // the largest
	SmallestStep   int64   `json:"smallest_step"`
	SecondsPerStep float64 `json:"seconds_per_step"`
	ChangeAgeS     float64 `json:"change_age_s"`
	SlowestAgeS    float64 `json:"slowest_age_s"` // since the slowest worker's step changed
	Workers        int     `json:"workers"`
	Reporting      int     `json:"reporting_workers"`
	Counted        bool    `json:"counted"`
}

// describeProgressLocked fills in the progress of the run's members, which Describe leaves out, and the
// last failure, if it is not known.
func (r *run) describeProgressLocked(st *RunStatus) {
	now := r.server.clock.Now()
	var nodes []training.NodeReport
	var ranks []int
	for i := range st.Members {
		m := &st.Members[i]
		said, age := r.lastReportLocked(m.Session, now)
		if said == nil || said.Round != st.Round {
			continue
		}
		if f := said.Failure; f.Round > 0 && st.LastFailure == nil {
			st.LastFailure = new(newChange(now.Add(-age-f.Age), f.Round, fmt.Sprintf("round %d stops: %s", f.Round, f.Text)))
		}
		running := m.State == "running"
		if running && st.Stalled == "" {
			st.Stalled = said.Stalled
			if st.Stalled != "" && st.State == string(rendezvous.PhaseRunning) {
				st.State = "stalled"
			}
		}
		m.Workers, m.FailedWorkers, m.Suspect = said.Workers, said.Failed, said.Suspect
		if said.Reporting == 0 {
			continue
		}
		n := training.NodeReport{Report: *said, Age: max(0, age)}
		m.Progress = &NodeProgressStatus{
			Step: n.Largest, SmallestStep: n.Smallest, SecondsPerStep: stepSeconds(n.PerStep), ChangeAgeS: rendezvous.StatusSeconds(n.Change()),
			SlowestAgeS: rendezvous.StatusSeconds(n.Stalled()), Workers: n.Workers, Reporting: n.Reporting, Counted: n.Counted,
		}
		if running {
			nodes, ranks = append(nodes, n), append(ranks, i)
		}
	}
	sum, ok := training.Summarize(nodes)
	if !ok {
		return
	}
	st.Progress = &ProgressStatus{
		Step: sum.Step, SmallestStep: sum.Smallest, SecondsPerStep: stepSeconds(sum.PerStep), ChangeAgeS: rendezvous.StatusSeconds(sum.Change), Nodes: sum.Nodes, Counted: sum.Counted,
	}
	if sum.Behind >= 0 {
		s, n := &st.Members[ranks[sum.Behind]], &nodes[sum.Behind]
		st.Progress.Behind = &BehindStatus{Rank: s.Rank, Node: s.Node, Label: s.Label, Steps: sum.Step - n.Smallest, ForS: rendezvous.StatusSeconds(n.Stalled())}
	}
	if slow := sum.Slow; slow.Index >= 0 && len(nodes) == len(st.Members) { // of each node it is known how much its workers wait
		s := &st.Members[ranks[slow.Index]]
		st.Progress.Slow = &SlowStatus{Rank: slow.Rank, Node: s.Node, Label: s.Label, Waits: slow.Waits, Others: slow.Others, Text: slow.Text(cmp.Or(s.Node, s.Label))}
	}
}

// stepSeconds keeps short steps exact.
func stepSeconds(d time.Duration) float64 {
	if d < time.Second {
		return d.Round(time.Microsecond).Seconds()
	}
	return rendezvous.StatusSeconds(d)
}

// lastReportLocked is the last report of a session, and its age; nil if there is none.
func (r *run) lastReportLocked(session rendezvous.SessionID, now time.Time) (*training.Report, time.Duration) {
	if p := r.conns[session]; p != nil {
		if got := p.training.Load(); got != nil {
			return &got.Report, now.Sub(got.at)
		}
	}
	return nil, 0
}

// exposeTraining writes how far the runs are that have metrics of their own.
func exposeTraining(e *promtext.Buffer, listed []runCensus) {
	reported := slices.DeleteFunc(slices.Clone(listed), func(c runCensus) bool { return !c.training.Reported })
	exposeGauge(e, "rallypoint_run_training_step", "The largest training step that a worker has reported in the run's last round.", reported,
		func(c *runCensus) float64 { return float64(c.training.Step) })
	exposeGauge(e, "rallypoint_run_training_seconds_per_step", "Time of a training step, over the last ones; 0 if it is not known yet.", reported,
		func(c *runCensus) float64 { return c.training.PerStep.Seconds() })
	exposeGauge(e, "rallypoint_run_training_change_age_seconds", "For how long no worker of the run has reported another step.", reported,
		func(c *runCensus) float64 { return c.training.Change.Seconds() })
}

func (s *Server) exposeLost(e *promtext.Buffer) {
	const name = "rallypoint_training_lost_seconds_total"
	e.Family(name, "counter", "Time between the last training step of a round and the first of the next, by why there was a next.")
	for cause := training.WorkerFailed; cause < training.Causes; cause++ {
		e.Sample(name, time.Duration(s.metrics.trainingLost[cause].Load()).Seconds(), "cause", training.CauseNames[cause])
	}
}
