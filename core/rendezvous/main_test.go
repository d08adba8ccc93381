package rendezvous

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// Histories of each property: make test-go-long runs thousands.
func init() { _ = flag.Set("rapid.checks", "50") }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
