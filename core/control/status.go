package control

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/descriptors"
)

// StatusSchema is the version of Status. Fields are only added to it: a program
// that knows a smaller number understands the rest.
const StatusSchema = 1

// Status is what a control plane knows, as GET /status tells it. docs/status.md
// describes the fields. Lists are never null; times are UTC.
type Status struct {
	Schema    int           `json:"schema"`
	Server    *ServerStatus `json:"server"` // null: the runs meet at Place, without one
	Place     string        `json:"place"`  // endpoint; "" if there is a server
	Runs      []RunStatus   `json:"runs"`
	RunsTotal int           `json:"runs_total"` // more than Runs has if there are many
}

// ServerStatus is the process that hosts the control plane.
type ServerStatus struct {
	ID          string    `json:"id"` // drawn at each start
	Version     string    `json:"version"`
	Protocol    int       `json:"protocol"`
	Address     string    `json:"address"` // where it listens
	Host        string    `json:"host"`
	PID         int       `json:"pid"`
	OnlyRun     string    `json:"only_run"` // the one run it takes; "" if it takes any
	StartedAt   time.Time `json:"started_at"`
	Now         time.Time `json:"now"`
	Connections int       `json:"connections"`
	// Descriptors are those of the process, for connections and all else.
	Descriptors DescriptorsStatus `json:"descriptors"`
	KeptBytes   int64             `json:"kept_bytes"` // about, for all runs, with what waits to be sent
	// Succession is null for a server that outlives the nodes.
	Succession *SuccessionStatus `json:"succession"`

	Fingerprints []string `json:"fingerprints"` // of the token file, the first line's first; empty: there is no token

	// Refusals since the start, by the reasons of /metrics; reasons that have not occurred are
	// left out.
	Refused           map[string]uint64 `json:"refused"`            // at this port
	StoresRefused     map[string]uint64 `json:"stores_refused"`     // at the round stores of this process
	ForwardersRefused map[string]uint64 `json:"forwarders_refused"` // on this process's ways to those of others
}

// DescriptorsStatus is how many descriptors a process may have, has and will need.
type DescriptorsStatus struct {
	Limit  int `json:"limit"`
	Open   int `json:"open"`   // 0: not known
	Needed int `json:"needed"` // for the nodes of the next rounds of all runs, and 64
}

// hideOthers takes out what is of other runs, or of the server as a whole: for a requester with
// the token of one run.
func (s *ServerStatus) hideOthers() {
	s.PID, s.Connections, s.Descriptors = 0, 0, DescriptorsStatus{}
	s.Fingerprints = []string{}
	s.Refused, s.StoresRefused, s.ForwardersRefused = map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
}

// SuccessionStatus is what a server in the process of a node knows of the present host and the
// next one.
type SuccessionStatus struct {
	Role      string          `json:"role"`        // RoleHosting or RoleWaiting
	Group     string          `json:"group"`       // of the servers that succeed each other
	Term      uint64          `json:"term"`        // 1 for the first one
	Host      string          `json:"host"`        // "ip:port" of the server that hosts; "" if it is this one and it has several
	HostNode  string          `json:"host_node"`   // whose process hosts
	Since     *time.Time      `json:"since"`       // it hosts; null: it does not
	TookOver  string          `json:"took_over"`   // the node that hosted before; "": none
	TookOverS float64         `json:"took_over_s"` // how long the run was without a host
	Standbys  []StandbyStatus `json:"standbys"`    // in the order of succession
	NotBy     []string        `json:"not_by"`      // nodes that were asked to stand by and do not, and why
	Voters    []VoterStatus   `json:"voters"`      // beside the host; none: no other node is elected when the host is silent
	Majority  *bool           `json:"majority"`    // the host hears a majority of the voters; null: it has none, or this process does not host
	Missing   string          `json:"missing"`     // which voters are missing for a majority; "": none
	Elections uint64          `json:"elections"`   // that this process has won
	Elected   bool            `json:"elected"`     // this process hosts because the host before was silent
	Peers     []string        `json:"peers"`       // the servers by configuration, this one included, of many runs; empty: those of nodes succeed each other
}

