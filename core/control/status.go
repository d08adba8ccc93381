package control

import (
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/descriptors"
	"rallypoint/internal/wording"
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
	Register  bool            `json:"register"`    // the place has a register of who leads: any other node may be next
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

// RunStatus is one run: what its machine knows, and what only the server does.
type RunStatus struct {
	rendezvous.RunStatus
	RoundAt      *time.Time      `json:"round_at"`      // when the last round was completed; null: not by this control plane
	FormingSince *time.Time      `json:"forming_since"` // null: no round is being formed
	Members      []MemberStatus  `json:"members"`       // of the last round, by rank
	Waiting      []WaitingStatus `json:"waiting"`       // in the order in which they would be seated
	Idle         []IdleStatus    `json:"idle"`          // connected, but neither
	Changes      []StatusChange  `json:"changes"`
	ChangesTotal uint64          `json:"changes_total"` // more than Changes has once old ones were forgotten
	Progress     *ProgressStatus `json:"progress"`      // null: no worker has reported a step in the last round
	KeptBytes    int64           `json:"kept_bytes"`    // about, with what waits to be sent to its nodes; 0: no server keeps it

	// Stalled says that the last round makes no step any more, and where its workers are, as its
	// nodes say it; "": it does, as far as is known.
	Stalled string `json:"stalled"`

	// LastFailure is the last change by which a node announced that its workers had failed; null:
	// none is known. Where there is no control plane, or it has not seen it, a node reports it.
	LastFailure *StatusChange `json:"last_failure"`
}

// AllNodes iterates over the nodes in the run's lists, and the server's view of each node's
// connection. A member that waits for the next round comes twice.
func (r *RunStatus) AllNodes() iter.Seq2[*rendezvous.NodeStatus, *ConnectionStatus] {
	return func(yield func(*rendezvous.NodeStatus, *ConnectionStatus) bool) {
		more := true
		for i := 0; more && i < len(r.Members); i++ {
			more = yield(&r.Members[i].NodeStatus, &r.Members[i].ConnectionStatus)
		}
		for i := 0; more && i < len(r.Waiting); i++ {
			more = yield(&r.Waiting[i].NodeStatus, &r.Waiting[i].ConnectionStatus)
		}
		for i := 0; more && i < len(r.Idle); i++ {
			more = yield(&r.Idle[i].NodeStatus, &r.Idle[i].ConnectionStatus)
		}
	}
}

// Present counts the nodes that are here.
func (r *RunStatus) Present() int {
	n := len(r.Idle)
	for _, m := range r.Members {
		if m.Alive || m.LeaseAgeS != nil { // an older control plane says the latter only
			n++
		}
	}
	return n + r.Newcomers()
}

// Newcomers counts the waiting nodes that are not members.
func (r *RunStatus) Newcomers() (n int) {
	for _, w := range r.Waiting {
		if w.Role != rendezvous.RoleMember {
			n++
		}
	}
	return n
}

// shorten leaves out the lists with an entry for each node, if brief; the counts stay.
func (s *Status) shorten(brief bool) {
	for i := range s.Runs {
		if r := &s.Runs[i]; brief {
			r.Members, r.Waiting, r.Idle, r.Finished = []MemberStatus{}, []WaitingStatus{}, []IdleStatus{}, []string{}
		}
	}
}

// ConnectionStatus is the server's view of a node's connection.
type ConnectionStatus struct {
	LeaseAgeS   *float64 `json:"lease_age_s"` // since it was last heard; null: not alive, or there is no server
	Fingerprint string   `json:"fingerprint"` // of the token by which it was let in; "": none
}

// MemberStatus is one member of the last round.
type MemberStatus struct {
	rendezvous.MemberStatus
	ConnectionStatus
	Progress      *NodeProgressStatus `json:"progress"`       // null: its workers have reported no step in this round
	Workers       int                 `json:"workers"`        // of the node; 0: it has not reported
	FailedWorkers int                 `json:"failed_workers"` // of these, while the others run on (--on-failure keep)
	Suspect       string              `json:"suspect"`        // what a check of the node finds, and why it stays; "": nothing
}

// WaitingStatus is one pending join.
type WaitingStatus struct {
	rendezvous.WaitingStatus
	Since    *time.Time `json:"since"`
	WaitingS float64    `json:"waiting_s"`
	ConnectionStatus
}

// IdleStatus is a node that is here but asks for nothing.
type IdleStatus struct {
	rendezvous.IdleStatus
	ConnectionStatus
}

// MaxStatusRuns bounds the runs that one Status describes.
const MaxStatusRuns = 256

// Status describes the server and its runs: those with nodes first, then by id,
// at most 256. It is a snapshot of each run, not of all at one time. Each run is
// locked while it is described, O(n log n) for n nodes.
func (s *Server) Status() Status {
	runs := s.allRuns()
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

// RunStatus is Status for one run; false if there is no run with that id.
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
		StartedAt: *rendezvous.StatusTime(began), Now: *rendezvous.StatusTime(now), Connections: connections, KeptBytes: s.keptBytes(), Succession: s.successionStatus(),
		Descriptors:  DescriptorsStatus{descriptors.Limit(), descriptors.Open(), int(s.awaited.Load()) + descriptors.Spare},
		Fingerprints: s.fingerprints(),
		Refused:      s.metrics.refusedByReason(), StoresRefused: occurred(stores), ForwardersRefused: occurred(forwarders),
	}
}

