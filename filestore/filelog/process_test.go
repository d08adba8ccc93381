package filelog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/filetest"
	"rallypoint/internal/testkit"
)

// playAppend appends entries "name i" until it is killed, and says each that is in
// the log for good.
func playAppend(dir, name string) error {
	l := New(dir, "job", nil)
	ctx := context.Background()
	if _, err := l.Open(ctx); err != nil {
		return err
	}
	if err := l.Heartbeat(ctx, rendezvous.SessionID(name), time.Second); err != nil {
		return err
	}
	for i := 0; ; i++ {
		text := fmt.Sprintf("%s %d %s", name, i, strings.Repeat("x", rand.IntN(9000)))
		if err := l.Append(ctx, [][]byte{[]byte(text)}); err != nil {
			return err
		}
		fmt.Println(i)
		if i%100 == 99 && strings.HasPrefix(name, "w0") { // as a plane does, of what it has read up to
			if err := l.Snapshot(ctx, sharedlog.Snapshot{Index: l.writer.index - 1, State: []byte("state")}); err != nil {
				return err
			}
		}
	}
}

// readToEnd returns the log's entries up to "end"; behind tells that it was too slow, and
// continued from a snapshot.
func readToEnd(t *testing.T, l *Log, behind *atomic.Bool) (texts []string) {
	var after uint64
	for {
		got, err := l.Next(testkit.Within(t, logPatience), after)
		if errors.Is(err, sharedlog.ErrCompacted) {
			behind.Store(true)
			after = testkit.Must(l.Latest(testkit.Within(t, logPatience)))(t).Index
			continue
		}
		if err != nil {
			t.Error(err)
			return texts
		}
		for _, e := range got.Entries {
			after = e.Index
			if string(e.Data) == "end" {
				return texts
			}
			texts = append(texts, string(e.Data))
		}
	}
}

// killWriter has a process append under a name, kills it after some entries, and returns
// the highest number that was acknowledged.
func killWriter(t *testing.T, dir, name string) (last int) {
	cmd := exec.Command(os.Args[0], filetest.Elsewhere(dir), name)
	cmd.Env = append(os.Environ(), roleVariable+"=append")
	cmd.Stderr = os.Stderr
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.Check(t, cmd.Start())
	lines := bufio.NewScanner(out)
	last = -1
	for after := rand.IntN(40); lines.Scan(); {
		last = testkit.Must(strconv.Atoi(lines.Text()))(t)
		if last == after {
			go func() {
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				_ = cmd.Process.Kill()
			}()
		}
	}
	_ = cmd.Wait()
	return last
}

// Processes that append are killed at any moment; nothing that was acknowledged is
// lost or doubled, and all readers read the same.
func TestLogWritersAreKilled(t *testing.T) {
	dir := t.TempDir()
	a, b := openLog(t, dir, nil), openLog(t, dir, &Options{Remote: true})
	var behind atomic.Bool
	var seenA, seenB []string
	var readers, writers sync.WaitGroup
	readers.Go(func() { seenA = readToEnd(t, a, &behind) })
	readers.Go(func() { seenB = readToEnd(t, b, &behind) })
	var mu sync.Mutex
	acked := map[string]int{} // name -> highest number acknowledged
	for w := range 4 {
		writers.Go(func() {
			for life := range 6 {
				name := fmt.Sprintf("w%d.%d", w, life)
				last := killWriter(t, dir, name)
				mu.Lock()
				acked[name] = last
				mu.Unlock()
				if s := testkit.Must(a.readHeartbeat(rendezvous.SessionID(name)))(t); s.State != sharedlog.LivenessDisconnected {
					t.Errorf("%s is dead, its heartbeat is %+v", name, s)
				}
			}
		})
	}
	writers.Wait()
	appendTexts(t, a, "end")
	readers.Wait()
	if behind.Load() {
		t.Log("a reader fell behind: not all entries can be accounted for")
	} else if !slices.Equal(seenA, seenB) {
		t.Errorf("two readers read different logs: %d and %d entries", len(seenA), len(seenB))
	}
	next := map[string]int{}
	for _, text := range seenA {
		var name string
		var i int
		if _, err := fmt.Sscan(text, &name, &i); err != nil || i < next[name] || i > next[name] && !behind.Load() {
			t.Fatalf("%.40q where number %d of %s is next: %v", text, next[name], name, err)
		}
		next[name] = i + 1
	}
	for name, last := range acked {
		if got := next[name]; got <= last && !behind.Load() || got > last+2 {
			t.Errorf("%s has %d entries, %d were acknowledged", name, got, last+1)
		}
	}
}

