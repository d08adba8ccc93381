package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
)

// TestSanitize: nothing that a control plane says reaches a terminal that would obey it.
func TestSanitize(t *testing.T) {
	const evil = "x\x1b]0;owned\x07\ry"
	failed := rendezvous.Errorf(rendezvous.CodeState, "%s\nsecond line", evil)
	target := Redirect{Host: evil, Node: evil, Servers: []string{evil}}
	for _, f := range []Frame{
		Welcome{Version: ProtocolVersion, Lease: 1, Notice: rendezvous.MembershipUpdate{Reason: evil}, SeenAddr: evil, Addr: evil, HostNode: evil, Servers: []string{evil}},
		Standby{Addr: evil, Why: evil}, Standbys{List: []StandbyNode{{Node: evil, Label: evil, Addr: evil}}},
		target, Probe{Node: evil, Target: target}, Probed{Node: evil, Target: target},
		Liveness{Node: evil, Target: target, Linked: []string{evil}}, Transfer{Addr: evil},
		Notice{rendezvous.MembershipUpdate{Reason: evil, Stop: rendezvous.RoundStop{Round: 1, Reason: evil},
			Directive: rendezvous.DirectiveNotice{ID: evil, Text: evil}}},
		Progress{rendezvous.Progress{Headline: evil, Detail: evil}},
		Refuse{Err: failed}, Drop{failed}, Reply{Err: failed},
		AdminAnswer{Err: failed, Done: evil},
	} {
		r := FrameReader{In: bufio.NewReader(bytes.NewReader(AppendFrame(nil, f)))}
		got, err := r.NextFrame(MaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		said := fmt.Sprintf("%+v", got)
		switch f := got.(type) {
		case Refuse:
			said = f.Err.Text
		case Drop:
			said = f.Err.Text
		case Reply:
			said = f.Err.Text
		case AdminAnswer:
			said = f.Err.Text + f.Done
		}
		if strings.ContainsAny(said, "\x1b\x07\r") || !strings.Contains(said, "x") {
			t.Errorf("%T says %q", got, said)
		}
		if _, ok := got.(Refuse); ok && !strings.Contains(said, "\nsecond line") {
			t.Errorf("its lines are lost: %q", said)
		}
	}
}

// TestShownTextsFit: what cannot be shown takes more bytes in its place, and the text still fits its field.
func TestShownTextsFit(t *testing.T) {
	evil := strings.Repeat("\x1b", MaxName)
	for _, f := range []Frame{Transfer{Addr: evil}, Standby{Why: evil}, Liveness{Linked: []string{evil}}, Notice{rendezvous.MembershipUpdate{Directive: rendezvous.DirectiveNotice{ID: evil}}}} {
		once, err := parseFrame(AppendFrame(nil, f)[frameHead:])
		if err != nil {
			t.Fatalf("%T: %v", f, err)
		}
		if twice, err := parseFrame(AppendFrame(nil, once)[frameHead:]); err != nil || !reflect.DeepEqual(once, twice) {
			t.Errorf("%T: %+v, %v", f, twice, err)
		}
	}
}
