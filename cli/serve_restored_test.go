package cli

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

// TestServeOnARestoredCopy starts `rallypoint serve` on a copy of its data directory that
// was made before the job lost a node: the job regroups under a number of its own, continues
// to its end, and the history of it all keeps the guarantees.
func TestServeOnARestoredCopy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &serverProcess{args: []string{
		"serve", "--listen", fmt.Sprintf("127.0.0.1:%d", quietPort(t)), "--data-dir", dir + "/data", "--record", dir + "/history", "--log-level", "warn",
	}}
	start := func() {
		t.Helper()
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
	}
	start()
	t.Cleanup(func() { s.kill() })
	h := newHarness(t)
	options := []string{"--nnodes=2:3", "--rdzv-endpoint=" + s.addr,
		"--rdzv-conf=last_call_timeout=0.1,lease_timeout=1.5,reconnect_grace=0.3,close_timeout=5,is_host=0"}
	var nodes []*nodeProcess
	for range 2 {
		nodes = append(nodes, h.run(printPlacement, options...))
	}
	h.readRound(2)
	lost := h.run(printPlacement, options...)
	before := h.readRound(3)[0].round
	s.kill()
	copied, err := os.ReadFile(dir + "/data/control.db")
	if err != nil {
		t.Fatal(err)
	}
	start()
	if err := lost.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	lost.expect(t, -int(syscall.SIGKILL))
	h.readRound(2)
	s.kill()
	if err := os.WriteFile(dir+"/data/control.db", copied, 0o600); err != nil {
		t.Fatal(err)
	}
	start()
	if after := h.readRound(2)[0].round; after != before+2 {
		t.Errorf("round %d after the copy of round %d was restored", after, before)
	}
	h.finish()
	for _, p := range nodes {
		p.expect(t, 0)
	}
	s.kill()
	auditHistory(t, dir+"/history")
}
