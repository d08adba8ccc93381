package store

// The approximate memory of a key with its entry, an item in a queue, and a queue, in addition to
// their bytes.
const (
	entryCost = 160
	itemCost  = 48
	queueCost = 192
)

// Memory returns about how much memory the keys, queues and waits take. It costs no time
// that grows with them.
func (e *Engine) Memory() int64 {
	return e.bytes + entryCost*int64(len(e.keys)) + itemCost*int64(e.items) + queueCost*int64(len(e.queues)) + e.waitBytes
}

// ReplyBytes returns how many bytes of keys and values the reply has that Apply would
// return, without making it; 0 if r would have to wait.
func (e *Engine) ReplyBytes(r Request) (size int64) {
	switch r.Op {
	case OpGet, OpMultiGet:
		for _, key := range r.Keys {
			value, ok := e.Get(key)
			if !ok {
				return 0
			}
			size += int64(len(value))
		}
	case OpCompareSet:
		size = int64(len(r.Values[0]))
		if value, ok := e.Get(r.Keys[0]); ok {
			size = int64(len(value))
		}
		size = max(size, int64(len(r.Values[1])))
	case OpListKeys:
		for key := range e.keys {
			size += int64(len(key))
		}
	case OpQueuePop:
		size = int64(len(e.QueueHead(r.Keys[0])))
	}
	return size
}
