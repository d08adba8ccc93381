// Package linequeue writes texts to files whose readers may have stopped, so that nobody but the
// queue waits for them.
package linequeue

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"rallypoint/internal/wording"
)

// Limits of a queue, in bytes.
const (
	maxLines = 1 << 20  // of lines that wait
	maxAll   = 16 << 20 // of all that waits
	roomy    = 32 << 10 // Wait returns when less waits
	whole    = 4 << 10  // of several texts in one write: a pipe takes these without others in between
	piece    = 64 << 10 // of one write
)

// Limits of Flush, and of others who wait for a file at their end: the longest time in which
// nothing can be written, and the longest time in all.
const (
	StallLimit = 2 * time.Second
	FlushLimit = 10 * time.Second
)

// slowWrite is how long a write may take before the next ones are small, so that Flush sees that a
// slow reader reads.
const slowWrite = 100 * time.Millisecond

// Queue holds texts for one file, in order. A goroutine of its own writes them and ends when none
// waits. While a write is stuck in the system, nothing can end that goroutine; a process may exit
// all the same. The methods are safe for concurrent use.
type Queue struct {
	dst  io.Writer
	name string

	mu       sync.Mutex
	report   func(text string) // nil: losses are not reported
	atOnce   bool              // report does not write to this queue
	failing  bool              // the last write failed
	texts    []text            // that the goroutine has not taken yet
	lines    int               // bytes of lines that wait or are being written
	all      int               // the same, of all texts
	running  bool              // the goroutine
	dropping bool              // maxLines was reached, and lines still wait
	loss     loss
	writes   int           // that have ended
	stuckAt  int           // value of writes when Flush gave up; 0: it did not
	advanced chan struct{} // closed when writes grows or the goroutine ends; nil: nobody waits for that
	emptied  chan struct{} // closed when there is room; nil: nobody waits for that
}

// text is what one call adds.
type text struct {
	bytes []byte
	line  bool // by Write
}

// loss is what was lost since the last report.
type loss struct {
	lines int
	since time.Time
	err   error // of a write that failed; nil: there was no room
}

// New returns a queue for a file. name is the file's in reports. Nothing else must write to dst in
// this process, except what may come in any order.
func New(dst io.Writer, name string) *Queue { return &Queue{dst: dst, name: name} }

// Report has f called with a text about lines that were lost, once others can be written again. f
// runs on the queue's goroutine and may write to the queue.
func (q *Queue) Report(f func(text string)) { q.setReport(f, false) }

// ReportElsewhere is Report for an f that does not write to this queue: it also hears at once that
// writes have begun to fail.
func (q *Queue) ReportElsewhere(f func(text string)) { q.setReport(f, true) }

func (q *Queue) setReport(f func(text string), atOnce bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.report, q.atOnce = f, atOnce
}

// Write adds a line, or several. It never waits and never fails: if too many lines wait, these are
// dropped and counted, and so are all others until none waits.
func (q *Queue) Write(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropping = q.dropping || q.lines+len(b) > maxLines; q.dropping {
		q.loseLocked(b, nil)
	} else {
		q.addLocked(b, true)
	}
	return len(b), nil
}

// Put adds a text of someone who calls Wait before it takes more texts from elsewhere. It never
// waits. Only if that is not enough, because much came at once, the text is dropped and counted,
// and Put returns false.
func (q *Queue) Put(b []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all+len(b) > maxAll {
		q.loseLocked(b, nil)
		return false
	}
	q.addLocked(b, false)
	return true
}

func (q *Queue) addLocked(b []byte, line bool) {
	if len(b) == 0 {
		return
	}
	q.texts = append(q.texts, text{bytes.Clone(b), line})
	q.countLocked(text{b, line}, 1)
	if !q.running {
		q.running = true
		go q.run() // ends when nothing waits
	}
}

// countLocked counts a text as waiting, or, with sign -1, as one that does not wait any more.
func (q *Queue) countLocked(t text, sign int) {
	q.all += sign * len(t.bytes)
	if t.line {
		q.lines += sign * len(t.bytes)
	}
}

func (q *Queue) loseLocked(b []byte, err error) {
	if q.loss.lines == 0 {
		q.loss.since = time.Now()
	}
	q.loss.lines += max(1, bytes.Count(b, []byte{'\n'}))
	if err != nil {
		q.loss.err = err
	}
}

