package otlp

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"

	"rallypoint/internal/promtext"
	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parse reads a request by OpenTelemetry's own messages, and refuses fields that they lack. Their JSON
// differs from protobuf's in the ids alone, which are in hexadecimal digits.
func parse(t *testing.T, body []byte) *v1.ExportTraceServiceRequest {
	t.Helper()
	var tree any
	if err := json.Unmarshal(body, &tree); err != nil {
		t.Fatal(err)
	}
	var ids func(any)
	ids = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				ids(item)
			}
		case map[string]any:
			for key, item := range v {
				if key == "traceId" || key == "spanId" || key == "parentSpanId" {
					v[key] = base64.StdEncoding.EncodeToString(testkit.Must(hex.DecodeString(item.(string)))(t))
				}
				ids(item)
			}
		}
	}
	ids(tree)
	request := new(v1.ExportTraceServiceRequest)
	if err := protojson.Unmarshal(testkit.Must(json.Marshal(tree))(t), request); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return request
}

// collector is a server of traces. answer decides about the request of a number, from 1 on.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   [][]byte
	got      chan struct{} // gets a token for each request
}

func newCollector(t *testing.T, answer func(w http.ResponseWriter, number int)) *collector {
	c := &collector{got: make(chan struct{}, 100)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		c.requests, c.bodies = append(c.requests, r), append(c.bodies, body)
		number := len(c.bodies)
		c.mu.Unlock()
		if answer != nil {
			answer(w, number)
		}
		c.got <- struct{}{}
	}))
	t.Cleanup(c.Server.Close)
	return c
}

// exporter makes an exporter with what environment variables say besides.
func exporter(t *testing.T, endpoint string, env map[string]string) (*Exporter, *testkit.Log) {
	t.Helper()
	config, err := Endpoint(endpoint, func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	logger, log := testkit.NewLog(t)
	return NewExporter(config, "1.2.3", []Attribute{{"host.name", "gpu-7"}, {"service.instance.id", "i"}}, logger), log
}

// TestRequest holds a request against OpenTelemetry's messages.
func TestRequest(t *testing.T) {
	c := newCollector(t, nil)
	e, log := exporter(t, c.URL, map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20eA%3D%3D, x-scope = a", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=pro%2Cd,service.name=n",
		"OTEL_SERVICE_NAME": "trainer", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
	})
	start := time.Unix(1_700_000_000, 123456789)
	s := Span{
		Trace: TraceID{1, 0xab}, ID: SpanID{2}, Parent: SpanID{3}, Name: "wait", Start: start, End: start.Add(time.Second), Error: "x\xff",
		Attributes: []Attribute{{"s", strings.Repeat("é", maxText)}, {"i", int64(1) << 60}, {"f", 0.5}, {"b", true}},
		Links:      []Link{{TraceID{4}, SpanID{5}}},
	}
	for range maxEvents + 2 {
		s.Events = append(s.Events, Event{"exception", start, []Attribute{{"exception.message", "m"}}})
	}
	e.Record(s)
	e.Close()
	r := c.requests[0]
	if r.Method != "POST" || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "Basic eA==" || r.Header.Get("X-Scope") != "a" {
		t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
	}
	of := parse(t, testkit.Must(io.ReadAll(testkit.Must(gzip.NewReader(bytes.NewReader(c.bodies[0])))(t)))(t)).ResourceSpans[0]
	attributes := map[string]string{}
	for _, a := range of.Resource.Attributes {
		if attributes[a.Key] != "" {
			t.Errorf("%s comes twice", a.Key)
		}
		attributes[a.Key] = a.Value.GetStringValue()
	}
	for key, want := range map[string]string{"service.name": "trainer", "service.version": "1.2.3", "host.name": "gpu-7", "deployment.environment.name": "pro,d"} {
		if attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, attributes[key], want)
		}
	}
	got := of.ScopeSpans[0].Spans[0]
	values := got.Attributes
	if hex.EncodeToString(got.TraceId) != "01ab0000000000000000000000000000" || got.SpanId[0] != 2 || got.ParentSpanId[0] != 3 || got.StartTimeUnixNano != 1_700_000_000_123_456_789 || got.EndTimeUnixNano-got.StartTimeUnixNano != 1e9 {
		t.Errorf("%v", got)
	}
	if text := values[0].Value.GetStringValue(); len(text) > maxText+2 || !strings.HasPrefix(text, "éé") || values[1].Value.GetIntValue() != 1<<60 || values[2].Value.GetDoubleValue() != 0.5 || !values[3].Value.GetBoolValue() {
		t.Errorf("%v", values)
	}
	if got.Status.Code != 2 || got.Status.Message != "x\uFFFD" || len(got.Events) != maxEvents || got.DroppedEventsCount != 2 || got.Links[0].SpanId[0] != 5 {
		t.Errorf("%v", got)
	}
	if text := log.String(); text != "" {
		t.Errorf("it has logged %s", text)
	}
}

