package linequeue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a file whose reader reads when the test lets it.
type gate struct {
	open    chan struct{} // closed when there is a reader
	entered chan struct{} // has a value once a write has begun

	mu     sync.Mutex
	failed error
	bytes.Buffer
}

func newGate() *gate { return &gate{open: make(chan struct{}), entered: make(chan struct{}, 1)} }

func (g *gate) Write(b []byte) (int, error) {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed != nil {
		return 0, g.failed
	}
	return g.Buffer.Write(b)
}

func (g *gate) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = err
}

// TestOrder: whatever several write at once arrives once, and that of each of them in its order.
func TestOrder(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	testkit.Check(t, err)
	got := make(chan string)
	go func() {
		text, _ := io.ReadAll(read)
		got <- string(text)
	}()
	q := New(write, "stderr")
	const writers, lines = 8, 3000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range lines {
				text := []byte(fmt.Sprintf("%d %d %s\n", w, i, strings.Repeat("x", i%200)))
				if w%2 == 0 {
					q.Wait(nil)
					q.Put(text)
				} else {
					for i%100 == 0 && !q.Flush() {
					}
					_, _ = q.Write(text)
				}
			}
		})
	}
	wg.Wait()
	if !q.Flush() {
		t.Error("not everything is written")
	}
	write.Close()
	next := [writers]int{}
	for line := range strings.Lines(<-got) {
		fields := strings.Fields(line)
		w, _ := strconv.Atoi(fields[0])
		i, _ := strconv.Atoi(fields[1])
		if next[w] != i {
			t.Fatalf("line %d of writer %d comes after %d", i, w, next[w]-1)
		}
		next[w]++
	}
	for w, n := range next {
		if n != lines {
			t.Errorf("%d lines of writer %d, want %d", n, w, lines)
		}
	}
}

// TestDropped: what a reader that has stopped leaves no room for is counted, in one line before the
// next ones.
func TestDropped(t *testing.T) {
	t.Parallel()
	g := newGate()
	q := New(g, "stderr")
	q.Report(func(text string) { fmt.Fprintln(q, text) })
	line := strings.Repeat("x", 1023) + "\n"
	const sent = maxLines/1024 + 500
	for range sent {
		fmt.Fprint(q, line)
	}
	q.Put([]byte("a worker's\n"))
	close(g.open)
	if !q.Flush() {
		t.Fatal("the queue is not written")
	}
	fmt.Fprintln(q, "later")
	if !q.Flush() {
		t.Fatal("the queue is not written")
	}
	text := g.String()
	kept := strings.Count(text, line)
	m := regexp.MustCompile(`a worker's\n(\d+) lines were dropped in [\d.]+ s: stderr was not read\nlater\n$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("it ends with %q", text[max(0, len(text)-300):])
	}
	if dropped, _ := strconv.Atoi(m[1]); dropped != 500 || kept != sent-500 {
		t.Errorf("%d kept and %d dropped of %d", kept, dropped, sent)
	}
}

// TestFailing: lines that a full disk does not take are counted. Others hear at once that it has
// begun; the file itself is told when it works again.
func TestFailing(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{true, false} {
		g := newGate()
		close(g.open)
		q := New(g, "the file")
		told := make(chan string, 10)
		if elsewhere {
			q.ReportElsewhere(func(text string) { told <- text })
		} else {
			q.Report(func(text string) { told <- text })
		}
		say := func(text string) {
			fmt.Fprintln(q, text)
			if !q.Flush() {
				t.Fatal("the queue is not written")
			}
		}
		g.fail(errors.New("no space left on device"))
		for range 3 {
			say("lost")
		}
		want := []string{"3 lines were"}
		if elsewhere {
			want = []string{"1 line was", "2 lines were"}
			if len(told) != 1 {
				t.Errorf("%d are told at first", len(told))
			}
		} else if len(told) != 0 {
			t.Errorf("the file that failed was told")
		}
		g.fail(nil)
		say("kept")
		for _, count := range want {
			if got := <-told; !strings.HasPrefix(got, count+" dropped in ") || !strings.HasSuffix(got, ": the file could not be written: no space left on device") {
				t.Errorf("it tells %q", got)
			}
		}
		if got := g.String(); got != "kept\n" || len(told) > 0 {
			t.Errorf("%q, and %d more are told", got, len(told))
		}
	}
}

// TestWait holds those who have more to write while much waits, until there is room or they stop.
func TestWait(t *testing.T) {
	t.Parallel()
	g := newGate()
	q := New(g, "stdout")
	if !q.Wait(nil) {
		t.Error("an empty queue has no room")
	}
	q.Put(make([]byte, roomy))
	stop := make(chan struct{})
	close(stop)
	if q.Wait(stop) {
		t.Error("a full queue has room")
	}
	waited := make(chan bool)
	go func() { waited <- q.Wait(nil) }()
	close(g.open)
	if !<-waited || !q.Flush() {
		t.Error("a queue that was written has no room")
	}
}

// TestPutIsBounded, whoever puts without waiting.
func TestPutIsBounded(t *testing.T) {
	t.Parallel()
	g := newGate()
	q := New(g, "stdout")
	for range maxAll / piece {
		if !q.Put(make([]byte, piece)) {
			t.Fatal("it takes less than it should")
		}
	}
	if q.Put([]byte("x")) {
		t.Error("it takes more than it should")
	}
	close(g.open)
	if !q.Flush() || !q.Put([]byte("x")) || !q.Flush() || g.Len() != maxAll+1 {
		t.Errorf("it has written %d bytes", g.Len())
	}
}

// TestFlushGivesUp on a file that is stuck: once with patience, and then at once until it advances.
func TestFlushGivesUp(t *testing.T) {
	t.Parallel()
	g := newGate()
	q := New(g, "stderr")
	fmt.Fprintln(q, "line")
	<-g.entered
	for range 100 { // with the patience of each, no test would wait so long
		if q.Flush() {
			t.Fatal("a stuck file is written")
		}
	}
	close(g.open)
	testkit.Eventually(t, "the line is written", q.Flush)
	if g.String() != "line\n" {
		t.Errorf("%q", g.String())
	}
}

// TestStreams: stdout and stderr have one order if they are one file.
func TestStreams(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	testkit.Check(t, err)
	defer func() { _, _ = read.Close(), write.Close() }()
	if s := NewStreams(write, write); s.Out != s.Err {
		t.Error("one pipe has two queues")
	}
	if s := NewStreams(write, &bytes.Buffer{}); s.Out == s.Err {
		t.Error("two files have one queue")
	}
}
