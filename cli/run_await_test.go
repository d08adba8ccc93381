package cli

import (
	"testing"
	"time"
)

// eventually waits until ready is true, which no event tells of because other
// processes make it so.
func eventually(t *testing.T, ready func() bool) {
	t.Helper()
	give := time.Now().Add(30 * time.Second)
	for !ready() {
		if time.Now().After(give) {
			t.Fatal("waited in vain")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
