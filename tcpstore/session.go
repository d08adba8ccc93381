package tcpstore

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"rallypoint/core/store"
)

// sessionConfig is the configuration that the sessions of a loop share.
type sessionConfig struct {
	normalizeAttemptKeys bool
	maxUnsent            int
	slowAfter            time.Duration
	maxWaitBytes         int64
	counters             *counters
	budget               *budget // of the loop

	// Of the replies that one session collects, only within process and takeOut. They are
	// here because each of many silent sessions would have to hold them.
	parts []part
	size  int // of the parts' values
}

// session is the server's side of one connection without its socket. It parses the input, carries
// out the requests on the engine and collects the replies in out, with large values in parts.
//
// The caller reads into parser.space without any lock; process, takeOut and close
// need the lock that guards the engine. Waits of this session that are ended by
// other sessions append to out under that lock too, and then call woken.
type session struct {
	parser *parser // nil between two messages, if the caller wants it back
	engine *store.Engine
	config *sessionConfig
	out    []byte // without the values of config.parts, which belong between its bytes
	woken  func()

	pending      *wait // newest first
	free         *wait // one, for the next WAIT
	waitingKeys  int
	waitingBytes int
}

// wait is a WAIT or BARRIER that is not answered yet. A connection may have
// several, although stock clients have one.
type wait struct {
	store.Waiter
	session    *session
	prev, next *wait
	keys       int
	bytes      int
}

// process carries out complete requests until there are none left (drained) or the replies have
// reached pause bytes. A refusal ends the session: the caller sends the content of out, as far as
// possible, and closes the connection. noRoom does not: the request has had no effect and will be
// processed again.
func (s *session) process(pause int) (drained bool, err *refusal) {
	for len(s.out)+s.config.size < pause {
		validated := s.parser.validated
		req, err := s.parser.next()
		if s.parser.validated && !validated {
			s.config.counters.ops[opValidate].Add(1)
		}
		if err != nil {
			return false, err
		}
		if req == nil {
			return true, nil
		}
		if req.op == opWait {
			s.releaseHeld()
		}
		err = s.execute(req)
		if req.op != opWait && err != noRoom {
			s.releaseHeld()
		}
		if err != nil {
			if err == noRoom {
				s.parser.again()
			} else {
				s.config.counters.ops[req.op].Add(1)
			}
			return false, err
		}
		s.config.counters.ops[req.op].Add(1)
	}
	return false, nil
}

// takeOut returns the replies collected so far, which from now on belong to the
// caller, and continues collecting in spare. The caller releases the parts' buffers.
func (s *session) takeOut(spare []byte) (out []byte, parts []part) {
	out, parts = s.out, s.config.parts
	s.out, s.config.parts, s.config.size = spare[:0], nil, 0
	return out, parts
}

func (s *session) close() {
	for s.pending != nil {
		w := s.pending
		s.engine.Cancel(&w.Waiter)
		s.forget(w)
	}
	s.releaseHeld()
}

// releaseHeld ends what the last WAIT of this connection holds. A stock client's get is a WAIT and
// a GET, which returns the value even if the key is deleted between the two.
func (s *session) releaseHeld() {
	if s.free != nil {
		s.engine.Release(&s.free.Waiter)
	}
}

// value returns the value of key, empty if there is none. A large one is to be shared, unless
// only this connection has it any more.
func (s *session) value(key []byte) (value []byte, shared bool) {
	value, ok := s.engine.Get(view(key))
	if !ok && s.free != nil {
		value, _ = s.engine.Held(&s.free.Waiter, view(key))
	}
	return value, ok && len(value) >= shareFrom
}

// execute carries out one request (docs/spec/tcpstore-wire.md 4).
func (s *session) execute(req *request) *refusal {
	if s.config.normalizeAttemptKeys {
		req.key = normalizeAttemptKey(req.key)
		for i, key := range req.keys {
			req.keys[i] = normalizeAttemptKey(key)
		}
	}
	key := view(req.key)
	switch req.op {
	case opSet:
		return engineRefusal(req, s.engine.Set(key, req.value))
	case opAppend:
		return engineRefusal(req, s.engine.Append(key, req.value))
	case opMultiSet:
		return engineRefusal(req, s.engine.MultiSet(s.parser.keyNames(), req.values))
	case opQueuePush:
		return engineRefusal(req, s.engine.QueuePush(key, req.value))
	default:
		return s.answer(req, key)
	}
}

