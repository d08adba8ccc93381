package progress

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/internal/testkit"
)

// TestLeftFolders: an agent removes the folders of those that are gone, and nothing else,
// whatever stands under their names.
func TestLeftFolders(t *testing.T) {
	base, elsewhere := t.TempDir(), t.TempDir()
	path := func(name string) string { return filepath.Join(base, "rallypoint-progress-"+name) }
	file := func(path string) {
		testkit.Check(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.Check(t, os.WriteFile(path, []byte("x"), 0o600))
	}
	file(path("left-locked/1.0"))
	file(path("left-locked/1.0.directive"))
	file(path("links-locked/1.0"))
	file(filepath.Join(elsewhere, "victim"))
	testkit.Check(t, os.Symlink(filepath.Join(elsewhere, "victim"), path("links-locked/1.1")))
	testkit.Check(t, os.Symlink(elsewhere, path("link-locked")))
	testkit.Check(t, unix.Mkfifo(path("fifo-locked"), 0o600))
	file(path("file-locked"))
	file(path("never"))
	file(path("filled-locked/folder/file"))
	testkit.Check(t, os.Symlink(elsewhere, path("filled-locked/folder/link")))
	live := NewTracker([]string{EnvDir + "=" + base}, slog.New(slog.DiscardHandler))
	defer live.Close()

	tracker := NewTracker([]string{EnvDir + "=" + base}, slog.New(slog.DiscardHandler))
	var left []string
	for _, entry := range testkit.Must(os.ReadDir(base))(t) {
		if name := filepath.Join(base, entry.Name()); name != live.Folder() && name != tracker.Folder() {
			left = append(left, strings.TrimPrefix(entry.Name(), "rallypoint-progress-"))
		}
	}
	if want := []string{"fifo-locked", "file-locked", "link-locked", "never"}; !slices.Equal(left, want) {
		t.Errorf("there are %q, want %q", left, want)
	}
	for _, kept := range []string{live.Folder(), filepath.Join(elsewhere, "victim")} {
		if _, err := os.Lstat(kept); err != nil {
			t.Error(err)
		}
	}
	tracker.Close()
	if _, err := os.Lstat(tracker.Folder()); !os.IsNotExist(err) {
		t.Errorf("its own folder: %v", err)
	}
}

// TestFoldersOfOthers: what another user makes under such names, in a place for all users, is not
// opened, and does not hold an agent's start up for long.
func TestFoldersOfOthers(t *testing.T) {
	base := t.TempDir()
	for i := range 3 * process.NamesAtOnce {
		testkit.Check(t, os.Mkdir(filepath.Join(base, fmt.Sprintf("rallypoint-progress-%d-locked", i)), 0o700))
	}
	opened := testkit.Must(unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK))(t)
	defer unix.Close(opened)
	testkit.Must(unix.InotifyAddWatch(opened, filepath.Join(base, "rallypoint-progress-7-locked"), unix.IN_OPEN))(t)
	clock, looked := time.Now(), 0
	still := func() time.Time { looked++; return clock }
	removeLeft(base, os.Geteuid()+1, still)
	if _, err := unix.Read(opened, make([]byte, 512)); err != unix.EAGAIN {
		t.Errorf("another user's folder was opened (%v)", err)
	}
	if looked != 1+3*process.NamesAtOnce {
		t.Errorf("%d of the names were looked at", looked-1)
	}

	looked = 0
	removeLeft(base, os.Geteuid()+1, func() time.Time { looked++; return clock.Add(time.Duration(looked) * time.Millisecond) })
	if looked > 2+int(process.LookingTime/time.Millisecond) {
		t.Errorf("%d names were looked at in %v", looked, process.LookingTime)
	}
	removeLeft(base, os.Geteuid(), still)
	if left := testkit.Must(os.ReadDir(base))(t); len(left) > 0 {
		t.Errorf("%d of this user's are left", len(left))
	}
}

// TestFolderInAFIFO: a FIFO is not taken for a folder, and nothing waits for it.
func TestFolderInAFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	testkit.Check(t, unix.Mkfifo(path, 0o600))
	tracker, log := trackerIn(t, path)
	wantNoRecords(t, tracker, log, "not a directory")
}

// TestRelativeFolder: workers are told of a folder under a name that is one wherever they run.
func TestRelativeFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	testkit.Check(t, os.Mkdir("records", 0o700))
	tracker, log := trackerIn(t, "records")
	if path := begin(tracker, 1, 1, CauseStart)[0]; !filepath.IsAbs(path) {
		t.Errorf("the path is %q: %s", path, log)
	}
}
