package backend_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"rallypoint/backend"
	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/core/rendezvous"
)

// TestOtherUser has another user at the store of a standalone job and of a static one.
func TestOtherUser(t *testing.T) {
	peertest.NeedRoot(t)
	p := params.Default()
	p.RunID, p.Endpoint, p.Min, p.Max = "job", "static://127.0.0.1:0", 1, 1
	alone, err := backend.OpenStandalone(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Shutdown(t.Context(), rendezvous.EndSuccess, "")
	fixed, err := backend.Open(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer fixed.Close()
	for name, rdzv := range map[string]interface {
		Next(context.Context) (rendezvous.Outcome, error)
	}{"standalone": alone, "static": fixed} {
		o, err := rdzv.Next(t.Context())
		if err != nil {
			t.Fatal(name, err)
		}
		conn := peertest.Dial(t, peertest.Stranger, net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort)))
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d bytes, %v; want a closed connection", name, n, err)
		}
	}
}
