package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// otlpSpan is what the tests look at of a span.
type otlpSpan struct {
	TraceID, SpanID, ParentSpanID, Name string
	Attributes                          []struct {
		Key   string
		Value struct{ StringValue, IntValue string }
	}
	Events []struct{ Name string }
	Links  []struct{ TraceID, SpanID string }
	Status struct {
		Code    int
		Message string
	}
}

// get is the value of an attribute.
func (s *otlpSpan) get(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.StringValue + a.Value.IntValue
		}
	}
	return ""
}

// TestTraces has a worker of the second of two nodes make a step and fail, once. The start of each round
// is one trace of both nodes with its steps in order, in which the second round names the culprit.
func TestTraces(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var spans []otlpSpan
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			ResourceSpans []struct{ ScopeSpans []struct{ Spans []otlpSpan } }
		}
		text, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(text, &body); err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL, err)
		}
		mu.Lock()
		defer mu.Unlock()
		spans = append(spans, body.ResourceSpans[0].ScopeSpans[0].Spans...)
	}))
	defer collector.Close()
	codes, nodes := twoNodes(t, `[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 2 ] || exec sleep 100; `+writeStep+"exit 3",
		hostedNodes(t, "--max-restarts=1", "--rdzv-id=job", "--otlp="+collector.URL))
	if codes != [2]int{} {
		t.Fatalf("exit codes %v:\n%s\n%s", codes, nodes[0].stderr.String(), nodes[1].stderr.String())
	}
	byID := map[string]*otlpSpan{}
	children := map[string][]string{}
	for i, s := range spans {
		byID[s.SpanID] = &spans[i]
		if parent := s.ParentSpanID; s.Name != "round" {
			children[parent] = append(children[parent], s.Name)
		}
	}
	rounds, runs := map[string][]*otlpSpan{}, 0
	for i := range spans {
		switch s := &spans[i]; s.Name {
		case "round":
			number := s.get("rallypoint.round")
			rounds[number] = append(rounds[number], s)
			names := children[s.SpanID]
			slices.Sort(names)
			want := "[assign start wait]"
			switch {
			case number == "2":
				want = "[assign start stop wait]"
			case s.get("rallypoint.node.rank") == "1":
				want = "[assign first_step start wait]"
			}
			if got := fmt.Sprint(names); got != want {
				t.Errorf("round %s of node %s has %s, want %s", number, s.get("rallypoint.node.rank"), got, want)
			}
		case "run":
			runs++
			if start := byID[s.Links[0].SpanID]; start.get("rallypoint.round") != s.get("rallypoint.round") {
				t.Errorf("%+v leads to %+v", s, start)
			}
			failed := s.get("rallypoint.round") == "1"
			if (s.Status.Code == 2) != failed || len(s.Events) == 1 != failed {
				t.Errorf("%+v", s)
			}
		}
	}
	if runs != 4 || len(rounds) != 2 {
		t.Errorf("%d runs, rounds %v", runs, rounds)
	}
	for number, r := range rounds {
		if r[0].get("rallypoint.node.rank") != "0" {
			slices.Reverse(r)
		}
		if len(r) != 2 || r[0].TraceID != r[1].TraceID || r[0].ParentSpanID != "" || r[1].ParentSpanID != r[0].SpanID {
			t.Fatalf("round %s is not one trace: %+v", number, r)
		}
		for _, s := range r {
			culprit := strings.Join([]string{s.get("rallypoint.culprit.rank"), s.get("rallypoint.culprit.exit_code"), s.get("error.type")}, " ")
			if want := map[string]string{"1": "  ", "2": "2 3 exit_code"}[number]; culprit != want || s.get("rallypoint.run.id") != "job" {
				t.Errorf("round %s has the culprit %q, want %q", number, culprit, want)
			}
			if before := number == "2"; (len(s.Links) == 1 && byID[s.Links[0].SpanID].Name == "run") != before {
				t.Errorf("round %s: %+v", number, s.Links)
			}
		}
	}
	if rounds["1"][0].TraceID == rounds["2"][0].TraceID {
		t.Error("both rounds are one trace")
	}
}

// TestWrongOTLP: a wrong option ends the command; a wrong variable, which may be the script's, does not.
func TestWrongOTLP(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.run("exit 0", "--otlp=localhost:4318")
	p.expect(t, 2)
	if text := p.stderr.String(); !strings.Contains(text, `argument --otlp: "localhost:4318" is not an http or https URL`) {
		t.Errorf("it says:\n%s", text)
	}
	h.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}
	p = h.run("exit 0", "--standalone")
	p.expect(t, 0)
	if text := p.stderr.String(); !strings.Contains(text, "no traces are sent: OTEL_EXPORTER_OTLP_PROTOCOL is grpc") {
		t.Errorf("it says:\n%s", text)
	}
}
