package agent

import (
	"encoding/json"
	"path"
	"strconv"
	"time"

	"rallypoint/core/agent/failure"
	"rallypoint/core/agent/process"
	"rallypoint/core/agent/watchdog"
)

// Where an event comes from (A95).
const (
	fromAgent  = "AGENT"
	fromWorker = "WORKER"
)

// event is one event as it is written (A95, A96). The timestamp is always 0, as
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
// arrays are an upstream slip that readers rely on (A96).
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

// watchdogDetail is the inner metadata of the watchdog's events, all texts (A91).
type watchdogDetail struct {
	Event   string `json:"watchdog_event"`
	Pid     string `json:"worker_pid,omitempty"`
	Scope   string `json:"scope_id,omitempty"`
	Expires string `json:"expiration_time,omitempty"`
	Signal  string `json:"signal,omitempty"`
}

// recordWatchdog records what the watchdog did; t is nil where no timer is meant.
func (a *Agent) recordWatchdog(name string, t *watchdog.Timer) {
	d := &watchdogDetail{Event: name}
	if t != nil {
		d.Pid, d.Scope, d.Expires, d.Signal = strconv.Itoa(t.Pid), t.Scope, t.Expires.String(), strconv.Itoa(int(t.Signal))
	}
	a.record(fromAgent, "RUNNING", d, nil)
}

// record hands an event to the sink, if there is one.
func (a *Agent) record(source, state string, detail any, fill func(*torchEventMetadata)) {
	if a.spec.Events == nil {
		return
	}
	inner, err := json.Marshal(detail)
	if err != nil {
		return
	}
	name := "torchelastic.worker.status." + state
	if w, ok := detail.(*watchdogDetail); ok {
		name = w.Event
	}
	e := torchEvent{Name: name, Source: source, Metadata: torchEventMetadata{
		RunID: a.spec.RunID, Role: a.spec.Role, Hostname: fqdn(), State: state, Backend: a.spec.Backend,
		Metadata: string(inner), Restarts: a.used(),
	}}
	if a.ran > 0 {
		e.Metadata.TotalRunTime = int(a.ran / time.Second)
	}
	if a.assignment != nil {
		e.Metadata.GroupRank = &a.assignment.group
	}
	if fill != nil {
		fill(&e.Metadata)
	}
	if text, err := json.Marshal(e); err == nil {
		a.spec.Events.Record(text)
	}
}

func (a *Agent) agentDetail() agentEventDetail {
	d := agentEventDetail{EntryPoint: path.Base(a.spec.Argv[0])}
	if a.assignment != nil {
		d.GroupWorldSize = &a.assignment.groups
	}
	return d
}

// recordStep records how long one step of a round took.
func (a *Agent) recordStep(state string, took time.Duration) {
	ms := float64(took) / float64(time.Millisecond)
	a.record(fromAgent, state, a.agentDetail(), func(m *torchEventMetadata) { m.DurationMS = &ms })
}

// recordAgent records how the agent ended.
func (a *Agent) recordAgent(state string, failure error) {
	a.record(fromAgent, state, a.agentDetail(), func(m *torchEventMetadata) {
		if failure != nil {
			text := failure.Error()
			m.RawError = &text
		}
	})
}

// recordWorker records a worker's start or end; f is nil unless it failed.
func (a *Agent) recordWorker(state string, p *process.Process, f *failure.Failure) {
	if a.assignment == nil {
		return
	}
	r := a.assignment.ranks
	d := workerEventDetail{
		agentEventDetail: a.agentDetail(),
		LocalRank:        [1]int{p.Local}, RoleRank: [1]int{r.roleBase + p.Local}, RoleWorldSize: [1]int{r.roleWorld},
	}
	if f != nil {
		d.ExitCode[0], d.WorkerPid[0] = &f.ExitCode, &f.Pid
	}
	rank, id := r.base+p.Local, strconv.Itoa(p.Pid)
	a.record(fromWorker, state, d, func(m *torchEventMetadata) {
		m.GlobalRank, m.WorkerID = &rank, &id
		if f != nil {
			raw := f.RawError()
			m.RawError = &raw
		}
	})
}
