package filestore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// anchorBytes is how much of the last record is compared each time the log is
// read on: a file that was rewritten in place is found out by it.
const anchorBytes = 16

// refreshLocked applies the records that were appended to the log, up to size, the size of the
// file. The caller holds the lock, shared or exclusively. An incomplete last record is left
// alone.
func (s *Store) refreshLocked(size int64) error {
	if size == s.pos {
		return nil
	}
	if size < s.pos {
		return fmt.Errorf("%w: %d bytes where %d were read", ErrReplaced, size, s.pos)
	}
	start := s.pos - int64(len(s.anchor))
	sc := &scanner{source: s.file, pos: start, end: size, buffer: s.mem}
	err := s.replay(sc)
	if s.mem = sc.buffer; cap(s.mem) > maxKeptBuffer {
		s.mem = nil
	}
	switch {
	case err == errTorn:
		return s.checkTail(size)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it got shorter while it was read", ErrReplaced)
	}
	return err
}

// replay applies the records that sc yields, after the anchor.
func (s *Store) replay(sc *scanner) error {
	if n := len(s.anchor); n > 0 {
		if err := sc.need(int64(n)); err != nil {
			return err
		}
		if !bytes.Equal(sc.unread[:n], s.anchor) {
			return fmt.Errorf("%w: not what was read before offset %d", ErrReplaced, s.pos)
		}
		sc.skip(int64(n))
	}
	for records := 1; ; records++ {
		r, err := sc.next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.inTime(records)
		}
		if err != nil {
			return err
		}
		s.applyRecord(r)
	}
}

// checkTimeRecords is after how many records a call looks whether it is over: a file may hold
// more than can be read in its time, such as a sparse one that others have made long.
const checkTimeRecords = 1 << 10

// inTime returns why the call that has the turn is over, if it is, once in a while.
func (s *Store) inTime(records int) error {
	if records%checkTimeRecords != 0 {
		return nil
	}
	if err := s.limit.Err(s.options.Clock); err != nil {
		return fmt.Errorf("reading the file, up to offset %d: %w", s.pos, err)
	}
	return nil
}

// applyRecord applies the record at pos and moves past it. It wakes the calls that waited for it.
// mu is taken for each record, so that no reader waits for a long log.
func (s *Store) applyRecord(r record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.apply(s.engine)
	s.pos += int64(len(r.raw))
	s.anchor = append(s.anchor[:0], r.raw[max(0, len(r.raw)-anchorBytes):]...)
}

// write appends log, which is whole records, at size, the size of the file, and applies
// it. The exclusive lock is held and everything before was read. If the file cannot take
// it all, the part that was written is cut off: no reader has seen it, because it was
// written under this lock.
func (s *Store) write(log []byte, size int64) error {
	if _, err := s.file.WriteAt(log, size); err != nil {
		return errors.Join(err, s.file.Truncate(size))
	}
	sc := &scanner{end: int64(len(log)), unread: log}
	for {
		r, err := sc.next()
		if err != nil {
			return nil
		}
		s.applyRecord(r)
	}
}

func (s *Store) keepLog(log []byte) {
	if cap(log) <= maxKeptBuffer {
		s.log = log[:0]
	}
}

// endsAtRecord reads the log from its beginning to end without applying it and
// reports whether a record ends there.
func (s *Store) endsAtRecord(end int64) (bool, error) {
	sc := &scanner{source: s.file, end: end}
	for records := 1; ; records++ {
		switch _, err := sc.next(); err {
		case nil:
			if err := s.inTime(records); err != nil {
				return false, err
			}
		case io.EOF:
			return true, nil
		case errTorn:
			return false, nil
		default:
			return false, err
		}
	}
}