// VoterStatus is one node whose vote counts when the host is silent.
type VoterStatus struct {
	Node      string  `json:"node"`
	Reachable bool    `json:"reachable"` // it has answered within a quarter of lease_timeout; false where this process does not host
	HeardS    float64 `json:"heard_s"`   // since it was last heard
}

// StandbyStatus is one node that stands by.
type StandbyStatus struct {
	Node      string `json:"node"`
	Label     string `json:"label"`
	Address   string `json:"address"`   // of its listener
	Connected bool   `json:"connected"` // a liveness connection between it and this process stands
}

// The roles of a server in the process of a node.
const (
	RoleHosting = "hosting"
	RoleWaiting = "waiting"
)

// RunStatus is one run.
type RunStatus struct {
	RunID         string            `json:"run_id"`
	Generation    string            `json:"generation"`
	Phase         rendezvous.Phase  `json:"phase"`
	State         string            `json:"state"` // the phase, or what tells more of it: stalled, or restarting after a failure
	Nodes         NodeRange         `json:"nodes"`
	LeaseTimeoutS float64           `json:"lease_timeout_s"`
	Round         uint64            `json:"round"`         // last completed; 0: none
	RoundAt       *time.Time        `json:"round_at"`      // when it was completed; null: not by this control plane
	RoundStore    string            `json:"round_store"`   // its store's HOST:PORT; "": not known
	FormingSince  *time.Time        `json:"forming_since"` // null: no round is being formed
	NotStarted    string            `json:"not_started"`   // why no round has been completed; "" unless one is forming
	Missing       Missing           `json:"missing"`
	Members       []MemberStatus    `json:"members"` // of the last round, by rank
	Waiting       []WaitingStatus   `json:"waiting"` // in the order in which they would be seated
	Idle          []IdleStatus      `json:"idle"`    // connected, but neither
	Finished      []string          `json:"finished"`
	Counts        CountsStatus      `json:"counts"` // of the lists above, also where they are left out
	Closed        *ClosedStatus     `json:"closed"` // null: open
	Changes       []StatusChange    `json:"changes"`
	ChangesTotal  uint64            `json:"changes_total"` // more than Changes has once old ones were forgotten
	Progress      *ProgressStatus   `json:"progress"`      // null: no worker has reported a step in the last round
	Directives    []DirectiveStatus `json:"directives"`    // that stand, in the order in which they were given
	Drained       []DrainedStatus   `json:"drained"`       // nodes that are not admitted, by id
	ScaledTo      int               `json:"scaled_to"`     // nodes that the last scale has asked for; 0: none has
	Stopping      string            `json:"stopping"`      // who announced the stop of the last round, and why; "": no node has
	KeptBytes     int64             `json:"kept_bytes"`    // about, with what waits to be sent to its nodes; 0: no server keeps it

	// Stalled says that the last round makes no step any more, and where its workers are, as its
	// nodes say it; "": it does, as far as is known.
	Stalled string `json:"stalled"`

	// LastFailure is the last change by which a node announced that its workers had failed; null:
	// none is known. Where there is no control plane, or it has not seen it, a node reports it.
	LastFailure *StatusChange `json:"last_failure"`

	RoundGeneration string `json:"round_generation"` // the generation that completed the round: a takeover keeps it
}

// CountsStatus counts the nodes of a run.
type CountsStatus struct {
	Running   int `json:"running"` // members of the last round, by state
	Unknown   int `json:"unknown"`
	Rejoined  int `json:"rejoined"`
	Finished  int `json:"finished"`
	Lost      int `json:"lost"`
	Newcomers int `json:"newcomers"` // that wait for a place
	Spares    int `json:"spares"`
	Idle      int `json:"idle"`
}

