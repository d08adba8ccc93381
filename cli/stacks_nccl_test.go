package cli

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"rallypoint/internal/testkit"
)

// TestStacksWithNCCL: each node asks NCCL's RAS about its own workers, and the answer names the rank
// that has begun fewer collectives than the others. RAS is played by this test.
func TestStacksWithNCCL(t *testing.T) {
	t.Parallel()
	var status atomic.Pointer[string]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Check(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				answer := "OK\n"
				switch lines.Text() {
				case "CLIENT PROTOCOL 2":
					answer = "SERVER PROTOCOL 2\n"
				case "VERBOSE STATUS":
					answer = *status.Load()
				}
				fmt.Fprint(conn, answer)
				if strings.HasPrefix(answer, "{") {
					break
				}
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	h := newHarness(t)
	h.env = append(h.env, "NCCL_RAS_ADDR="+l.Addr().String())
	options := elastic(t, "2")
	endpoint := strings.TrimPrefix(options[1], "--rdzv-endpoint=")
	const script = "echo $RANK $$ >$SAY; exec sleep 100"
	nodes := []*nodeProcess{h.run(script, options...), h.run(script, options...)}
	var ranks []string
	for range 2 {
		rank, pid, _ := strings.Cut(h.readLine(), " ")
		begun := map[string]string{"0": "42", "1": "41"}[rank]
		ranks = append(ranks, fmt.Sprintf(`{"rank": %s, "host": "127.0.0.1", "pid": %s, "collective_counts": {"AllReduce": %s}}`, rank, pid, begun))
	}
	status.Store(new(fmt.Sprintf(`{"communicators": [{"ranks": [%s], "missing_ranks": []}]}`, strings.Join(ranks, ","))))
	testkit.Eventually(t, "the rank that is behind is named", func() bool {
		_, stdout, _ := execute(t, "stacks", endpoint)
		return strings.Contains(stdout, "\nNCCL: rank 1 has begun 41 of 42 AllReduce\n")
	})
	if code, stdout, stderr := execute(t, "stacks", endpoint, "--json"); code != 0 || !strings.Contains(stdout, `"nccl": "NCCL: rank 1 has begun 41 of 42 AllReduce"`) {
		t.Errorf("code %d: %s%s", code, stdout, stderr)
	}
	for _, p := range nodes {
		_ = p.Process.Kill()
		p.end()
	}
}
