package logs

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"rallypoint/internal/linequeue"
	"rallypoint/internal/testkit"
	"rallypoint/internal/wake"
)

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxPartial)
	for _, c := range []struct{ parts, out []string }{
		{[]string{"a\nb\n"}, []string{"a\nb\n", ""}},
		{[]string{"a", "b\nc"}, []string{"", "ab\n", "c"}},
		{[]string{"a\r", "\nb"}, []string{"a\n", "", "b"}},
		{[]string{"a\r\nb\rc\n"}, []string{"a\nb\nc\n", ""}},
		{[]string{"10%\r20%\r"}, []string{"10%\n20%\n", ""}},
		{[]string{"\r", "\r", "\n", "\n"}, []string{"\n", "\n", "", "\n", ""}},
		{[]string{long + "€"[:2], "€"[2:] + "z\n"}, []string{long, "€z\n", ""}}, // no character is cut
		{[]string{long + "€", "\xffz\n"}, []string{long + "€", "\xffz\n", ""}},
	} {
		var l lines
		var out []string
		for _, part := range c.parts {
			out = append(out, string(l.add([]byte(part))))
		}
		out = append(out, string(l.rest()))
		if fmt.Sprint(out) != fmt.Sprint(c.out) {
			t.Errorf("%q gives %q, expected %q", c.parts, out, c.out)
		}
	}
}

// TestConsole continues an open line without a second prefix unless another
// worker wrote in between.
func TestConsole(t *testing.T) {
	var out bytes.Buffer
	c := consoleOf(&out)
	a, b := c.printer(c.Out, "[a]:"), c.printer(c.Out, "[b]:")
	for _, step := range []struct {
		p    *printer
		text string
	}{{a, "x"}, {a, "y\n"}, {a, "begun"}, {b, "1\n2\n"}, {a, "ended\n"}, {b, "bad \xff\n"}, {b, "last"}} {
		step.p.print([]byte(step.text))
	}
	c.Flush()
	const want = "[a]:xy\n[a]:begun\n[b]:1\n[b]:2\n[a]:ended\n[b]:bad \ufffd\n[b]:last"
	if out.String() != want {
		t.Errorf("got %q, expected %q", out.String(), want)
	}
}

// consoleOf returns a console that writes both streams to one place.
func consoleOf(w io.Writer) *Console {
	q := linequeue.New(w, "stderr")
	return NewConsole(&linequeue.Streams{Out: q, Err: q})
}

// job is a file whose lines go to a console with a prefix.
func (c *Console) job(t *testing.T, path, prefix string) tail {
	file, _, err := openRegular(path, 0)
	testkit.Check(t, err)
	return tail{file: file, console: c.Out, out: c.printer(c.Out, prefix)}
}

// syncBuffer is a buffer that tells of each write.
type syncBuffer struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	wrote wake.Signal
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wrote.Set()
	return s.buf.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *syncBuffer) await(text string) {
	for !strings.Contains(s.String(), text) {
		<-s.wrote
	}
}

func newTailed(t *testing.T) (*os.File, *syncBuffer, *tails) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "out.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file, &syncBuffer{wrote: wake.New()}, newTails(slog.New(slog.DiscardHandler))
}

func TestTailFollowsWrites(t *testing.T) {
	for _, watched := range []bool{true, false} {
		file, out, tails := newTailed(t)
		if !watched {
			tails.watcher.Close()
			tails.watcher = nil
		}
		c := consoleOf(out)
		tails.add(c.job(t, file.Name(), "> "))
		for _, line := range []string{"one", "two"} {
			fmt.Fprintln(file, line)
			out.await(line)
		}
		fmt.Fprint(file, "begun ")
		out.await("begun") // held back for its patience only
		fmt.Fprint(file, "ended\nlast")
		tails.stop()
		c.Flush()
		if want := "> one\n> two\n> begun ended\n> last"; out.String() != want {
			t.Errorf("watched %v: got %q, expected %q", watched, out.String(), want)
		}
	}
}

