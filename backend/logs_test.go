package backend

import (
	"strings"
	"testing"

	"rallypoint/agent/logs"
	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
)

// TestRankThatIsNotFound: the error names the ranks that have answered, and no others.
func TestRankThatIsNotFound(t *testing.T) {
	run := &control.RunStatus{Members: make([]control.MemberStatus, 2)}
	run.Members[0].Label = "silent"
	_, err := newLogs(run, []*logs.Node{nil, {First: 4, Workers: 4, Parts: []logs.Part{}}}, 2)
	if rendezvous.CodeOf(err) != rendezvous.CodeInvalid || !strings.Contains(err.Error(), "ranks 4 to 7 have answered; \"silent\" did not answer") {
		t.Error(err)
	}
	if _, err = newLogs(run, make([]*logs.Node, 2), 2); !strings.Contains(err.Error(), "no node of run") {
		t.Error(err)
	}
}
