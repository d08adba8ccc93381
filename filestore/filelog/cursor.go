package filelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/changewatch"
	"rallypoint/internal/lockedfile"
)

// cursor is a position in a log that moves on from file to file.
type cursor struct {
	file   *lockedfile.File
	header logHeader
	start  int64  // end of the header
	pos    int64  // end of the last frame read
	base   uint64 // index of the file's snapshot
	index  uint64 // of the last entry up to pos
	moved  bool   // pos is the end of the file for good
	mem    []byte
	locked time.Time // when it was last read under its lock
}

// openCursor opens a file of a log, with the flags to read or to write, too, at its
// beginning and reads the header. It
// returns fs.ErrNotExist if there is no such file.
func openCursor(path string, flags int, want logHeader) (*cursor, error) {
	f, err := lockedfile.OpenFile(path, flags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	c := &cursor{file: f}
	size, err := c.size()
	if err == nil {
		var first frame
		first, err = (&frameScanner{lockedfile.Scanner{Source: f, End: size}}).next()
		switch {
		case err == nil && first.kind == frameHeader:
			c.header, err = decodeHeader(first.payload)
			c.start = frameHeadBytes + bodyHeadBytes + int64(len(first.payload))
			c.pos = c.start
		case err == nil, err == io.EOF, err == lockedfile.ErrTorn, err == errBadFrame:
			err = fmt.Errorf("%w: no header of a log", lockedfile.ErrForeign)
		}
	}
	if err == nil && c.header != want {
		err = fmt.Errorf("%w: it belongs to run %q, generation %q, number %d", lockedfile.ErrForeign, c.header.runID, c.header.generation, c.header.seq)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func (c *cursor) close() {
	if c != nil {
		c.file.Close()
	}
}

// size is the size of the file, whether its path still names it or not.
func (c *cursor) size() (int64, error) {
	var st unix.Stat_t
	err := c.file.Stat(&st)
	return st.Size, err
}

// lockForMore locks a file that other machines write to for reading, if there may be something to
// read. A node that is stopped while it holds the lock stops the whole run. So a node takes the
// lock only if the file has grown, and from time to time, since not every file system shows a
// file's size without a lock. The caller unlocks a file that was locked.
func (c *cursor) lockForMore(limit lockedfile.WaitLimit, clock lockedfile.Clock) (locked bool, err error) {
	if clock.Now().Sub(c.locked) < changewatch.RecheckInterval {
		if size, err := c.file.SizeAtServer(); err == nil && size == c.pos {
			return false, nil
		}
	}
	if err := c.file.Lock(limit, clock, unix.LOCK_SH); err != nil {
		return false, err
	}
	c.locked = clock.Now()
	return true, nil
}

// read reads the whole frames up to size and gives each to visit, until that says
// to stop. It leaves bytes after the last whole frame.
func (c *cursor) read(size int64, visit func(frame) (more bool)) error {
	if size < c.pos {
		return fmt.Errorf("%w: %d bytes where %d were read", lockedfile.ErrReplaced, size, c.pos)
	}
	sc := &frameScanner{lockedfile.Scanner{Source: c.file, Pos: c.pos, End: size, Buffer: c.mem}}
	defer func() {
		if c.mem = sc.Buffer; cap(c.mem) > lockedfile.MaxKeptBuffer {
			c.mem = nil
		}
	}()
	for !c.moved {
		fr, err := sc.next()
		switch {
		case err == io.EOF, err == lockedfile.ErrTorn:
			return nil
		case err == errBadFrame:
			return c.checkDamage(size)
		case err != nil:
			return err
		}
		if err := c.checkOrder(fr); err != nil {
			return err
		}
		c.pos = sc.Pos
		if !visit(fr) {
			return nil
		}
	}
	return nil
}

// checkOrder checks that a frame is allowed at its position.
func (c *cursor) checkOrder(fr frame) error {
	switch {
	case fr.kind == frameSnapshot && c.index == 0:
		c.base, c.index = fr.index, fr.index
	case fr.kind == frameEntry && fr.index == c.index+1:
		c.index = fr.index
	case fr.kind == frameMoved && fr.index == c.index:
		c.moved = true
	default:
		return fmt.Errorf("%w: a frame of kind %d and index %d at offset %d, after index %d", ErrDamaged, fr.kind, fr.index, c.pos, c.index)
	}
	return nil
}

// checkDamage decides about complete bytes at pos that are no frame. If a whole frame follows
// them, the file is damaged, and not by the death of a writer. Otherwise they are the last write
// of a process that died, perhaps with its machine, and the next writer cuts them off. A reader
// without the lock may see anything while another node writes, but only for a moment, whereas
// damage stays.
func (c *cursor) checkDamage(size int64) error {
	for range damageReads {
		if damaged, err := c.badBeforeWhole(size); !damaged || err != nil {
			return err
		}
		time.Sleep(damagePause)
	}
	return fmt.Errorf("%w: a frame with a wrong checksum at offset %d", ErrDamaged, c.pos)
}

const (
	damageReads = 3
	damagePause = time.Millisecond
)

// badBeforeWhole reads again at pos, and reports whether there is no frame, with a whole one after
// it.
func (c *cursor) badBeforeWhole(size int64) (bool, error) {
	sc := &frameScanner{lockedfile.Scanner{Source: c.file, Pos: c.pos, End: size}}
	if _, err := sc.next(); err != errBadFrame {
		return false, unreadable(err)
	}
	behind := c.pos + frameHeadBytes + int64(binary.LittleEndian.Uint32(sc.Unread))
	_, err := (&frameScanner{lockedfile.Scanner{Source: c.file, Pos: behind, End: size}}).next()
	return err == nil, unreadable(err)
}

// unreadable returns the errors of a frameScanner that are not about the content of the file.
func unreadable(err error) error {
	switch err {
	case io.EOF, lockedfile.ErrTorn, errBadFrame:
		return nil
	}
	return err
}

// catchUp reads everything up to size.
func (c *cursor) catchUp(size int64) error {
	return c.read(size, func(frame) bool { return true })
}

// state skips the snapshot of the file and returns it; nil if the file
// has none.
func (c *cursor) state(size int64) (state []byte, err error) {
	at := *c
	err = c.read(size, func(fr frame) bool {
		if fr.kind == frameSnapshot {
			state = append([]byte{}, fr.payload...)
			return false
		}
		c.pos, c.base, c.index, c.moved = at.pos, at.base, at.index, at.moved
		return false
	})
	return state, err
}

// isGone reports whether an error says that there is no such file (any more).
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) || errors.Is(err, unix.ENOTDIR)
}
