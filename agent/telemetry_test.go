package agent

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/host"
)

// metric is torch's MetricData, and rdzvEvent its RdzvEvent.
type (
	metric struct {
		Timestamp float64 `json:"timestamp"`
		Group     string  `json:"group_name"`
		Name      string  `json:"name"`
		Value     int64   `json:"value"`
	}
	rdzvEvent struct {
		Name           string `json:"name"`
		RunID          string `json:"run_id"`
		Message        string `json:"message"`
		Hostname       string `json:"hostname"`
		Pid            int    `json:"pid"`
		NodeState      string `json:"node_state"`
		MasterEndpoint string `json:"master_endpoint"`
		Rank           *int   `json:"rank"`
		LocalID        *int32 `json:"local_id"`
		ErrorTrace     string `json:"error_trace"`
	}
)

// recorder keeps the lines that are written to it.
type recorder struct {
	mu    sync.Mutex
	texts [][]byte
	more  func([]byte)
}

func (r *recorder) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := bytes.TrimSuffix(line, []byte("\n"))
	r.texts = append(r.texts, text)
	if r.more != nil {
		r.more(text)
	}
	return len(line), nil
}

// metrics are the metrics that were recorded, "name=value", durations without their value
// and each group of equal looks at healthy workers once.
func (r *recorder) metrics(t *testing.T) string {
	t.Helper()
	const healthy = "_monitor+ remaining_restarts=N healthy=1"
	short := strings.NewReplacer("SimpleElasticAgent.", "", "LocalElasticAgent.", "", "workers.r.", "", ".success=1", "+", ".failure=1", "-", "_workers", "")
	var all []string
	for _, text := range r.texts {
		var m metric
		if err := json.Unmarshal(text, &m); err != nil || m.Group != "torchelastic" || m.Timestamp < 1e9 {
			t.Fatalf("%s: %v", text, err)
		}
		if name, found := strings.CutSuffix(m.Name, ".duration.ms"); found {
			last := all[len(all)-1]
			if !strings.HasPrefix(last, short.Replace(name)) || m.Value < 0 {
				t.Errorf("%s after %s", text, last)
			}
			continue
		}
		value, _ := json.Marshal(m.Value)
		all = append(all, short.Replace(m.Name+"="+string(value)))
		if m.Name == "workers.r.healthy" {
			all[len(all)-2] = "remaining_restarts=N"
			if n := len(all); n >= 6 && strings.Join(all[n-3:], " ") == healthy && strings.Join(all[n-6:n-3], " ") == healthy {
				all = all[:n-3]
			}
		}
	}
	return strings.ReplaceAll(strings.Join(all, " "), healthy, "HEALTHY")
}

// TestMetrics are the metrics of torch's agent, in its order;
// python/tests/test_metrics.py compares them with its own.
func TestMetrics(t *testing.T) {
	const (
		begin   = "_assign_worker_ranks+ _rendezvous+ _start+ _initialize+ "
		succeed = "_monitor+ remaining_restarts=1 succeeded=1 "
	)
	for _, test := range []struct {
		name, script string
		budget       int
		prepare      func(*harness)
		want         string
	}{
		{
			"success", "exit 0", 1, nil,
			begin + succeed + "flakiness=0 run_total=1 run_success_with_retries=0 run_success_no_retries=1 run_failed_with_retries=0 run_failed_no_retries=0 run+",
		},
		{
			"restart", "[ $TORCHELASTIC_RESTART_COUNT = 1 ]", 2, nil,
			begin + "_monitor+ remaining_restarts=2 failed=1 _stop+ " + begin + "_restart+ " + succeed +
				"flakiness=33 run_total=1 run_success_with_retries=1 run_success_no_retries=0 run_failed_with_retries=0 run_failed_no_retries=0 run+",
		},
		{
			"failure", "exit 1", 0, nil,
			begin + "_monitor+ remaining_restarts=0 failed=1 _stop+ " +
				"flakiness=100 run_total=1 run_success_with_retries=0 run_success_no_retries=0 run_failed_with_retries=0 run_failed_no_retries=1 run+",
		},
		{
			"closed", "exit 1", 0, func(s *harness) { s.rdzv.refusal = rendezvous.ErrClosed },
			"_rendezvous- _initialize- run-",
		},
		{
			"not needed", "exit 1", 0, func(s *harness) { s.rdzv.refusal = rendezvous.ErrGraceful },
			"_rendezvous- _initialize- run+",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newHarness(t, 1, test.script)
			s.spec.MaxRestarts = test.budget
			sink := &recorder{}
			s.spec.Metrics = sink
			if test.prepare != nil {
				test.prepare(s)
			}
			_ = s.run()
			got := strings.ReplaceAll(sink.metrics(t), "HEALTHY ", "")
			if got != test.want {
				t.Errorf("metrics\n%s, want\n%s", got, test.want)
			}
		})
	}
}

