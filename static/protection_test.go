package static

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/promtext"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

// TestProtectedRounds goes through two rounds of a static job with a token: agents and workers
// use the store by a loopback address, and nothing else gets there.
func TestProtectedRounds(t *testing.T) {
	port, token := testkit.FreePort(t), testkit.TokenFile(t)
	var nodes []*Static
	for rank := range 3 {
		p := staticParams(port, 3, rank)
		p.TokenFile = token
		nodes = append(nodes, newNode(t, p))
	}
	for round := uint64(1); round <= 2; round++ {
		var joins []<-chan answer
		for _, s := range nodes {
			joins = append(joins, next(t, s))
		}
		for i, join := range joins {
			got := <-join
			addr, err := netip.ParseAddr(got.StoreAddr)
			if got.err != nil || err != nil || !addr.IsLoopback() || addr.As4()[1] == 0 || got.StorePort != port || got.AdvertisedAddr != "127.0.0.1" || got.Round != round || got.Rank != i {
				t.Fatalf("outcome %+v, error %v", got.Outcome, got.err)
			}
			c, err := tcpstore.Dial(testkit.Within(t, 20*time.Second), net.JoinHostPort(got.StoreAddr, strconv.Itoa(got.StorePort)), tcpstore.ClientOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Set(t.Context(), "key", nil); err != nil {
				t.Error(err)
			}
		}
	}
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("plain"))
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a plain client of the real port: %d bytes, %v", n, err)
	}
	for i, want := range []string{`rallypoint_round_store_refused_total{reason="plain"} 1`, `rallypoint_forwarder_refused_total{reason="other_user"} 0`} {
		testkit.Eventually(t, "node "+strconv.Itoa(i)+" tells of "+want, func() bool { // it closes first
			var page promtext.Buffer
			nodes[i].Expose(&page)
			return strings.Contains(string(page.Bytes()), want+"\n")
		})
	}
}

// TestProtectedFailure: a node that cannot get to node 0 says why, and where it should be.
func TestProtectedFailure(t *testing.T) {
	p := staticParams(testkit.FreePort(t), 2, 1)
	p.Endpoint = Scheme + "192.0.2.1:" + strconv.Itoa(testkit.FreePort(t)) // leads nowhere
	p.TokenFile, p.JoinTimeout = testkit.TokenFile(t), 300*time.Millisecond
	got := <-next(t, newNode(t, p))
	if !errors.Is(got.err, rendezvous.ErrTimeout) || !strings.Contains(got.err.Error(), "node 0 at 192.0.2.1:") {
		t.Errorf("%v", got.err)
	}
	p.TokenFile = t.TempDir() + "/none"
	if _, err := NewStatic(p, nil); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without the file: %v", err)
	}
}
