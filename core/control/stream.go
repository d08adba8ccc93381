package control

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// readBuffer is the size of a connection's read buffer: several small frames.
// Larger ones go past it into the frame's own memory.
const readBuffer = 2 << 10

// firstChunk is how much memory a frame gets before any of it was received; what
// follows is allocated as it comes in.
const firstChunk = 4 << 10

// frameReader cuts a stream into frames. It is used by one goroutine.
type frameReader struct {
	in   *bufio.Reader
	body []byte
}

// next returns the body of the next frame, valid until the following call. The
// error is io.EOF only if the stream ended between two frames.
func (r *frameReader) next(most int) ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = fmt.Errorf("the stream ended inside a frame: %w", err)
		}
		return nil, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if int64(size) > int64(most) {
		return nil, fmt.Errorf("%w: a frame of %d bytes where %d are allowed", errMalformed, size, most)
	}
	if cap(r.body) > maxKept {
		r.body = nil
	}
	r.body = r.body[:0]
	for len(r.body) < int(size) {
		chunk := min(int(size)-len(r.body), max(firstChunk, len(r.body)))
		from := len(r.body)
		r.body = append(r.body, make([]byte, chunk)...)
		if _, err := io.ReadFull(r.in, r.body[from:]); err != nil {
			return nil, fmt.Errorf("the stream ended inside a frame: %w", noEOF(err))
		}
	}
	return r.body, nil
}

// noEOF keeps an end inside a message from looking like a clean one.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// nextFrame reads and decodes the next frame; what it says to people is as shown.
func (r *frameReader) nextFrame(most int) (frame, error) {
	body, err := r.next(most)
	if err != nil {
		return nil, err
	}
	f, err := parseFrame(body)
	if err != nil {
		return nil, err
	}
	return shown(f), nil
}

// peekedConn is a connection whose first bytes were read into a buffer.
type peekedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c *peekedConn) Read(b []byte) (int, error) { return c.in.Read(b) }
