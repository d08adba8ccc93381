package cli

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"rallypoint/backend"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestAllFutureAttemptsAtAJobsOwnPort: at a port that a node of the job hosts, a node that comes
// after a success learns that it was not needed for as long as a process of the job lives; with
// and without an id of the job.
func TestAllFutureAttemptsAtAJobsOwnPort(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"job", rendezvous.NoRunID} {
		t.Run(id, func(t *testing.T) {
			h := newHarness(t)
			endpoint := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
			member := func(isHost bool) (backend.Node, <-chan error) {
				t.Helper()
				p := params.Default()
				p.RunID, p.Endpoint, p.Min, p.Max, p.Target, p.IsHost = id, endpoint, 1, 3, 2, &isHost
				p.CloseTimeout = time.Second
				n := testkit.Must(backend.Open(p, nil))(t)
				t.Cleanup(func() { n.Close() })
				joined := make(chan error, 1)
				go func() {
					_, err := n.Next(t.Context())
					joined <- err
				}()
				return n, joined
			}
			host, first := member(true)
			other, second := member(false)
			ended(t, first)
			ended(t, second)
			testkit.Check(t, other.Shutdown(t.Context(), rendezvous.EndSuccess, "trained"))

			options := []string{"--nnodes=1:3", "--rdzv-id=" + id, "--rdzv-endpoint=" + endpoint, "--rdzv-conf=target=2,last_call_timeout=0.1"}
			began := time.Now()
			for range 2 {
				late := h.run("touch trained", options...)
				late.expect(t, 0)
				if text := late.stderr.String(); !strings.Contains(text, "this node was not needed, and no worker ran on it") || strings.Contains(text, "Traceback") {
					t.Errorf("the late node, after %v, said: %s", time.Since(began), text)
				}
			}
			if _, err := os.Stat(h.dir + "/trained"); err == nil {
				t.Error("a late node trained")
			}
			testkit.Check(t, host.Shutdown(t.Context(), rendezvous.EndSuccess, "trained"))
			again := h.run("touch trained", options...)
			again.expect(t, 0)
			if _, err := os.Stat(h.dir + "/trained"); err != nil {
				t.Errorf("with no process left the job did not begin again: %v\n%s", err, again.stderr.String())
			}
		})
	}
}
