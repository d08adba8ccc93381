package logs

import (
	"bytes"
	"sync"
	"unicode/utf8"

	"rallypoint/internal/linequeue"
)

// Console writes the lines of several workers to the agent's own streams so that
// no two lines mix. It never waits for a reader: who copies output waits for room in the stream's
// queue before it takes more from a worker. It is safe for concurrent use.
type Console struct {
	*linequeue.Streams
	mu   sync.Mutex
	open map[*linequeue.Queue]*printer // which printer wrote an unfinished line, and where
}

// printer writes one stream of one worker to its destination on the console.
type printer struct {
	c      *Console
	dst    *linequeue.Queue
	prefix []byte
	buf    []byte // reused
}

// NewConsole returns a console on which no line is open.
func NewConsole(s *linequeue.Streams) *Console {
	return &Console{Streams: s, open: make(map[*linequeue.Queue]*printer)}
}

func (c *Console) printer(dst *linequeue.Queue, prefix string) *printer {
	return &printer{c: c, dst: dst, prefix: []byte(prefix)}
}

// print writes text, in which each line that ends has its line feed, as one text of the queue. One
// without a last line feed leaves its line open: if no other printer writes before, the next print
// continues it without another prefix.
func (p *printer) print(text []byte) {
	if len(text) == 0 {
		return
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.buf = p.buf[:0]
	fresh := true
	switch p.c.open[p.dst] {
	case p:
		fresh = false
	case nil:
	default:
		p.buf = append(p.buf, '\n')
	}
	for line := range bytes.Lines(text) {
		if fresh {
			p.buf = append(p.buf, p.prefix...)
		}
		fresh = true
		p.buf = appendValid(p.buf, line)
	}
	if p.buf[len(p.buf)-1] == '\n' {
		delete(p.c.open, p.dst)
	} else {
		p.c.open[p.dst] = p
	}
	p.dst.Put(p.buf)
}

// copy writes text as it is; a line that a printer left open is ended before.
func (c *Console) copy(dst *linequeue.Queue, text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[dst] != nil {
		delete(c.open, dst)
		dst.Put([]byte{'\n'})
	}
	dst.Put(text)
}

// appendValid appends text with each byte that is no UTF-8 replaced by U+FFFD.
func appendValid(dst, text []byte) []byte {
	if utf8.Valid(text) {
		return append(dst, text...)
	}
	return append(dst, string([]rune(string(text)))...)
}
