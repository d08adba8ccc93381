package wire

import (
	"testing"
	"time"

	"rallypoint/core/rendezvous"
)

// TestDirectiveKinds: an administrator can give directives of all kinds, each by a request of
// its own, which has the kind's name.
func TestDirectiveKinds(t *testing.T) {
	names := AdminOpNames()
	for _, kind := range rendezvous.DirectiveKinds() {
		f, ok := NewAdmin("r", rendezvous.Direct{ID: "d", Kind: kind})
		if !ok || names[f.Op] != kind.String() {
			t.Errorf("a %v is requested by %d, %v, which is named %q", kind, f.Op, ok, names[f.Op])
		}
		if d, _ := f.Event("admin", time.Time{}).(rendezvous.Direct); d.Kind != kind {
			t.Errorf("the request for a %v asks for a %v", kind, d.Kind)
		}
	}
	if f, ok := NewAdmin("r", rendezvous.Direct{ID: "d", Kind: 99}); ok {
		t.Errorf("a kind that there is not is requested by %d", f.Op)
	}
}
