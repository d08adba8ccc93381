package control

import (
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

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

// TestAnswerIsMadeWhenItIsStored: a drain that comes while the closing of the run is on its way
// to the disk is refused with the reason, and not answered as if it were given.
func TestAnswerIsMadeWhenItIsStored(t *testing.T) {
	d := newDurable(t, Config{})
	defer d.stop()
	wireGroup(t, patientGuest(d.addr, 2), 2)
	d.disk.holds.Store(true)
	type answer struct {
		done string
		err  error
	}
	ask := func(ev rendezvous.Event) chan answer {
		answers := make(chan answer, 1)
		go func() {
			done, err := client.Ask(controltest.Context(t), d.addr, nil, "run", ev)
			answers <- answer{done, err}
		}()
		return answers
	}
	closed := ask(rendezvous.CloseRun{By: "carol", Reason: "why", Stop: true})
	commit := d.disk.next(t)
	saves := ask(rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveSave, Within: time.Minute, By: "carol", Reason: "why"})
	testkit.Eventually(t, "the directive waits for the next commit", func() bool {
		d.commits.mu.Lock()
		defer d.commits.mu.Unlock()
		return len(d.commits.queue) > 0
	})
	d.disk.holds.Store(false)
	commit.store()
	if a := <-closed; a.err != nil || !strings.Contains(a.done, "is closed as failed") {
		t.Errorf("the closing: %+v", a)
	}
	if a := <-saves; rendezvous.CodeOf(a.err) != rendezvous.CodeClosed || !strings.Contains(a.err.Error(), "it is closed: it failed by admin carol") {
		t.Errorf("the directive: %+v", a)
	}
}
