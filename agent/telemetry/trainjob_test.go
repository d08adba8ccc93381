package telemetry

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// TestTrainJob is a controller that takes the status of a job and refuses it without the token.
func TestTrainJob(t *testing.T) {
	var bodies []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer secret" || r.Method != http.MethodPost || r.URL.Path != "/status" {
			http.Error(w, "who are you", http.StatusForbidden)
			return
		}
		bodies = append(bodies, string(body))
	}))
	defer server.Close()
	dir := t.TempDir()
	env := map[string]string{
		envTrainJobURL: server.URL + "/status", envTrainJobCA: filepath.Join(dir, "ca"), envTrainJobToken: filepath.Join(dir, "token"), envTotalSteps: "1000",
	}
	testkit.WriteFile(t, env[envTrainJobCA], pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	testkit.WriteFile(t, env[envTrainJobToken], []byte("secret\n"))
	logger, log := testkit.NewLog(t)
	job := testkit.Must(newTrainJob(func(name string) string { return env[name] }, NewStatusTracker(&Run{}), logger))(t)
	defer job.client.CloseIdleConnections()

	s := Status{Restarts: 1, Groups: 4, Progress: &ProgressStatus{Step: 250, SecondsPerStep: 0.5}}
	testkit.Check(t, job.post(t.Context(), job.now(&s, false)))
	testkit.Check(t, job.post(t.Context(), job.now(&s, true)))
	s.Progress = &ProgressStatus{Step: 2000, Counted: true} // more than there are
	testkit.Check(t, job.post(t.Context(), job.now(&s, false)))
	var got []map[string]any
	for _, body := range bodies {
		var b struct{ TrainerStatus map[string]any }
		testkit.Check(t, json.Unmarshal([]byte(body), &b))
		if at, _ := b.TrainerStatus["lastUpdatedTime"].(string); !strings.HasSuffix(at, "Z") {
			t.Errorf("lastUpdatedTime is %q", at)
		}
		delete(b.TrainerStatus, "lastUpdatedTime")
		got = append(got, b.TrainerStatus)
	}
	metrics := func(step, speed string) (list []any) {
		for _, pair := range [][2]string{{"training_step", step}, {"seconds_per_step", speed}, {"restarts", "1"}, {"nodes", "4"}} {
			list = append(list, map[string]any{"name": pair[0], "value": pair[1]})
		}
		return list
	}
	want := []map[string]any{
		{"progressPercentage": 25.0, "estimatedRemainingSeconds": 375.0, "metrics": metrics("250", "0.5")},
		{"progressPercentage": 100.0, "estimatedRemainingSeconds": 0.0, "metrics": metrics("250", "0.5")},
		{"progressPercentage": 99.0, "metrics": metrics("2000", "0")},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}

	testkit.WriteFile(t, env[envTrainJobToken], []byte("another")) // it is read each time
	if err := job.post(t.Context(), job.now(&s, false)); err == nil || !strings.Contains(err.Error(), "403 Forbidden who are you") {
		t.Errorf("%v", err)
	}
	if text := log.String(); text != "" {
		t.Errorf("it has logged %s", text)
	}
}

// TestNoTrainJob: without all variables nothing is reported, with wrong ones one line says why.
func TestNoTrainJob(t *testing.T) {
	for _, test := range []struct {
		url, total, want string
	}{
		{"", "5", ""},
		{"https://h/status", "", ""},
		{"http://h/status", "5", "not an https URL"},
		{"https://h/status", "many", "no number of steps"},
	} {
		env := map[string]string{envTrainJobURL: test.url, envTotalSteps: test.total}
		log := &testkit.Log{}
		ReportTrainJob(func(name string) string { return env[name] }, NewStatusTracker(&Run{}), slog.New(slog.NewTextHandler(log, nil)))(true)
		if text := log.String(); !strings.Contains(text, test.want) || (text == "") != (test.want == "") {
			t.Errorf("%q, %q: %s", test.url, test.total, text)
		}
	}
}
