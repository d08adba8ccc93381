package filelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"rallypoint/internal/lockedfile"
)

// A file log's file is a row of frames:
//
//	u32 length of the body | u32 CRC-32C of the body | body
//	body := u8 kind | u64 index | payload
//
// in little endian. The first frame is a header. A snapshot may follow, then come the entries.
// The last frame is a mark if the log continues in another file.
type frameKind byte

const (
	frameHeader   frameKind = iota + 1 // payload: logHeader
	frameSnapshot                      // what all entries up to index amount to
	frameEntry                         // entry number index
	frameMoved                         // the log continues in the next file, after entry number index
)

const (
	frameHeadBytes = 8
	bodyHeadBytes  = 9
)

// frame is one frame; its payload is a view of the reader's memory.
type frame struct {
	kind    frameKind
	index   uint64
	payload []byte
}

// castagnoli is made when it is needed first: the library is loaded for other
// things, too.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

func appendFrame(b []byte, kind frameKind, index uint64, payload []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(bodyHeadBytes+len(payload)))
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, byte(kind))
	b = binary.LittleEndian.AppendUint64(b, index)
	b = append(b, payload...)
	binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[at+4:], castagnoli()))
	return b
}

// errBadFrame is the error for complete bytes that are not a frame.
var errBadFrame = errors.New("not a frame")

// frameScanner reads frames from a part of a file in order.
type frameScanner struct{ lockedfile.Scanner }

// next returns the frame at the scanner's position and moves past it. It
// returns io.EOF at the end, ErrTorn if the frame is not complete, errBadFrame if
// it is complete and wrong, and the file's errors otherwise; then it stays where
// it is. The frame is good until the next call.
func (f *frameScanner) next() (frame, error) {
	if f.Pos == f.End {
		return frame{}, io.EOF
	}
	if err := f.Need(frameHeadBytes); err != nil {
		return frame{}, err
	}
	size := int64(binary.LittleEndian.Uint32(f.Unread))
	sum := binary.LittleEndian.Uint32(f.Unread[4:])
	if err := f.Need(frameHeadBytes + size); err != nil {
		return frame{}, err
	}
	body := f.Unread[frameHeadBytes : frameHeadBytes+size]
	if size < bodyHeadBytes || crc32.Checksum(body, castagnoli()) != sum {
		return frame{}, errBadFrame
	}
	f.Skip(frameHeadBytes + size)
	return frame{frameKind(body[0]), binary.LittleEndian.Uint64(body[1:]), body[bodyHeadBytes:]}, nil
}

// logHeader identifies a file.
type logHeader struct {
	runID      string
	generation string
	seq        uint64
}

const logMagic = "rallypoint file log"

// logVersion is the version of the frames and of the directory.
const logVersion = 1

func (l logHeader) encode() []byte {
	return fmt.Appendf(nil, "%s %d\n%q\n%q\n%d\n", logMagic, logVersion, l.runID, l.generation, l.seq)
}

func decodeHeader(b []byte) (h logHeader, err error) {
	var magic [3]string
	var version int
	if _, err = fmt.Sscanf(string(b), "%s %s %s %d\n%q\n%q\n%d\n", &magic[0], &magic[1], &magic[2], &version, &h.runID, &h.generation, &h.seq); err != nil {
		return h, fmt.Errorf("%w: no header of a log: %w", lockedfile.ErrForeign, err)
	}
	if got := magic[0] + " " + magic[1] + " " + magic[2]; got != logMagic {
		return h, fmt.Errorf("%w: it begins with %q", lockedfile.ErrForeign, got)
	}
	if version != logVersion {
		return h, fmt.Errorf("%w: version %d of the format, this release knows %d", lockedfile.ErrForeign, version, logVersion)
	}
	return h, nil
}
