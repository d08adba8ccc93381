package tcpstore

import (
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// TestOpeningTimeIsOne: a client that is late with its first record has that less for the rest. Its
// place is one of those that strangers can hold.
func TestOpeningTimeIsOne(t *testing.T) {
	s, _ := newSecureServer(t, Options{})
	defer s.Close()
	_ = s.done.Done() // made outside the bubble
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		go func() {
			time.Sleep(secret.OpeningTimeout - time.Second)
			_, _ = far.Write([]byte{tlsByte, 3, 1, 0, 4, 1, 0, 0, 9}) // a whole record, of a hello that continues
		}()
		began := time.Now()
		_, _, _, err := s.secure(near)
		if took := time.Since(began); took != secret.OpeningTimeout || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("ended after %v: %v; want after %v", took, err, secret.OpeningTimeout)
		}
		far.Close()
	})
}

// TestLimitsAreDocumented: docs/security-details.md tells platform engineers what strangers can use up.
func TestLimitsAreDocumented(t *testing.T) {
	page := string(testkit.ReadFile(t, "../docs/security-details.md"))
	_, limits, _ := strings.Cut(page, "## Resources that strangers can use\n")
	limits, _, _ = strings.Cut(limits, "\n#")
	for _, want := range []string{strconv.Itoa(maxOpenings), strconv.Itoa(maxHandshakes), strconv.Itoa(int(secret.OpeningTimeout/time.Second)) + " s"} {
		if !strings.Contains(limits, want) {
			t.Errorf("docs/security-details.md does not say %s in: %s", want, limits)
		}
	}
}
