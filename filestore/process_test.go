package filestore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/filetest"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/testkit"
)

// play is the main function of the other processes. The first of args is the
// file's path.
func play(role string, args []string) int {
	var err error
	switch role {
	case "add":
		err = playAdd(args[0], args[1])
	case "scribble":
		err = playScribble(args[0], args[1])
	case "stock":
		err = playStock(args[0], time.Millisecond)
	case "tireless stock":
		err = playStock(args[0], 0)
	default:
		err = fmt.Errorf("no such role: %s", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// playAdd adds 1 so many times.
func playAdd(path, times string) error {
	n, err := strconv.Atoi(times)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Open(ctx, path, NeverRemove, nil)
	if err != nil {
		return err
	}
	for range n {
		if _, err := s.Add(ctx, "sum", 1); err != nil {
			return err
		}
	}
	return s.Close()
}

// playScribble adds to a counter of its own and sets large values for ever, and
// prints each sum that it was given.
func playScribble(path, name string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, NeverRemove, nil)
	if err != nil {
		return err
	}
	for {
		n, err := s.Add(ctx, name, 1)
		if err != nil {
			return err
		}
		fmt.Println(n)
		if err := s.Set(ctx, "large", []byte(strings.Repeat(strconv.Itoa(int(n%10)), 200_000))); err != nil {
			return err
		}
	}
}

// playStock writes as the reference does, in four writes a record, with a pause
// after each. The
// lock is waited for.
func playStock(path string, pause time.Duration) error {
	for i := 0; ; i++ {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT, 0o644)
		if err != nil {
			return err
		}
		if err := lockedfile.IgnoringEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX) }); err != nil {
			return err
		}
		if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
			return err
		}
		value := strings.Repeat("s", 10)
		length := binary.LittleEndian.AppendUint32(nil, uint32(len(value)))
		for _, part := range []string{"\x06\x00\x00\x00", "/stock", string(length), value} {
			if _, err := unix.Write(fd, []byte(part)); err != nil {
				return err
			}
			time.Sleep(pause)
		}
		_ = unix.Close(fd)
		fmt.Println(i)
	}
}

// another is this test binary in a role.
func another(t testing.TB, role string, args ...string) *exec.Cmd {
	t.Helper()
	for i := range args {
		args[i] = filetest.Elsewhere(args[i])
	}
	cmd := exec.CommandContext(testkit.Within(t, time.Minute), testkit.Must(os.Executable())(t), args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

func TestManyAdd(t *testing.T) {
	const processes, stores, each = 3, 3, 200
	path := newPath(t)
	last := mustOpen(t, path, 0, nil)
	ctx := testkit.Within(t, time.Minute)
	var all sync.WaitGroup
	for range processes {
		cmd := another(t, "add", path, strconv.Itoa(each))
		testkit.Check(t, cmd.Start())
		all.Go(func() {
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range stores {
		s := mustOpen(t, path, NeverRemove, &Options{Remote: i == 0})
		for range 2 { // two goroutines to a store
			all.Go(func() {
				for range each {
					if _, err := s.Add(ctx, "sum", 1); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	testkit.Equal(t, string(testkit.Must(last.Get(ctx, "sum"))(t)), strconv.Itoa((processes+2*stores)*each))
	if _, end := plainRead(testkit.ReadFile(t, path)); end != len(testkit.ReadFile(t, path)) {
		t.Error("the log is damaged")
	}
}

// Stock writers that never pause leave the lock to ours often enough.
func TestBesideTirelessWriters(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	for range 3 {
		cmd := another(t, "tireless stock", path)
		out := testkit.Must(cmd.StdoutPipe())(t)
		testkit.Check(t, cmd.Start())
		testkit.Must(bufio.NewReader(out).ReadString('\n'))(t) // it writes
		var drained sync.WaitGroup
		drained.Go(func() { _, _ = io.Copy(io.Discard, out) })
		defer func() {
			_ = cmd.Process.Kill()
			drained.Wait()
			_ = cmd.Wait()
		}()
	}
	ctx := testkit.Within(t, time.Minute)
	for i := range 200 {
		testkit.Equal(t, testkit.Must(s.Add(ctx, "sum", 1))(t), int64(i+1))
	}
}

// Writers are killed at any moment: nothing that was acknowledged is lost, no value
// is half, and others continue.
func TestKilledWriters(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, time.Minute)
	testkit.Check(t, s.Set(ctx, "large", bytes.Repeat([]byte("x"), 200_000))) // a writer may be killed before its first
	for round := range rounds {
		role, name := "scribble", "counter"+strconv.Itoa(round)
		if round%3 == 2 {
			role = "stock"
		}
		told := killSoon(t, another(t, role, path, name))
		testkit.Equal(t, testkit.Must(s.Add(ctx, "rounds", 1))(t), int64(round+1))
		if role == "stock" {
			if told > 0 {
				testkit.Equal(t, string(testkit.Must(s.Get(ctx, "stock"))(t)), "ssssssssss")
			}
			continue
		}
		sum := testkit.Must(s.Add(ctx, name, 0))(t)
		if sum < told || sum > told+1 {
			t.Fatalf("told %d, the file holds %d", told, sum)
		}
		value := string(testkit.Must(s.Get(ctx, "large"))(t))
		if len(value) != 200_000 || value != strings.Repeat(value[:1], len(value)) {
			t.Fatalf("half a value: %d bytes", len(value))
		}
	}
	log := testkit.ReadFile(t, path)
	if _, end := plainRead(log); end != len(log) {
		t.Errorf("damage is left at %d of %d", end, len(log))
	}
}

// killSoon starts cmd, kills it a random time after it has begun to print, and
// returns the last number that it has printed.
func killSoon(t *testing.T, cmd *exec.Cmd) (told int64) {
	t.Helper()
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.Check(t, cmd.Start())
	var kill *time.Timer
	for lines := bufio.NewScanner(out); lines.Scan(); {
		told = testkit.Must(strconv.ParseInt(lines.Text(), 10, 64))(t)
		if kill == nil {
			kill = time.AfterFunc(time.Duration(rand.Int64N(int64(15*time.Millisecond))), func() { _ = cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); kill == nil || err == nil {
		t.Fatalf("the process ended by itself: %v", err)
	}
	return told
}
