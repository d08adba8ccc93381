package cli

import (
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestAdminOutlivesALeader: a request whose leader does not answer is made to the next one.
func TestAdminOutlivesALeader(t *testing.T) {
	live, dead := t.TempDir(), t.TempDir()
	n, first := meets(t, "file://"+live, "job", "a", 1, 1)
	ended(t, first)
	addr := statusAt(t, "file://"+live).Server.Address
	testkit.Check(t, os.CopyFS(dead, os.DirFS(live))) // what a kill leaves behind
	n.Close()
	leads := testkit.Must(net.Listen("tcp", addr))(t)
	type result struct {
		code           int
		stdout, stderr string
	}
	asked := make(chan result, 1)
	go func() {
		code, stdout, stderr := execute(t, "admin", "close", "file://"+dead, "--rdzv-id", "job", "--reason", "x", "--timeout", "60s")
		asked <- result{code, stdout, stderr}
	}()
	testkit.Must(leads.Accept())(t).Close()
	leads.Close()
	meets(t, "file://"+dead, "job", "b", 2, 2)
	if r := <-asked; r.code != 0 || !strings.HasPrefix(r.stdout, `run "job" is closed`) {
		t.Errorf("%+v", r)
	}
}

func TestAdminOfAPlace(t *testing.T) {
	t.Setenv("USER", "carol")
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			endpoint := place(t)
			_, first := meets(t, endpoint, "job", "a", 2, 3)
			_, second := meets(t, endpoint, "job", "b", 2, 3)
			ended(t, first)
			ended(t, second)

			code, stdout, stderr := execute(t, "admin", "evict", endpoint, "--rdzv-id", "job", "--node", "b", "--reason", "its GPU is broken")
			if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "node b, ") || !strings.HasSuffix(stdout, "was evicted from run \"job\"\n") {
				t.Errorf("evict: %d, %q, %q", code, stdout, stderr)
			}
			members := statusAt(t, endpoint).Runs[0].Members
			if !slices.ContainsFunc(members, func(m control.MemberStatus) bool {
				return m.Node == "b" && m.State == "lost" && strings.HasPrefix(m.Cause, "evicted by admin carol@") && strings.HasSuffix(m.Cause, "its GPU is broken")
			}) {
				t.Errorf("%+v", members)
			}
			// Its node lives, and finds that out by itself.
			awaitStatus(t, func(st control.Status) bool { return len(st.Runs[0].Idle) == 1 && st.Runs[0].Idle[0].Node == "b" }, endpoint)

			for _, c := range []struct {
				run, node, says string
			}{
				{"other", "", `there is no run "other" at`},
				{"job", "x", `run "job" has no live node "x"; alive: "a", "b"`},
			} {
				args := []string{"admin", "close", endpoint, "--rdzv-id", c.run, "--reason", "x"}
				if c.node != "" {
					args[1] = "evict"
					args = append(args, "--node", c.node)
				}
				code, stdout, stderr := execute(t, args...)
				if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.says) {
					t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
				}
			}

			// A reason that is too long is cut: an entry that no node can read would end the run.
			long := "wrong data " + strings.Repeat("x", 2*rendezvous.MaxNameLen)
			_, waits := meets(t, endpoint, "job", "c", 2, 3)
			awaitStatus(t, func(st control.Status) bool { return len(st.Runs[0].Waiting) > 0 }, endpoint)
			code, stdout, stderr = execute(t, "admin", "stop", endpoint, "--rdzv-id", "job", "--reason", long, "--failed")
			if code != 0 || stderr != "" || !strings.HasPrefix(stdout, `run "job" is closed as failed`) || !strings.Contains(stdout, "refused") {
				t.Errorf("stop: %d, %q, %q", code, stdout, stderr)
			}
			if err := <-waits; rendezvous.CodeOf(err) != rendezvous.CodeClosed || !strings.Contains(err.Error(), "wrong data") {
				t.Errorf("the node that waited received %v", err)
			}
			code, stdout, _ = execute(t, "admin", "close", endpoint, "--rdzv-id", "job", "--reason", "again")
			if code != 0 || !strings.Contains(stdout, "was closed already: it failed by admin carol@") {
				t.Errorf("close again: %d, %q", code, stdout)
			}
		})
	}
}

