package rendezvous

import (
	"strings"
	"testing"
	"time"
)

// liveNode is a live node whose session has the name of its id.
func liveNode(id string) NodeStatus { return NodeStatus{Name: id, Node: id, Session: SessionID(id)} }

// TestAnswersOfAnEndingJob: a request that cannot be carried out any more, since a node has finished, is
// not announced to the administrator as if it were.
func TestAnswersOfAnEndingJob(t *testing.T) {
	was := &Status{RunStatus: RunStatus{RunID: "job", Nodes: NodeRange{1, 2, 1, 0, 1}}, Members: []MemberStatus{
		{NodeStatus: liveNode("a"), State: "finished"}, {NodeStatus: liveNode("b"), State: "running"},
	}}
	for _, d := range []Direct{
		{ID: "d1", Kind: DirectiveDrain, Nodes: []string{"b"}, Within: time.Minute},
		{ID: "d2", Kind: DirectiveScale, Target: 1, Within: time.Minute},
	} {
		if done := directiveText(was, d); !strings.Contains(done, "its workers save, within 1m0s, and nothing more: node a has finished") {
			t.Errorf("%v: %q", d.Kind, done)
		}
	}
	if done := directiveText(was, Direct{ID: "d3", Kind: DirectiveStop, Within: time.Minute}); !strings.Contains(done, "it ends, to be queued again") {
		t.Errorf("%q", done)
	}
}

// TestAnswerToADrain names the nodes, and says what follows.
func TestAnswerToADrain(t *testing.T) {
	was := &Status{
		RunStatus: RunStatus{RunID: "job", Round: 3, Nodes: NodeRange{2, 3, 1, 0, 1}},
		Members:   []MemberStatus{{NodeStatus: liveNode("a"), State: "running"}, {NodeStatus: liveNode("b"), Rank: 1, State: "running"}},
		Waiting:   []WaitingStatus{{NodeStatus: liveNode("c"), Role: RoleNewcomer}},
	}
	unformed := &Status{RunStatus: RunStatus{RunID: "job", Nodes: was.Nodes}, Waiting: was.Waiting}
	for _, c := range []struct {
		was   *Status
		want  string
		nodes []string
	}{
		{was, "node b, rank 1 of round 3, leaves when all have saved, in 1m0s at the latest, and may come back when it is undrained", []string{"b"}},
		{was, "node a, rank 0 of round 3; node c, which waited for a place, leave when all have saved, in 1m0s at the latest, and may come back when it is undrained; " +
			"the others are too few then (1 of at least 2) and wait for replacements", []string{"a", "c"}},
		{was, "; no other node is left, so the run then ends and should be queued again", []string{"c", "b", "a"}},
		{was, "node c, which waited for a place, leaves now, and may come back when it is undrained", []string{"c"}},
		{unformed, "; no other node is left: the next nodes to join begin the job", []string{"c"}},
	} {
		done := directiveText(c.was, Direct{ID: "d1", Kind: DirectiveDrain, Nodes: c.nodes, Within: time.Minute})
		if !strings.HasSuffix(done, c.want) {
			t.Errorf("%v: %q", c.nodes, done)
		}
	}
}

// TestUndrainBeforeTheDrain: who wants to keep a node that is still to leave is told what does it.
func TestUndrainBeforeTheDrain(t *testing.T) {
	was := &Status{RunStatus: RunStatus{RunID: "job", Directives: []DirectiveStatus{
		{ID: "d1", Kind: "save"}, {ID: "d2", Kind: "drain", Nodes: []string{"a", "b"}},
	}}}
	_, err := undrainText(was, "b")
	if err == nil || err.Code != CodeInvalid || !strings.HasSuffix(err.Text, "directive d2 is to drain it: cancel that") {
		t.Error(err)
	}
	if _, err = undrainText(was, "c"); err == nil || !strings.HasSuffix(err.Text, "none is drained") {
		t.Error(err)
	}
}

// TestSaveWithoutWorkers: an administrator hears that nothing saves now.
func TestSaveWithoutWorkers(t *testing.T) {
	save := Direct{ID: "d1", Kind: DirectiveSave, Within: time.Minute}
	for state, want := range map[string]string{
		"running":  `directive d1 of run "job": its workers save, within 1m0s`,
		"rejoined": `directive d1 of run "job": its workers save, within 1m0s; none run now, those of the next round do if it begins by then`,
	} {
		was := &Status{RunStatus: RunStatus{RunID: "job"}, Members: []MemberStatus{{NodeStatus: liveNode("a"), State: state}}}
		if done := directiveText(was, save); done != want {
			t.Errorf("%s: %q", state, done)
		}
	}
}

// refused reports whether a request of an administrator had no effect but an error.
func refused(effects []Effect) bool {
	if len(effects) != 1 {
		return false
	}
	a, ok := effects[0].(Answer)
	return ok && a.Err != nil && !a.Changed
}