// playNarrow makes a file system as small, or as read-only, as its name says and
// opens a log in it. It runs in name spaces of its own.
func playNarrow(dir, kind string) error {
	options, flags := "size=64k", uintptr(0)
	if err := unix.Mount("none", dir, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("skip: %w", err)
	}
	if kind == "read-only" {
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, options); err != nil {
			return fmt.Errorf("skip: %w", err)
		}
	}
	if kind == "full" {
		err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 1<<20), 0o600)
		if !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("the disk is not full: %v", err)
		}
	}
	l := New(dir, "job", nil)
	ctx, cancel := context.WithTimeout(context.Background(), logPatience)
	defer cancel()
	_, err := l.Open(ctx)
	if kind == "filling" && err == nil {
		for i := 0; err == nil; i++ {
			err = l.Append(ctx, [][]byte{make([]byte, 3000), make([]byte, 3000)})
		}
		before := l.writer.index
		if again := l.Append(ctx, [][]byte{make([]byte, 3000), make([]byte, 3000)}); again == nil {
			return errors.New("an append to a full disk succeeded")
		}
		if size, _ := l.writer.size(); size != l.writer.pos || l.writer.index < before {
			return fmt.Errorf("%d bytes are left where %d were written", size, l.writer.pos)
		}
		if err := l.Append(ctx, [][]byte{[]byte("small")}); err != nil && !errors.Is(err, rendezvous.ErrConnection) {
			return err
		}
	}
	fmt.Printf("%d %v\n", rendezvous.CodeOf(err), err)
	return nil
}

// A full or read-only file system is said in one error, at once.
func TestLogNarrowFileSystems(t *testing.T) {
	for kind, want := range map[string]struct {
		code rendezvous.Code
		says string
	}{
		"read-only": {rendezvous.CodeInvalid, "mounted read-only"},
		"full":      {rendezvous.CodeConnection, "make room"},
		"filling":   {rendezvous.CodeConnection, "make room"},
	} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], t.TempDir(), kind)
			cmd.Env = append(os.Environ(), roleVariable+"=narrow")
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || strings.Contains(stderr.String(), "skip: ") {
				t.Skipf("this machine makes no name spaces for its users: %v %s", err, stderr.String())
			}
			if err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			if got := string(out); !strings.HasPrefix(got, fmt.Sprint(want.code, " ")) || !strings.Contains(got, want.says) {
				t.Errorf("got %s", got)
			}
		})
	}
}

// asStranger plays a role with dir as a user who may only read dir, and returns what it
// prints.
func asStranger(t *testing.T, role, dir string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir, role)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		testkit.Check(t, os.Chmod(filepath.Dir(dir), 0o755))
		cmd.Path = "/proc/self/exe"
	} else {
		testkit.Check(t, os.Chmod(dir, 0o500))
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// A directory that its user may not write to is said in one error, at once.
func TestLogForbidden(t *testing.T) {
	if got := asStranger(t, "forbidden", t.TempDir()); !strings.HasPrefix(got, fmt.Sprint(rendezvous.CodeInvalid, " ")) || !strings.Contains(got, "may not write there") {
		t.Errorf("got %s", got)
	}
}

// Another user's run does not hinder a listing of all; one that names it fails.
func TestInspectForbidden(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	if os.Getuid() != 0 {
		testkit.Check(t, os.Chmod(l.dir, 0))
		t.Cleanup(func() { testkit.Check(t, os.Chmod(l.dir, logDirMode)) })
	}
	if got := asStranger(t, "listing", dir); !strings.HasPrefix(got, "0 <nil>\n0 run \"job\"") || !strings.Contains(got, "permission denied") {
		t.Errorf("got %s", got)
	}
}

func playListing(dir string) error {
	for _, run := range []string{"", "job"} {
		records, err := Inspect(dir, run)
		fmt.Println(len(records), err)
	}
	return nil
}

func playForbidden(dir string) error {
	l := New(dir, "job", nil)
	_, err := l.Open(context.Background())
	fmt.Printf("%d %v\n", rendezvous.CodeOf(err), err)
	return nil
}
