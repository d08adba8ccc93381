package cli

import (
	"strings"
	"testing"
)

// TestAdminDirectives gives a job a directive, shows it, takes it back, and lets a drained
// node back in, at a control plane and in a log that the nodes share.
func TestAdminDirectives(t *testing.T) {
	t.Setenv("USER", "carol")
	t.Run("control plane", func(t *testing.T) {
		s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
		defer s.end(t)
		round(t, s.addr)
		drains(t, s.addr)
	})
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			endpoint := place(t)
			_, first := meets(t, endpoint, "job", "a", 2, 2)
			_, second := meets(t, endpoint, "job", "b", 2, 2)
			ended(t, first)
			ended(t, second)
			drains(t, endpoint)
		})
	}
}

func drains(t *testing.T, endpoint string) {
	t.Helper()
	admin := func(want int, says string, args ...string) string {
		t.Helper()
		code, stdout, stderr := execute(t, append([]string{"admin", args[0], endpoint, "--rdzv-id", "job", "--reason", "its disk"}, args[1:]...)...)
		if code != want || !strings.Contains(strings.Join(strings.Fields(stdout+stderr), " "), says) {
			t.Errorf("%q: %d, %q, %q; want %d, %q", args, code, stdout, stderr, want, says)
		}
		return stdout
	}
	status := func(says string, is bool) {
		t.Helper()
		_, stdout, _ := execute(t, "status", endpoint, "--rdzv-id", "job")
		if strings.Contains(strings.Join(strings.Fields(stdout), " "), says) != is {
			t.Errorf("the status says %q: %v; %s", says, !is, stdout)
		}
	}
	stdout := admin(0, "leaves when all have saved, in 1h0m0s at the latest, and may come back 2h0m0s later; the others are too few then (1 of at least 2)",
		"drain", "--node", "b", "--within", "1h", "--for", "2h")
	status("Directive: drain b in ", true)
	id := strings.Fields(stdout)[1]
	admin(0, "is canceled", "cancel", "--directive", id)
	status("Directive: ", false)
	admin(1, "none is standing", "cancel", "--directive", id)
	id = strings.Fields(admin(0, "no other node is left, so the run then ends and should be queued again", "drain", "--node", "a", "--node", "b", "--within", "1h"))[1]
	admin(0, "is canceled", "cancel", "--directive", id)
	admin(0, "leaves when all have saved, in 2m0s at the latest", "drain", "--node", "b")
	admin(0, "is canceled", "cancel")
	admin(1, `run "job" has no live node "x"; alive: "a", "b"`, "drain", "--node", "x")
	admin(2, "the deadline is in the past", "drain", "--node", "b", "--within", "-1s")
	admin(1, "must be between 0 and", "drain", "--node", "b", "--within", "10000h")
	admin(2, "--node is missing", "drain")
	admin(1, "no directive of run \"job\" stands", "cancel")
	admin(1, "none is drained", "undrain", "--node", "b")
	admin(0, "leaves now, and may come back when it is undrained", "drain", "--node", "b", "--within", "0s")
	status("Drained: b, by admin carol@", true)
	admin(0, "node b may join run \"job\" again", "undrain", "--node", "b")
	status("Drained: ", false)
	admin(2, "--node is missing", "cordon")
	admin(2, "--for is negative", "cordon", "--node", "late", "--for", "-1s")
	admin(1, "must be between 0 (until it is uncordoned) and", "cordon", "--node", "late", "--for", "10000h")
	admin(0, "node late is kept out of run \"job\" for 2h0m0s", "cordon", "--node", "late", "--for", "2h")
	status("Drained: late, by admin carol@", true)
	status(", cordoned: its disk", true)
	admin(0, "node late may join run \"job\" again", "uncordon", "--node", "late")
	status("Drained: ", false)
	directsAll(t, admin, status)
}

// directsAll gives a job what is about all its nodes, well and badly.
func directsAll(t *testing.T, admin func(want int, says string, args ...string) string, status func(says string, is bool)) {
	t.Helper()
	id := strings.Fields(admin(0, "its workers save, within 2m0s", "save"))[1]
	status("Directive: save in ", true)
	status("its disk; agreeing: waits for a", true)
	admin(0, "it continues with 2 nodes when all have saved, in 1h0m0s at the latest; it takes the place of directive "+id+", a save",
		"scale", "--target", "2", "--within", "1h")
	status("Directive: scale to 2 in ", true)
	status("Directive: save", false)
	admin(1, "; cancel it first", "save")
	admin(1, "no directive \""+id+"\" of run \"job\" stands", "cancel", "--directive", id)
	admin(2, "a save needs time", "save", "--within", "0s")
	admin(2, "the deadline is in the past", "stop", "--within", "-1s")
	admin(2, "--target is missing", "scale")
	admin(1, `run "job": the target is 1, the run needs at least 2 nodes (min)`, "scale", "--target", "1")
	admin(1, `run "job": the target is 3, the run takes at most 2 nodes (max)`, "scale", "--target", "3")
	admin(0, "it ends, to be queued again, now", "stop", "--within", "0s")
	status("Closed: stopped to be queued again by admin carol@", true)
	admin(1, "it is closed: it was stopped to be queued again", "save")
}
