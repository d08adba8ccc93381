package logs

import (
	"bytes"
	"context"
	"regexp"
	"sync"
	"time"

	"rallypoint/internal/background"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/wake"
)

// foldWindow is how long the line of one rank waits for the same of the others.
const foldWindow = 200 * time.Millisecond

// maxBlock bounds a traceback, and a line without an end, in bytes.
const maxBlock = 64 << 10

// folder writes the output of several workers to one stream. Lines of different ranks
// that are equal but for their digits, and come within foldWindow, become one that
// begins with the ranks; its digits are those of the lowest rank. The lines of one rank
// keep their order. A traceback counts as one line. What draws on a terminal (a carriage
// return, a cursor that moves) is passed on at once and unchanged. It is safe for
// concurrent use.
type folder struct {
	c    *Console
	dst  *linequeue.Queue
	wake wake.Signal
	end  func() // ends run, and waits for that

	mu      sync.Mutex
	sources []*foldSource
	queue   foldQueue
	idle    bool // nothing waits: run has no deadline
}

// foldSource is one stream of one rank.
type foldSource struct {
	f       *folder
	rank    int
	last    uint64 // the newest group that has a line of it
	partial []byte // a line that has begun
	midLine bool   // its begin was passed on
	block   traceback
	touched time.Time // when something came
}

func newFolder(c *Console, dst *linequeue.Queue) *folder {
	f := &folder{c: c, dst: dst, wake: wake.New()}
	f.end = background.Run(context.Background(), f.run)
	return f
}

func (f *folder) source(rank int) *foldSource {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &foldSource{f: f, rank: rank}
	f.sources = append(f.sources, s)
	f.queue.sources++
	return s
}

// stop writes the remaining output. Its sources must not be used afterwards.
func (f *folder) stop() {
	f.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sources {
		s.endBlock(time.Time{})
		s.raw(s.partial)
	}
	f.queue.flush(f.queue.next)
	f.write()
}

func (f *folder) run(ctx context.Context) {
	for {
		f.mu.Lock()
		next, pending := f.expire(time.Now())
		f.idle = !pending
		f.write()
		f.mu.Unlock()
		var due <-chan time.Time
		if pending {
			due = time.After(next)
		}
		select {
		case <-due:
		case <-f.wake:
		case <-ctx.Done():
			return
		}
	}
}

// expire ends the waits that are over, and says when the next one will be.
func (f *folder) expire(now time.Time) (next time.Duration, pending bool) {
	next = foldWindow
	for _, s := range f.sources {
		if len(s.partial) == 0 && !s.block.open() {
			continue
		}
		if left := foldWindow - now.Sub(s.touched); left > 0 {
			next, pending = min(next, left), true
			continue
		}
		s.endBlock(now)
		if len(s.partial) > 0 {
			s.raw(s.partial)
			s.partial, s.midLine = s.partial[:0], true
		}
	}
	f.queue.flushDue(now)
	if oldest := f.queue.oldest(); oldest != nil {
		next, pending = min(next, max(foldWindow-now.Sub(oldest.at), 0)), true
	}
	return next, pending
}

func (f *folder) write() {
	if out := f.queue.out; len(out) > 0 {
		f.c.copy(f.dst, out)
		f.queue.out = out[:0]
	}
}

// print adds output of the rank, which may end within a line.
func (fs *foldSource) print(text []byte) {
	f := fs.f
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	fs.take(text, now)
	f.queue.flushDue(now)
	f.write()
	if f.idle {
		f.idle = false
		f.wake.Set()
	}
}

func (fs *foldSource) take(text []byte, now time.Time) {
	fs.touched = now
	for len(text) > 0 {
		end := bytes.IndexByte(text, '\n') + 1
		if end == 0 {
			fs.partial = append(fs.partial, text...)
			if fs.midLine || bytes.IndexByte(text, '\r') >= 0 || len(fs.partial) > maxBlock {
				fs.raw(fs.partial)
				fs.partial, fs.midLine = fs.partial[:0], true
			}
			return
		}
		line := text[:end]
		text = text[end:]
		if len(fs.partial) > 0 {
			fs.partial = append(fs.partial, line...)
			line = fs.partial
		}
		if fs.midLine || !isPlain(line) {
			fs.raw(line)
		} else {
			fs.line(line, now)
		}
		fs.partial, fs.midLine = fs.partial[:0], false
	}
}

func (fs *foldSource) line(line []byte, now time.Time) {
	if fs.block.open() && !fs.block.goesOn(line) {
		fs.endBlock(now)
	}
	if !fs.block.takes(line) {
		fs.add(line, now)
	} else if len(fs.block.text) > maxBlock {
		fs.endBlock(now)
	}
}

func (fs *foldSource) endBlock(now time.Time) {
	if fs.block.open() {
		fs.add(fs.block.text, now)
		fs.block.reset()
	}
}

func (fs *foldSource) add(block []byte, now time.Time) {
	fs.last = fs.f.queue.add(fs.rank, fs.last, block, now)
	fs.f.queue.shrink()
}

// raw passes a text on, after the rank's earlier output.
func (fs *foldSource) raw(text []byte) {
	if len(text) == 0 {
		return
	}
	fs.endBlock(fs.touched)
	q := &fs.f.queue
	q.flush(fs.last)
	q.out = append(q.out, text...)
	q.dangling = text[len(text)-1] != '\n' && text[len(text)-1] != '\r'
}

// colour is compiled when it is first needed, since what a package compiles costs each command's start.
var colour = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\x1b\[[^@-~]*m`) })

// isPlain reports whether a line only has text and colours: no bar that draws over itself.
func isPlain(line []byte) bool {
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	if bytes.IndexByte(line, 0x1b) >= 0 {
		line = colour().ReplaceAll(line, nil)
	}
	return !bytes.ContainsAny(line, "\r\b\x1b")
}