// exposed is the exporter's metrics as "SENT LOST".
func exposed(e *Exporter) string {
	var b promtext.Buffer
	e.Expose(&b)
	var sent, lost string
	for line := range strings.Lines(string(b.Bytes())) {
		if _, value, found := strings.Cut(strings.TrimSpace(line), `{outcome="sent"} `); found {
			sent = value
		}
		if _, value, found := strings.Cut(strings.TrimSpace(line), `{outcome="lost"} `); found {
			lost = value
		}
	}
	return sent + " " + lost
}

// TestAnswers are collectors that do not take what they get.
func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		name     string
		answer   func(w http.ResponseWriter, number int)
		requests int
		counts   string
		logged   string
	}{
		{"protobuf", func(w http.ResponseWriter, _ int) { w.Write([]byte{0x0a, 0}) }, 1, "2 0", ""},
		{"busy", func(w http.ResponseWriter, number int) {
			if number == 1 {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}, 2, "2 0", "503 Service Unavailable; trying again"},
		{"refused", func(w http.ResponseWriter, _ int) { http.Error(w, "who\x1b are you", http.StatusUnauthorized) }, 1, "0 2", "2 spans are lost: 401 Unauthorized who\uFFFD are you"},
		{"elsewhere", func(w http.ResponseWriter, _ int) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, 1, "0 2", "2 spans are lost: 307 Temporary Redirect, which is not followed: name the collector itself"},
		{"in part", func(w http.ResponseWriter, _ int) {
			fmt.Fprint(w, `{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}}`)
		}, 1, "1 1", "1 span is lost: the collector has not taken all: too old"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCollector(t, test.answer)
			e, log := exporter(t, c.URL, nil)
			e.Record(Span{Name: "a"})
			e.Record(Span{Name: "b"})
			for range test.requests {
				<-c.got
			}
			e.Close()
			if got := exposed(e); got != test.counts || len(c.bodies) != test.requests {
				t.Errorf("%d requests, counts %s", len(c.bodies), got)
			}
			if text := log.String(); !strings.Contains(text, test.logged) || (text == "") != (test.logged == "") {
				t.Errorf("it has logged %s", text)
			}
		})
	}
}

// TestNobodyWaits is a collector that takes a request and never answers: spans beyond the queue are
// lost at once, Close gives up, and the log has two lines.
func TestNobodyWaits(t *testing.T) {
	release := make(chan struct{})
	entered := make(chan struct{}, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		<-release
	}))
	defer server.Close()
	defer close(release)
	e, log := exporter(t, server.URL, nil)
	e.Record(Span{})
	<-entered
	for range maxWaiting + 10 {
		e.Record(Span{})
	}
	if got := exposed(e); got != "0 10" {
		t.Errorf("sent and lost: %s", got)
	}
	e.Close()
	if got := exposed(e); got != fmt.Sprintf("0 %d", maxWaiting+11) {
		t.Errorf("sent and lost in the end: %s", got)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 2 {
		t.Errorf("%d lines: %s", lines, log)
	}
}

