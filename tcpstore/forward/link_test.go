package forward

import (
	"crypto/tls"
	"io"
	"testing"

	"rallypoint/internal/testkit"
)

// TestArrived: of a connection over TLS it is known whether the kernel has more to be read.
func TestArrived(t *testing.T) {
	const size = 3 * bufferSize // some records
	more := make(chan struct{})
	s := newFar(t, true, func(c Conn) {
		<-more
		_, _ = c.Write(make([]byte, size))
		_, _ = c.Read(make([]byte, 1))
	})
	c, err := s.dial(t.Context(), 0)
	testkit.Check(t, err)
	defer c.Close()
	if arrived(c) {
		t.Error("nothing was sent")
	}
	close(more)
	testkit.Eventually(t, "something has arrived", func() bool { return arrived(c) })
	testkit.Must(io.ReadFull(c, make([]byte, size)))(t)
	if arrived(c) {
		t.Error("all was read")
	}
	if arrived(tls.Client(nil, nil)) {
		t.Error("there is no socket")
	}
}
