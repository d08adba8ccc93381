package tcpstore

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unsafe"
)

// Sizes of a parser's memory.
const (
	// firstBuffer holds every request that a stock client sends in one piece
	// (docs/spec/tcpstore-wire.md 6: sends of about 1440 bytes).
	firstBuffer = 4 << 10

	// leastBuffer is the size of the buffer for a message of which only a few bytes have arrived:
	// ten thousand peers may stop there.
	leastBuffer = 1 << 10

	// minRead is the least room offered to a read, so that a nearly full buffer
	// does not make for reads of a few bytes.
	minRead = 512

	// keptBuffer and keptFields bound the memory an idle parser keeps after a
	// large request. A value of 64 KiB fits in with its request.
	keptBuffer = 128 << 10
	keptFields = 1024
)

// request is one complete request. Which fields are set follows from op. The
// slices are views of the parser's buffer, good until the parser gets more bytes.
type request struct {
	op       opcode
	key      []byte
	expected []byte // COMPARE_SET
	value    []byte // SET, APPEND, QUEUE_PUSH; COMPARE_SET: desired
	number   int64  // ADD: delta, BARRIER: world size, PING: nonce
	keys     [][]byte
	values   [][]byte // MULTI_SET
}

// span is a field's place in the message; MaxRequestBytes fits into 32 bits.
type span struct{ offset, length uint32 }

// parser cuts a byte stream into requests. Bytes go in through space and
// received, requests come out of next; how the stream was split makes no
// difference. It holds at most one incomplete message, and its buffer grows only
// as bytes really arrive, never by a length that the peer declares.
//
// The first message has to be VALIDATE and is checked byte by byte, so that
// nothing is ever collected for a peer of another kind.
type parser struct {
	buf       []byte // received and not yet given up
	start     int    // of the message that is being parsed
	last      int    // start of the one before
	pos       int    // of the next byte to look at
	validated bool

	// Progress within the message, so that each byte is looked at once however
	// the message is split.
	inside  bool
	op      opcode
	field   int // index in the operation's fields
	counted bool
	left    uint64 // elements of a list still to come, once counted
	sized   bool
	size    int // length of the string at pos, once sized
	number  int64
	spans   []span

	req   request
	names []string // memory of keyNames
	err   *refusal
}

// reset readies a parser for another stream, at the start or, if validated, at
// the start of a later message.
func (p *parser) reset(validated bool) {
	p.buf, p.spans, p.start, p.pos, p.validated = p.buf[:0], p.spans[:0], 0, 0, validated
	p.inside, p.field, p.counted, p.sized, p.number, p.err = false, 0, false, false, 0, nil
}

// moveTo moves the rest of the stream, with the progress made in it, to another
// parser, and leaves this one to be reset. It invalidates the last request.
func (p *parser) moveTo(to *parser) {
	rest, spans := p.buf[p.start:], p.spans
	to.reset(p.validated)
	if cap(to.buf) < len(rest)+minRead {
		to.buf = make([]byte, 0, leastBuffer<<bits.Len(uint(len(rest)/leastBuffer)))
	}
	to.buf, to.spans = append(to.buf, rest...), append(to.spans, spans...)
	to.pos = p.pos - p.start
	to.inside, to.op, to.field, to.counted, to.left = p.inside, p.op, p.field, p.counted, p.left
	to.sized, to.size, to.number, to.err = p.sized, p.size, p.number, p.err
}

// space returns memory to read into; received tells how much of it was filled.
// It invalidates the last request.
func (p *parser) space() []byte {
	if p.start > 0 {
		n := copy(p.buf, p.buf[p.start:])
		p.buf = p.buf[:n]
		p.pos -= p.start
		p.start = 0
	}
	switch {
	case len(p.buf) == 0 && (cap(p.buf) == 0 || cap(p.buf) > keptBuffer):
		p.buf = make([]byte, 0, firstBuffer)
	case cap(p.buf)-len(p.buf) < minRead:
		p.buf = slices.Grow(p.buf, max(minRead, len(p.buf)))
	}
	return p.buf[len(p.buf):cap(p.buf)]
}

// received adds the first n bytes of the memory that space returned to the stream.
func (p *parser) received(n int) {
	p.buf = p.buf[:len(p.buf)+n]
}

// partial reports whether the stream stops inside a message.
func (p *parser) partial() bool { return p.start < len(p.buf) }

// next returns the next complete request, or nil if it needs more bytes. After
// an error it returns only that.
func (p *parser) next() (*request, *refusal) {
	if p.err != nil {
		return nil, p.err
	}
	if !p.validated {
		if done, err := p.validate(); err != nil || !done {
			p.err = err
			return nil, err
		}
	}
	complete, err := p.message()
	if err != nil {
		p.err = err
		return nil, err
	}
	if !complete {
		return nil, nil
	}
	p.finish()
	return &p.req, nil
}

// validate checks the first message as far as it has arrived and consumes it
// (docs/spec/tcpstore-wire.md 3).
func (p *parser) validate() (done bool, err *refusal) {
	const supported = "this port speaks the TCPStore protocol of torch 2.2 and newer; torch 2.1 and older is not supported"
	want := appendHello(nil)
	for i := p.pos; i < len(p.buf) && i < len(want); i++ {
		switch {
		case p.buf[i] == want[i]:
		case i == 0:
			return false, refuse(reasonDialect, "the first byte is 0x%02x, not VALIDATE: %s", p.buf[0], supported)
		default:
			return false, refuse(reasonDialect, "VALIDATE with a wrong magic number: %s", supported)
		}
	}
	if len(p.buf) < len(want) {
		return false, nil
	}
	p.validated = true
	p.start, p.pos = len(want), len(want)
	return true, nil
}