func (s *session) answer(req *request, key string) *refusal {
	e := s.engine
	switch req.op {
	case opCompareSet:
		return s.compareSet(req, key)
	case opGet:
		value, share := s.value(req.key) // a missing key reads as an empty value (4.1)
		if share {
			return s.multiGet(req, req.key)
		}
		return s.replyText(req, value)
	case opAdd:
		n, err := e.Add(key, req.number)
		if err != nil {
			return engineRefusal(req, err)
		}
		return s.replyInt(req, n)
	case opCheck:
		keys := s.parser.keyNames()
		return s.replyByte(req, replyNotReady-boolByte(len(keys) == 1 && keys[0] == probeKey || e.Check(keys)))
	case opNumKeys:
		return s.replyInt(req, int64(e.NumKeys()))
	case opDelete:
		return s.replyInt(req, int64(boolByte(e.Delete(key))))
	case opQueueLen:
		return s.replyInt(req, int64(e.QueueLen(key)))
	case opPing:
		if err := s.reserve(req, 4, 0); err != nil {
			return err
		}
		s.out = binary.LittleEndian.AppendUint32(s.out, uint32(req.number))
		return nil
	case opWait:
		return s.wait(req)
	case opBarrier:
		return s.barrier(req)
	case opCancelWait:
		s.close()
		return s.replyByte(req, replyWaitCanceled)
	case opMultiGet:
		return s.multiGet(req, req.keys...)
	case opListKeys:
		return s.listKeys(req)
	case opQueuePop:
		return s.queuePop(req)
	default:
		panic("tcpstore: parser let through opcode " + req.op.String())
	}
}

// multiGet replies with the values of keys. The large ones are shared with all other
// replies that have them.
func (s *session) multiGet(req *request, keys ...[]byte) *refusal {
	size, shared := 0, 0
	for _, key := range keys {
		value, share := s.value(key)
		size += 8
		if share {
			shared += len(value)
		} else {
			size += len(value)
		}
	}
	if err := s.reserve(req, size, shared); err != nil {
		return err
	}
	for _, key := range keys {
		value, share := s.value(key)
		if share {
			s.appendShared(view(key))
		} else {
			s.out = appendText(s.out, value)
		}
	}
	return nil
}

// appendShared appends the value of key, which exists, without copying it.
func (s *session) appendShared(key string) {
	value, buffer := s.engine.Share(key)
	s.out = appendInt(s.out, len(value))
	c := s.config
	c.parts = append(c.parts, part{at: len(s.out), value: value, buffer: buffer})
	c.size += len(value)
}

// compareSet makes sure that there is room for whatever the reply is before it changes
// anything.
func (s *session) compareSet(req *request, key string) *refusal {
	current, _ := s.engine.Get(key)
	size, shared := 8+max(len(current), len(req.expected), len(req.value)), 0
	if size >= 8+shareFrom {
		size, shared = 8, size-8
	}
	if err := s.reserve(req, size, shared); err != nil {
		return err
	}
	value, err := s.engine.CompareSet(key, req.expected, req.value)
	if err != nil {
		return engineRefusal(req, err)
	}
	if _, ok := s.engine.Get(key); ok && len(value) >= shareFrom {
		s.appendShared(key) // it is what the key has now
	} else {
		s.out = appendText(s.out, value)
	}
	return nil
}

func (s *session) listKeys(req *request) *refusal {
	keys := s.engine.Keys()
	size := 8
	for _, key := range keys {
		size += 8 + len(key)
	}
	if err := s.reserve(req, size, 0); err != nil {
		return err
	}
	s.out = appendInt(s.out, len(keys))
	for _, key := range keys {
		s.out = appendText(s.out, key)
	}
	return nil
}

func (s *session) queuePop(req *request) *refusal {
	key := view(req.key)
	if err := s.reserve(req, 16+len(s.engine.QueueHead(key)), 0); err != nil {
		return err
	}
	item, n := s.engine.QueuePop(key)
	s.out = appendInt(s.out, n)
	if n > 0 {
		s.out = appendText(s.out, item)
	}
	return nil
}

