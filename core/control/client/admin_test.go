package client

import (
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// TestAdminRefusesWhatNoFrameHolds at once: a control plane would take it for malformed and
// close the connection, which looks as if it could not be reached.
func TestAdminRefusesWhatNoFrameHolds(t *testing.T) {
	for text, nodes := range map[string][]string{
		"has more than 512 bytes":                 {"n0", strings.Repeat("n", wire.MaxName+1)},
		"a drain names 1 to 1024 nodes, not 1025": make([]string, rendezvous.MaxDirectiveNodes+1),
	} {
		_, err := AdminDrain(t.Context(), "127.0.0.1:1", nil, "job", "d", nodes, time.Second, 0, "carol", "why")
		if rendezvous.CodeOf(err) != rendezvous.CodeInvalid || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}