// TestLateCollector: a collector that does not answer, or not to the end, is told with the time that it had.
func TestLateCollector(t *testing.T) {
	for says, env := range map[string]map[string]string{
		"no answer within 100ms; trying again":                         {"OTEL_EXPORTER_OTLP_TIMEOUT": "100"},
		"1 span is lost: no answer within 2s of the end of this agent": nil,
	} {
		for _, begins := range []bool{false, true} {
			release := make(chan struct{})
			entered := make(chan struct{}, 10)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if begins {
					w.Header().Set("Content-Length", "1000")
					w.WriteHeader(http.StatusOK)
					_ = http.NewResponseController(w).Flush()
				}
				entered <- struct{}{}
				<-release
			}))
			e, log := exporter(t, server.URL, env)
			e.Record(Span{})
			<-entered
			if env != nil {
				log.Await(t, says, 1)
			}
			e.Close()
			if !strings.Contains(log.String(), says) {
				t.Errorf("begins %v: %s", begins, log)
			}
			close(release)
			server.Close()
		}
	}
}

// TestNoCollector ends at once where nobody listens.
func TestNoCollector(t *testing.T) {
	e, log := exporter(t, "http://user:secret@127.0.0.1:1", nil)
	e.Record(Span{})
	e.Close()
	if text := log.String(); exposed(e) != "0 1" || !strings.Contains(text, "refused") || strings.Contains(text, "secret") {
		t.Errorf("%s: %s", exposed(e), text)
	}
	var none *Exporter
	none.Close()
}

func TestFromEnvironment(t *testing.T) {
	const base, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for _, test := range []struct {
		env  string // of lines
		want string // the URL, "" for none, or a part of the error
	}{
		{"", ""},
		{base + "=http://c:4318", "http://c:4318/v1/traces"},
		{base + "=http://c:4318/otel/", "http://c:4318/otel/v1/traces"},
		{base + "=http://c:4318\n" + traces + "=https://d/x", "https://d/x"},
		{base + "=http://c:4318\nOTEL_SDK_DISABLED=true", ""},
		{base + "=http://c:4318\nOTEL_TRACES_EXPORTER=none", ""},
		{base + "=http://c:4318\nOTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "http://c:4318/v1/traces"},
		{base + "=http://c:4317\nOTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_PROTOCOL is grpc"},
		{base + "=c:4318", "not an http or https URL"},
		{base + "=http://:4318", "not the URL of a collector"},
		{base + "=http://c:70000", "not the URL of a collector"},
		{base + "=http://c:p\x01", "not a URL"},
		{base + "=http://c\nOTEL_EXPORTER_OTLP_TIMEOUT=10s", "it takes milliseconds"},
		{base + "=http://c\nOTEL_EXPORTER_OTLP_COMPRESSION=zstd", "there are gzip and none"},
		{base + "=http://c\nOTEL_EXPORTER_OTLP_HEADERS=secret", "item 1 is not KEY=VALUE"},
		{base + "=http://c\nOTEL_EXPORTER_OTLP_HEADERS=a=secret%0d", `"a" cannot be a header`},
		{base + "=http://c\nOTEL_EXPORTER_OTLP_HEADERS=host=secret", `"host" cannot be a header`},
		{base + "=http://c\nOTEL_EXPORTER_OTLP_CERTIFICATE=/dev/null", "no certificate"},
		{base + "=http://c\nOTEL_RESOURCE_ATTRIBUTES=a=%zz", "OTEL_RESOURCE_ATTRIBUTES: item 1"},
		{base + "=http://c\nOTEL_RESOURCE_ATTRIBUTES=" + strings.Repeat("a=b,", maxAttributes+1), "more than"},
	} {
		env := map[string]string{}
		for line := range strings.SplitSeq(test.env, "\n") {
			name, value, _ := strings.Cut(line, "=")
			env[name] = value
		}
		config, err := FromEnvironment(func(name string) string { return env[name] })
		got := ""
		if err != nil {
			if got = err.Error(); strings.Contains(got, "secret") {
				t.Errorf("%q: the error shows it: %v", test.env, err)
			}
		} else if config.Enabled() {
			got = config.String()
		}
		if err == nil && got != test.want || !strings.Contains(got, test.want) {
			t.Errorf("%q: %q, want %q", test.env, got, test.want)
		}
	}
	if config, err := Endpoint("http://h/v1/traces", func(string) string { return "" }); err != nil || config.String() != "http://h/v1/traces" {
		t.Error(&config, err)
	}
}