func (s *session) wait(req *request) *refusal {
	w := s.newWait()
	if s.engine.Wait(s.parser.keyNames(), &w.Waiter) {
		s.free = w
		return s.replyByte(req, replyStopWaiting)
	}
	for _, key := range req.keys {
		w.bytes += len(key)
	}
	w.keys = len(req.keys)
	return s.remember(req, w)
}

func (s *session) barrier(req *request) *refusal {
	w := s.newWait()
	done, err := s.engine.Barrier(view(req.key), req.number, &w.Waiter)
	if err != nil {
		return engineRefusal(req, err)
	}
	if done {
		s.free = w
		return s.replyByte(req, replyStopWaiting)
	}
	w.keys, w.bytes = 1, len(req.key)
	return s.remember(req, w)
}

// newWait returns a wait that answers when it is woken.
func (s *session) newWait() *wait {
	if w := s.free; w != nil {
		s.free = nil
		return w
	}
	w := &wait{session: s}
	w.Wake, w.Hold = w.answer, true
	return w
}

// answer is called by the engine from within the write that ended the wait.
func (w *wait) answer() {
	s := w.session
	s.forget(w)
	s.out = append(s.out, replyStopWaiting)
	s.woken()
}

// remember keeps a registered wait. The pending waits of one peer together have the limit of one
// request, since it may send WAIT after WAIT without reading. Those of all peers have a limit in
// bytes.
func (s *session) remember(req *request, w *wait) *refusal {
	w.prev, w.next = nil, s.pending
	if w.next != nil {
		w.next.prev = w
	}
	s.pending = w
	s.waitingKeys += w.keys
	s.waitingBytes += w.bytes
	if s.waitingKeys > MaxKeys || s.waitingBytes > MaxRequestBytes {
		return refuse(reasonWaits, "%s: the pending waits name more than %d keys or %d bytes", req.op, MaxKeys, MaxRequestBytes)
	}
	if most := s.config.maxWaitBytes; s.engine.WaitBytes() > most {
		return refuse(reasonWaits, "%s: the pending waits of all connections take more than %d bytes", req.op, most)
	}
	return nil
}

func (s *session) forget(w *wait) {
	if w.prev == nil {
		s.pending = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	s.waitingKeys -= w.keys
	s.waitingBytes -= w.bytes
	w.prev, w.next, w.keys, w.bytes = nil, nil, 0, 0
	s.releaseHeld()
	s.free = w
}

// reserve makes room for a reply of size bytes and of values of shared bytes which are
// not copied. It refuses a reply, before it is made, if the peer leaves too much unread
// or the reply is larger than can be held, and returns noRoom if too much waits to be
// sent to all peers together.
func (s *session) reserve(req *request, size, shared int) *refusal {
	if all := len(s.out) + s.config.size + size + shared; all > s.config.maxUnsent {
		return refuse(reasonUnsent, "%s: %d bytes of replies would be unsent; the limit is %d", req.op, all, s.config.maxUnsent)
	}
	if size+shared > smallReply && !s.config.budget.has(size+shared) {
		return noRoom
	}
	s.out = slices.Grow(s.out, size)
	return nil
}

func (s *session) replyByte(req *request, b byte) *refusal {
	if err := s.reserve(req, 1, 0); err != nil {
		return err
	}
	s.out = append(s.out, b)
	return nil
}

func (s *session) replyInt(req *request, n int64) *refusal {
	if err := s.reserve(req, 8, 0); err != nil {
		return err
	}
	s.out = appendInt(s.out, n)
	return nil
}

func (s *session) replyText(req *request, value []byte) *refusal {
	if err := s.reserve(req, 8+len(value), 0); err != nil {
		return err
	}
	s.out = appendText(s.out, value)
	return nil
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// engineRefusal turns an error of the engine into the end of the connection: the
// protocol has no error replies.
func engineRefusal(req *request, err error) *refusal {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNotNumber):
		return refuse(reasonNumber, "%s: %v", req.op, err)
	default:
		return refuse(reasonQuota, "%s: %v", req.op, err)
	}
}
