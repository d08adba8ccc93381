package telemetry

import (
	"context"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	rallypoint "rallypoint"
	"rallypoint/agent/failure"
	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/internal/host"
	"rallypoint/internal/promtext"
)

// phase is the agent's present activity, as its health port names it.
type phase string

// The phases.
const (
	PhaseStarting  phase = "starting"  // examines the node
	PhaseJoining   phase = "joining"   // waits for its place in a round
	PhaseAssigning phase = "assigning" // learns the ranks, starts the workers
	PhaseRunning   phase = "running"
	PhaseStopping  phase = "stopping"
	PhaseFinishing phase = "finishing" // its workers succeeded; waits for the other nodes
	PhaseEnding    phase = "ending"
)

var phases = []phase{PhaseStarting, PhaseJoining, PhaseAssigning, PhaseRunning, PhaseStopping, PhaseFinishing, PhaseEnding}

// Status is the answer to GET /status.
type Status struct {
	RunID     string          `json:"run_id"`
	Role      string          `json:"role"`
	Host      string          `json:"host"`
	Pid       int             `json:"pid"`
	Version   string          `json:"version"`
	StartedAt time.Time       `json:"started_at"`
	Phase     phase           `json:"phase"`
	PhaseFor  float64         `json:"phase_seconds"`
	Round     uint64          `json:"round"` // 0 before the first
	GroupRank int             `json:"group_rank"`
	Groups    int             `json:"group_world_size"`
	World     int             `json:"world_size"`
	Store     string          `json:"master"` // MASTER_ADDR:MASTER_PORT; "" before the first round
	Restarts  int             `json:"restarts"`
	Budget    int             `json:"max_restarts"`
	Rounds    int             `json:"rounds_joined"`
	Members   []MemberStatus  `json:"members,omitempty"` // of the round; none if the store does not answer
	Workers   []WorkerStatus  `json:"workers"`           // of this node
	LastError string          `json:"last_failure,omitempty"`
	Stalled   string          `json:"stalled,omitempty"`  // the job makes no step, and where its workers are; none: it does, as far as is known
	Progress  *ProgressStatus `json:"progress,omitempty"` // of the workers; none if they have not reported a step
}

// MemberStatus is one node of the round.
type MemberStatus struct {
	GroupRank int    `json:"group_rank"`
	Host      string `json:"host"`
	Role      string `json:"role"`
	Workers   int    `json:"workers"`
}

// WorkerStatus is one worker of the last attempt.
type WorkerStatus struct {
	LocalRank int    `json:"local_rank"`
	Rank      int    `json:"rank"`
	Pid       int    `json:"pid"`
	State     string `json:"state"`               // running or exited
	ExitCode  *int   `json:"exit_code,omitempty"` // negative: minus the signal
}

// StatusTracker is a Consumer that keeps the agent's status for the health port. It is safe for
// concurrent use, and takes no other lock while it holds its own.
type StatusTracker struct {
	run *Run

	mu       sync.Mutex
	status   Status
	since    time.Time
	members  func(context.Context) []MemberStatus // asks the round's store
	failures [causes]uint64
	stayed   uint64 // times that it asked to leave as unfit and was refused
	steps    [steps]stepTotal
	progress *progress.Tracker // nil: none
	left     int               // of the budget
}

type stepTotal struct {
	count, failed uint64
	took          time.Duration
}

// Causes of failures, as metrics name them.
const (
	causeExit = iota
	causeSignal
	causeOOM
	causeWatchdog
	causes
)

var causeNames = [causes]string{"exit_code", "signal", "out_of_memory", "watchdog"}

