package tcpstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/backoff"
)

// call is one request of a client to its server on the main connection, and its result.
type call struct {
	name   string // of the Store's operation
	op     opcode
	keys   []string
	values [][]byte
	number int64

	// again: it changes nothing, and so may be sent a second time.
	again bool

	// guarded: it first asks whether all keys exist. If they do not, which it notes as missing,
	// the call does nothing else.
	guarded, missing bool

	// doubtful: an empty value that the server has sent may be that of a key deleted since.
	doubtful bool

	// read reads the reply. Nil means that the request has none; one that has is
	// then sent along, so that the call still ends by a reply.
	read  func(input, *call) error
	reply store.Reply

	lease
}

// lease is a call's use of the main connection, which it keeps from the sending of its request
// until the reply.
type lease struct {
	start   time.Time // of the call
	reused  bool      // the connection is one of an earlier call
	checked bool      // the keys of a guarded call are known to exist
	sent    bool      // the request was
}

// first describes, for each operation, the first request that it makes on the main connection.
// A Barrier makes none there.
var first = [store.OpBarrier + 1]call{
	store.OpSet:        {op: opSet},
	store.OpGet:        {op: opGet, guarded: true, read: readValue},
	store.OpAdd:        {op: opAdd, read: readNumber},
	store.OpCompareSet: {op: opCompareSet, read: readValue},
	store.OpAppend:     {op: opAppend},
	store.OpCheck:      {op: opCheck, read: readReady},
	store.OpWait:       {op: opCheck, read: readReady},
	store.OpDelete:     {op: opDelete, read: readExisted},
	store.OpNumKeys:    {op: opNumKeys, read: readNumber},
	store.OpListKeys:   {op: opListKeys, read: readKeys},
	store.OpMultiGet:   {op: opMultiGet, guarded: true, read: readValues},
	store.OpMultiSet:   {op: opMultiSet},
	store.OpQueuePush:  {op: opQueuePush},
	store.OpQueuePop:   {op: opQueuePop, read: readItem},
	store.OpQueueLen:   {op: opQueueLen, read: readNumber},
}

func firstCall(r store.Request) *call {
	what := first[r.Op]
	what.name, what.keys, what.values, what.number = r.Op.String(), r.Keys, r.Values, r.Number
	what.again = r.Op.Reads()
	return &what
}

func (c *call) size() int {
	size := 1 + 8 + 8 // opcode, count, number: not all of them in each
	for _, key := range c.keys {
		size += 8 + 1 + len(key)
	}
	for _, value := range c.values {
		size += 8 + len(value)
	}
	return size
}

// encode returns the request, with room for an acknowledgement after it.
func (c *call) encode() []byte {
	const ack = 16
	return c.append(make([]byte, 0, c.size()+ack))
}

