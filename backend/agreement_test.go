package backend

import (
	"net"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
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

// TestSaveIsAgreed: all members of the round are asked, agree on the largest step, and the
// directive is over when all have saved.
func TestSaveIsAgreed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := control.Start(control.Config{}, l)
	t.Cleanup(func() { s.Close() })
	addr := l.Addr().String()
	r := &run{t, at(addr)}
	nodes := []*member.Member{r.node("n0", 2, 2), r.node("n1", 2, 2)}
	round(t, nodes...)
	save := rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveSave, Within: time.Hour, By: "carol", Reason: "it is time"}
	if _, err := client.AdminDirect(t.Context(), addr, nil, "job", save); err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		directed(t, n, "the question", func(d rendezvous.DirectiveNotice) bool { return d.ID == "d1" && d.Round == 1 && !d.Agreed })
		if err := n.ReportHeld(t.Context(), 1, "d1", int64(41+i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		d := directed(t, n, "the step", func(d rendezvous.DirectiveNotice) bool { return d.Agreed })
		if d.Step != 42 || d.Round != 1 || d.Kind != rendezvous.DirectiveSave {
			t.Errorf("it was told %+v", d)
		}
		if err := n.ReportSaved(t.Context(), 1, "d1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		directed(t, n, "the end", func(d rendezvous.DirectiveNotice) bool { return d.ID == "" })
		if n.NodesWaiting() > 0 || n.Closed() {
			t.Error("a save has ended the round")
		}
	}
}
