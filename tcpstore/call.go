package tcpstore

import (
	"context"
	"errors"
	"time"

	"rallypoint/core/store"
)

// call is one request of a client: what it says and what is known about it.
type call struct {
	name   string // of the Store's method
	op     opcode
	keys   []string
	values [][]byte
	number int64

	// again: it changes nothing, and so may be sent a second time.
	again bool

	// present, if it is set, tells whether all keys exist. If they do not, the call does
	// nothing else.
	present *bool

	// read takes the reply. Nil means that the request has none; one that has is
	// then sent along, so that the call still ends by a reply.
	read func(input) error
}

// size returns the length of the request on the wire.
func (w *call) size() int {
	size := 1 + 8 + 8 // opcode, count, number: not all of them in each
	for _, key := range w.keys {
		size += 8 + 1 + len(key)
	}
	for _, value := range w.values {
		size += 8 + len(value)
	}
	return size
}

// encode returns the request, with room for a receipt behind it.
func (w *call) encode() []byte {
	const receipt = 16
	return w.append(make([]byte, 0, w.size()+receipt))
}

// append appends the request.
func (w *call) append(b []byte) []byte {
	b = append(b, byte(w.op))
	key, value := 0, 0
	for _, f := range operations[w.op].fields {
		switch f {
		case fieldInt64:
			b = appendInt(b, w.number)
		case fieldKey:
			b = appendKey(b, w.keys[key])
			key++
		case fieldValue:
			b = appendText(b, w.values[value])
			value++
		case fieldKeys, fieldPairs:
			b = appendInt(b, len(w.keys))
			for i, key := range w.keys {
				b = appendKey(b, key)
				if f == fieldPairs {
					b = appendText(b, w.values[i])
				}
			}
		}
	}
	return b
}

// appendKey appends a key with the "/" that clients put in front
// (docs/spec/tcpstore-wire.md 5).
func appendKey(dst []byte, key string) []byte {
	return append(append(appendInt(dst, 1+len(key)), '/'), key...)
}

// Readers of replies.

func intReply(n *int64) func(input) error {
	return func(in input) (err error) {
		*n, err = readInt(in)
		return err
	}
}

func checkReply(ready *bool) func(input) error {
	return func(in input) error {
		b, err := in.ReadByte()
		*ready = b == replyReady
		return err
	}
}

func textReply(text *[]byte) func(input) error {
	return func(in input) (err error) {
		*text, err = readText(in)
		return err
	}
}

func textsReply(texts *[][]byte, n int) func(input) error {
	return func(in input) error {
		*texts = nil // of an earlier attempt
		for range n {
			text, err := readText(in)
			if err != nil {
				return err
			}
			*texts = append(*texts, text)
		}
		return nil
	}
}

// Set implements store.Store.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	return c.do(ctx, call{name: "set", op: opSet, keys: []string{key}, values: [][]byte{value}})
}

// Get implements store.Store. A key that is deleted at the very moment it is read
// reads as an empty value, for the protocol does not tell the two apart.
func (c *Client) Get(ctx context.Context, key string) (value []byte, err error) {
	err = c.fetch(ctx, call{name: "get", op: opGet, keys: []string{key}, again: true, read: textReply(&value)})
	if err != nil {
		return nil, err
	}
	return value, nil
}

// Add implements store.Store. A value that is no number shows as ErrConnection,
// for the server has no other way to say so.
func (c *Client) Add(ctx context.Context, key string, delta int64) (n int64, err error) {
	err = c.do(ctx, call{name: "add", op: opAdd, keys: []string{key}, number: delta, read: intReply(&n)})
	return n, err
}

// CompareSet implements store.Store.
func (c *Client) CompareSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = c.do(ctx, call{name: "compare_set", op: opCompareSet, keys: []string{key},
		values: [][]byte{expected, desired}, read: textReply(&value)})
	return value, err
}

// Append implements store.Store.
func (c *Client) Append(ctx context.Context, key string, value []byte) error {
	return c.do(ctx, call{name: "append", op: opAppend, keys: []string{key}, values: [][]byte{value}})
}

// Check implements store.Store.
func (c *Client) Check(ctx context.Context, keys []string) (bool, error) {
	return c.check(ctx, "check", keys)
}

// Wait implements store.Store.
func (c *Client) Wait(ctx context.Context, keys []string) error {
	return c.wait(ctx, "wait", keys)
}

// Delete implements store.Store.
func (c *Client) Delete(ctx context.Context, key string) (bool, error) {
	var n int64
	err := c.do(ctx, call{name: "delete_key", op: opDelete, keys: []string{key}, read: intReply(&n)})
	return n > 0, err
}

// NumKeys implements store.Store. It counts all clients' keys, including the one
// that torch's clients count themselves with.
func (c *Client) NumKeys(ctx context.Context) (n int64, err error) {
	err = c.do(ctx, call{name: "num_keys", op: opNumKeys, again: true, read: intReply(&n)})
	return n, err
}

// ListKeys implements store.Store. Wire keys without the "/" that clients put in
// front are left out, as by torch's client.
func (c *Client) ListKeys(ctx context.Context) (keys []string, err error) {
	read := func(in input) error {
		keys = []string{}
		n, err := readInt(in)
		if err != nil {
			return err
		}
		for range n {
			key, err := readText(in)
			if err != nil {
				return err
			}
			if len(key) > 0 && key[0] == '/' {
				keys = append(keys, string(key[1:]))
			}
		}
		return nil
	}
	err = c.do(ctx, call{name: "list_keys", op: opListKeys, again: true, read: read})
	return keys, err
}

