package control

import (
	"strings"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
)

// TestDirectivesOfEndingJob: what is not carried out any more, since a node has finished, is
// not announced to the administrator as if it were.
func TestDirectivesOfEndingJob(t *testing.T) {
	was := &rendezvous.Status{RunID: "job", Policy: rendezvous.Policy{Min: 1, Max: 2, NodeUnit: 1}, Members: []rendezvous.MemberStatus{
		{Node: "a", Session: "1", State: "finished"}, {Node: "b", Session: "2", State: "running"},
	}}
	drain := rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveDrain, Nodes: []string{"b"}, Within: time.Minute}
	scale := rendezvous.Direct{ID: "d2", Kind: rendezvous.DirectiveScale, Target: 1, Within: time.Minute}
	for _, d := range []rendezvous.Direct{drain, scale} {
		done, err := directed(was, d)
		if err != nil || !strings.Contains(done, "its workers save, within 1m0s, and nothing more: node a has finished") {
			t.Errorf("%v: %q, %v", d.Kind, done, err)
		}
		d.Within = 0
		if done, err = directed(was, d); err == nil || !strings.Contains(err.Text, "would do nothing: node a has finished") {
			t.Errorf("%v at once: %q, %v", d.Kind, done, err)
		}
	}
	drain.Nodes = []string{"x"}
	if done, err := directed(was, drain); err == nil || !strings.Contains(err.Text, `no live node "x"`) {
		t.Errorf("%q, %v", done, err)
	}
	stop := rendezvous.Direct{ID: "d3", Kind: rendezvous.DirectiveStop, Within: time.Minute}
	if done, err := directed(was, stop); err != nil || !strings.Contains(done, "it ends, to be queued again") {
		t.Errorf("%q, %v", done, err)
	}
}
