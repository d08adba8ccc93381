package backend_test

import (
	"strings"
	"testing"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
)

// TestOnlyRun: one run needs no name, of several each is named to the user.
func TestOnlyRun(t *testing.T) {
	a, b := control.RunStatus{RunStatus: rendezvous.RunStatus{RunID: "a"}}, control.RunStatus{RunStatus: rendezvous.RunStatus{RunID: "b"}}
	if run, err := backend.OnlyRun([]control.RunStatus{b}, "the run id"); err != nil || run.RunID != "b" {
		t.Errorf("one run: %v, %v", run, err)
	}
	for want, runs := range map[string][]control.RunStatus{
		"there is no run": nil,
		`the run id is missing: which run? There are "a", "b"`: {a, b},
	} {
		if _, err := backend.OnlyRun(runs, "the run id"); rendezvous.CodeOf(err) != rendezvous.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%d runs: %v, want %s", len(runs), err, want)
		}
	}
}