// append appends the request. A COMPARE_SET of several keys is one request for each.
func (c *call) append(b []byte) []byte {
	if c.op == opCompareSet && len(c.keys) > 1 {
		for i := range c.keys {
			one := call{op: c.op, keys: c.keys[i : i+1], values: c.values}
			b = one.append(b)
		}
		return b
	}
	b = append(b, byte(c.op))
	key, value := 0, 0
	for _, f := range operations[c.op].fields {
		switch f {
		case fieldInt64:
			b = appendInt(b, c.number)
		case fieldKey:
			b = appendKey(b, c.keys[key])
			key++
		case fieldValue:
			b = appendText(b, c.values[value])
			value++
		case fieldKeys, fieldPairs:
			b = appendInt(b, len(c.keys))
			for i, key := range c.keys {
				b = appendKey(b, key)
				if f == fieldPairs {
					b = appendText(b, c.values[i])
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

func readNumber(in input, w *call) (err error) {
	w.reply.Number, err = readInt(in)
	return err
}

func readReady(in input, w *call) error {
	b, err := in.ReadByte()
	w.reply.Ready = err == nil && b == replyReady
	return err
}

func readExisted(in input, w *call) error {
	n, err := readInt(in)
	w.reply.Ready = n > 0
	return err
}

func readValue(in input, w *call) error {
	value, err := readText(in)
	w.reply.Values = [][]byte{value}
	return err
}

func readValues(in input, w *call) error {
	w.reply.Values = nil // of an earlier reading
	for range w.keys {
		value, err := readText(in)
		if err != nil {
			return err
		}
		w.reply.Values = append(w.reply.Values, value)
	}
	return nil
}

// readItem reads an item of a queue, with the number of items before the pop.
func readItem(in input, w *call) (err error) {
	if w.reply.Number, err = readInt(in); err != nil || w.reply.Number <= 0 {
		return err
	}
	return readValue(in, w)
}

// readKeys leaves out wire keys without the "/" that clients put in front, as torch's client.
func readKeys(in input, w *call) error {
	w.reply.Keys = []string{}
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
			w.reply.Keys = append(w.reply.Keys, string(key[1:]))
		}
	}
	return nil
}

// Do implements store.Doer.
func (c *Client) Do(ctx context.Context, r store.Request) (store.Reply, error) {
	what := firstCall(r)
	if r.Op == store.OpBarrier {
		what.op = opBarrier
		return store.Reply{Ready: true}, c.block(ctx, what)
	}
	if err := c.exchange(ctx, what, time.Time{}); err != nil {
		return store.Reply{}, err
	}
	return c.complete(ctx, r, what)
}

// TryDo implements store.Trier. It waits for a reply on the thread of its caller.
func (c *Client) TryDo(ctx context.Context, r store.Request, patience time.Duration) (store.Reply, store.Pending, error) {
	if r.Op == store.OpBarrier { // which counts its caller, and then waits
		return store.Reply{}, func(ctx context.Context) (store.Reply, error) { return c.Do(ctx, r) }, nil
	}
	what := firstCall(r)
	until := time.Now().Add(patience)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	err := c.exchange(ctx, what, until)
	switch {
	case err == errWouldBlock:
		return store.Reply{}, func(ctx context.Context) (store.Reply, error) {
			if err := c.exchange(ctx, what, time.Time{}); err != nil {
				return store.Reply{}, err
			}
			return c.complete(ctx, r, what)
		}, nil
	case err == nil && what.mustWait(r):
		return store.Reply{}, func(ctx context.Context) (store.Reply, error) { return c.complete(ctx, r, what) }, nil
	case err != nil:
		return store.Reply{}, nil, err
	}
	reply, err := c.complete(ctx, r, what)
	return reply, nil, err
}

// mustWait reports whether, by the reply to its first request, an operation has to wait.
func (c *call) mustWait(r store.Request) bool {
	switch r.Op {
	case store.OpGet, store.OpMultiGet:
		return c.missing || c.doubtful
	case store.OpWait:
		return !c.reply.Ready
	case store.OpQueuePop:
		return c.reply.Number <= 0 && r.Block
	}
	return false
}

// complete carries out the rest of an operation after the reply to its first request.
func (c *Client) complete(ctx context.Context, r store.Request, what *call) (store.Reply, error) {
	if r.Op == store.OpQueuePop && what.reply.Number <= 0 {
		if r.Block {
			return c.awaitItem(ctx, r)
		}
		return store.Reply{}, c.failed(ctx, what, what.start, store.ErrQueueEmpty)
	}
	for what.mustWait(r) {
		if what.doubtful {
			if err := c.dispel(ctx, what); err != nil || !what.missing {
				return what.reply, err
			}
		}
		if err := c.block(ctx, &call{name: what.name, op: opWait, keys: what.keys}); err != nil || r.Op == store.OpWait {
			return store.Reply{Ready: true}, err
		}
		what = firstCall(r)
		if err := c.exchange(ctx, what, time.Time{}); err != nil {
			return store.Reply{}, err
		}
	}
	return what.reply, nil
}

// dispel ends the doubt about the empty values of a call: their keys exist, or are missing. It
// asks our server, which wakes no waiter for that, by a COMPARE_SET whose expected value nobody
// stores: the reply is that value if there is no such key (docs/spec/tcpstore-wire.md 4.2).
func (c *Client) dispel(ctx context.Context, what *call) error {
	nobodys := []byte(rand.Text())
	ask := func(places []int) error {
		again := &call{name: what.name, op: opCompareSet, values: [][]byte{nobodys, nobodys}, again: true, read: readValues}
		for _, i := range places {
			again.keys = append(again.keys, what.keys[i])
		}
		if err := c.exchange(ctx, again, time.Time{}); err != nil {
			return err
		}
		for n, value := range again.reply.Values {
			what.reply.Values[places[n]] = value
			what.missing = what.missing || bytes.Equal(value, nobodys)
		}
		return nil
	}
	var places []int
	size := 0
	for i, value := range what.reply.Values {
		if len(value) > 0 {
			continue
		}
		one := call{keys: what.keys[i : i+1], values: [][]byte{nobodys, nobodys}}
		if size += one.size(); size > maxInline && len(places) > 0 {
			if err := ask(places); err != nil {
				return err
			}
			places, size = nil, one.size()
		}
		places = append(places, i)
	}
	return ask(places)
}

// Pauses of a QueuePop that was woken in vain: by a key of the queue's name, or
// because another client was quicker.
const (
	firstPopPause = time.Millisecond
	lastPopPause  = 100 * time.Millisecond
)

// awaitItem pops an item from a queue that was found empty.
func (c *Client) awaitItem(ctx context.Context, r store.Request) (store.Reply, error) {
	start := time.Now()
	pause := backoff.New(firstPopPause, lastPopPause)
	for {
		if err := c.block(ctx, &call{name: r.Op.String(), op: opWait, keys: r.Keys}); err != nil {
			return store.Reply{}, err
		}
		what := firstCall(r)
		if err := c.popWoken(ctx, what); err != nil || what.reply.Number > 0 {
			return what.reply, err
		}
		if !pause.Wait(ctx) {
			return store.Reply{}, c.failed(ctx, what, start, store.ContextError(ctx))
		}
	}
}

// popWoken pops after a wait that a push has ended. That push woke no other call,
// so the item is fetched even if ctx has ended meanwhile.
func (c *Client) popWoken(ctx context.Context, what *call) error {
	if ctx.Err() == nil {
		return c.exchange(ctx, what, time.Time{})
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cancelGrace)
	defer cancel()
	if err := c.exchange(late, what, time.Time{}); err != nil || what.reply.Number > 0 {
		return err
	}
	return c.failed(ctx, what, time.Now(), store.ContextError(ctx))
}

// exchange carries out the call over l, from where its lease says that it is. With until set
// it returns errWouldBlock if the reply has not come by then.
func (c *call) exchange(ctx context.Context, l *link, until time.Time) error {
	read := func(in input) error { return c.read(in, c) }
	if c.read == nil {
		read = nil
	}
	if !c.guarded {
		return l.exchange(ctx, c.encode(), read, &c.sent, until)
	}
	check := call{op: opCheck, keys: c.keys}
	present := func(in input) error {
		err := readReady(in, &check)
		c.missing = !check.reply.Ready
		return err
	}
	if l.missingOK {
		return l.exchange(ctx, c.append(check.append(make([]byte, 0, 2*c.size()))), func(in input) error {
			if err := present(in); err != nil {
				return err
			}
			err := read(in)
			c.doubtful = !c.missing && slices.ContainsFunc(c.reply.Values, func(v []byte) bool { return len(v) == 0 })
			return err
		}, &c.sent, until)
	}
	if !c.checked {
		if err := l.exchange(ctx, check.encode(), present, &c.sent, until); err != nil || c.missing {
			return err
		}
		c.checked, c.sent = true, false
	}
	return l.exchange(ctx, c.encode(), read, &c.sent, until)
}
