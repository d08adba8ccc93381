package backend

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

// TestProtectedInEachPlace: wherever nodes with a token meet, workers find the store of their round
// at a loopback address of its own, and its advertised one takes no plain connection.
func TestProtectedInEachPlace(t *testing.T) {
	file := testkit.TokenFile(t)
	for _, m := range meetings {
		if m.name == "hosted" { // its control plane has no token
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			r := &run{t, m.place(t)}
			if !strings.HasSuffix(m.name, "with a token") {
				r.open = withToken(file, r.open)
			}
			var advertised string
			for _, j := range joins(t, r.nodes(2, 2, 2)...) {
				<-j.done
				testkit.Check(t, j.err)
				o := j.outcome
				at, err := netip.ParseAddr(o.StoreAddr)
				if err != nil || !at.IsLoopback() || o.AdvertisedAddr != "127.0.0.1" || o.StoreAddr == o.AdvertisedAddr {
					t.Errorf("outcome %+v", o)
				}
				port := strconv.Itoa(o.StorePort)
				worker := testkit.Must(tcpstore.Dial(testkit.Within(t, patience), net.JoinHostPort(o.StoreAddr, port), tcpstore.ClientOptions{}))(t)
				testkit.Check(t, worker.Set(testkit.Within(t, patience), "key", nil))
				worker.Close()
				advertised = net.JoinHostPort(o.AdvertisedAddr, port)
			}
			stranger := testkit.Must(net.Dial("tcp", advertised))(t)
			defer stranger.Close()
			_ = stranger.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(stranger, "\x00\xce\xf7\x85\x3c") // what torch's client begins with
			if n, err := stranger.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a plain connection to %s: %d bytes, %v", advertised, n, err)
			}
		})
	}
}