// count counts the nodes of the lists. A member that waits for the next round is one.
func (r *RunStatus) count() CountsStatus {
	n := make(map[string]int) // by state of members and role of others
	for _, m := range r.Members {
		n[m.State]++
	}
	for _, w := range r.Waiting {
		n[w.Role]++
	}
	return CountsStatus{
		Running: n["running"], Unknown: n["unknown"], Rejoined: n["rejoined"], Finished: n["finished"], Lost: n["lost"],
		Newcomers: n[RoleNewcomer], Spares: n[RoleSpare], Idle: len(r.Idle),
	}
}

// shorten leaves out the lists with an entry for each node, if brief; the counts stay.
func (s *Status) shorten(brief bool) {
	for i := range s.Runs {
		if r := &s.Runs[i]; brief {
			r.Members, r.Waiting, r.Idle, r.Finished = []MemberStatus{}, []WaitingStatus{}, []IdleStatus{}, []string{}
		}
	}
}

// NodeRange is how many nodes a round may have.
type NodeRange struct {
	Min    int `json:"min"` // all 0: no node was here yet
	Max    int `json:"max"`
	Unit   int `json:"unit"`
	Target int `json:"target"` // 0: max

	Segment int `json:"segment"` // so many consecutive ranks are on nodes of one topology domain
}

// Missing is what the forming round lacks; all zero if none is formed.
type Missing struct {
	Min    int    `json:"min"`    // nodes to min
	Target int    `json:"target"` // nodes to target, or to max without one
	Who    string `json:"who"`    // names or node ranks where they are known
}

// MemberStatus is one member of the last round.
type MemberStatus struct {
	Name         string   `json:"name"` // what people call it: its machine, or the id where nodes share that
	Rank         int      `json:"rank"`
	Node         string   `json:"node"` // "" for one that has not returned since the control plane was restarted
	Label        string   `json:"label"`
	Address      string   `json:"address"`
	State        string   `json:"state"` // running, unknown, rejoined, finished or lost
	Cause        string   `json:"cause"` // why it was lost
	Host         bool     `json:"host"`  // its process hosts the control plane
	Alive        bool     `json:"alive"`
	Reconnecting bool     `json:"reconnecting"`
	LeaseAgeS    *float64 `json:"lease_age_s"` // since it was last heard; null: not alive, or there is no server

	Progress    *NodeProgressStatus `json:"progress"`    // null: its workers have reported no step in this round
	Fingerprint string              `json:"fingerprint"` // of the token by which its connection was let in; "": none

	Topology string `json:"topology"` // its domain; "": none

	Workers       int `json:"workers"`        // of the node; 0: it has not reported
	FailedWorkers int `json:"failed_workers"` // of these, while the others run on (--on-failure keep)

	Suspect string `json:"suspect"` // what a check of the node finds, and why it stays; "": nothing
}

// WaitingStatus is one pending join.
type WaitingStatus struct {
	Name         string     `json:"name"`
	Node         string     `json:"node"`
	Label        string     `json:"label"`
	Address      string     `json:"address"`
	Role         string     `json:"role"`      // member (of the last round), newcomer or spare
	NodeRank     int        `json:"node_rank"` // that it asks for; -1: any
	Since        *time.Time `json:"since"`
	WaitingS     float64    `json:"waiting_s"`
	Reconnecting bool       `json:"reconnecting"`
	LeaseAgeS    *float64   `json:"lease_age_s"`
	Fingerprint  string     `json:"fingerprint"`

	Topology string `json:"topology"` // its domain; "": none
}

// IdleStatus is a node that is here but asks for nothing.
type IdleStatus struct {
	Name         string   `json:"name"`
	Node         string   `json:"node"`
	Label        string   `json:"label"`
	Address      string   `json:"address"`
	Reason       string   `json:"reason"` // why it lost its place; "" if it had none
	Reconnecting bool     `json:"reconnecting"`
	LeaseAgeS    *float64 `json:"lease_age_s"`
	Fingerprint  string   `json:"fingerprint"`

	Topology string `json:"topology"` // its domain; "": none
}

