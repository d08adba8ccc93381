package cli

import (
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// TestSpareOfADeadHost kills the agent that hosts the control plane: the spare beside it ends
// after a lease instead of its join_timeout, and not as if it had succeeded: a supervisor starts it again.
func TestSpareOfADeadHost(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "1:1")
	host := h.run(printPlacement, options...)
	h.readRound(1)
	spare := h.run(printPlacement, options...)
	testkit.Eventually(t, "the spare node has heard of its place", func() bool {
		text, told := metrics(options), `rallypoint_sent_frames_total{kind="progress"} `
		return strings.Contains(text, `rallypoint_nodes{state="spare"} 1`) && strings.Contains(text, told) && !strings.Contains(text, told+"0\n")
	})
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	host.expect(t, -int(syscall.SIGKILL))
	spare.expect(t, 1)
	mustSay(t, spare.stderr.String(), "no worker ran on this node", "this node was a spare", "Start it again")
	h.finish()
}

// TestHostThatLeftIsKilled tells the agent that hosts the control plane to end, whereupon
// the others regroup without it, and kills it while one of these waits in its exit barrier:
// that ends after a lease, as if the host were still a member. No other node stands by:
// else the control plane would continue there.
func TestHostThatLeftIsKilled(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "2:3")
	script := strings.Replace(printPlacement, "-e finish", "-e finish$GROUP_RANK", 1)
	host := h.run(script, options...)
	testkit.Eventually(t, "its health port answers", func() bool { return metrics(options) != "" })
	guests := slices.Clone(options)
	for i, o := range guests {
		if strings.HasPrefix(o, "--rdzv-conf=") {
			guests[i] += ",is_host=0"
		}
	}
	others := []*nodeProcess{h.run(script, guests...), h.run(script, guests...)}
	h.readRound(3)
	if err := host.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	h.readRound(2)
	if err := os.WriteFile(h.dir+"/finish1", nil, 0o600); err != nil { // rank 0 has the round store
		t.Fatal(err)
	}
	testkit.Eventually(t, "the node has finished", func() bool { return strings.Contains(metrics(options), `rallypoint_nodes{state="finished"} 1`) })
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	host.expect(t, -int(syscall.SIGKILL))
	ended := make(chan *nodeProcess)
	for _, p := range others {
		go func() {
			p.end()
			ended <- p
		}()
	}
	first := <-ended
	if text := first.stderr.String(); first.ProcessState.ExitCode() != 0 || !strings.Contains(text, "the exit barrier ends without the other nodes") {
		t.Errorf("exit code %d: %s", first.ProcessState.ExitCode(), text)
	}
	for _, p := range others {
		if p != first {
			_ = p.Process.Kill()
		}
	}
	<-ended
}

// metrics are those of the job's control plane; "" if it does not answer.
func metrics(options []string) string {
	answer, err := http.Get("http://" + strings.TrimPrefix(options[1], "--rdzv-endpoint=") + "/metrics")
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
}
