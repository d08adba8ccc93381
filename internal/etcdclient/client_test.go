package etcdclient

import (
	"testing"
)

// However often a call is refused, the next attempt has time.
func TestAttemptsKeepTheirTime(t *testing.T) {
	limit := FirstAttempt
	for range 100 {
		if limit < FirstAttempt || limit > lastAttempt {
			t.Fatal(limit)
		}
		limit = nextLimit(limit)
	}
}
