package cli

import (
	"io"
	"net"
	"strings"
	"testing"

	"rallypoint/backend"
	"rallypoint/core/rendezvous"
)

func TestAdmin(t *testing.T) {
	t.Setenv("USER", "carol")
	s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	defer s.end(t)
	round(t, s.addr)
	code, stdout, stderr := execute(t, "admin", "evict", s.addr, "--rdzv-id", "job", "--node", "b", "--reason", "its GPU is broken")
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "node b, ") || !strings.HasSuffix(stdout, "was evicted from run \"job\"\n") || strings.Count(stdout, "\n") != 1 {
		t.Errorf("evict: %d, %q, %q", code, stdout, stderr)
	}
	joined(t, s.addr, "c", 2, 2)
	code, stdout, stderr = execute(t, "admin", "evict", s.addr, "--node", "c")
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "node c") || !strings.HasSuffix(stdout, "was evicted from run \"job\"\n") {
		t.Errorf("evict from the only run, without a reason: %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = execute(t, "admin", "stop", s.addr, "--rdzv-id", "job", "--reason", "wrong data", "--failed")
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, `run "job" is closed as failed`) {
		t.Errorf("stop: %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = execute(t, "admin", "close", s.addr, "--rdzv-id", "job", "--stop")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "was closed already: it failed") {
		t.Errorf("by the word of earlier versions: %d, %q, %q", code, stdout, stderr)
	}
	_, stdout, _ = execute(t, "status", s.addr)
	stdout = strings.Join(strings.Fields(stdout), " ")
	for _, part := range []string{"Run job: closed", "failed by admin carol@", "wrong data", "evicted by admin carol@", "its GPU is broken", backend.NoReason} {
		if !strings.Contains(stdout, part) {
			t.Errorf("the status does not say %q: %s", part, stdout)
		}
	}
	_, call := joined(t, s.addr, "b", 2, 2)
	if _, err := call.Wait(t.Context()); rendezvous.CodeOf(err) != rendezvous.CodeClosed || !strings.Contains(err.Error(), "wrong data") {
		t.Errorf("a node that joins now received %v", err)
	}
}

func TestAdminErrors(t *testing.T) {
	s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	defer s.end(t)
	round(t, s.addr)
	store := serve(t, command("store", "serve", "--listen", "127.0.0.1:0"))
	defer store.end(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	silent := talker(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
	for _, c := range []struct {
		addr, run, node, says string
	}{
		{s.addr, "other", "", `knows no run "other": it knows "job"`},
		{s.addr, "job", "x", `run "job" has no live node "x"; alive: "a", "b"`},
		{closed.Addr().String(), "job", "", "nothing listens at"},
		{store.addr, "job", "", "is a TCPStore, not a control plane; the control plane's port is that of the job's --rdzv-endpoint"},
		{torchsStore(t), "job", "", "is a TCPStore, not a control plane"},
		{silent, "job", "", "no answer from"},
		{talker(t, func(net.Conn) {}), "job", "", "it is no Rallypoint control plane"},
	} {
		args := []string{"admin", "close", c.addr, "--rdzv-id", c.run, "--reason", "x", "--timeout", "500ms"}
		if c.node != "" {
			args[1] = "evict"
			args = append(args, "--node", c.node)
		}
		code, stdout, stderr := execute(t, args...)
		if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: %d, %q, %q; want 1 and %q", args, code, stdout, stderr, c.says)
		}
	}
}