func (q *Queue) run() {
	var joined []byte // reused
	slow := false
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.texts) > 0 {
		n, size := 1, len(q.texts[0].bytes)
		for n < len(q.texts) && size+len(q.texts[n].bytes) <= whole {
			size += len(q.texts[n].bytes)
			n++
		}
		taken := q.texts[:n:n]
		if q.texts = q.texts[n:]; len(q.texts) == 0 {
			q.texts = nil
		}
		b := taken[0].bytes
		if n > 1 {
			joined = joined[:0]
			for _, t := range taken {
				joined = append(joined, t.bytes...)
			}
			b = joined
		}
		var done int
		var err error
		done, slow, err = q.writeLocked(b, slow)
		for _, t := range taken {
			q.countLocked(t, -1)
		}
		clear(taken)
		if q.all < roomy {
			wakeAll(&q.emptied)
		}
		if q.lines == 0 {
			q.dropping = false
		}
		begins := err != nil && !q.failing
		if q.failing = err != nil; q.failing {
			q.loseLocked(b[done:], err)
		}
		if q.loss.lines > 0 && (!q.failing && !q.dropping || begins && q.atOnce) {
			q.reportLocked()
		}
	}
	q.running = false
	wakeAll(&q.advanced)
}

// reportLocked reports what was lost. It releases mu meanwhile.
func (q *Queue) reportLocked() {
	if q.report == nil {
		return
	}
	lost, report := q.loss, q.report
	q.loss = loss{}
	q.mu.Unlock()
	report(lost.text(q.name))
	q.mu.Lock()
}

// writeLocked writes b, in small parts if the file is slow. It releases mu while it writes.
func (q *Queue) writeLocked(b []byte, slow bool) (done int, slowNow bool, err error) {
	for done < len(b) && err == nil {
		part := b[done:min(len(b), done+piece)]
		if slow {
			part = part[:min(len(part), whole)]
		}
		q.mu.Unlock()
		began := time.Now()
		var n int
		n, err = q.dst.Write(part)
		slow = time.Since(began) > slowWrite
		q.mu.Lock()
		done += n
		q.writes++
		wakeAll(&q.advanced)
	}
	return done, slow, err
}

// wakeAll closes a channel that somebody waits for.
func wakeAll(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// await returns a channel that the next wakeAll closes.
func await(c *chan struct{}) <-chan struct{} {
	if *c == nil {
		*c = make(chan struct{})
	}
	return *c
}

// Wait waits until there is room for texts by Put. It returns false if stop ends first; a nil
// channel never does.
func (q *Queue) Wait(stop <-chan struct{}) bool {
	for {
		q.mu.Lock()
		if q.all < roomy {
			q.mu.Unlock()
			return true
		}
		emptied := await(&q.emptied)
		q.mu.Unlock()
		select {
		case <-emptied:
		case <-stop:
			return false
		}
	}
}

// Flush waits until all that was added is written, and reports whether it is: it gives up when
// nothing could be written for StallLimit, or after FlushLimit, and at once if it has given up
// before and nothing was written since.
func (q *Queue) Flush() bool {
	over := time.NewTimer(FlushLimit)
	defer over.Stop()
	for {
		q.mu.Lock()
		if !q.running {
			q.mu.Unlock()
			return true
		}
		if q.stuckAt == q.writes+1 {
			q.mu.Unlock()
			return false
		}
		advanced := await(&q.advanced)
		q.mu.Unlock()
		stalled := time.NewTimer(StallLimit)
		select {
		case <-advanced:
			stalled.Stop()
			continue
		case <-stalled.C:
		case <-over.C:
			stalled.Stop()
		}
		q.mu.Lock()
		q.stuckAt = q.writes + 1
		q.mu.Unlock()
		return false
	}
}

// text says what was lost, and why.
func (l loss) text(name string) string {
	why := name + " was not read"
	if l.err != nil {
		why = fmt.Sprintf("%s could not be written: %v", name, l.err)
	}
	return fmt.Sprintf("%s dropped in %s: %s", wording.Count(l.lines, "line was", "lines were"), wording.Seconds(time.Since(l.since)), why)
}

// FlushAll flushes queues side by side.
func FlushAll(queues ...*Queue) {
	var wg sync.WaitGroup
	for _, q := range queues {
		wg.Go(func() { q.Flush() })
	}
	wg.Wait()
}