// TestTailsOfOneFile: two streams that go to one file are both copied while it grows.
func TestTailsOfOneFile(t *testing.T) {
	file, out, tails := newTailed(t)
	second := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(file.Name(), second); err != nil {
		t.Fatal(err)
	}
	c := consoleOf(out)
	tails.add(c.job(t, file.Name(), "1> "))
	tails.add(c.job(t, second, "2> "))
	for _, line := range []string{"one", "two"} {
		fmt.Fprintln(file, line)
		out.await("1> " + line)
		out.await("2> " + line)
	}
	tails.stop()
}

// A file that is renamed while it is copied is copied on.
func TestTailOfARenamedFile(t *testing.T) {
	file, out, tails := newTailed(t)
	tails.add(consoleOf(out).job(t, file.Name(), "> "))
	fmt.Fprintln(file, "one")
	out.await("one")
	if err := os.Rename(file.Name(), file.Name()+".1"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(file, "two")
	out.await("two")
	tails.stop()
}

// TestTailLosesNothing copies many lines of several writers, and those that match
// to another place.
func TestTailLosesNothing(t *testing.T) {
	const writers, count = 4, 20000
	tails := newTails(slog.New(slog.DiscardHandler))
	out, filtered := &syncBuffer{wrote: wake.New()}, &syncBuffer{wrote: wake.New()}
	c, filter := consoleOf(out), linequeue.New(filtered, "filtered_stdout.log")
	var wg sync.WaitGroup
	for w := range writers {
		file, err := os.Create(filepath.Join(t.TempDir(), "out.log"))
		if err != nil {
			t.Fatal(err)
		}
		prefix := fmt.Sprintf("[%d]:", w)
		job := c.job(t, file.Name(), prefix)
		job.filter, job.needles = c.printer(filter, prefix), [][]byte{[]byte("777"), []byte("none")}
		tails.add(job)
		wg.Go(func() {
			defer file.Close()
			for i := range count {
				fmt.Fprintf(file, "line %d of %d\n", i, w)
			}
		})
	}
	wg.Wait()
	tails.stop()
	linequeue.FlushAll(c.Out, filter)
	next, matches := [writers]int{}, 0
	for line := range strings.Lines(out.String()) {
		var prefix, i, w int
		if _, err := fmt.Sscanf(line, "[%d]:line %d of %d\n", &prefix, &i, &w); err != nil || prefix != w || next[w] != i {
			t.Fatalf("line %q, expected number %d", line, next[w])
		}
		next[w]++
		if strings.Contains(line, "777") {
			matches++
		}
	}
	if next != [writers]int{count, count, count, count} {
		t.Errorf("lines: %v", next)
	}
	if got := strings.Count(filtered.String(), "\n"); got != matches || matches == 0 {
		t.Errorf("%d lines were filtered, expected %d", got, matches)
	}
}

// TestFollowNoFile: what is no regular file is not copied, which the log says; one that is not there
// yet is made.
func TestFollowNoFile(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	log, lines := testkit.NewLog(t)
	a := &Attempt{tree: &Tree{spec: &Spec{}, log: log}, Plan: &Plan{Workers: []Paths{{teeOut: dir, teeErr: missing}}}}
	testkit.Check(t, a.Follow(consoleOf(&bytes.Buffer{}), []Names{{}}))
	a.Close()
	if lines.With("cannot follow a log file", dir) == nil {
		t.Errorf("it says %s", lines)
	}
	if _, err := os.Stat(missing); err != nil {
		t.Error(err)
	}
}

// TestTailOfManyLines copies half a million lines of one worker, which come faster
// than they are read.
func TestTailOfManyLines(t *testing.T) {
	const count = 500_000
	tails := newTails(slog.New(slog.DiscardHandler))
	out := &syncBuffer{wrote: wake.New()}
	file, err := os.Create(filepath.Join(t.TempDir(), "out.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := consoleOf(out)
	tails.add(c.job(t, file.Name(), "[r0]:"))
	var text, want []byte
	for i := range count {
		text = fmt.Appendf(text, "%d\n", i)
		want = fmt.Appendf(want, "[r0]:%d\n", i)
		if len(text) > 100_000 || i == count-1 { // lines cut anywhere
			if _, err := file.Write(text); err != nil {
				t.Fatal(err)
			}
			text = text[:0]
		}
	}
	tails.stop()
	c.Flush()
	if out.String() != string(want) {
		t.Error("lines are missing or wrong")
	}
}
