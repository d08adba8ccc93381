package roundstore

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// wantClosed waits until the other end has closed a connection without a word.
func wantClosed(t *testing.T, what string, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	n, err := conn.Read(make([]byte, 1))
	if n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: %d bytes, %v; want a closed connection", what, n, err)
	}
}

// TestOtherUser has another user at the round store, the control plane and its HTTP of a
// job on this machine, of two nodes that do not notice.
func TestOtherUser(t *testing.T) {
	peertest.NeedRoot(t)
	endpoint := net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t)))
	a := open(t, "a", endpoint, 2, 2, map[string]string{"is_host": "1", "node_rank": "0"}) // whose numbers are those of the control plane's process
	b := open(t, "b", endpoint, 2, 2, map[string]string{"is_host": "0"})
	o := next(t, a, b)[0]
	storeAddr := net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort))
	worker := dial(t, o)
	if err := worker.Set(t.Context(), "key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{storeAddr, endpoint} {
		for range 3 {
			stranger := peertest.Dial(t, peertest.Stranger, addr)
			_, _ = io.WriteString(stranger, "GET /status HTTP/1.0\r\n\r\n")
			wantClosed(t, addr, stranger)
		}
		for range 10 { // which come and go at once: some of them before anyone looks
			peertest.Dial(t, peertest.Stranger, addr).Close()
		}
	}
	if v, err := worker.Get(t.Context(), "key"); err != nil || string(v) != "value" {
		t.Errorf("the worker's connection: %q, %v", v, err)
	}
	if err := dial(t, o).Set(t.Context(), "other", nil); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "the refusals are counted", func() bool {
		families := scrape(t, endpoint)
		return labelled(families["rallypoint_refused_total"], "other_user")+labelled(families["rallypoint_refused_total"], "incomplete") == 13 &&
			labelled(families["rallypoint_round_store_refused_total"], "other_user")+labelled(families["rallypoint_round_store_refused_total"], "incomplete") == 13
	})
	refused := statusOf(t, endpoint).Server
	for _, counts := range []map[string]uint64{refused.Refused, refused.StoresRefused} {
		if counts["other_user"] < 3 || counts["other_user"]+counts["incomplete"] != 13 {
			t.Errorf("status: %v", counts)
		}
	}
	if len(refused.ForwardersRefused) != 0 {
		t.Errorf("status: %v", refused.ForwardersRefused)
	}
	if o := next(t, a, b)[0]; o.Round != 2 {
		t.Errorf("round %d after all that", o.Round)
	}
}

// TestAllowedUser: a user that the options name connects, everyone with loopback_check=0.
func TestAllowedUser(t *testing.T) {
	peertest.NeedRoot(t)
	for _, options := range []map[string]string{
		{"allow_uid": strconv.Itoa(peertest.Stranger)}, {"loopback_check": "0"},
	} {
		endpoint := net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t)))
		o := next(t, open(t, "a", endpoint, 1, 1, options))[0]
		conn := peertest.Dial(t, peertest.Stranger, net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort)))
		_, _ = io.WriteString(conn, "what?") // a store hangs up on that, and says why in its log
		wantClosed(t, "the store", conn)
		conn = peertest.Dial(t, peertest.Stranger, endpoint)
		_, _ = io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n")
		page, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(page), `rallypoint_round_store_refused_total{reason="other_user"} 0`) ||
			!strings.Contains(string(page), `rallypoint_round_store_refused_total{reason="dialect"} 1`) {
			t.Errorf("%v: %v, %s", options, err, page)
		}
	}
}

// TestSecurityRequired: several machines without a token are an error if so wanted, and
// one line in the log if not.
func TestSecurityRequired(t *testing.T) {
	for _, test := range []struct {
		endpoint, security, token string
		max                       int
		err                       string
		warns                     bool
	}{
		{"host0:29400", "", "", 2, "", true},
		{"host0:29400", "require", "", 2, "RALLYPOINT_SECURITY=require", false},
		{"host0:29400", "required", "", 2, `"required": expected "require"`, false},
		{"host0:29400", "require", "", 1, "", false},
		{"127.0.0.1:29400", "require", "", 2, "", false},
		{"host0:29400", "require", "token", 2, "", false},
	} {
		p := params.Default()
		p.RunID, p.Min, p.Max, p.Security = "job", 1, test.max, test.security
		controltest.MeetAt(&p, test.endpoint)
		if test.token != "" {
			p.TokenFile = t.TempDir() + "/token"
			if err := os.WriteFile(p.TokenFile, []byte(strings.Repeat("x", 32)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var lines bytes.Buffer
		m, err := Open(p, slog.New(slog.NewTextHandler(&lines, nil)))
		if err == nil {
			m.Close()
		}
		if test.err == "" && err != nil || test.err != "" && (!errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%+v: %v", test, err)
		}
		if n := strings.Count(lines.String(), "no token"); n > 1 || test.warns != (n == 1) {
			t.Errorf("%+v: it logs %q", test, lines.String())
		}
	}
}
