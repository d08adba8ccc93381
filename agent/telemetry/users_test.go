package telemetry

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
)

// TestOtherUser has another user at the health port, which the agent's own user reads.
func TestOtherUser(t *testing.T) {
	peertest.NeedRoot(t)
	for _, test := range []struct {
		address string
		users   params.LoopbackUsers
		let     bool
	}{
		{"127.0.0.1:0", params.LoopbackUsers{}, false},
		{"127.0.0.1:0", params.LoopbackUsers{Also: []params.UIDRange{{First: peertest.Stranger, Last: peertest.Stranger}}}, true},
		{"127.0.0.1:0", params.LoopbackUsers{Anyone: true}, true},
		{"0.0.0.0:0", params.LoopbackUsers{}, true}, // for scrapers of other machines
	} {
		lines := &strings.Builder{}
		h := NewHealth(HealthConfig{
			Address: test.address, Status: NewStatusTracker(&Run{}), Users: test.users, Log: slog.New(slog.NewTextHandler(lines, nil)),
		})
		_, port, _ := net.SplitHostPort(h.listener.Addr().String())
		addr := net.JoinHostPort("127.0.0.1", port)
		for range 2 {
			stranger := peertest.Dial(t, peertest.Stranger, addr)
			_, _ = io.WriteString(stranger, "GET /status HTTP/1.0\r\n\r\n")
			_ = stranger.SetReadDeadline(time.Now().Add(20 * time.Second))
			answer, err := io.ReadAll(stranger)
			if errors.Is(err, os.ErrDeadlineExceeded) || test.let != strings.HasPrefix(string(answer), "HTTP/1.1 200") || !test.let && len(answer) > 0 {
				t.Errorf("%+v: %q, %v", test, answer, err)
			}
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if resp, err := client.Get("http://" + addr + "/healthz"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%+v: the own user: %v, %v", test, resp, err)
		} else {
			resp.Body.Close()
		}
		h.Close()
		if n := strings.Count(lines.String(), "the health port refused a connection: it is another user's connection: user 1234567"); n > 1 || test.let != (n == 0) {
			t.Errorf("%+v: it logs %s", test, lines)
		}
	}
}
