package control

import (
	"cmp"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	rallypoint "rallypoint"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/promtext"
)

// maxRunLabels bounds the runs that have metrics of their own, which are the
// oldest with live nodes: a label's values must be few (docs/metrics.md).
const maxRunLabels = 100

// metricsPage writes the metrics (docs/metrics.md). It costs O(1) for each run.
func (s *Server) metricsPage() []byte {
	s.mu.Lock()
	runs := slices.Collect(maps.Values(s.runs))
	connections := len(s.conns)
	s.mu.Unlock()
	all := make([]runCensus, len(runs))
	for i, r := range runs {
		all[i] = r.takeCensus()
	}
	e := &promtext.Buffer{}
	s.exposeServer(e)
	s.exposeRuns(e, all)
	s.exposeTraffic(e, all, connections)
	s.exposeLost(e)
	s.exposeData(e)
	s.exposeSuccession(e)
	exposeEach(e, all)
	if s.cfg.Metrics != nil {
		s.cfg.Metrics(e)
	}
	return e.Bytes()
}

func (s *Server) exposeServer(e *promtext.Buffer) {
	e.Family("rallypoint_build_info", "gauge", "1, with the versions of the program as labels.")
	e.Sample("rallypoint_build_info", 1, "version", rallypoint.Version(), "go_version", runtime.Version())
	e.Single("go_goroutines", "gauge", "Goroutines of the process.", float64(runtime.NumGoroutine()))
	e.Single("rallypoint_start_time_seconds", "gauge", "When the control plane started, in seconds since 1970.",
		float64(s.started.UnixMilli())/1000)
	e.Family("rallypoint_token_info", "gauge", "1 for each line of the token file, by fingerprint; none without a token.")
	if !s.cfg.MetricsOpen { // to strangers
		for _, fingerprint := range s.fingerprints() {
			e.Sample("rallypoint_token_info", 1, "fingerprint", fingerprint)
		}
	}
}

// nodeStates are the states that nodes are counted by.
var nodeStates = []struct {
	name string
	of   func(*rendezvous.Census) int
}{
	{"running", func(c *rendezvous.Census) int { return c.Running }},
	{"unknown", func(c *rendezvous.Census) int { return c.Unknown }},
	{"rejoined", func(c *rendezvous.Census) int { return c.Rejoined }},
	{"finished", func(c *rendezvous.Census) int { return c.Finished }},
	{"lost", func(c *rendezvous.Census) int { return c.Lost }},
	{"waiting", func(c *rendezvous.Census) int { return c.Waiting }},
	{"spare", func(c *rendezvous.Census) int { return c.Spare }},
	{"idle", func(c *rendezvous.Census) int { return c.Idle }},
}

func (s *Server) exposeRuns(e *promtext.Buffer, all []runCensus) {
	phases := map[rendezvous.Phase]int{}
	states := make([]int, len(nodeStates))
	out := rendezvous.Census{}.Out
	lack, longest := 0, time.Duration(0)
	for i := range all {
		c := &all[i]
		phases[c.Phase]++
		for j, state := range nodeStates {
			states[j] += state.of(&c.Census)
		}
		for _, cause := range rendezvous.DrainCauses {
			out[cause] += c.Out[cause]
		}
		lack += c.Lack
		longest = max(longest, c.formingFor)
	}
	e.Family("rallypoint_runs", "gauge", "Runs that the control plane remembers, by phase.")
	for _, phase := range rendezvous.Phases {
		e.Sample("rallypoint_runs", float64(phases[phase]), "phase", string(phase))
	}
	e.Family("rallypoint_nodes", "gauge", "Nodes of all runs by state; lost and finished ones are those of the last rounds.")
	for j, state := range nodeStates {
		e.Sample("rallypoint_nodes", float64(states[j]), "state", state.name)
	}
	e.Family("rallypoint_nodes_out", "gauge", "Nodes and hosts that are kept out of a run, by cause: drained or cordoned by an administrator, or at their own request.")
	for _, cause := range rendezvous.DrainCauses {
		e.Sample("rallypoint_nodes_out", float64(out[cause]), "cause", cause.String())
	}
	e.Single("rallypoint_missing_nodes", "gauge", "Nodes that forming rounds lack for their minimum.", float64(lack))
	e.Single("rallypoint_longest_forming_seconds", "gauge", "For how long a round of any run has been in the making; 0 if none is.", longest.Seconds())

	e.Single("rallypoint_kept_bytes", "gauge", "About how many bytes are kept for all runs, with what is on its way.", float64(s.keptBytes()))
	e.Single("rallypoint_unsent_bytes", "gauge", "Bytes that wait to be sent.", float64(s.unsent.Load()))

	m := &s.metrics
	e.Family("rallypoint_round_duration_seconds", "histogram", "Rounds, by the time from the first join to completion.")
	exposeHistogram(e, "rallypoint_round_duration_seconds", &m.rounds, &roundBuckets)
	e.Family("rallypoint_nodes_lost_total", "counter", "Nodes that were lost, by cause.")
	exposeCounts(e, "rallypoint_nodes_lost_total", "cause", m.lost[:], lostNames[:])
	e.Family("rallypoint_nodes_left_total", "counter", "Nodes that left by themselves, by how their part ended.")
	exposeCounts(e, "rallypoint_nodes_left_total", "ending", m.left[:], leftNames[:])
	e.Family("rallypoint_runs_closed_total", "counter", "Runs that were closed, by how.")
	exposeCounts(e, "rallypoint_runs_closed_total", "how", m.closed[:], closedNames[:])
	e.Single("rallypoint_stalls_total", "counter",
		"Times that leases were judged late, because this process was stopped or overloaded; all nodes got a new lease then.", float64(m.stalls.Load()))
}

