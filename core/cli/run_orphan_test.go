package cli

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// TestSpareOfADeadHost kills the agent that hosts the control plane: the spare beside it is
// not needed, and ends after a lease instead of its join_timeout.
func TestSpareOfADeadHost(t *testing.T) {
	t.Parallel()
	th := newTheatre(t)
	options := elastic(t, "1:1")
	host := th.run(tellPlace, options...)
	th.hearRound(1)
	spare := th.run(tellPlace, options...)
	eventually(t, func() bool {
		answer, err := http.Get("http://" + strings.TrimPrefix(options[1], "--rdzv-endpoint=") + "/metrics")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		told := `rallypoint_sent_frames_total{kind="progress"} `
		return strings.Contains(string(text), `rallypoint_nodes{state="spare"} 1`) && strings.Contains(string(text), told) && !strings.Contains(string(text), told+"0\n")
	})
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	host.expect(t, -int(syscall.SIGKILL))
	spare.expect(t, 0)
	if text := spare.stderr.String(); !strings.Contains(text, "this node was a spare") {
		t.Errorf("people are told %s", text)
	}
	th.finish()
}
