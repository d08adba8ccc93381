package telemetry

import (
	"encoding/json"
	"path"
	"strconv"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/agent/process"
	"rallypoint/internal/host"
)

// Where an event comes from.
const (
	fromAgent  = "AGENT"
	fromWorker = "WORKER"
)

// event is one event as it is written. The timestamp is always 0, as
// the reference's.
type torchEvent struct {
	Name      string             `json:"name"`
	Source    string             `json:"source"`
	Timestamp int                `json:"timestamp"`
	Metadata  torchEventMetadata `json:"metadata"`
}

type torchEventMetadata struct {
	RunID        string   `json:"run_id"`
	GlobalRank   *int     `json:"global_rank"`
	GroupRank    *int     `json:"group_rank"`
	WorkerID     *string  `json:"worker_id"`
	Role         string   `json:"role"`
	Hostname     string   `json:"hostname"`
	State        string   `json:"state"`
	TotalRunTime int      `json:"total_run_time"` // seconds
	Backend      string   `json:"rdzv_backend"`
	RawError     *string  `json:"raw_error"`
	Metadata     string   `json:"metadata"` // JSON again
	Restarts     int      `json:"agent_restarts"`
	DurationMS   *float64 `json:"duration_ms"`
}

// agentEventDetail and workerEventDetail are the inner metadata. The one-element
// arrays are an upstream slip that readers rely on.
type agentEventDetail struct {
	GroupWorldSize *int   `json:"group_world_size"`
	EntryPoint     string `json:"entry_point"`
}

type workerEventDetail struct {
	agentEventDetail
	LocalRank     [1]int  `json:"local_rank"`
	RoleRank      [1]int  `json:"role_rank"`
	RoleWorldSize [1]int  `json:"role_world_size"`
	ExitCode      [1]*int `json:"exit_code"`
	WorkerPid     [1]*int `json:"worker_pid"`
}

// watchdogDetail is the inner metadata of the watchdog's events, all texts.
type watchdogDetail struct {
	Event   string `json:"watchdog_event"`
	Pid     string `json:"worker_pid,omitempty"`
	Scope   string `json:"scope_id,omitempty"`
	Expires string `json:"expiration_time,omitempty"`
	Signal  string `json:"signal,omitempty"`
}

// stalledDetail is the inner metadata of the events of a job that makes no step.
type stalledDetail struct {
	Text     string `json:"text"`
	Suspects []int  `json:"suspects"`
}

// torchEvents hands torch's events to a sink.
type torchEvents struct{ run *Run }

// Take implements Consumer.
func (te *torchEvents) Take(s State, message Message) {
	switch m := message.(type) {
	case Joined:
		te.step(s, "RENDEZVOUS", m.Took)
	case StepDone:
		if m.Step == StepRanks && m.Err == nil {
			te.step(s, "ASSIGN_WORKER_RANKS", m.Took)
		}
	case WorkersStarted:
		for _, p := range m.Workers {
			te.worker(s, "START", p, nil)
		}
	case WatchdogActed:
		te.watchdog(s, m)
	case Stalled:
		name := "job stalled"
		if m.Text == "" {
			name = "job steps again"
		}
		te.record(s, name, fromAgent, "RUNNING", stalledDetail(m), nil)
	case WorkersEnded:
		te.ends(s, m)
	case RunDone:
		te.done(s, m)
	}
}

func (te *torchEvents) watchdog(s State, m WatchdogActed) {
	d := &watchdogDetail{Event: m.Name}
	if t := m.Timer; t != nil {
		d.Pid, d.Scope, d.Expires, d.Signal = strconv.Itoa(t.Pid), t.Scope, t.Expires.String(), strconv.Itoa(int(t.Signal))
	}
	te.record(s, m.Name, fromAgent, "RUNNING", d, nil)
}

func (te *torchEvents) record(s State, name, source, state string, detail any, fill func(*torchEventMetadata)) {
	inner, err := json.Marshal(detail)
	if err != nil {
		return
	}
	event := torchEvent{Name: name, Source: source, Metadata: torchEventMetadata{
		RunID: te.run.ID, Role: te.run.Role, Hostname: host.FullNameOf(te.run.Host), State: state, Backend: te.run.Backend,
		Metadata: string(inner), Restarts: s.Used, TotalRunTime: int(s.Ran / time.Second),
	}}
	if s.Place != nil {
		event.Metadata.GroupRank = &s.Place.Group
	}
	if fill != nil {
		fill(&event.Metadata)
	}
	writeLine(te.run.Events, event)
}

// status is record for a state of the agent or of a worker.
func (te *torchEvents) status(s State, source, state string, detail any, fill func(*torchEventMetadata)) {
	te.record(s, "torchelastic.worker.status."+state, source, state, detail, fill)
}

func (te *torchEvents) agentDetail(s State) agentEventDetail {
	d := agentEventDetail{EntryPoint: path.Base(te.run.Argv[0])}
	if s.Place != nil {
		d.GroupWorldSize = &s.Place.Groups
	}
	return d
}

// step records how long one step of a round took.
func (te *torchEvents) step(s State, state string, took time.Duration) {
	ms := float64(took) / float64(time.Millisecond)
	te.status(s, fromAgent, state, te.agentDetail(s), func(m *torchEventMetadata) { m.DurationMS = &ms })
}

// done records how the agent ended: SUCCEEDED, also if workers failed, means that the agent
// ran.
func (te *torchEvents) done(s State, d RunDone) {
	if d.Err == nil || d.Failure {
		te.status(s, fromAgent, "SUCCEEDED", te.agentDetail(s), nil)
		return
	}
	text := d.Err.Error()
	te.status(s, fromAgent, "FAILED", te.agentDetail(s), func(m *torchEventMetadata) { m.RawError = &text })
}

func (te *torchEvents) ends(s State, m WorkersEnded) {
	for _, p := range m.Workers {
		state, failed := "TERMINATED", (*failure.Failure)(nil)
		if m.Succeeded {
			state = "SUCCEEDED"
		}
		for i := range m.Failures {
			if m.Failures[i].LocalRank == p.Local {
				state, failed = "FAILED", &m.Failures[i]
			}
		}
		te.worker(s, state, p, failed)
	}
}

// worker records a worker's start or end; f is nil unless it failed.
func (te *torchEvents) worker(s State, state string, p *process.Process, f *failure.Failure) {
	d := workerEventDetail{
		agentEventDetail: te.agentDetail(s),
		LocalRank:        [1]int{p.Local}, RoleRank: [1]int{s.Place.RoleRank + p.Local}, RoleWorldSize: [1]int{s.Place.RoleWorld},
	}
	if f != nil {
		d.ExitCode[0], d.WorkerPid[0] = &f.ExitCode, &f.Pid
	}
	rank, id := s.Place.FirstRank+p.Local, strconv.Itoa(p.Pid)
	te.status(s, fromWorker, state, d, func(m *torchEventMetadata) {
		m.GlobalRank, m.WorkerID = &rank, &id
		if f != nil {
			raw := f.RawError()
			m.RawError = &raw
		}
	})
}
