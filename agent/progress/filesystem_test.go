package progress

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// TestFileSystems: in a folder that is read-only, or full, the job runs without records, or
// its workers learn of a directive without its file: one line says so and why, and nothing
// half-done stays. It runs in a mount namespace of its own, where it may make file systems.
func TestFileSystems(t *testing.T) {
	if dir := os.Getenv("RALLYPOINT_TEST_MOUNT"); dir != "" {
		inMount[os.Getenv("RALLYPOINT_TEST_MOUNT_AS")](t, dir)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, options := range map[string]string{"read-only": "ro", "full": "size=4k", "full later": "size=4k"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a binary with the race detector ends a second late
			dir := t.TempDir()
			const script = `mount -t tmpfs -o "$1" none "$2" || { echo CANNOT; exit 0; }; exec "$3" -test.run='^TestFileSystems$'`
			args := []string{"-m", "sh", "-c", script, "sh", options, dir, self}
			if os.Getuid() != 0 {
				args = append([]string{"-r"}, args...)
			}
			cmd := exec.Command("unshare", args...)
			cmd.Env = append(os.Environ(), "RALLYPOINT_TEST_MOUNT="+dir, "RALLYPOINT_TEST_MOUNT_AS="+name)
			out, err := cmd.CombinedOutput()
			switch {
			case strings.Contains(string(out), "CANNOT") || err != nil && strings.Contains(string(out), "unshare"):
				t.Skipf("no file system can be made here: %s", out)
			case err != nil:
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// inMount are the tests in a file system of one page, or a read-only one.
var inMount = map[string]func(t *testing.T, dir string){
	"read-only": func(t *testing.T, dir string) {
		tracker, log := trackerIn(t, dir)
		wantNoRecords(t, tracker, log, "read-only file system")
	},
	"full": func(t *testing.T, dir string) {
		tracker, log := trackerIn(t, dir)
		wantNoRecords(t, tracker, log, "no space left on device") // of two workers one has no room
		if paths := begin(tracker, 2, 1, CauseFailure); paths[0] == "" {
			t.Errorf("the room of what failed was not given back: %s", log)
		}
	},
	"full later": func(t *testing.T, dir string) {
		tracker, log := trackerIn(t, dir)
		if paths := begin(tracker, 1, 1, CauseFailure); paths[0] == "" {
			t.Fatal(log)
		}
		path := tracker.DirectivePath(0)
		err := tracker.WriteDirective(0, &Directive{ID: "d1"})
		if err == nil || !strings.Contains(err.Error(), "no space left on device") || !strings.Contains(err.Error(), path) {
			t.Errorf("%v", err)
		}
		if left, _ := filepath.Glob(path + "*"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		if err := tracker.Release(0, Asked{Number: 1, Kind: 1}, 7); err != nil {
			t.Errorf("the record has room, and cannot say it: %v", err)
		}
		file := testkit.Must(tracker.records[0].file.Open())(t)
		defer func() { _ = file.Close() }()
		mapped, err := unix.Mmap(int(file.Fd()), 0, recordSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		for i := range mapped { // a page that is not there ends the process by SIGBUS
			mapped[i] = 1
		}
		if err := unix.Munmap(mapped); err != nil {
			t.Error(err)
		}
	},
}

func trackerIn(t *testing.T, dir string) (*Tracker, *strings.Builder) {
	log := new(strings.Builder)
	tracker := NewTracker([]string{EnvDir + "=" + dir}, slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(tracker.Close)
	return tracker, log
}

func wantNoRecords(t *testing.T, tracker *Tracker, log *strings.Builder, why string) {
	t.Helper()
	if paths := begin(tracker, 1, 2, CauseFailure); paths[0] != "" || paths[1] != "" {
		t.Errorf("paths %q", paths)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "progress cannot be recorded") || !strings.Contains(text, why) {
		t.Errorf("the log has %q", text)
	}
	if folder := tracker.Folder(); folder != "" {
		if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}