// Take implements Consumer.
func (st *StatusTracker) Take(s State, message Message) {
	switch m := message.(type) {
	case Checking:
		st.enter(PhaseStarting)
	case Joining:
		st.enter(PhaseJoining)
	case Joined:
		st.joined(s.Place)
	case WorkersStarted:
		st.started(s, m.Workers)
	case WorkerExited:
		st.exited(m.Worker)
	case Stalled:
		st.set(func(v *Status) { v.Stalled = m.Text })
	case Stopping:
		st.enter(PhaseStopping)
	case Stays:
		st.set(func(*Status) { st.stayed++ })
	case AttemptFailed:
		st.failed(m.Root, m.Overdue)
	case Finishing:
		st.enter(PhaseFinishing)
	case Ending:
		st.enter(PhaseEnding)
	case StepDone:
		st.stepped(m.Step, m.Took, m.Err != nil)
	}
}

func (st *StatusTracker) enter(p phase) { st.set(func(s *Status) { s.Phase = p }) }

func (st *StatusTracker) set(change func(*Status)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	before := st.status.Phase
	change(&st.status)
	if st.status.Phase != before {
		st.since = time.Now()
	}
}

func (st *StatusTracker) joined(p *Place) {
	st.set(func(v *Status) {
		v.Phase, v.Round, v.GroupRank, v.Groups = PhaseAssigning, p.Round, p.Group, p.Groups
		v.Store = net.JoinHostPort(p.StoreAddr, strconv.Itoa(p.StorePort))
		v.Rounds++
		v.Stalled = ""
		st.members = p.Members
	})
}

func (st *StatusTracker) started(s State, procs []*process.Process) {
	workers := make([]WorkerStatus, len(procs))
	for i, p := range procs {
		workers[i] = WorkerStatus{LocalRank: p.Local, Rank: s.Place.FirstRank + p.Local, Pid: p.Pid, State: "running"}
	}
	st.set(func(v *Status) {
		v.Phase, v.World, v.Restarts, v.Workers = PhaseRunning, s.Place.Workers, s.Restarts, workers
		st.left = st.run.remaining(s)
	})
}

func (st *StatusTracker) exited(p *process.Process) {
	st.set(func(v *Status) {
		if p.Local < len(v.Workers) {
			code := p.Code
			v.Workers[p.Local].State, v.Workers[p.Local].ExitCode = "exited", &code
		}
	})
}

func causeOf(f *failure.Failure, overdue bool) int {
	switch {
	case overdue:
		return causeWatchdog
	case f.OOM:
		return causeOOM
	case f.ExitCode < 0:
		return causeSignal
	}
	return causeExit
}

func (st *StatusTracker) failed(f *failure.Failure, overdue bool) {
	cause := causeOf(f, overdue)
	st.set(func(v *Status) {
		v.LastError = f.Summary()
		st.failures[cause]++
	})
}

func (st *StatusTracker) stepped(s Step, took time.Duration, failed bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	t := &st.steps[s]
	t.count++
	t.took += took
	if failed {
		t.failed++
	}
}

func (st *StatusTracker) read() (Status, func(context.Context) []MemberStatus) {
	st.mu.Lock()
	s, members, tracker := st.status, st.members, st.progress
	s.Workers = append([]WorkerStatus{}, s.Workers...)
	s.PhaseFor = time.Since(st.since).Seconds()
	st.mu.Unlock()
	s.Progress = progressStatus(tracker.Report())
	return s, members
}

// memberPatience bounds how long a status waits for the names of the members.
const memberPatience = 2 * time.Second

// full is read with the members of the round.
func (st *StatusTracker) full(ctx context.Context) Status {
	s, members := st.read()
	if members == nil || s.Groups == 0 {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, memberPatience)
	defer cancel()
	s.Members = members(ctx)
	return s
}