// DirectiveStatus is a directive that stands.
type DirectiveStatus struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"` // save, drain, scale or stop
	Nodes   []string  `json:"nodes"`
	WithinS float64   `json:"within_s"` // from At to its deadline
	At      time.Time `json:"at"`
	By      string    `json:"by"`
	Reason  string    `json:"reason"`

	Target  int      `json:"target"`  // of a scale; 0: it is none
	Phase   string   `json:"phase"`   // waiting, agreeing or agreed
	Round   uint64   `json:"round"`   // whose members are asked or have agreed; 0 while it waits
	Step    *int64   `json:"step"`    // at which the workers get it; null: none is agreed, or they get it at once
	Members int      `json:"members"` // running ones of the round
	Saved   int      `json:"saved"`   // of these, whose workers have saved
	Missing []string `json:"missing"` // some of those that have not said yet what the phase waits for
}

// DrainedStatus is a node that is not admitted.
type DrainedStatus struct {
	Node   string `json:"node"`
	By     string `json:"by"`
	Reason string `json:"reason"`
	Cause  string `json:"cause"` // admin or failures

	// Cordoned tells that a node whose workers ran stays until its round ends.
	Cordoned bool `json:"cordoned"`
}

// ClosedStatus is how a run was closed.
type ClosedStatus struct {
	How    string     `json:"how"` // closed, ended successfully, failed or stopped to be queued again
	By     string     `json:"by"`
	Reason string     `json:"reason"`
	At     *time.Time `json:"at"` // by the clock of the process that closed it
}

// StatusChange is one line of a run's history.
type StatusChange struct {
	At    time.Time `json:"at"`
	Text  string    `json:"text"`
	Round uint64    `json:"round"` // the last completed one then; of its completion, that one
}

// The roles of waiting nodes.
const (
	RoleMember   = "member"
	RoleNewcomer = "newcomer"
	RoleSpare    = "spare"
)

// MaxStatusRuns bounds the runs that one Status describes.
const MaxStatusRuns = 256

// Status describes the server and its runs: those with nodes first, then by id,
// at most 256. It is a snapshot of each run, not of all at one time. Each run is
// locked while it is described, O(n log n) for n nodes.
func (s *Server) Status() Status {
	s.mu.Lock()
	runs := slices.Collect(maps.Values(s.runs))
	s.mu.Unlock()
	busy := make(map[*run]bool, len(runs))
	for _, r := range runs {
		busy[r] = r.busy()
	}
	slices.SortFunc(runs, func(a, b *run) int {
		switch {
		case busy[a] && !busy[b]:
			return -1
		case busy[b] && !busy[a]:
			return 1
		}
		return strings.Compare(a.id, b.id)
	})
	return s.describe(runs)
}

// RunStatus is Status for one run; false if there is none of that id.
func (s *Server) RunStatus(id string) (Status, bool) {
	r := s.lookUp(id)
	if r == nil {
		return Status{}, false
	}
	return s.describe([]*run{r}), true
}

func (s *Server) describe(runs []*run) Status {
	st := Status{Schema: StatusSchema, Server: s.serverStatus(), Runs: []RunStatus{}, RunsTotal: len(runs)}
	for _, r := range runs[:min(len(runs), MaxStatusRuns)] {
		st.Runs = append(st.Runs, r.status())
	}
	return st
}

func (s *Server) serverStatus() *ServerStatus {
	s.mu.Lock()
	connections := len(s.conns)
	s.mu.Unlock()
	var stores, forwarders map[string]uint64
	if s.cfg.Refused != nil {
		stores, forwarders = s.cfg.Refused()
	}
	now := s.clock.Now()
	began := now.Add(-now.Sub(s.started)) // by the clock of now: one that was set moves both
	return &ServerStatus{
		ID: s.id, Version: rallypoint.Version(), Protocol: wire.ProtocolVersion, Address: s.Addr().String(),
		Host: s.host, PID: os.Getpid(), OnlyRun: s.cfg.RunID,
		StartedAt: *stamp(began), Now: *stamp(now), Connections: connections, KeptBytes: s.keptBytes(), Succession: s.successionStatus(),
		Descriptors:  DescriptorsStatus{descriptors.Limit(), descriptors.Open(), int(s.awaited.Load()) + descriptors.Spare},
		Fingerprints: s.fingerprints(),
		Refused:      s.metrics.refusedByReason(), StoresRefused: occurred(stores), ForwardersRefused: occurred(forwarders),
	}
}

