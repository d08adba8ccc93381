package backend

import (
	"fmt"
	"net"
	"testing"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// directed waits until a node's notice is as it should be.
func directed(t *testing.T, m *member.Member, what string, is func(rendezvous.DirectiveNotice) bool) rendezvous.DirectiveNotice {
	t.Helper()
	for {
		notice, changed := m.Directive()
		if is(notice) {
			return notice
		}
		select {
		case <-changed:
		case <-time.After(patience):
			t.Fatalf("it is not told of %s: %+v", what, notice)
		}
	}
}

// agrees has all nodes of a round hold their workers for a directive, agree on the largest
// step, and save.
func agrees(t *testing.T, round uint64, id string, kind rendezvous.DirectiveKind, nodes ...*member.Member) {
	t.Helper()
	for i, n := range nodes {
		directed(t, n, "the question", func(d rendezvous.DirectiveNotice) bool { return d.ID == id && d.Round == round && !d.Agreed })
		if err := n.ReportHeld(t.Context(), round, id, int64(41+i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		d := directed(t, n, "the step", func(d rendezvous.DirectiveNotice) bool { return d.ID == id && d.Agreed })
		if d.Step != int64(40+len(nodes)) || d.Round != round || d.Kind != kind {
			t.Errorf("it was told %+v", d)
		}
	}
	for _, n := range nodes {
		if err := n.ReportSaved(t.Context(), round, id); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDirectives: members agree on the step of a save, then of a drain that replaces another
// save. The drained node leaves and a spare takes its place. A drain of all nodes ends the run,
// to be queued again.
func TestDirectives(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(2, 2, 2)
		round(t, nodes...)
		spare := r.node("n2", 2, 2)
		waiting := join(t.Context(), spare)
		give := func(n *member.Member, d rendezvous.Direct) {
			t.Helper()
			d.Within, d.Reason = time.Hour, "it is time"
			if err := n.Direct(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		give(nodes[0], rendezvous.Direct{ID: "s1", Kind: rendezvous.DirectiveSave})
		agrees(t, 1, "s1", rendezvous.DirectiveSave, nodes...)
		give(nodes[0], rendezvous.Direct{ID: "s2", Kind: rendezvous.DirectiveSave})
		give(nodes[1], rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveDrain})
		agrees(t, 1, "d1", rendezvous.DirectiveDrain, nodes...)
		told(t, nodes[0], "drained by node n1")
		back := join(t.Context(), nodes[1])
		<-back.done
		if rendezvous.CodeOf(back.err) != rendezvous.CodeGraceful {
			t.Errorf("the drained node: %v", back.err)
		}
		o := outcomes(t, []*joining{join(t.Context(), nodes[0]), waiting})
		give(spare, rendezvous.Direct{ID: "d2", Kind: rendezvous.DirectiveDrain, Nodes: []string{"n0", "n2"}})
		agrees(t, o[0].Round, "d2", rendezvous.DirectiveDrain, nodes[0], spare)
		for _, n := range []*member.Member{nodes[0], spare} {
			told(t, n, "stopped to be queued again by node n2")
			if reason, requeued := n.Requeued(); !requeued || !n.Closed() {
				t.Errorf("it is not to be queued again: %q", reason)
			}
		}
		err := spare.Direct(t.Context(), rendezvous.Direct{Kind: rendezvous.DirectiveSave, Within: time.Hour})
		if rendezvous.CodeOf(err) != rendezvous.CodeClosed {
			t.Errorf("a directive for a closed run: %v", err)
		}
	})
}

// TestLateReports do nothing, and those of another round are refused here already.
func TestLateReports(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		n := r.node("n0", 1, 1)
		round(t, n)
		if err := n.ReportHeld(t.Context(), 1, "never given", 3); err != nil {
			t.Error(err)
		}
		if err := n.ReportSaved(t.Context(), 2, "s1"); rendezvous.CodeOf(err) != rendezvous.CodeRoundOver {
			t.Errorf("of another round: %v", err)
		}
		if err := n.ReportHeld(t.Context(), 1, "s1", -2); rendezvous.CodeOf(err) != rendezvous.CodeInvalid {
			t.Errorf("a step that cannot be: %v", err)
		}
		if err := n.Direct(t.Context(), rendezvous.Direct{Kind: rendezvous.DirectiveScale, Target: 2, Within: time.Hour}); rendezvous.CodeOf(err) != rendezvous.CodeInvalid {
			t.Errorf("a target above max: %v", err)
		}
	})
}

// TestDrainedHost: the drained node hosts the control plane and has rank 0. It leaves in
// order: its control plane continues in another node's process, with the directive that stands.
func TestDrainedHost(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	r := &run{t, at(addr)}
	var nodes []*member.Member
	var joins []*joining
	for i := range 3 {
		n := r.node(fmt.Sprint("n", i), 2, 3, "node_rank="+fmt.Sprint(i))
		nodes, joins = append(nodes, n), append(joins, join(t.Context(), n))
		testkit.Eventually(t, "the first one hosts", func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				conn.Close()
			}
			return err == nil
		})
	}
	if o := outcomes(t, joins)[1]; o.HostRank != 0 {
		t.Fatalf("rank %d hosts", o.HostRank)
	}
	give := func(n *member.Member, d rendezvous.Direct) {
		t.Helper()
		d.Within, d.Reason = time.Hour, "its machine"
		if err := n.Direct(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	give(nodes[1], rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveDrain, Nodes: []string{"n0"}})
	agrees(t, 1, "d1", rendezvous.DirectiveDrain, nodes...)
	told(t, nodes[1], "drained by node n1")
	give(nodes[1], rendezvous.Direct{ID: "s1", Kind: rendezvous.DirectiveSave})
	back := join(t.Context(), nodes[0])
	<-back.done
	if rendezvous.CodeOf(back.err) != rendezvous.CodeGraceful {
		t.Errorf("the drained node: %v", back.err)
	}
	if err := nodes[0].Shutdown(t.Context(), rendezvous.EndLeave, "drained"); err != nil && rendezvous.CodeOf(err) != rendezvous.CodeGraceful {
		t.Error(err)
	}
	o := round(t, nodes[1:]...)
	agrees(t, o[0].Round, "s1", rendezvous.DirectiveSave, nodes[1:]...)
	for _, n := range nodes[1:] {
		directed(t, n, "the end", func(d rendezvous.DirectiveNotice) bool { return d.ID == "" })
	}
}

// TestMemberDiesInAgreement: the others agree without it, and again in the round that they
// form then; they are told of no second step in either.
func TestMemberDiesInAgreement(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(3, 2, 3, "lease_timeout=3")
		round(t, nodes...)
		if err := nodes[0].Direct(t.Context(), rendezvous.Direct{ID: "s1", Kind: rendezvous.DirectiveSave, Within: time.Hour, Reason: "why"}); err != nil {
			t.Fatal(err)
		}
		for i, n := range nodes[:2] {
			directed(t, n, "the question", func(d rendezvous.DirectiveNotice) bool { return d.Round == 1 && !d.Agreed })
			if err := n.ReportHeld(t.Context(), 1, "s1", int64(41+i)); err != nil {
				t.Fatal(err)
			}
		}
		nodes[2].Close()
		told := map[int64]bool{} // -1 where its loss is noticed later than it is waited for
		for _, n := range nodes[:2] {
			d := directed(t, n, "the step", func(d rendezvous.DirectiveNotice) bool { return d.Agreed })
			if told[d.Step] = true; d.Step != 42 && d.Step != -1 || len(told) > 1 || d.Round != 1 {
				t.Errorf("it was told %+v", d)
			}
			if err := n.ReportSaved(t.Context(), 1, "s1"); err != nil {
				t.Fatal(err)
			}
		}
		o := round(t, nodes[:2]...)
		agrees(t, o[0].Round, "s1", rendezvous.DirectiveSave, nodes[:2]...)
		for _, n := range nodes[:2] {
			directed(t, n, "the end", func(d rendezvous.DirectiveNotice) bool { return d.ID == "" })
		}
	})
}
