package rendezvous

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
)

// texts collects what an effect says in words.
func texts(v reflect.Value, found *[]string) {
	switch v.Kind() {
	case reflect.String:
		*found = append(*found, v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			texts(v.Elem(), found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			texts(v.Field(i), found)
		}
	case reflect.Slice:
		for i := range v.Len() {
			texts(v.Index(i), found)
		}
	}
}

// TestTopologyOfANodeCanBeShown, or its hello is refused: names that differ in what cannot be
// shown would look like one domain.
func TestTopologyOfANodeCanBeShown(t *testing.T) {
	r := newRig(t, time.Hour)
	a := r.hello("a", policy(2, 3), func(h *Hello) { h.Topology = "rack\x1b[2J7" })
	if a.refused == nil || !strings.Contains(a.refused.Text, "cannot be shown") || strings.Contains(a.refused.Text, "\x1b") {
		t.Errorf("%+v", a.refused)
	}
}

// TestNoUserWritesToTheTerminalsOfOthers: whatever a node says of itself, and whatever
// reasons are given, what the others receive has nothing that a terminal would obey,
// and nothing that looks like a line of their own logs.
func TestNoUserWritesToTheTerminalsOfOthers(t *testing.T) {
	const evil = "x\x1b]0;owned\x07\r\nE1121 all is lost"
	for name, end := range map[string]func(r *rig, n *rigNode){
		"leaves":     func(r *rig, n *rigNode) { r.apply(Leave{Request: n.request(), Reason: evil}) },
		"succeeds":   func(r *rig, n *rigNode) { r.apply(Leave{Request: n.request(), Ending: EndSuccess, Reason: evil}) },
		"fails":      func(r *rig, n *rigNode) { r.apply(Leave{Request: n.request(), Ending: EndFailed, Reason: evil}) },
		"closes":     func(r *rig, n *rigNode) { r.apply(CloseRun{Request: n.request(), Reason: evil}) },
		"is closed":  func(r *rig, _ *rigNode) { r.apply(CloseRun{By: evil, Reason: evil, Stop: true}) },
		"is evicted": func(r *rig, n *rigNode) { r.apply(Evict{Node: n.id, By: evil, Reason: evil}) },
		"vanishes":   func(r *rig, n *rigNode) { r.lost(n) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, time.Hour)
			p := policy(2, 3)
			label := func(h *Hello) { h.Label = evil }
			a, b := r.hello("a", p, label), r.hello("b", p, label)
			r.join(a)
			r.join(b)
			r.fire(TimerLastCall)
			r.wantRound(a, b)
			end(r, a)
			c := r.hello("c", p)
			r.join(c)
			var all []string
			for _, n := range r.nodes {
				for _, reply := range n.replies {
					texts(reflect.ValueOf(reply), &all)
				}
				texts(reflect.ValueOf([]any{n.notice, n.refused, n.dropped}), &all)
			}
			forming, waiting := r.m.Progress()
			all = append(append(all, r.changes...), fmt.Sprintf("%+v %+v %+v", r.m.Status(), forming, waiting))
			for _, text := range all {
				if i := strings.IndexFunc(text, unicode.IsControl); i >= 0 {
					t.Errorf("%q", text)
				}
			}
		})
	}
}

// TestNodeIDsCanBeShown, or are refused.
func TestNodeIDsCanBeShown(t *testing.T) {
	r := newRig(t, 0)
	if n := r.hello("a\x1b[2J", policy(1, 2)); n.refused == nil || n.refused.Code != CodeInvalid || strings.Contains(n.refused.Text, "\x1b") {
		t.Errorf("it is answered %v", n.refused)
	}
}
