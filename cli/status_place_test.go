package cli

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
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
var places = map[string]func(t *testing.T) string{
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
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			endpoint := place(t)
			if st := statusAt(t, endpoint); len(st.Runs) != 0 || st.Runs == nil || st.Server != nil || !strings.HasPrefix(endpoint, st.Place) || st.Place == "" {
				t.Errorf("%+v", st)
			}
			_, first := meets(t, endpoint, "a job", "a", 2, 3)
			st := awaitStatus(t, func(st control.Status) bool { return len(st.Runs) == 1 && len(st.Runs[0].Waiting) == 1 }, endpoint)
			if r := st.Runs[0]; r.RunID != "a job" || r.Phase != rendezvous.PhaseForming || r.Missing.Min != 1 || !strings.Contains(r.NotStarted, "1 more needed") ||
				r.Waiting[0].Node != "a" || r.Waiting[0].Reconnecting || r.Waiting[0].LeaseAgeS == nil || r.Waiting[0].Since == nil || st.Server == nil {
				t.Errorf("%+v", r)
			}
			b, second := meets(t, endpoint, "a job", "b", 2, 3)
			ended(t, first)
			ended(t, second)
			code, stdout, stderr := execute(t, "status", endpoint)
			if code != 0 || stderr != "" || !strings.Contains(stdout, "Run a job: running, round 1 since ") || !strings.Contains(stdout, "2 nodes of 2 to 3 here") ||
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

// The status of a run whose leader is dead says who it was; looking at it changes nothing, and needs no
// permission to write.
func TestStatusOfADeadRunInADirectory(t *testing.T) {
	live, dead := t.TempDir(), t.TempDir()
	n, first := meets(t, "file://"+live, "job", "a", 1, 1)
	ended(t, first)
	if err := os.CopyFS(dead, os.DirFS(live)); err != nil { // what a kill leaves behind
		t.Fatal(err)
	}
	n.Close()
	for path := range contents(t, dead) {
		mode := os.FileMode(0o400)
		if path == dead {
			mode = 0o500
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(dead, 0o700) })
	before := contents(t, dead)
	code, stdout, stderr := execute(t, "status", "file://"+dead)
	if code != 1 || stdout != "" || !strings.Contains(stderr, `the leader of run "job" at file://`) || !strings.Contains(stderr, "in term 1") || !strings.Contains(stderr, "connection refused") {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	if after := contents(t, dead); !maps.Equal(before, after) {
		t.Errorf("%v, was %v", after, before)
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
