package rendezvous

import (
	"strings"
	"testing"
	"time"
)

// ended is a run of one node, which has ended and gone.
func ended(t *testing.T, end func(r *rig, n *rigNode)) *rig {
	t.Helper()
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")
	end(r, n[0])
	r.apply(LeaseExpired{Session: n[0].session})
	return r
}

func succeeds(r *rig, n *rigNode) { r.apply(Leave{Request: n.request(), Ending: EndSuccess}) }

// "All future attempts to re-rendezvous (within the same job) will fail."
func TestAllFutureAttemptsToReRendezvousWillFail(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(r *rig, n *rigNode)
		want Code
	}{
		"after a success":                      {succeeds, CodeGraceful},
		"after set_closed":                     {func(r *rig, n *rigNode) { r.apply(CloseRun{Request: n.request()}) }, CodeClosed},
		"after an administrator has closed it": {func(r *rig, n *rigNode) { r.apply(CloseRun{By: "admin"}) }, CodeClosed},
	} {
		t.Run(name, func(t *testing.T) {
			r := ended(t, c.end)
			for range 2 { // the first one who comes late leaves a trace of its own
				late := r.hello("late", policy(1, 3))
				r.join(late)
				err := r.wantError(late, c.want)
				for _, way := range []string{"another run id", "begin_again=1", "rallypoint admin forget"} {
					if !strings.Contains(err.Text, way) {
						t.Errorf("it does not name %q: %v", way, err)
					}
				}
				r.apply(LeaseExpired{Session: late.session})
			}
			r.fire(TimerClosed)
			fresh := r.hello("fresh", policy(1, 1))
			r.join(fresh)
			r.wantRound(fresh)
		})
	}
}

func TestClosedRunsThatBeginAgainAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(r *rig, n *rigNode)
		hello func(*Hello)
	}{
		"failed": {func(r *rig, n *rigNode) { r.apply(Leave{Request: n.request(), Ending: EndFailed}) }, func(*Hello) {}},
		"succeeded, and failed after that": {func(r *rig, n *rigNode) {
			succeeds(r, n)
			r.apply(CloseRun{By: "admin", Stop: true})
		}, func(*Hello) {}},
		"forgotten": {func(r *rig, n *rigNode) {
			succeeds(r, n)
			r.apply(LeaseExpired{Session: n.session})
			r.apply(Forget{By: "admin", Reason: "why"})
		}, func(*Hello) {}},
		"a node asks for it":              {succeeds, func(h *Hello) { h.BeginAgain = true }},
		"a node that was part of it asks": {succeeds, func(h *Hello) { h.BeginAgain, h.Node = true, "a" }},
	} {
		t.Run(name, func(t *testing.T) {
			r := ended(t, c.end)
			fresh := r.hello("b", policy(1, 1), c.hello)
			r.join(fresh)
			if o := r.wantRound(fresh); o.Round != 2 {
				t.Errorf("round %d", o.Round)
			}
		})
	}
}

func TestARunWithoutAnIDBeginsAgainAtOnce(t *testing.T) {
	for name, node := range map[string]string{"another node": "b", "a node of the same id": "a"} {
		t.Run(name, func(t *testing.T) {
			m := New(Config{RunID: NoRunID, Generation: "g", Uptime: -1})
			p := policy(1, 1)
			p.ClosedFor = time.Minute
			m.Apply(Hello{Session: "s", Node: "a", Policy: p})
			m.Apply(CloseRun{Request: Request{Session: "s", Number: 1}})
			m.Apply(LeaseExpired{Session: "s"})
			said, told := false, false
			for _, e := range m.Apply(Hello{Session: "t", Node: node, Policy: p}) {
				entry, ok := e.(HistoryEntry)
				said = said || ok && strings.Contains(entry.Text, "begins again")
				welcome, ok := e.(Welcome)
				told = told || ok && strings.Contains(welcome.Update.Reason, "begins again; it was closed by a")
			}
			if m.closed != nil || !said || !told {
				t.Errorf("closed: %v; it was said that it begins again: %v; the node was told: %v", m.closed != nil, said, told)
			}
		})
	}
}

// The restored state of a release before has no time for which a run stays closed, but a policy
// without it; and what is restored keeps the time that runs.
func TestRestoredRunStaysClosed(t *testing.T) {
	r := ended(t, succeeds)
	m, err := Restore(r.m.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	timers := m.Timers()
	if len(timers) != 1 || timers[0].Timer.Kind != TimerClosed || timers[0].After != DefaultClosedFor {
		t.Errorf("restored with the timers %+v", timers)
	}
}