// lookUp returns the run of that id, nil if there is none.
func (s *Server) lookUp(id string) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// runIDs returns the ids of all runs in order.
func (s *Server) runIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := slices.AppendSeq([]string{}, maps.Keys(s.runs)) // not nil: /status has no null lists
	slices.Sort(ids)
	return ids
}

// busy reports whether the run has a live node.
func (r *run) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.broken == nil && r.machine.Live() > 0
}

func (r *run) status() RunStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, stats := r.describe(), &r.stats
	st := Describe(m, r.leaseAge)
	st.FormingSince, st.KeptBytes = stamp(stats.forming), r.keptBytesLocked()
	st.Changes, st.ChangesTotal = stats.changelog.list(), stats.changelog.total
	st.LastFailure = stats.failure
	if stats.round == m.Round {
		st.RoundAt = stamp(stats.roundAt)
	}
	r.describeProgressLocked(&st, m)
	r.addFingerprintsLocked(m, &st)
	now := r.server.clock.Now()
	for i, j := range m.Waiting {
		if p, ok := stats.joins[j.Session]; ok {
			st.Waiting[i].Since, st.Waiting[i].WaitingS = stamp(p.since), seconds(now.Sub(p.since))
		}
	}
	return st
}

// Describe makes the status of a run from its machine's. heard returns for how many seconds
// nothing was heard of a session; nil if it is not alive or that is not known. It leaves out what
// only a control plane knows: times and changes.
func Describe(m rendezvous.Status, heard func(rendezvous.SessionID) *float64) RunStatus {
	st := RunStatus{
		RunID: m.RunID, Generation: m.Generation, Phase: m.Phase,
		Nodes:         NodeRange{m.Policy.Min, m.Policy.Max, m.Policy.NodeUnit, m.Policy.Target, max(m.Policy.Segment, min(m.Policy.Max, 1))},
		LeaseTimeoutS: seconds(m.Policy.LeaseTimeout),
		Round:         m.Round, RoundStore: m.Store, RoundGeneration: m.Origin, NotStarted: m.NotStarted,
		Missing:  Missing{m.Lack, m.LackFull, m.Missing},
		Members:  make([]MemberStatus, 0, len(m.Members)),
		Waiting:  make([]WaitingStatus, 0, len(m.Waiting)),
		Idle:     make([]IdleStatus, 0, len(m.Idle)),
		Finished: []string{},
		Changes:  []StatusChange{},
		Stopping: m.Stopping, State: string(m.Phase),

		Directives: []DirectiveStatus{},
		Drained:    []DrainedStatus{},
		ScaledTo:   m.ScaledTo,
	}
	for _, d := range m.Directives {
		st.Directives = append(st.Directives, directiveStatus(d))
	}
	for _, d := range m.Drained {
		st.Drained = append(st.Drained, DrainedStatus{Node: d.Node, By: d.By, Reason: d.Reason, Cause: d.Cause.String(), Cordoned: d.Cordoned})
	}
	for _, s := range m.Members {
		st.Members = append(st.Members, MemberStatus{
			Rank: s.Rank, Name: s.Name, Node: s.Node, Label: s.Label, Address: s.Addr, State: s.State, Cause: s.Cause,
			Topology: s.Topology, Host: s.Host, Alive: s.Session != "", Reconnecting: s.Reconnect, LeaseAgeS: heard(s.Session),
		})
		if s.State == "finished" {
			st.Finished = append(st.Finished, s.Node)
		}
	}
	for _, j := range m.Waiting {
		st.Waiting = append(st.Waiting, WaitingStatus{
			Name: j.Name, Node: j.Node, Label: j.Label, Address: j.Addr, Topology: j.Topology, Role: roleOf(j), NodeRank: j.NodeRank,
			Reconnecting: j.Reconnect, LeaseAgeS: heard(j.Session),
		})
	}
	for _, i := range m.Idle {
		st.Idle = append(st.Idle, IdleStatus{Name: i.Name, Node: i.Node, Label: i.Label, Address: i.Addr, Topology: i.Topology, Reason: i.Reason, Reconnecting: i.Reconnect, LeaseAgeS: heard(i.Session)})
	}
	st.Counts = st.count()
	if m.Restarting && (m.Phase == rendezvous.PhaseRunning || m.Phase == rendezvous.PhaseRegroup) {
		st.State = "restarting"
	}
	if c := m.Closed; c != nil {
		st.Closed = &ClosedStatus{c.How, c.By, c.Reason, stamp(c.At)}
	}
	return st
}

