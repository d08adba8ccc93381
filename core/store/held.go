package store

// maxHeld and maxHeldBytes bound what a waiter, and what all of them, hold of deleted keys. Beyond
// them a key is just gone.
const (
	maxHeld      = 1024
	maxHeldBytes = 64 << 20
	keptHeld     = 16 // places that a waiter keeps for the next time
)

// hold makes w a holder of a key, which may be nil.
func (e *Engine) hold(w *Waiter, en *entry) {
	if en == nil || len(w.held) >= maxHeld {
		return
	}
	if w.held == nil {
		w.held = w.one[:0]
	}
	w.held = append(w.held, en)
	en.holders++
}

// keepHeld keeps the value of a deleted key for its holders, if there are any.
func (e *Engine) keepHeld(en *entry) {
	size := int64(len(en.value))
	if en.deleted = en.holders > 0 && e.heldBytes+size <= maxHeldBytes; en.deleted {
		e.heldBytes += size
	} else {
		en.value, en.buffer = nil, nil
	}
}

// Held returns what Get returned for key before it was deleted, if w holds it. The value has the
// life of Get's, and w has to be released first.
func (e *Engine) Held(w *Waiter, key string) (value []byte, ok bool) {
	for _, en := range w.held {
		if en.deleted && en.key == key {
			value, ok = en.value, true
		}
	}
	return value, ok
}

// Release ends what w holds.
func (e *Engine) Release(w *Waiter) {
	for _, en := range w.held {
		if en.holders--; en.holders == 0 && en.deleted {
			e.heldBytes -= int64(len(en.value))
		}
	}
	clear(w.held)
	if w.held = w.held[:0]; cap(w.held) > keptHeld {
		w.held = nil
	}
}
