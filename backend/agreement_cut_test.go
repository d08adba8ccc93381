package backend

import (
	"net"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// TestCutOffInAgreement: a member's way to the others breaks, or lets nothing through, in
// each phase of an agreement. What it has said before stands, what it says meanwhile arrives
// when the network is back, and no member hears of a second step.
func TestCutOffInAgreement(t *testing.T) {
	for name, f := range map[string]struct{ begin, end func(*etcdtest.Link) }{
		"broken": {(*etcdtest.Link).Close, (*etcdtest.Link).Open},
		"silent": {func(l *etcdtest.Link) { l.Freeze(true) }, func(l *etcdtest.Link) { l.Freeze(false) }},
	} {
		t.Run("hosted, "+name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := control.Start(control.Config{}, l)
			t.Cleanup(func() { s.Close() })
			link := etcdtest.NewLink(t, l.Addr().String())
			agreesWhileCutOff(t, &run{t, at(l.Addr().String())}, &run{t, at(link.Endpoint)}, func() { f.begin(link) }, func() { f.end(link) })
		})
	}
}

func agreesWhileCutOff(t *testing.T, direct, cut *run, begin, end func()) {
	options := []string{"reconnect_grace=60", "lease_timeout=60"}
	near, far := direct.node("n0", 2, 2, options...), cut.node("n1", 2, 2, options...)
	number := round(t, near, far)[0].Round
	step := func(m *member.Member, id string) int64 {
		t.Helper()
		return directed(t, m, "the step", func(d rendezvous.DirectiveNotice) bool { return d.ID == id && d.Agreed }).Step
	}
	arrives := func(tell func() error) { // at once, or said again once the way is noticed to be there
		t.Helper()
		testkit.Eventually(t, "the report arrives", func() bool {
			err := tell()
			if err != nil && rendezvous.CodeOf(err) != rendezvous.CodeConnection {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	for _, phase := range []string{"before it is asked", "has answered", "agreed", "has saved"} {
		in := func(this string, do func()) {
			if phase == this {
				do()
			}
		}
		asked := func(d rendezvous.DirectiveNotice) bool { return d.ID == phase && d.Round == number }
		in("before it is asked", begin)
		testkit.Check(t, near.Direct(t.Context(), rendezvous.Direct{ID: phase, Kind: rendezvous.DirectiveSave, Within: time.Hour, Reason: "why"}))
		directed(t, near, "the question", asked)
		in("before it is asked", end)
		directed(t, far, "the question", asked)
		arrives(func() error { return far.ReportHeld(t.Context(), number, phase, 42) })
		in("has answered", begin)
		testkit.Check(t, near.ReportHeld(t.Context(), number, phase, 41))
		agreed := step(near, phase)
		in("has answered", end)
		if got := step(far, phase); got != agreed || got != 42 && (got != -1 || phase != "before it is asked") { // -1: it came back late
			t.Errorf("%s: the steps are %d and %d", phase, agreed, got)
		}
		in("agreed", begin)
		saved := func() error { return far.ReportSaved(t.Context(), number, phase) }
		first := testkit.Go(saved) // continues by itself if it fails
		in("agreed", end)
		<-first
		arrives(saved)
		in("has saved", begin)
		testkit.Check(t, near.ReportSaved(t.Context(), number, phase))
		over := func(d rendezvous.DirectiveNotice) bool { return d.ID == "" }
		directed(t, near, "the end", over)
		in("has saved", end)
		directed(t, far, "the end", over)
	}
}