// lookUp returns the run with that id, nil if there is none.
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
	st, stats := Describe(r.describe()), &r.stats
	st.FormingSince, st.KeptBytes = rendezvous.StatusTime(stats.forming), r.keptBytesLocked()
	st.Changes, st.ChangesTotal = stats.changelog.list(), stats.changelog.total
	st.LastFailure = stats.failure
	if stats.round == st.Round {
		st.RoundAt = rendezvous.StatusTime(stats.roundAt)
	}
	for node, conn := range st.AllNodes() {
		conn.LeaseAgeS = r.leaseAge(node.Session)
		if c := r.conns[node.Session]; c != nil {
			conn.Fingerprint = c.key
		}
	}
	r.describeProgressLocked(&st)
	now := r.server.clock.Now()
	for i, w := range st.Waiting {
		if p, ok := stats.joins[w.Session]; ok {
			st.Waiting[i].Since, st.Waiting[i].WaitingS = rendezvous.StatusTime(p.since), rendezvous.StatusSeconds(now.Sub(p.since))
		}
	}
	return st
}

// Describe makes the status of a run from its machine's. It leaves out the fields that only a
// server can fill in.
func Describe(m rendezvous.Status) RunStatus {
	st := RunStatus{
		RunStatus: m.RunStatus,
		Members:   make([]MemberStatus, len(m.Members)), Waiting: make([]WaitingStatus, len(m.Waiting)), Idle: make([]IdleStatus, len(m.Idle)),
		Changes: []StatusChange{},
	}
	for i, s := range m.Members {
		st.Members[i].MemberStatus = s
	}
	for i, s := range m.Waiting {
		st.Waiting[i].WaitingStatus = s
	}
	for i, s := range m.Idle {
		st.Idle[i].IdleStatus = s
	}
	return st
}

// describe is the machine's status; a broken machine is not asked.
func (r *run) describe() rendezvous.Status {
	if r.broken == nil {
		st := r.machine.Status()
		if st.Phase == rendezvous.PhaseForming || st.Phase == rendezvous.PhaseRegroup {
			st.NotStarted = r.withRefusedLocked(st.NotStarted)
		}
		return st
	}
	return rendezvous.Status{RunStatus: rendezvous.RunStatus{
		RunID: r.id, Round: r.stats.census.Round, Phase: rendezvous.PhaseClosed, State: string(rendezvous.PhaseClosed),
		Closed:   &rendezvous.ClosedStatus{How: "failed", By: "the control plane", Reason: r.broken.Text},
		Finished: []string{}, Directives: []rendezvous.DirectiveStatus{}, Drained: []rendezvous.DrainedStatus{},
	}}
}

// leaseAge returns for how many seconds nothing was heard of a session, nil if it
// is not alive.
func (r *run) leaseAge(session rendezvous.SessionID) *float64 {
	d, ok := r.silence(session)
	if !ok {
		return nil
	}
	return new(rendezvous.StatusSeconds(d))
}

// statusTag is the weak entity tag of a status, "" if there is no such run. If the tag is the
// same, no event has changed the status; ages and counts of connections change without one. It
// locks each run, but does not describe it.
func (s *Server) statusTag(id string, one bool) string {
	ids := []string{id}
	if !one {
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
			fmt.Fprintf(sum, "%q %d %s %d %d %q\n", r.id, r.seq, generation, r.applied, r.stats.changelog.total, r.refused)
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

// unknownRun is the error of a request for a run that is not there; it names
// those that are.
func (s *Server) unknownRun(id string) *rendezvous.Error {
	names := s.runIDs()
	if id != "" && id == s.cfg.RunID { // its leader, or the endpoint's first node, is quicker than all nodes
		return rendezvous.Errorf(rendezvous.CodeConnection, "the control plane at %s (%s) has just begun: no node of run %q has come yet", s.Addr(), s.process, id)
	}
	there := "it knows no run yet"
	if len(names) > 0 {
		there = "it knows " + wording.Names(names)
	}
	return rendezvous.Errorf(rendezvous.CodeInvalid, "the control plane at %s (%s) knows no run %q: %s", s.Addr(), s.process, id, there)
}
