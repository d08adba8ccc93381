package store

import "sync/atomic"

// Buffer is the memory of a value that Engine.Share has given to readers. Its address
// identifies that memory for as long as one of them has it.
type Buffer struct{ readers atomic.Int32 }

// Release ends one reader's use. Unlike the engine's methods it needs no lock.
func (b *Buffer) Release() { b.readers.Add(-1) }

// Share returns the value of key, which must exist, without copying it. The caller may
// read it, whatever is written to the engine meanwhile, until it releases the buffer:
// once for each Share.
func (e *Engine) Share(key string) ([]byte, *Buffer) {
	en := e.keys[key]
	if en.buffer == nil {
		en.buffer = &Buffer{}
	}
	en.buffer.readers.Add(1)
	return en.value[:len(en.value):cap(en.value)], en.buffer
}
