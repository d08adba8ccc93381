package control

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
)

// TestShown: nothing that a control plane says reaches a terminal that would obey it.
func TestShown(t *testing.T) {
	const evil = "x\x1b]0;owned\x07\ry"
	failed := rendezvous.Errorf(rendezvous.CodeState, "%s\nsecond line", evil)
	for _, f := range []frame{
		welcome{Version: ProtocolVersion, Lease: 1, Notice: rendezvous.MembershipUpdate{Reason: evil}},
		notice{rendezvous.MembershipUpdate{Reason: evil}},
		progress{rendezvous.Progress{Headline: evil, Detail: evil}},
		refuse{failed}, drop{failed}, reply{Err: failed},
		adminAnswer{Err: failed, Done: evil},
	} {
		r := frameReader{in: bufio.NewReader(bytes.NewReader(appendFrame(nil, f)))}
		got, err := r.nextFrame(maxFrame)
		if err != nil {
			t.Fatal(err)
		}
		said := fmt.Sprintf("%+v", got)
		switch f := got.(type) {
		case refuse:
			said = f.Err.Text
		case drop:
			said = f.Err.Text
		case reply:
			said = f.Err.Text
		case adminAnswer:
			said = f.Err.Text + f.Done
		}
		if strings.ContainsAny(said, "\x1b\x07\r") || !strings.Contains(said, "x") {
			t.Errorf("%T says %q", got, said)
		}
		if _, ok := got.(refuse); ok && !strings.Contains(said, "\nsecond line") {
			t.Errorf("its lines are lost: %q", said)
		}
	}
}
