package backend

import (
	"errors"
	"strings"
	"testing"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

// running makes a node say what it runs.
func running(m *member.Member, digest string) *member.Member {
	m.SetCommand(rendezvous.Command{Digest: digest, Text: "job " + digest})
	return m
}

// refusedForItsCommand waits for a join that must be refused, after which the node goes, as an agent does:
// a server that ends waits for whoever is connected.
func refusedForItsCommand(t *testing.T, m *member.Member, words ...string) {
	t.Helper()
	defer m.Close()
	j := join(t.Context(), m)
	select {
	case <-j.done:
	case <-time.After(2 * patience):
		t.Fatal("a node of another job waits")
	}
	if rendezvous.CodeOf(j.err) != rendezvous.CodeMismatch {
		t.Fatalf("a node of another job got %+v, %v", j.outcome, j.err)
	}
	for _, word := range words {
		if !strings.Contains(j.err.Error(), word) {
			t.Errorf("the refusal does not say %q: %v", word, j.err)
		}
	}
}

// Guarantee 4: a spare of another job is refused, one of the same job waits, and takes a lost
// member's place. After a success the run refuses a node of another job, too.
func TestSpareOfAnotherJob(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		a, b := running(r.node("a", 2, 2), "aa"), running(r.node("b", 2, 2), "aa")
		round(t, a, b)
		refusedForItsCommand(t, running(r.node("c", 2, 2), "cc"), "`job cc`", "`job aa`", "round 1 on node")
		same, any, old := running(r.node("d", 2, 2), "aa"), running(r.node("e", 2, 2, "any_command=1"), "ee"), r.node("f", 2, 2)
		spares := []*member.Member{same, any, old}
		waiting := joins(t, spares...)
		refusedForItsCommand(t, running(r.node("g", 2, 2), "0a"))
		for i, j := range waiting {
			select {
			case <-j.done:
				t.Fatalf("spare %d was answered: %+v, %v", i, j.outcome, j.err)
			default:
			}
		}
		if n := a.NodesWaiting() + b.NodesWaiting(); n != 0 {
			t.Errorf("%d nodes are said to wait", n)
		}
		ended := make(chan error, 2)
		for _, m := range []*member.Member{a, b} {
			go func() { ended <- m.Shutdown(t.Context(), rendezvous.EndSuccess, "") }()
		}
		for i, j := range waiting {
			if <-j.done; rendezvous.CodeOf(j.err) != rendezvous.CodeGraceful {
				t.Errorf("spare %d got %v", i, j.err)
			}
			go spares[i].Close()
		}
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Fatal(err)
		}
		refusedForItsCommand(t, running(r.node("h", 2, 2), "0b"), "ran another command")
	})
}

// Guarantee 4: nodes of a round that forms, and one that takes a lost node's place, may differ.
func TestCommandsMayDiffer(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		a, b := running(r.node("a", 2, 2), "aa"), running(r.node("b", 2, 2), "bb")
		for _, o := range round(t, a, b) {
			if !strings.HasPrefix(o.Commands, "the nodes run different commands: `job ") {
				t.Errorf("a member was told %q", o.Commands)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		told(t, a, "lost")
		c := running(r.node("c", 2, 2), "cc")
		round(t, a, c)
	})
}