func (s *Server) exposeTraffic(e *promtext.Buffer, all []runCensus, connections int) {
	m := &s.metrics
	nodes, http := 0, s.http.Open()
	for i := range all {
		nodes += all[i].connected
	}
	e.Family("rallypoint_connections", "gauge", "Open connections, by what they are for.")
	e.Sample("rallypoint_connections", float64(nodes), "kind", "node")
	e.Sample("rallypoint_connections", float64(http), "kind", "http")
	e.Sample("rallypoint_connections", float64(max(0, connections-nodes-http)), "kind", "other")
	e.Single("rallypoint_connections_accepted_total", "counter", "Connections that were accepted.", float64(m.accepted.Load()))
	e.Single("rallypoint_connections_proven_total", "counter", "Connections within TLS whose peer has proven that it knows the token.", float64(m.proven.Load()))
	e.Family("rallypoint_refused_total", "counter", "Input that was refused, by reason.")
	exposeCounts(e, "rallypoint_refused_total", "reason", m.refused[1:], refusalNames[1:])
	e.Single("rallypoint_received_bytes_total", "counter", "Bytes that came in.", float64(m.BytesIn.Load()))
	e.Single("rallypoint_sent_bytes_total", "counter", "Bytes that were sent, HTTP's left out.", float64(m.BytesOut.Load()))
	e.Family("rallypoint_received_frames_total", "counter", "Frames that came in, by kind.")
	exposeSome(e, "rallypoint_received_frames_total", m.FramesIn[:], wire.KindHello, wire.KindRequest, wire.KindBeat, wire.KindGoodbye, wire.KindAdmin, wire.KindChallenge, wire.KindProof, 0)
	e.Family("rallypoint_sent_frames_total", "counter", "Frames that were sent, by kind.")
	exposeSome(e, "rallypoint_sent_frames_total", m.FramesOut[:],
		wire.KindWelcome, wire.KindRefuse, wire.KindBeat, wire.KindReply, wire.KindNotice, wire.KindProgress, wire.KindDrop, wire.KindAdminAnswer, wire.KindChallenge, wire.KindProof)
	e.Family("rallypoint_requests_total", "counter", "Requests of nodes, by operation.")
	exposeCounts(e, "rallypoint_requests_total", "operation", m.requests[:], opNames[:])
	e.Family("rallypoint_key_operations_total", "counter", "Operations on the agents' keys, by kind.")
	exposeCounts(e, "rallypoint_key_operations_total", "operation", m.keyOps[:], keyOpNames[:])
	e.Family("rallypoint_admin_requests_total", "counter", "Requests of administrators, by operation.")
	exposeCounts(e, "rallypoint_admin_requests_total", "operation", m.admin[:], adminOpNames[:])
}