// TestMetricsOfRunningWorkers come at each monitor interval, and a regroup is a restart.
func TestMetricsOfRunningWorkers(t *testing.T) {
	s := newHarness(t, 1, "[ $RALLYPOINT_ROUND = 2 ] || exec sleep 100")
	looks := 0
	sink := &recorder{}
	sink.more = func(text []byte) {
		if strings.Contains(string(text), "workers.r.healthy") {
			if looks++; looks == 3 {
				s.rdzv.set(func() { s.rdzv.waiting = 1 })
			}
		}
	}
	s.spec.Metrics = sink
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	got := sink.metrics(t)
	const want = "_start+ _initialize+ HEALTHY _stop+ _assign_worker_ranks+ _rendezvous+ _start+ _initialize+ _restart+"
	if looks < 4 || !strings.Contains(got, want) { // the last look is that which saw the node
		t.Errorf("%d looks: metrics\n%s, want in it\n%s", looks, got, want)
	}
}

// rdzvEvents are the events of the rendezvous that were recorded, as step, state, rank.
func (r *recorder) rdzvEvents(t *testing.T) (all []rdzvEvent, short string) {
	t.Helper()
	var steps []string
	for _, text := range r.texts {
		var e rdzvEvent
		if err := json.Unmarshal(text, &e); err != nil {
			t.Fatal(err)
		}
		var keys map[string]any
		_ = json.Unmarshal(text, &keys)
		if len(keys) != 10 || e.RunID != "run" || e.Hostname != host.FQDN() || e.Pid == 0 || e.LocalID == nil || e.Message == "" || strings.Contains(e.Message, "%!") {
			t.Errorf("event %s", text)
		}
		all = append(all, e)
		steps = append(steps, strings.TrimPrefix(e.Name, "rallypoint:")+" "+e.NodeState)
	}
	return all, strings.Join(steps, ", ")
}

// TestRdzvEvents tells of each step of the rendezvous as a node sees it.
func TestRdzvEvents(t *testing.T) {
	s := newHarness(t, 1, "[ $RALLYPOINT_ROUND = 2 ] && exit; echo up > $SAY; exec sleep 100")
	s.rdzv.dropped = map[uint64][]string{2: {"node x (lost)"}}
	sink := &recorder{}
	s.spec.RdzvEvents = sink
	s.start()
	s.hear()
	s.rdzv.set(func() { s.rdzv.waiting = 1 })
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	all, got := sink.rdzvEvents(t)
	const round = "next_rendezvous RUNNING, mark_rendezvous_complete SUCCEEDED, next_rendezvous RUNNING, "
	if want := "create_handler INIT, " + round + "num_nodes_waiting RUNNING, " + round + "shutdown SUCCEEDED"; got != want {
		t.Fatalf("events\n%s, want\n%s", got, want)
	}
	for i, want := range map[int]string{
		1: "attempts to join the next round of the rendezvous 'run'.",
		3: "has joined round 1 of the rendezvous 'run' as rank 0 in a world of size 1.",
		4: "is to leave its round of the rendezvous 'run': the test says so.",
		6: "is the first of round 2 of the rendezvous 'run', which is complete in a world of size 1, without node x (lost).",
		8: "has closed the rendezvous 'run'.",
	} {
		if !strings.HasPrefix(all[i].Message, "The node '"+host.FQDN()+"_") || !strings.HasSuffix(all[i].Message, "' "+want) {
			t.Errorf("message %d: %s, want %s", i, all[i].Message, want)
		}
	}
	if e := all[7]; e.Rank == nil || *e.Rank != 0 || e.MasterEndpoint != "127.0.0.1:1" {
		t.Errorf("joined: %+v", e)
	}
}

// TestRdzvEventOfShutdownThatFails has the state FAILED.
func TestRdzvEventOfShutdownThatFails(t *testing.T) {
	s := newHarness(t, 1, "exit 0")
	s.rdzv.stubborn = rendezvous.ErrConnection
	sink := &recorder{}
	s.spec.RdzvEvents = sink
	_ = s.run()
	all, _ := sink.rdzvEvents(t)
	if e := all[len(all)-1]; e.NodeState != "FAILED" || e.ErrorTrace == "" || !strings.HasSuffix(e.Message, "due to an error of type RendezvousConnectionError.") {
		t.Errorf("event %+v", e)
	}
}

// TestRdzvEventsOfErrors name torch's class.
func TestRdzvEventsOfErrors(t *testing.T) {
	for _, test := range []struct {
		refusal error
		class   string
	}{
		{rendezvous.ErrTimeout, "RendezvousTimeoutError: timed out"},
		{rendezvous.ErrClosed, "RendezvousClosedError: the rendezvous is closed"},
		{rendezvous.ErrMismatch, "RendezvousError: settings differ from the run's"},
	} {
		s := newHarness(t, 1, "exit 0")
		s.rdzv.refusal = test.refusal
		sink := &recorder{}
		s.spec.RdzvEvents = sink
		if s.run() == nil {
			t.Fatal("no error")
		}
		all, got := sink.rdzvEvents(t)
		if got != "create_handler INIT, next_rendezvous RUNNING, next_rendezvous FAILED, shutdown SUCCEEDED" {
			t.Fatalf("events %s", got)
		}
		if all[2].Message != test.class || all[2].ErrorTrace != test.class || !strings.Contains(all[3].Message, "has left") {
			t.Errorf("events %+v", all)
		}
	}
}
