package agent

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/agent/progress"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// reportStep is how a shell writes a step below 64 into its record: without the library.
const reportStep = `report() { printf "\\$(printf %03o "$1")" | dd of="$RALLYPOINT_PROGRESS_FILE" bs=1 seek=16 conv=notrunc 2>/dev/null; }
first() { printf '\0\0\0\0\0\0\0\0' | dd of="$RALLYPOINT_PROGRESS_FILE" bs=1 seek=16 conv=notrunc 2>/dev/null; report "$1"; }
`

// TestProgressOfWorkers: the steps of real workers in two rounds, as the rendezvous carries
// them and the health port shows them; the second round begins below the first.
func TestProgressOfWorkers(t *testing.T) {
	s := newHarness(t, 2, reportStep+`
		if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then first $((40 + LOCAL_RANK)); else first $((30 + LOCAL_RANK)); fi
		echo $RALLYPOINT_PROGRESS_FILE >$SAY
		read go <$GO
		[ $TORCHELASTIC_RESTART_COUNT = 1 ]`)
	gate := s.goFile()
	dir := t.TempDir()
	s.spec.Environ = append(s.spec.Environ, progress.EnvDir+"="+dir)
	s.spec.MaxRestarts = 1
	pipe, err := os.OpenFile(gate, os.O_RDWR, 0) // a line stays until its reader comes
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	url := healthHarness(t, s)
	for round, want := range []string{"round 1: 2 of 2, 40 to 41", "round 2: 2 of 2, 30 to 31"} {
		paths := []string{s.hear(), s.hear()}
		if filepath.Dir(filepath.Dir(paths[0])) != dir || paths[0] == paths[1] {
			t.Errorf("the records are %q", paths)
		}
		r := s.rdzv.report()
		if r == nil {
			t.Fatal("there is no report")
		}
		if got := fmt.Sprintf("round %d: %d of %d, %d to %d", r.Round, r.Reporting, r.Workers, r.Smallest, r.Largest); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if round == 1 && r.Gap <= 0 {
			t.Error("the time between the rounds is not there")
		}
		var status telemetry.Status
		_, body := get(t, url+"/status")
		if err := json.Unmarshal([]byte(body), &status); err != nil || status.Progress == nil || status.Progress.Step != r.Largest {
			t.Errorf("%v in %s", err, body)
		}
		_, body = get(t, url+"/metrics")
		if step := fmt.Sprintf("\nrallypoint_agent_training_step %d\n", r.Largest); !strings.Contains(body, step) {
			t.Errorf("%q is not in %s", step, body)
		}
		if lost := `rallypoint_agent_training_lost_seconds_total{cause="worker_failed"} 0` + "\n"; strings.Contains(body, lost) != (round == 0) {
			t.Errorf("round %d: %s", round+1, body)
		}
		if _, err := pipe.WriteString("go\ngo\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestNoRecords: without a folder for records the workers run, and get none that the agent
// inherited as a worker of another one.
func TestNoRecords(t *testing.T) {
	s := newHarness(t, 1, `echo "<${RALLYPOINT_PROGRESS_FILE-}>" >$SAY`)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.spec.Environ = append(s.spec.Environ, progress.EnvDir+"="+file, progress.EnvFile+"=/another/one")
	if err := s.run(); err != nil {
		t.Error(err)
	}
	if path := s.hear(); path != "<>" {
		t.Errorf("the record is %s", path)
	}
}

// TestTrainJobOfANodeThatLeaves: a drained node ends well, and its job is not done by that.
func TestTrainJobOfANodeThatLeaves(t *testing.T) {
	var last string
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		last = string(testkit.Must(io.ReadAll(r.Body))(t))
	}))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca")
	testkit.WriteFile(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	s := newHarness(t, 1, reportStep+"first 42; echo up >$SAY; exec sleep 100")
	s.spec.Environ = append(s.spec.Environ, progress.EnvDir+"="+t.TempDir(),
		"KUBEFLOW_TRAINER_SERVER_URL="+server.URL, "KUBEFLOW_TRAINER_SERVER_CA_CERT="+ca, "RALLYPOINT_TOTAL_STEPS=100")
	s.start()
	s.hear()
	s.rdzv.set(func() { s.rdzv.refusal, s.rdzv.waiting = rendezvous.Errorf(rendezvous.CodeGraceful, "drained"), 1 })
	testkit.Check(t, s.wait())
	if !strings.Contains(last, `"progressPercentage":42`) {
		t.Errorf("it has reported %s", last)
	}
}
