package wire

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// ReadBuffer is the size of a connection's read buffer: several small frames.
// Larger ones go past it into the frame's own memory.
const ReadBuffer = 2 << 10

// FirstChunk is how much memory a frame gets before any of it was received; the rest
// is allocated as bytes come in.
const FirstChunk = 4 << 10

// FrameReader cuts a stream into frames. It is used by one goroutine.
type FrameReader struct {
	In *bufio.Reader
	// Reserve, if set, is called with the growth of a long frame's memory while it arrives, and
	// with the decrease after it. An error ends the frame, and the reader.
	Reserve func(by int) error
	// Short is the size up to which a frame is not long, and its memory is kept for the next. 0 is
	// maxKept.
	Short int

	body     []byte
	reserved int
}

// reserve has the caller agree to the memory of a frame, if it is long.
func (fr *FrameReader) reserve(size int) error {
	if size <= cmp.Or(fr.Short, maxKept) {
		size = 0
	}
	by := size - fr.reserved
	if fr.Reserve == nil || by == 0 {
		return nil
	}
	if err := fr.Reserve(by); err != nil {
		return err
	}
	fr.reserved = size
	return nil
}

// Release gives up the memory of a long frame.
func (fr *FrameReader) Release() {
	if cap(fr.body) > cmp.Or(fr.Short, maxKept) {
		fr.body = nil
	}
	_ = fr.reserve(0)
}

// next returns the body of the next frame, valid until the following call. The
// error is io.EOF only if the stream ended between two frames.
func (fr *FrameReader) next(most int) ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(fr.In, head[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = fmt.Errorf("the stream ended inside a frame: %w", err)
		}
		return nil, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if int64(size) > int64(most) {
		return nil, fmt.Errorf("%w: a frame of %d bytes where %d are allowed", ErrMalformed, size, most)
	}
	fr.Release()
	fr.body = fr.body[:0]
	for len(fr.body) < int(size) {
		chunk := min(int(size)-len(fr.body), max(FirstChunk, 3*len(fr.body)))
		from := len(fr.body)
		if err := fr.reserve(from + chunk); err != nil {
			return nil, err
		}
		fr.body = append(fr.body, make([]byte, chunk)...)
		if _, err := io.ReadFull(fr.In, fr.body[from:]); err != nil {
			return nil, fmt.Errorf("the stream ended inside a frame: %w", NoEOF(err))
		}
	}
	return fr.body, nil
}

// NoEOF turns the end of a stream inside a message into io.ErrUnexpectedEOF.
func NoEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// NextFrame reads and decodes the next frame.
func (fr *FrameReader) NextFrame(most int) (Frame, error) {
	body, err := fr.next(most)
	if err != nil {
		return nil, err
	}
	f, err := parseFrame(body)
	fr.Release()
	return f, err
}

// PeekedConn is a connection whose first bytes were read into a buffer.
type PeekedConn struct {
	net.Conn
	In *bufio.Reader
}

func (p *PeekedConn) Read(b []byte) (int, error) { return p.In.Read(b) }

// AbortOn makes the end of ctx end the connection's I/O. The result stops that
// and reports whether it came in time.
func AbortOn(ctx context.Context, conn net.Conn) (release func() bool) {
	return context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
}