func (s *Server) exposeData(e *promtext.Buffer) {
	if s.commits == nil {
		return
	}
	m := &s.metrics
	e.Family("rallypoint_commit_duration_seconds", "histogram", "Commits to the data directory, or to a majority of --peers, by the time they took.")
	exposeHistogram(e, "rallypoint_commit_duration_seconds", &m.commits, &commitBuckets)
	e.Single("rallypoint_commit_failures_total", "counter", "Those that failed.", float64(m.commitFailures.Load()))
	e.Single("rallypoint_commit_events_total", "counter", "Events that were stored; several share a commit.", float64(m.committed.Load()))
	size := int64(0)
	if s.cfg.Peers != nil {
		size = s.cfg.Peers.Replica.Size()
	} else {
		size = s.cfg.Data.Size()
	}
	e.Single("rallypoint_data_file_bytes", "gauge", "Size of the data file; 0: there is none.", float64(size))
}

func exposeCounts(e *promtext.Buffer, name, labelName string, counts []atomic.Uint64, values []string) {
	for i := range counts {
		if values[i] != "" {
			e.Sample(name, float64(counts[i].Load()), labelName, strings.ReplaceAll(values[i], " ", "_"))
		}
	}
}

func exposeSome(e *promtext.Buffer, name string, counts []atomic.Uint64, kinds ...wire.Kind) {
	for _, k := range kinds {
		e.Sample(name, float64(counts[k].Load()), "kind", wire.KindNames[k])
	}
}

// exposeEach writes the metrics that single runs have.
func exposeEach(e *promtext.Buffer, all []runCensus) {
	live := slices.DeleteFunc(slices.Clone(all), func(c runCensus) bool { return c.Live == 0 })
	listed := slices.DeleteFunc(slices.Clone(live), func(c runCensus) bool { return !utf8.ValidString(c.id) })
	slices.SortFunc(listed, func(a, b runCensus) int { return cmp.Compare(a.seq, b.seq) })
	listed = listed[:min(len(listed), maxRunLabels)]
	e.Family("rallypoint_run_nodes", "gauge", "Nodes of a run by state, for the oldest runs with live nodes.")
	for i := range listed {
		for _, state := range nodeStates {
			e.Sample("rallypoint_run_nodes", float64(state.of(&listed[i].Census)), "run", listed[i].id, "state", state.name)
		}
	}
	exposeGauge(e, "rallypoint_run_missing_nodes", "Nodes that the run's forming round lacks for its minimum.", listed,
		func(c *runCensus) float64 { return float64(c.Lack) })
	exposeGauge(e, "rallypoint_run_round", "The run's last completed round.", listed,
		func(c *runCensus) float64 { return float64(c.Round) })
	exposeGauge(e, "rallypoint_run_kept_bytes", "About how many bytes are kept for the run, with what is on its way to and from its nodes.", listed,
		func(c *runCensus) float64 { return float64(c.kept) })
	exposeTraining(e, listed)
	exposeGauge(e, "rallypoint_run_stalled", "1 while the run makes no step any more, as its status says with where its workers are; else 0.", listed,
		func(c *runCensus) float64 { return oneIf(c.stalled) })
	e.Single("rallypoint_runs_unlisted", "gauge", "Runs with live nodes that have no metrics of their own, because there are too many.",
		float64(len(live)-len(listed)))
}

// exposeGauge writes a metric of which each of the runs has one sample.
func exposeGauge(e *promtext.Buffer, name, help string, runs []runCensus, of func(*runCensus) float64) {
	e.Family(name, "gauge", help)
	for i := range runs {
		e.Sample(name, of(&runs[i]), "run", runs[i].id)
	}
}

// oneIf is 1 for true, else 0.
func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// exposeHistogram writes the samples of a histogram without labels.
func exposeHistogram(e *promtext.Buffer, name string, h *histogram, bounds *[len(roundBuckets)]float64) {
	total := uint64(0)
	for i, bound := range bounds {
		total += h.counts[i].Load()
		e.Sample(name+"_bucket", float64(total), "le", promtext.Number(bound))
	}
	total += h.counts[len(bounds)].Load()
	e.Sample(name+"_bucket", float64(total), "le", "+Inf")
	e.Sample(name+"_sum", float64(h.sum.Load())/1e9)
	e.Sample(name+"_count", float64(total))
}
