package filestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"rallypoint/internal/lockedfile"
)

// The incomplete end of a log: see the package's comment for what is done about
// it and why that is safe.

// tornKeyMax is the largest plausible key in an incomplete record. In a file that is not a
// FileStore's, the first length is mostly larger.
const tornKeyMax = 1<<16 - 1

// coverBytes is the size of a record with the key "-" and no value.
const coverBytes = lengthBytes + len(deletePrefix) + lengthBytes

// tail is the part of the file after the last complete record: the bytes from pos to end.
type tail struct {
	file     io.ReaderAt
	pos, end int64
}

func (t tail) len() int64 { return t.end - t.pos }

// head returns the first bytes of the tail, at most n of them.
func (t tail) head(n int64) ([]byte, error) {
	b := make([]byte, min(n, t.len()))
	_, err := t.file.ReadAt(b, t.pos)
	return b, err
}

// looksLikeRecord reports whether the tail can be the beginning of a record that some
// FileStore wrote.
func (t tail) looksLikeRecord() (bool, error) {
	b, err := t.head(lengthBytes + int64(max(len(refcountKey), len(cleanupKey))))
	if err != nil {
		return false, err
	}
	var length [lengthBytes]byte // missing bytes count as 0
	copy(length[:], b)
	size := int64(binary.LittleEndian.Uint32(length[:]))
	if size > tornKeyMax {
		return false, nil
	}
	if len(b) <= lengthBytes {
		return true, nil
	}
	key := b[lengthBytes:]
	return looksLikeKey(key[:min(int64(len(key)), size)]), nil
}

// looksLikeKey reports whether a stored key of a FileStore can begin with key.
func looksLikeKey(key []byte) bool {
	for _, known := range []string{keyPrefix, deletePrefix, refcountKey, cleanupKey} {
		n := min(len(key), len(known))
		if string(key[:n]) == known[:n] {
			return true
		}
	}
	return false
}

type span struct{ from, to int64 }

// salvage returns the complete records in the tail that were written after the incomplete one, by
// processes that did not look. They are searched where the writer of the incomplete one, which
// makes a write for each part of a record, may have ended. Another incomplete record may follow
// them. Without any, the span is empty and at the end of the tail.
func (t tail) salvage() (span, error) {
	none := span{t.end, t.end}
	b, err := t.head(lengthBytes)
	if err != nil || len(b) < lengthBytes {
		return none, err
	}
	key := t.pos + lengthBytes
	value := key + int64(binary.LittleEndian.Uint32(b)) + lengthBytes
	for _, from := range []int64{key, value} {
		if from >= t.end {
			break
		}
		to, err := t.chain(from)
		if err != nil {
			return none, err
		}
		if to > from {
			return span{from, to}, nil
		}
	}
	return none, nil
}

// chain returns where the complete records end that begin at from, if they are
// those of a FileStore and the next bytes can be the beginning of another.
// Else it returns from.
func (t tail) chain(from int64) (int64, error) {
	sc := &scanner{source: t.file, pos: from, end: t.end}
	for {
		r, err := sc.next()
		switch {
		case err == io.EOF:
			return sc.pos, nil
		case err == errTorn:
			rest := tail{file: t.file, pos: sc.pos, end: t.end}
			if ok, err := rest.looksLikeRecord(); err != nil || !ok {
				return from, err
			}
			return sc.pos, nil
		case err != nil:
			return from, err
		case len(r.key) == 0 || !looksLikeKey(r.key):
			return from, nil
		}
	}
}

// checkTail returns nil if the tail after pos is a torn record, from which reading can continue,
// else ErrForeign.
func (s *Store) checkTail(size int64) error {
	t := tail{file: s.file, pos: s.pos, end: size}
	ok, err := t.looksLikeRecord()
	if err != nil || ok {
		return err
	}
	kept, err := t.salvage()
	if err != nil || kept.from < kept.to {
		return err
	}
	return fmt.Errorf("%w: no record at offset %d", ErrForeign, s.pos)
}

// repair covers the torn record after pos with one that means nothing, and reads on, until nothing
// torn is left. It returns the size of the file after that. The exclusive lock is held and refresh
// has come as far as it could.
func (s *Store) repair(size int64) (int64, error) {
	// It must overwrite no process's record: the position that this
	// store remembers is not enough to go by.
	whole, err := s.endsAtRecord(s.pos)
	if err != nil {
		return 0, err
	}
	if !whole {
		return 0, fmt.Errorf("%w: no record ends at offset %d any more", ErrReplaced, s.pos)
	}
	for s.pos != size {
		t := tail{file: s.file, pos: s.pos, end: size}
		if err := s.overwriteTorn(t); err != nil {
			return 0, err
		}
		if size, err = s.file.Size(); err != nil {
			return 0, err
		}
		if err := s.refreshLocked(size); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// overwriteTorn covers the incomplete record at the beginning of t, up to the complete records
// after it if there are any. The cover is one write of nine bytes, which a kill can cut only where
// they lie on two pages.
func (s *Store) overwriteTorn(t tail) error {
	kept, err := t.salvage()
	if err != nil {
		return err
	}
	to := kept.from
	if to < t.end && to-t.pos < int64(coverBytes) {
		// No room for a cover before them: they are copied to the end first, and
		// then covered together with the torn one.
		if err := t.copyToEnd(s.file, kept); err != nil {
			return err
		}
		to = t.end
	}
	cover, err := t.cover(to)
	if err != nil {
		return err
	}
	_, err = s.file.WriteAt(cover, t.pos)
	return err
}

func (t tail) copyToEnd(f *lockedfile.File, part span) error {
	b := make([]byte, part.to-part.from)
	if _, err := f.ReadAt(b, part.from); err != nil {
		return err
	}
	if _, err := f.WriteAt(b, t.end); err != nil {
		return errors.Join(err, f.Truncate(t.end)) // no reader has seen it, as in write
	}
	return nil
}

// cover returns the first bytes of a record that takes the place of everything
// up to to: the key "-" and, as its value, the present bytes. A tail that is shorter
// than that gets longer.
func (t tail) cover(to int64) ([]byte, error) {
	rest := max(0, to-t.pos-int64(coverBytes))
	if rest > maxField {
		return nil, fmt.Errorf("%w: incomplete record of %d bytes at offset %d", ErrForeign, t.len(), t.pos)
	}
	cover, err := appendRecord(make([]byte, 0, coverBytes), deletePrefix, nil)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(cover[coverBytes-lengthBytes:], uint32(rest))
	return cover, nil
}
