package logs

import (
	"bytes"
	"io"
	"sync"
	"unicode/utf8"
)

// Console writes the lines of several workers to the agent's own streams so that
// no two lines mix. One lock serves both streams, since they often are the same
// terminal or pipe. It is safe for concurrent use.
type Console struct {
	mu   sync.Mutex
	open map[io.Writer]*printer // which printer wrote an unfinished line, and where
}

// printer writes one stream of one worker to its destination on the console.
type printer struct {
	c      *Console
	dst    io.Writer
	prefix []byte
	buf    []byte // reused
}

// NewConsole returns a console on which no line is open.
func NewConsole() *Console { return &Console{open: make(map[io.Writer]*printer)} }

func (c *Console) printer(dst io.Writer, prefix string) *printer {
	return &printer{c: c, dst: dst, prefix: []byte(prefix)}
}

// print writes text, in which each line that ends has its line feed, with one
// system call. A text without a last line feed leaves its line open: if no
// other printer writes before, the next print continues it without another prefix.
func (p *printer) print(text []byte) error {
	if len(text) == 0 {
		return nil
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
	_, err := p.dst.Write(p.buf)
	return err
}

// copy writes text as it is; a line that a printer left open is ended before. Output that
// cannot be written is lost.
func (c *Console) copy(dst io.Writer, text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[dst] != nil {
		delete(c.open, dst)
		_, _ = dst.Write([]byte{'\n'})
	}
	_, _ = dst.Write(text)
}

// appendValid appends text with each byte that is no UTF-8 replaced by U+FFFD.
func appendValid(dst, text []byte) []byte {
	if utf8.Valid(text) {
		return append(dst, text...)
	}
	return append(dst, string([]rune(string(text)))...)
}