// metrics writes the Prometheus metrics (docs/metrics.md), then calls more unless it is nil.
func (st *StatusTracker) metrics(more func(*promtext.Buffer)) []byte {
	s, _ := st.read()
	st.mu.Lock()
	failures, stayed, totals, left := st.failures, st.stayed, st.steps, st.left
	st.mu.Unlock()
	var m promtext.Buffer
	m.Family("rallypoint_agent_info", "gauge", "1, with what the agent is as labels.")
	m.Sample("rallypoint_agent_info", 1, "version", rallypoint.Version(), "go_version", runtime.Version(), "run_id", s.RunID, "role", s.Role)
	m.Single("rallypoint_agent_start_time_seconds", "gauge", "When the agent started, in seconds since 1970.", float64(s.StartedAt.UnixMilli())/1000)
	m.Family("rallypoint_agent_phase", "gauge", "1 for the phase that the agent is in, else 0.")
	for _, p := range phases {
		value := 0.0
		if s.Phase == p {
			value = 1
		}
		m.Sample("rallypoint_agent_phase", value, "phase", string(p))
	}
	m.Single("rallypoint_agent_phase_seconds", "gauge", "For how long the agent has been in its phase.", s.PhaseFor)
	m.Single("rallypoint_agent_round", "gauge", "The last round that this node had a place in; 0 before the first.", float64(s.Round))
	m.Single("rallypoint_agent_rounds_joined_total", "counter", "Rounds that this node had a place in.", float64(s.Rounds))
	m.Single("rallypoint_agent_nodes", "gauge", "Nodes of that round.", float64(s.Groups))
	m.Single("rallypoint_agent_restarts", "gauge", "Restarts that are charged to the job's budget.", float64(s.Restarts))
	m.Single("rallypoint_agent_max_restarts", "gauge", "The job's budget of restarts.", float64(s.Budget))
	m.Single("rallypoint_agent_remaining_restarts", "gauge", "What is left of that budget.", float64(left))
	s.workerMetrics(&m)
	m.Family("rallypoint_agent_failures_total", "counter", "Attempts that failed by a worker of this node, by what ended it first.")
	for i, name := range causeNames {
		m.Sample("rallypoint_agent_failures_total", float64(failures[i]), "cause", name)
	}
	m.Single("rallypoint_agent_leaves_refused_total", "counter", "Times that this node asked to leave as unfit and was refused.", float64(stayed))
	const duration = "rallypoint_agent_step_duration_seconds"
	m.Family(duration, "summary", "Steps of the agent, by the time that they took.")
	for s, total := range totals {
		if label := stepNames[s].label; label != "" {
			m.Sample(duration+"_sum", total.took.Seconds(), "step", label)
			m.Sample(duration+"_count", float64(total.count), "step", label)
		}
	}
	m.Family("rallypoint_agent_step_failures_total", "counter", "Steps of the agent that failed.")
	for s, total := range totals {
		if label := stepNames[s].label; label != "" {
			m.Sample("rallypoint_agent_step_failures_total", float64(total.failed), "step", label)
		}
	}
	st.progressMetrics(&m, s.Progress, s.Stalled)
	var use unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &use) == nil {
		m.Single("rallypoint_agent_cpu_seconds_total", "counter", "CPU time of the agent itself.",
			float64(use.Utime.Nano()+use.Stime.Nano())/1e9)
	}
	if more != nil {
		more(&m)
	}
	return m.Bytes()
}

func (s *Status) workerMetrics(m *promtext.Buffer) {
	running, exited := 0, 0
	for _, w := range s.Workers {
		if w.ExitCode == nil {
			running++
		} else {
			exited++
		}
	}
	m.Family("rallypoint_agent_workers", "gauge", "Workers of this node's last attempt, by state.")
	m.Sample("rallypoint_agent_workers", float64(running), "state", "running")
	m.Sample("rallypoint_agent_workers", float64(exited), "state", "exited")
}

// NewStatusTracker returns the status of a run that begins now.
func NewStatusTracker(run *Run) *StatusTracker {
	now := time.Now()
	return &StatusTracker{run: run, since: now, left: run.MaxRestarts, status: Status{
		RunID: run.ID, Role: run.Role, Host: host.NameOf(run.Host), Pid: os.Getpid(), Version: rallypoint.Version(),
		StartedAt: now, Phase: PhaseStarting, Budget: run.MaxRestarts,
	}}
}
