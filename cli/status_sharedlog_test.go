package cli

import (
	"context"
	"encoding/json"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// places are where nodes meet without a control plane: each returns an endpoint.
var sharedLogs = map[string]func(t *testing.T) string{
	"file": func(t *testing.T) string { return "file://" + t.TempDir() },
	"etcd": func(t *testing.T) string {
		return "etcd://" + etcd.Endpoint(t) + "?key_prefix=" + url.QueryEscape("/"+t.Name())
	},
}

// meets opens a node that asks for a place in a run; the channel gives how that ends.
func meets(t *testing.T, endpoint, run, node string, least, most int) (backend.Node, <-chan error) {
	t.Helper()
	p := params.Default()
	p.Endpoint, p.RunID, p.NodeID, p.Min, p.Max, p.LocalAddr = endpoint, run, node, least, most, "127.0.0.1"
	p.JoinTimeout, p.LastCallTimeout = time.Minute, 50*time.Millisecond
	n, err := backend.Open(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	done := make(chan error, 1)
	go func() {
		_, err := n.Next(t.Context())
		done <- err
	}()
	return n, done
}

func ended(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("no round after a minute")
	}
}

// statusAt is the status that the command prints as JSON.
func statusAt(t *testing.T, args ...string) (st control.Status) {
	t.Helper()
	code, stdout, stderr := execute(t, append([]string{"status", "--json", "--timeout", "30s"}, args...)...)
	if err := json.Unmarshal([]byte(stdout), &st); code != 0 || err != nil {
		t.Fatalf("%d, %v, %q, %q", code, err, stdout, stderr)
	}
	return st
}

// awaitStatus asks until the status is as wanted.
func awaitStatus(t *testing.T, wanted func(control.Status) bool, args ...string) (st control.Status) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if st = statusAt(t, args...); wanted(st) {
			return st
		}
	}
	t.Fatalf("still after a minute: %+v", st)
	return st
}

func TestStatusOfAPlace(t *testing.T) {
	for name, place := range sharedLogs {
		t.Run(name, func(t *testing.T) {
			endpoint := place(t)
			if st := statusAt(t, endpoint); len(st.Runs) != 0 || st.Runs == nil || st.Server != nil || !strings.HasPrefix(endpoint, st.Place) || st.Place == "" {
				t.Errorf("%+v", st)
			}
			_, first := meets(t, endpoint, "a job", "a", 2, 3)
			st := awaitStatus(t, func(st control.Status) bool { return len(st.Runs) == 1 && len(st.Runs[0].Waiting) == 1 }, endpoint)
			if r := st.Runs[0]; r.RunID != "a job" || r.Phase != rendezvous.PhaseForming || r.Missing.Min != 1 || !strings.Contains(r.NotStarted, "1 more needed") ||
				r.Waiting[0].Node != "a" || r.Waiting[0].Reconnecting || backend.HasLeader(endpoint) != (r.Waiting[0].LeaseAgeS != nil && r.Waiting[0].Since != nil && st.Server != nil) {
				t.Errorf("%+v", r)
			}
			b, second := meets(t, endpoint, "a job", "b", 2, 3)
			ended(t, first)
			ended(t, second)
			code, stdout, stderr := execute(t, "status", endpoint)
			if code != 0 || stderr != "" || !strings.Contains(stdout, "Run a job: running, round 1, 2 of 2:3 nodes here") ||
				!strings.Contains(stdout, "at "+st.Place) {
				t.Errorf("%d, %q, %q", code, stdout, stderr)
			}

			// A second run, and one that is not there.
			meets(t, endpoint, "other", "c", 2, 2)
			awaitStatus(t, func(st control.Status) bool { return len(st.Runs) == 2 && len(st.Runs[1].Waiting) == 1 }, endpoint)
			if st := statusAt(t, endpoint, "--rdzv-id", "other"); len(st.Runs) != 1 || st.RunsTotal != 1 || st.Runs[0].RunID != "other" {
				t.Errorf("%+v", st)
			}
			code, stdout, stderr = execute(t, "status", endpoint, "--rdzv-id", "third")
			if code != 1 || stdout != "" || !strings.Contains(stderr, `there is no run "third" at `) || !strings.Contains(stderr, `only "a job", "other"`) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%d, %q, %q", code, stdout, stderr)
			}

			// Who goes is found lost, or leaves, and the round is one of the past.
			if err := b.Shutdown(t.Context(), rendezvous.EndFailed, "its GPU broke"); err != nil {
				t.Fatal(err)
			}
			awaitStatus(t, func(st control.Status) bool {
				c := st.Runs[0].Closed
				return c != nil && c.How == "failed" && strings.Contains(c.Reason, "its GPU broke")
			}, endpoint, "--rdzv-id", "a job")
		})
	}
}

// contents is each file below a directory, with what is in it.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		data := []byte(nil)
		if d.Type().IsRegular() {
			data, err = os.ReadFile(path)
		}
		files[path] = d.Type().String() + string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A run whose nodes are dead keeps its last state and shows no living node; looking
// at it changes nothing, and needs no permission to write.
func TestStatusOfADeadRunInADirectory(t *testing.T) {
	live := t.TempDir()
	_, first := meets(t, "file://"+live, "job", "a", 2, 2)
	_, second := meets(t, "file://"+live, "job", "b", 2, 2)
	ended(t, first)
	ended(t, second)
	dead := t.TempDir() // a copy: what a kill leaves behind, and has no lock
	if err := os.CopyFS(dead, os.DirFS(live)); err != nil {
		t.Fatal(err)
	}
	runDir := filepath.Join(dead, "rallypoint-job")
	for path := range contents(t, runDir) {
		mode := os.FileMode(0o400)
		if path == runDir {
			mode = 0o500
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(runDir, 0o700) })
	before := contents(t, dead)
	st := statusAt(t, "file://"+dead)
	if len(st.Runs) != 1 || len(st.Runs[0].Members) != 2 {
		t.Fatalf("%+v", st)
	}
	for _, m := range st.Runs[0].Members {
		if m.Alive || !m.Reconnecting || m.State != "running" {
			t.Errorf("%+v", m)
		}
	}
	if _, stdout, _ := execute(t, "status", "file://"+dead); !strings.Contains(stdout, "0 of 2 nodes here") || !strings.Contains(stdout, "running?") {
		t.Error(stdout)
	}
	after := contents(t, dead)
	for path, content := range before {
		if after[path] != content {
			t.Errorf("%s has changed", path)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d files, there were %d", len(after), len(before))
	}
}

func TestStatusOfNoPlace(t *testing.T) {
	for _, c := range []struct {
		endpoint, says string
		code           int
	}{
		{"file://" + t.TempDir() + "/missing", "it has to be there", 1},
		{"file://host/dir", "mind the three slashes", 2},
		{"etcd://", "is not valid", 2},
		{"etcd://127.0.0.1:1?no_option=1", "no_option", 1},
		{"etcd://127.0.0.1:1", "127.0.0.1:1", 1},
		{"static://127.0.0.1:1", "nothing listens at", 1},
		{"static://127.0.0.1", "needs a port", 2},
	} {
		code, stdout, stderr := execute(t, "status", c.endpoint, "--timeout", "300ms")
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.says) || code == 1 && strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, `run ""`) {
			t.Errorf("%s: %d, %q, %q", c.endpoint, code, stdout, stderr)
		}
	}
}
