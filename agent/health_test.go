package agent

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"rallypoint/agent/telemetry"
	"rallypoint/internal/host"
	"rallypoint/internal/testkit"
)

// healthHarness starts an agent with a health server on a free port.
func healthHarness(t *testing.T, s *harness) (url string) {
	t.Helper()
	s.spec.Environ = append(s.spec.Environ, telemetry.EnvHealthPort+"=0")
	log := &testkit.Log{}
	a, err := New(s.spec, "test", s.rdzv, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.agent = a
	go func() {
		defer close(s.done)
		s.err = a.Run(t.Context())
	}()
	_, url, _ = strings.Cut(log.Await(t, "metrics: http://", 1)[0], "metrics: ")
	url, _, _ = strings.Cut(url, `"`)
	return url
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return answer.StatusCode, string(body)
}

// TestHealthWhileJoining asks an agent that waits for others.
func TestHealthWhileJoining(t *testing.T) {
	s := newHarness(t, 2, "exec sleep 100")
	s.spec.MaxRestarts = 1
	s.rdzv.blocked = true
	url := healthHarness(t, s)
	<-s.rdzv.joining
	if code, body := get(t, url+"/healthz"); code != 200 {
		t.Errorf("while joining: %d, %s", code, body)
	}
	if code, body := get(t, url+"/readyz"); code != 503 || body != "joining\n" {
		t.Errorf("while joining: %d, %s", code, body)
	}
	s.agent.Signal(15)
	_ = s.wait()
	if _, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
		t.Error("the port is still served")
	}
}

// TestHealth asks an agent whose workers run, after a restart.
func TestHealth(t *testing.T) {
	s := newHarness(t, 2, "[ $RALLYPOINT_ROUND = 1 ] && [ $RANK = 1 ] && exit 3; exec sleep 100")
	s.spec.MaxRestarts = 1
	url := healthHarness(t, s)
	var status telemetry.Status
	for status.Round != 2 || status.Phase != telemetry.PhaseRunning {
		code, body := get(t, url+"/status")
		if err := json.Unmarshal([]byte(body), &status); code != 200 || err != nil {
			t.Fatalf("%d, %v: %s", code, err, body)
		}
	}
	if len(status.Workers) != 2 || status.Workers[1].Pid == 0 || status.Workers[1].State != "running" || status.Restarts != 1 || status.World != 2 ||
		len(status.Members) != 1 || status.Members[0].Host != host.Name() || status.Members[0].Workers != 2 ||
		!strings.Contains(status.LastError, "worker of rank 1 ") {
		t.Errorf("status %+v", status)
	}
	for _, path := range []string{"/healthz", "/health", "/readyz"} {
		if code, body := get(t, url+path); code != 200 {
			t.Errorf("%s: %d, %s", path, code, body)
		}
	}
	if code, _ := get(t, url+"/other"); code != 404 {
		t.Errorf("/other: %d", code)
	}
	_, text := get(t, url+"/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	for name, want := range map[string]float64{
		"rallypoint_agent_round": 2, "rallypoint_agent_restarts": 1, "rallypoint_agent_remaining_restarts": 0, "rallypoint_agent_failures_total": 1,
		"rallypoint_agent_leaves_refused_total": 0,
		// twice each: rendezvous, ranks, initialize, start; once: stop, restart
		"rallypoint_test_number":                 7, // of the rendezvous
		"rallypoint_agent_step_duration_seconds": 10, "rallypoint_agent_step_failures_total": 0,
	} {
		got := 0.0
		for _, m := range families[name].GetMetric() {
			got += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetSummary().GetSampleCount())
		}
		if got != want {
			t.Errorf("%s is %v, expected %v", name, got, want)
		}
	}
	s.agent.Signal(15)
	_ = s.wait()
}

// TestHealthWhileChecking: an agent whose node is examined before it joins again stops nothing any more,
// however long the checks take.
func TestHealthWhileChecking(t *testing.T) {
	s := newHarness(t, 1, "exit $((2 - RALLYPOINT_ROUND))")
	gate := s.goFile()
	s.spec.Checks = []string{"[ $RALLYPOINT_CHECK = join ] || { echo $RALLYPOINT_CHECK > $SAY; read go < $GO; }"}
	s.spec.CheckTimeout, s.spec.CheckAway, s.spec.MaxRestarts = time.Hour, time.Hour, 1
	url := healthHarness(t, s)
	testkit.Equal(t, s.hear(), "rejoin")
	if code, body := get(t, url+"/readyz"); code != 503 || body != "starting\n" {
		t.Errorf("while it is examined: %d, %s", code, body)
	}
	testkit.WriteFile(t, gate, []byte("go\n"))
	testkit.Check(t, s.wait())
}

// TestHealthPortIsTaken: the agent runs without the port.
func TestHealthPortIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, value := range []string{l.Addr().String(), "nonsense"} {
		s := newHarness(t, 1, "exit 0")
		s.spec.Environ = append(s.spec.Environ, telemetry.EnvHealthPort+"="+value)
		if err := s.run(); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// TestHealthAmongTheSilent asks while as many connections as there may be say nothing, or
// not all of their request.
func TestHealthAmongTheSilent(t *testing.T) {
	s := newHarness(t, 1, "exec sleep 100")
	s.rdzv.blocked = true
	url := healthHarness(t, s)
	<-s.rdzv.joining
	for i := range 3 * 16 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			_, _ = conn.Write([]byte("GET /healthz HTTP/1.1\r\n"))
		}
	}
	for range 3 {
		if code, body := get(t, url+"/healthz"); code != 200 {
			t.Errorf("%d %q", code, body)
		}
	}
	s.agent.Signal(15)
	_ = s.wait()
}