// TestOneOfManyCancels: of those who take a directive back at the same time one is told that it
// is canceled, and the others that it does not stand.
func TestOneOfManyCancels(t *testing.T) {
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			endpoint := place(t)
			_, first := meets(t, endpoint, "job", "a", 1, 1)
			ended(t, first)
			a := backend.Admin{At: testkit.Must(backend.Locate(endpoint))(t), RunID: "job", Timeout: time.Minute}
			given, err := a.Ask(t.Context(), rendezvous.Direct{Kind: rendezvous.DirectiveSave, Within: time.Hour, Reason: "why"})
			if err != nil {
				t.Fatal(err)
			}
			const many = 8
			answers := make(chan error)
			for range many {
				go func() {
					_, err := a.Ask(t.Context(), rendezvous.CancelDirective{ID: given.Directive, Reason: "why not"})
					answers <- err
				}()
			}
			canceled := 0
			for range many {
				switch err := <-answers; {
				case err == nil:
					canceled++
				case rendezvous.CodeOf(err) != rendezvous.CodeInvalid || !strings.Contains(err.Error(), "no directive"):
					t.Error(err)
				}
			}
			if canceled != 1 {
				t.Errorf("%d of %d were told that they have canceled it", canceled, many)
			}
		})
	}
}

// TestAdminForget: a job that was closed by hand is refused to the nodes that come after its end,
// until an administrator has it forgotten.
func TestAdminForget(t *testing.T) {
	places := maps.Clone(places)
	places["serve"] = func(t *testing.T) string {
		s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
		t.Cleanup(func() { s.end(t) })
		return s.addr
	}
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			endpoint := place(t)
			admin := func(action string, code int, says string) {
				t.Helper()
				got, stdout, stderr := execute(t, "admin", action, endpoint, "--rdzv-id", "job", "--reason", "one more epoch")
				if got != code || !strings.Contains(stdout+stderr, says) || strings.Count(stdout+stderr, "\n") != 1 {
					t.Errorf("%s: %d, %q, %q; want %d and %q", action, got, stdout, stderr, code, says)
				}
			}
			leaves := func(n backend.Node) {
				t.Helper()
				if err := n.Shutdown(t.Context(), rendezvous.EndLeave, ""); err != nil {
					t.Fatal(err)
				}
			}
			n, first := meets(t, endpoint, "job", "a", 1, 1)
			ended(t, first)
			admin("forget", 1, `run "job" is open: there is nothing to forget`)
			admin("close", 0, "no more nodes join it")
			admin("forget", 1, "nodes of it are alive")
			leaves(n)
			late, refused := meets(t, endpoint, "job", "b", 1, 1)
			if err := <-refused; rendezvous.CodeOf(err) != rendezvous.CodeClosed || !strings.Contains(err.Error(), "admin forget") {
				t.Errorf("before it is forgotten a node received %v", err)
			}
			leaves(late)
			admin("forget", 0, "the next node begins it again")
			_, again := meets(t, endpoint, "job", "b", 1, 1)
			ended(t, again)
		})
	}
}

// A run whose nodes are dead is told nothing, and its record stays as it is.
func TestAdminOfADeadRun(t *testing.T) {
	live, dead := t.TempDir(), t.TempDir()
	n, first := meets(t, "file://"+live, "job", "a", 1, 1)
	ended(t, first)
	if err := os.CopyFS(dead, os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	n.Close()
	before := contents(t, dead)
	code, stdout, stderr := execute(t, "admin", "close", "file://"+dead, "--rdzv-id", "job", "--reason", "x")
	if code != 1 || stdout != "" || !strings.Contains(stderr, `the leader of run "job" at file://`) || !strings.Contains(stderr, "node a") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	if after := contents(t, dead); !maps.Equal(before, after) {
		t.Errorf("%v, was %v", after, before)
	}
}