// describe is the machine's status; a broken machine is not asked.
func (r *run) describe() rendezvous.Status {
	if r.broken == nil {
		return r.machine.Status()
	}
	return rendezvous.Status{
		RunID: r.id, Round: r.stats.census.Round, Phase: rendezvous.PhaseClosed,
		Closed: &rendezvous.ClosedStatus{How: "failed", By: "the control plane", Reason: r.broken.Text},
	}
}

func roleOf(j rendezvous.JoinStatus) string {
	switch {
	case j.Member:
		return RoleMember
	case j.Spare:
		return RoleSpare
	}
	return RoleNewcomer
}

// leaseAge returns for how many seconds nothing was heard of a session, nil if it
// is not alive.
func (r *run) leaseAge(session rendezvous.SessionID) *float64 {
	d, ok := r.silence(session)
	if !ok {
		return nil
	}
	age := seconds(d)
	return &age
}

// seconds rounds to a millisecond.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

// stamp returns a time in UTC, to a millisecond; nil for none.
func stamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Round(time.Millisecond)
	return &t
}

// statusTag is the weak entity tag of a status: equal tags mean that no event has
// changed what it tells. Ages and counts of connections change without one. It costs a
// lock of each run and no description of it; "" if there is no such run.
func (s *Server) statusTag(id string, one bool) string {
	var ids []string
	if one {
		ids = []string{id}
	} else {
		ids = s.runIDs()
	}
	sum := fnv.New128a()
	for _, id := range ids {
		r := s.lookUp(id)
		switch {
		case r != nil:
			r.mu.Lock()
			generation := "broken"
			if r.broken == nil {
				generation = r.machine.Generation()
			}
			fmt.Fprintf(sum, "%q %d %s %d %d\n", r.id, r.seq, generation, r.applied, r.stats.changelog.total)
			r.mu.Unlock()
		case one:
			return ""
		}
	}
	return fmt.Sprintf(`W/"%s-%x"`, s.id, sum.Sum(nil))
}

// hasTag reports whether the client says that it has the answer of that tag.
func hasTag(r *http.Request, tag string) bool {
	for _, line := range r.Header.Values("If-None-Match") {
		for one := range strings.SplitSeq(line, ",") {
			if strings.TrimPrefix(strings.TrimSpace(one), "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// directiveStatus is a directive as /status has it.
func directiveStatus(d rendezvous.DirectiveStatus) DirectiveStatus {
	s := DirectiveStatus{
		ID: d.ID, Kind: d.Kind, Nodes: d.Nodes, WithinS: seconds(d.Within), At: d.At, By: d.By, Reason: d.Reason,
		Target: d.Target, Phase: string(d.Phase), Round: d.Round, Members: d.Members, Saved: d.Saved, Missing: d.Missing,
	}
	if s.Nodes == nil {
		s.Nodes = []string{}
	}
	if s.Missing == nil {
		s.Missing = []string{}
	}
	if d.Step >= 0 {
		s.Step = &d.Step
	}
	return s
}