// message parses more of the current message and reports whether it is complete.
func (p *parser) message() (complete bool, err *refusal) {
	if !p.inside {
		if p.pos == len(p.buf) {
			return false, nil
		}
		p.op = opcode(p.buf[p.pos])
		if p.op >= numOpcodes {
			return false, refuse(reasonOpcode, "unknown opcode 0x%02x", byte(p.op))
		}
		if p.op == opValidate {
			return false, refuse(reasonOpcode, "VALIDATE on a validated connection")
		}
		p.pos++
		p.inside = true
	}
	fields := operations[p.op].fields
	for p.field < len(fields) {
		done, err := p.argument(fields[p.field])
		if err != nil || !done {
			return false, err
		}
		p.field++
	}
	return true, nil
}

// argument parses more of one field and reports whether it is complete.
func (p *parser) argument(f field) (done bool, err *refusal) {
	switch f {
	case fieldUint32:
		if len(p.buf)-p.pos < 4 {
			return false, nil
		}
		p.number = int64(binary.LittleEndian.Uint32(p.buf[p.pos:]))
		p.pos += 4
		return true, nil
	case fieldInt64:
		n, ok := p.uint64()
		p.number = int64(n)
		return ok, nil
	case fieldKey:
		return p.text(MaxKeyBytes, "key")
	case fieldValue:
		return p.text(MaxValueBytes, "value")
	default:
		return p.list(f == fieldPairs)
	}
}

// list parses more of a counted list of keys, or of pairs of key and value.
func (p *parser) list(pairs bool) (done bool, err *refusal) {
	if !p.counted {
		n, ok := p.uint64()
		if !ok {
			return false, nil
		}
		if n > MaxKeys {
			return false, refuse(reasonTooLarge, "%s with %d keys; the limit is %d", p.op, n, MaxKeys)
		}
		p.counted, p.left = true, n
		if pairs {
			p.left = 2 * n
		}
	}
	for ; p.left > 0; p.left-- {
		limit, what := MaxKeyBytes, "key"
		if pairs && p.left%2 == 1 {
			limit, what = MaxValueBytes, "value"
		}
		if done, err := p.text(limit, what); err != nil || !done {
			return false, err
		}
	}
	p.counted = false
	return true, nil
}

// text parses more of a string of at most limit bytes. The length is refused as
// soon as it is read.
func (p *parser) text(limit int, what string) (done bool, err *refusal) {
	if !p.sized {
		n, ok := p.uint64()
		if !ok {
			return false, nil
		}
		if n > uint64(limit) {
			return false, refuse(reasonTooLarge, "%s with a %s of %d bytes; the limit is %d", p.op, what, n, limit)
		}
		if total := p.pos - p.start + int(n); total > MaxRequestBytes {
			return false, refuse(reasonTooLarge, "%s of more than %d bytes", p.op, MaxRequestBytes)
		}
		p.sized, p.size = true, int(n)
	}
	if len(p.buf)-p.pos < p.size {
		return false, nil
	}
	p.spans = append(p.spans, span{uint32(p.pos - p.start), uint32(p.size)})
	p.pos += p.size
	p.sized = false
	return true, nil
}

// uint64 consumes eight bytes if they have arrived.
func (p *parser) uint64() (n uint64, ok bool) {
	if len(p.buf)-p.pos < 8 {
		return 0, false
	}
	n = binary.LittleEndian.Uint64(p.buf[p.pos:])
	p.pos += 8
	return n, true
}

// keyNames returns the keys of the last request as strings that share their
// memory and are good until the parser gets more bytes.
func (p *parser) keyNames() []string {
	if cap(p.names) > keptFields {
		p.names = nil
	}
	p.names = p.names[:0]
	for _, key := range p.req.keys {
		p.names = append(p.names, view(key))
	}
	return p.names
}

// finish turns the complete message into p.req and gets ready for the next.
func (p *parser) finish() {
	r := &p.req
	keys, values := r.keys[:0], r.values[:0]
	if cap(keys) > keptFields {
		keys, values = nil, nil
	}
	*r = request{op: p.op, number: p.number}
	next := 0
	take := func() []byte {
		s := p.spans[next]
		next++
		from, to := p.start+int(s.offset), p.start+int(s.offset+s.length)
		return p.buf[from:to:to]
	}
	for i, f := range operations[p.op].fields {
		switch f {
		case fieldKey:
			r.key = take()
		case fieldValue:
			if p.op == opCompareSet && i == 1 {
				r.expected = take()
			} else {
				r.value = take()
			}
		case fieldKeys, fieldPairs:
			for next < len(p.spans) {
				keys = append(keys, take())
				if f == fieldPairs {
					values = append(values, take())
				}
			}
		}
	}
	r.keys, r.values = keys, values
	p.spans = p.spans[:0]
	if cap(p.spans) > 2*keptFields {
		p.spans = nil
	}
	p.last, p.start, p.inside, p.field, p.number = p.start, p.pos, false, 0, 0
}

// again makes the request that next has just returned the next one once more.
func (p *parser) again() { p.start, p.pos = p.last, p.last }

// view returns b as a string that shares its memory. The engine copies the keys
// it keeps, so none of them outlives b.
func view(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
