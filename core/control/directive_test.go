package control

import (
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
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
	full := &rendezvous.Status{RunID: "job", Directives: make([]rendezvous.DirectiveStatus, rendezvous.MaxDirectives)}
	if done, err := directed(full, scale); err == nil || !strings.Contains(err.Text, "64 directives stand already") {
		t.Errorf("%q, %v", done, err)
	}
	stop := rendezvous.Direct{ID: "d3", Kind: rendezvous.DirectiveStop, Within: time.Minute}
	if done, err := directed(was, stop); err != nil || !strings.Contains(done, "it ends, to be queued again") {
		t.Errorf("%q, %v", done, err)
	}
}

// TestAnswerToADrain names the nodes, and says what follows.
func TestAnswerToADrain(t *testing.T) {
	was := &rendezvous.Status{
		RunID: "job", Round: 3, Policy: rendezvous.Policy{Min: 2, Max: 3, NodeUnit: 1},
		Members: []rendezvous.MemberStatus{{Node: "a", Session: "1", State: "running"}, {Node: "b", Rank: 1, Session: "2", State: "running"}},
		Waiting: []rendezvous.JoinStatus{{Node: "c"}},
	}
	unformed := &rendezvous.Status{RunID: "job", Policy: was.Policy, Waiting: was.Waiting}
	for _, c := range []struct {
		was   *rendezvous.Status
		want  string
		nodes []string
	}{
		{was, "node b, rank 1 of round 3, leaves when all have saved, in 1m0s at the latest, and may come back when it is undrained", []string{"b"}},
		{was, "node a, rank 0 of round 3; node c, which waited for a place, leave when all have saved, in 1m0s at the latest, and may come back when it is undrained; " +
			"the others are too few then (1 of at least 2) and wait for replacements", []string{"a", "c"}},
		{was, "; no other node is there: the run ends then, to be queued again", []string{"c", "b", "a"}},
		{was, "node c, which waited for a place, leaves now, and may come back when it is undrained", []string{"c"}},
		{unformed, "; no other node is there: the next ones that come begin the job", []string{"c"}},
	} {
		done, err := directed(c.was, rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveDrain, Nodes: c.nodes, Within: time.Minute})
		if err != nil || !strings.HasSuffix(done, c.want) {
			t.Errorf("%v: %q, %v", c.nodes, done, err)
		}
	}
}

// TestUndrainBeforeTheDrain: who wants to keep a node that is still to leave is told what does it.
func TestUndrainBeforeTheDrain(t *testing.T) {
	was := &rendezvous.Status{RunID: "job", Directives: []rendezvous.DirectiveStatus{
		{ID: "d1", Kind: "save"}, {ID: "d2", Kind: "drain", Nodes: []string{"a", "b"}},
	}}
	_, err := undrained(was, "b")
	if err == nil || err.Code != rendezvous.CodeInvalid || !strings.HasSuffix(err.Text, "directive d2 is to drain it: cancel that") {
		t.Error(err)
	}
	if _, err = undrained(was, "c"); err == nil || !strings.HasSuffix(err.Text, "none is drained") {
		t.Error(err)
	}
}

// TestSaveWithoutWorkers: an administrator hears that nothing saves now.
func TestSaveWithoutWorkers(t *testing.T) {
	save := rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveSave, Within: time.Minute}
	for state, want := range map[string]string{
		"running":  `directive d1 of run "job": its workers save, within 1m0s`,
		"rejoined": `directive d1 of run "job": its workers save, within 1m0s; none run now, those of the next round do if it begins by then`,
	} {
		was := &rendezvous.Status{RunID: "job", Members: []rendezvous.MemberStatus{{Node: "a", State: state}}}
		if done, err := directed(was, save); err != nil || done != want {
			t.Errorf("%s: %q, %v", state, done, err)
		}
	}
}

// TestAdminFollowsTheHost: an administrator who asks a server in waiting, such as the
// endpoint's after it has been the host once, reaches the job all the same.
func TestAdminFollowsTheHost(t *testing.T) {
	nodes, addr := waitingServer(t)
	run := nodes[0].server().cfg.RunID
	done, err := client.Ask(t.Context(), addr, nil, run, rendezvous.Evict{Node: nodes[1].name, By: "carol", Reason: "why"})
	if err != nil || !strings.Contains(done, "node "+nodes[1].name) {
		t.Errorf("%q, %v", done, err)
	}
	_, err = client.Ask(t.Context(), addr, nil, "other", rendezvous.Evict{Node: nodes[1].name, By: "carol", Reason: "why"})
	if rendezvous.CodeOf(err) != rendezvous.CodeInvalid || !strings.Contains(err.Error(), addr) {
		t.Errorf("another run: %v", err)
	}
}

// TestDirectiveGivenAgain: an administrator who repeats a directive, because no answer has
// come, hears what has become of it: it is not given again, whatever the run is like by then.
func TestDirectiveGivenAgain(t *testing.T) {
	s := newFakeServer(t, Config{})
	twoNodes(t, s)
	ask := func(ev rendezvous.Event, want string) {
		t.Helper()
		done, err := client.Ask(controltest.Context(t), s.addr, nil, "run", ev)
		if err != nil || !strings.Contains(done, want) {
			t.Errorf("%q, %v, want %q", done, err, want)
		}
	}
	save := rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveSave, Within: time.Minute, By: "carol", Reason: "why"}
	drain := rendezvous.Direct{ID: "d2", Kind: rendezvous.DirectiveDrain, Nodes: []string{"b"}, By: "carol", Reason: "why"}
	ask(save, "its workers save, within 1m0s")
	ask(save, `nothing to do: directive d1 of run "run" was given before, and stands`)
	ask(rendezvous.CancelDirective{ID: "d1", By: "carol", Reason: "it is off"}, "is canceled")
	ask(save, `nothing to do: directive d1 of run "run" was given before, and is over`)
	ask(drain, "node b, rank 1 of round 1, leaves now")
	ask(rendezvous.CloseRun{By: "carol", Reason: "why"}, "is closed")
	ask(drain, `nothing to do: directive d2 of run "run" was given before, and is over`)
}
