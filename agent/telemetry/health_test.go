package telemetry

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/httpport"
	"rallypoint/internal/testkit"
)

// TestUnhealthy is an agent that does not answer although its workers run.
func TestUnhealthy(t *testing.T) {
	status := NewStatusTracker(&Run{})
	c := HealthConfig{Status: status, Pulse: make(chan struct{}), StopLimit: 2 * time.Minute}
	status.Take(State{Place: &Place{}}, WorkersStarted{})
	done := make(chan error)
	go func() { done <- c.healthy(t.Context()) }()
	if err := <-done; err == nil {
		t.Error("it is taken as healthy")
	}
	status.Take(State{}, Stopping{})
	if err := c.healthy(t.Context()); err != nil {
		t.Errorf("while stopping: %v", err)
	}
	status.since = time.Now().Add(-time.Hour)
	if err := c.healthy(t.Context()); err == nil {
		t.Error("after an hour of stopping it is taken as healthy")
	}
}

func TestHealthAddress(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "8080": "127.0.0.1:8080", " 8080 ": "127.0.0.1:8080", "0.0.0.0:80": "0.0.0.0:80", "[::1]:80": "[::1]:80", ":80": ":80",
		"x": "error", "65536": "error", "1.5": "error", "h:": "error",
	} {
		got, err := healthAddress(value)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %q, expected %q", value, got, want)
		}
	}
}

// TestMasterOfIPv6: the status has an endpoint that clients can connect to.
func TestMasterOfIPv6(t *testing.T) {
	for addr, want := range map[string]string{"fd00::1": "[fd00::1]:5", "10.0.0.1": "10.0.0.1:5", "host0": "host0:5"} {
		status := NewStatusTracker(&Run{})
		status.Take(State{Place: &Place{Outcome: rendezvous.Outcome{StoreAddr: addr, StorePort: 5}}}, Joined{})
		if s, _ := status.read(); s.Store != want {
			t.Errorf("%s: %s", addr, s.Store)
		}
	}
}

// TestNoHealthPort: a value that is no port is told as loud as a port that cannot be had.
func TestNoHealthPort(t *testing.T) {
	logger, log := testkit.NewLog(t)
	if h := NewHealth(HealthConfig{Address: "http", Log: logger}); h != nil {
		t.Error("it serves")
	}
	if len(log.With("level=WARN", EnvHealthPort, "the health server is off")) != 1 {
		t.Error(log)
	}
}

// TestHealthForAStrangersPage asks as a browser does whose page has made its own name
// stand for this machine, and as a scraper that uses any name.
func TestHealthForAStrangersPage(t *testing.T) {
	pages := named(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		httpport.Answer(w, http.StatusOK, "text/plain", []byte("secret"))
	}), "127.0.0.1:0")
	browser := http.Header{"User-Agent": {"Mozilla/5.0"}, "Accept-Language": {"en"}}
	for _, test := range []struct {
		path, host string
		header     http.Header
		want       int
	}{
		{"/status", "evil.example:8080", browser, http.StatusMisdirectedRequest},
		{"/readyz", "evil.example", browser, http.StatusMisdirectedRequest},
		{"/healthz", "evil.example", browser, http.StatusOK},
		{"/status", "127.0.0.1:8080", browser, http.StatusOK},
		{"/metrics", "node7.example:8080", http.Header{"User-Agent": {"Prometheus/3.7.1"}}, http.StatusOK},
	} {
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: test.path}, Host: test.host, Header: test.header})
		if w.Code != test.want {
			t.Errorf("%s of %s: %d %q, want %d", test.path, test.host, w.Code, w.Body, test.want)
		}
	}
}

// TestHealthKeepsTextsFromOthers: a port that other machines can reach has no token, so that it
// shows neither the text of exceptions, which may hold a password, nor where the workers are.
func TestHealthKeepsTextsFromOthers(t *testing.T) {
	st := NewStatusTracker(&Run{})
	st.set(func(v *Status) { v.LastError, v.Stalled = "could not connect with pw=hunter2", "in secret_plan.py" })
	for _, private := range []bool{true, false} {
		w := httptest.NewRecorder()
		healthPages(&HealthConfig{Status: st}, private).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status", nil))
		if text := w.Body.String(); strings.Contains(text, "hunter2") != private || strings.Contains(text, "secret_plan") != private || w.Code != http.StatusOK {
			t.Errorf("private %v: %d %s", private, w.Code, text)
		}
	}
	for address, private := range map[string]bool{"127.0.0.1:0": true, "0.0.0.0:0": false} {
		l := testkit.Must(net.Listen("tcp", address))(t)
		if check := loopbackCheck(l, params.LoopbackUsers{}); (check != nil) != private {
			t.Errorf("%s is private: %v", address, check != nil)
		}
		l.Close()
	}
}
