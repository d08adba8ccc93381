package etcdclient

import (
	"testing"

	"rallypoint/internal/testkit"
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

func TestPrefixEnd(t *testing.T) {
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b", "/x/": "/x0", "\xff\xff": "\x00", "": "\x00"} {
		testkit.Equal(t, PrefixEnd(prefix), want)
	}
}
