package logs

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/linequeue"
	"rallypoint/internal/testkit"
)

// stalledPipe is a pipe that is full and that nobody reads.
func stalledPipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	testkit.Check(t, err)
	fd := int(write.Fd()) // which sets it to blocking
	testkit.Check(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	testkit.Check(t, unix.SetNonblock(fd, false))
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	return read, write
}

// buffered is how much of a pipe has not been read.
func buffered(t *testing.T, pipe *os.File) (n int) {
	t.Helper()
	conn := testkit.Must(pipe.SyscallConn())(t)
	testkit.Check(t, conn.Control(func(fd uintptr) { n = testkit.Must(unix.IoctlGetInt(int(fd), unix.TIOCINQ))(t) }))
	return n
}

// passed is how much of a worker's stderr the agent has read.
func passed(tee *stderrTee) int64 {
	tee.ring.mu.Lock()
	defer tee.ring.mu.Unlock()
	return tee.ring.total
}

// TestStalledStderr: while the agent's stderr is not read, a worker's is not either, beyond what is
// on its way, so that the worker waits; what it wrote before its end is known and nothing of it is
// lost, but its end waits for nobody.
func TestStalledStderr(t *testing.T) {
	read, write := stalledPipe(t)
	full := buffered(t, read)
	q := linequeue.New(write, "stderr")
	c := NewConsole(&linequeue.Streams{Out: q, Err: q})
	tee, worker, err := newStderrTee(write, q, func(text []byte) { c.copy(q, text) })
	testkit.Check(t, err)
	sent := make(chan int, 1)
	line := []byte(strings.Repeat("x", 1023) + "\n")
	go func() { // until the test's end lets it write no more
		n := 0
		for n < 4096 {
			if _, err := worker.Write(line); err != nil {
				break
			}
			n++
		}
		sent <- n
	}()
	testkit.Eventually(t, "the worker's pipe is full", func() bool { return buffered(t, tee.read) > 60<<10 })
	if n := passed(tee); n > 256<<10 {
		t.Errorf("%d bytes were read although nobody reads them", n)
	}
	testkit.Check(t, worker.SetWriteDeadline(time.Unix(1, 0))) // the worker ends
	n := <-sent
	if n == 4096 {
		t.Fatal("the worker was not held")
	}
	tee.stop()
	if got := tee.last(); len(got) != Kept || passed(tee) < int64(n*len(line)) {
		t.Errorf("the end of what it wrote has %d bytes; %d of %d passed", len(got), passed(tee), n*len(line))
	}
	worker.Close()
	rest := make([]byte, full+n*len(line))
	if _, err := io.ReadFull(read, rest); err != nil || bytes.Count(rest[full:], line) != n {
		t.Errorf("%d lines arrived of %d: %v", bytes.Count(rest[full:], line), n, err)
	}
	if !q.Flush() {
		t.Error("the queue is not written")
	}
}

// TestStalledConsole: files are copied no further than the console takes them, and the end of an
// attempt says so instead of waiting.
func TestStalledConsole(t *testing.T) {
	read, write := stalledPipe(t)
	q := linequeue.New(write, "stdout")
	c := NewConsole(&linequeue.Streams{Out: q, Err: q})
	log, lines := testkit.NewLog(t)
	tails := newTails(log)
	path := filepath.Join(t.TempDir(), "out.log")
	testkit.WriteFile(t, path, bytes.Repeat([]byte("line\n"), 100_000))
	tails.add(c.job(t, path, "> "))
	tails.stop()
	if lines.With("can no longer follow", path, "the console is not read; the file has the rest") == nil {
		t.Errorf("it says %s", lines)
	}
	read.Close()
	testkit.Eventually(t, "the queue has ended", q.Flush)
}

// TestFilterOnAFullDisk: lines for a file that takes none hold up nothing; the log says so once.
func TestFilterOnAFullDisk(t *testing.T) {
	log, lines := testkit.NewLog(t)
	full := testkit.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	a := &Attempt{tree: &Tree{log: log}, files: map[string]*os.File{"/dev/full": full}}
	c := consoleOf(io.Discard)
	p := c.printer(a.filter(full), "> ")
	for range 3 {
		p.print([]byte("line\n"))
		p.dst.Flush()
	}
	a.Close()
	if said := lines.With("/dev/full could not be written: write /dev/full: no space left on device"); len(said) != 1 {
		t.Errorf("it says %s", lines)
	}
}

// TestLastWordsOnAFullDisk: the worker itself had no means to say why it failed.
func TestLastWordsOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Skipf("mounting a disk is not allowed here: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	w := Worker{ErrFile: dir + "/stderr.log"}
	testkit.WriteFile(t, w.ErrFile, []byte("Traceback\n"))
	if text, _ := w.LastStderr(); string(text) != "Traceback\n" {
		t.Errorf("while there is room: %q", text)
	}
	if os.WriteFile(dir+"/else", make([]byte, 1<<20), 0o600) == nil {
		t.Fatal("it is not full")
	}
	if text, _ := w.LastStderr(); string(text) != "Traceback\nwhat it wrote last is missing: "+w.ErrFile+": no space left on device\n" {
		t.Errorf("on a full disk: %q", text)
	}
	if left := testkit.Must(os.ReadDir(dir))(t); len(left) != 2 {
		t.Errorf("it leaves %v", left)
	}
}