// MultiGet implements store.Store. A key that is deleted at the very moment it is
// read reads as an empty value.
func (c *Client) MultiGet(ctx context.Context, keys []string) (values [][]byte, err error) {
	err = c.fetch(ctx, call{name: "multi_get", op: opMultiGet, keys: keys, again: true, read: textsReply(&values, len(keys))})
	if err != nil {
		return nil, err
	}
	return values, nil
}

// MultiSet implements store.Store. All pairs together are bounded by
// MaxRequestBytes, and the server takes them as one.
func (c *Client) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	what := call{name: "multi_set", op: opMultiSet, keys: keys, values: values}
	if len(keys) != len(values) {
		return c.failed(ctx, what, time.Now(), store.ErrArguments)
	}
	return c.do(ctx, what)
}

// QueuePush implements store.Store.
func (c *Client) QueuePush(ctx context.Context, key string, value []byte) error {
	return c.do(ctx, call{name: "queue_push", op: opQueuePush, keys: []string{key}, values: [][]byte{value}})
}

// Pauses of a QueuePop that was woken in vain: by a key of the queue's name, or
// because another client was quicker.
const (
	firstPopPause = time.Millisecond
	lastPopPause  = 100 * time.Millisecond
)

// QueuePop implements store.Store.
func (c *Client) QueuePop(ctx context.Context, key string, block bool) ([]byte, error) {
	start, pause := time.Now(), firstPopPause
	item, err := c.pop(ctx, key)
	for block && errors.Is(err, store.ErrQueueEmpty) {
		if err := c.block(ctx, call{name: "queue_pop", op: opWait, keys: []string{key}}); err != nil {
			return nil, err
		}
		item, err = c.popWoken(ctx, key)
		if !errors.Is(err, store.ErrQueueEmpty) {
			break
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, c.failed(ctx, call{name: "queue_pop", keys: []string{key}}, start, err)
		}
		pause = min(2*pause, lastPopPause)
	}
	return item, err
}

// popWoken is pop after a wait that a push has ended. That push woke nobody else,
// so the item is fetched even if ctx has ended meanwhile.
func (c *Client) popWoken(ctx context.Context, key string) ([]byte, error) {
	if ctx.Err() == nil {
		return c.pop(ctx, key)
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cancelGrace)
	defer cancel()
	item, err := c.pop(late, key)
	if errors.Is(err, store.ErrQueueEmpty) {
		return nil, c.failed(ctx, call{name: "queue_pop", keys: []string{key}}, time.Now(), store.ContextError(ctx))
	}
	return item, err
}

// pop takes the oldest item, if there is one.
func (c *Client) pop(ctx context.Context, key string) (item []byte, err error) {
	what := call{name: "queue_pop", op: opQueuePop, keys: []string{key}}
	n := int64(0)
	what.read = func(in input) (err error) {
		if n, err = readInt(in); err != nil || n <= 0 {
			return err
		}
		item, err = readText(in)
		return err
	}
	start := time.Now()
	if err := c.do(ctx, what); err != nil {
		return nil, err
	}
	if n <= 0 {
		return nil, c.failed(ctx, what, start, store.ErrQueueEmpty)
	}
	return item, nil
}

// QueueLen implements store.Store.
func (c *Client) QueueLen(ctx context.Context, key string) (n int64, err error) {
	err = c.do(ctx, call{name: "queue_len", op: opQueueLen, keys: []string{key}, again: true, read: intReply(&n)})
	return n, err
}

// Barrier implements store.Store. It meets the barriers of torch's TCPStore, not
// those of its PrefixStore; store.Prefix over a Client is for these.
func (c *Client) Barrier(ctx context.Context, key string, worldSize int64) error {
	return c.block(ctx, call{name: "barrier", op: opBarrier, keys: []string{key}, number: worldSize})
}

// check asks whether keys exist, on behalf of the method of that name.
func (c *Client) check(ctx context.Context, name string, keys []string) (ready bool, err error) {
	err = c.do(ctx, call{name: name, op: opCheck, keys: keys, again: true, read: checkReply(&ready)})
	return ready && err == nil, err
}

// wait waits until keys exist, on behalf of the method of that name. Keys that
// are there already cost no connection of their own.
func (c *Client) wait(ctx context.Context, name string, keys []string) error {
	ready, err := c.check(ctx, name, keys)
	if err != nil || ready {
		return err
	}
	return c.block(ctx, call{name: name, op: opWait, keys: keys})
}

// fetch carries out a call that reads keys, as soon as all of them exist.
func (c *Client) fetch(ctx context.Context, what call) error {
	present := false
	first := what
	first.present = &present
	if err := c.do(ctx, first); err != nil || present {
		return err
	}
	if err := c.block(ctx, call{name: what.name, op: opWait, keys: what.keys}); err != nil {
		return err
	}
	return c.do(ctx, what)
}

// exchange carries out the call over l, from where t says that it is.
func (w *call) exchange(ctx context.Context, l *link, t *turn) error {
	if w.present == nil {
		return l.exchange(ctx, w.encode(), w.read, &t.sent)
	}
	check := call{op: opCheck, keys: w.keys}
	present := checkReply(w.present)
	if l.lenient {
		return l.exchange(ctx, w.append(check.append(make([]byte, 0, 2*w.size()))), func(in input) error {
			if err := present(in); err != nil {
				return err
			}
			return w.read(in)
		}, &t.sent)
	}
	if !t.checked {
		if err := l.exchange(ctx, check.encode(), present, &t.sent); err != nil || !*w.present {
			return err
		}
		t.checked, t.sent = true, false
	}
	*w.present = true
	return l.exchange(ctx, w.encode(), w.read, &t.sent)
}
