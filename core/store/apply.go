package store

import (
	"bytes"
	"slices"
)

// Apply carries out a request as far as it goes at once. If it has to wait, Apply registers w and
// returns done false. Once w is woken, a Wait and a Barrier are complete, and the caller applies
// any other request again. Without w nothing is registered, and a Barrier, which would count its
// caller, changes nothing. The lists of r must fit its operation, and the values in the reply
// belong to the caller. The Number in the reply to a QueuePop is that of the items before it.
func (e *Engine) Apply(r Request, w *Waiter) (reply Reply, done bool, err error) {
	done = true
	switch r.Op {
	case OpSet:
		err = e.Set(r.Keys[0], r.Values[0])
	case OpGet, OpMultiGet:
		if reply.Values, done = e.values(r.Keys); !done && w != nil {
			e.WaitKeys(r.Keys, w)
		}
	case OpAdd:
		reply.Number, err = e.Add(r.Keys[0], r.Number)
	case OpCompareSet:
		var value []byte
		value, err = e.CompareSet(r.Keys[0], r.Values[0], r.Values[1])
		reply.Values = [][]byte{copyOf(value)}
	case OpAppend:
		err = e.Append(r.Keys[0], r.Values[0])
	case OpCheck:
		reply.Ready = e.Check(r.Keys)
	case OpWait:
		if done = e.Check(r.Keys); !done && w != nil {
			e.Wait(r.Keys, w)
		}
		reply.Ready = done
	case OpDelete:
		reply.Ready = e.Delete(r.Keys[0])
	case OpNumKeys:
		reply.Number = int64(e.NumKeys())
	case OpListKeys:
		reply.Keys = e.Keys()
	case OpMultiSet:
		err = e.MultiSet(r.Keys, r.Values)
	case OpQueuePush:
		err = e.QueuePush(r.Keys[0], r.Values[0])
	case OpQueuePop:
		return e.applyPop(r, w)
	case OpQueueLen:
		reply.Number = int64(e.QueueLen(r.Keys[0]))
	case OpBarrier:
		if done = w != nil; done {
			done, err = e.Barrier(r.Keys[0], r.Number, w)
			reply.Ready = done
			done = done || err != nil
		}
	}
	return reply, done, err
}

func (e *Engine) applyPop(r Request, w *Waiter) (reply Reply, done bool, err error) {
	item, before := e.QueuePop(r.Keys[0])
	switch {
	case before > 0:
		return Reply{Values: [][]byte{item}, Number: int64(before)}, true, nil
	case !r.Block:
		return Reply{}, true, ErrQueueEmpty
	case w != nil:
		e.waitQueue(r.Keys[0], w)
	}
	return Reply{}, false, nil
}

// values returns copies of the values of keys, if all of them exist.
func (e *Engine) values(keys []string) (values [][]byte, complete bool) {
	for _, key := range keys {
		if _, ok := e.Get(key); !ok {
			return nil, false
		}
	}
	values = slices.Grow(values, len(keys))
	for _, key := range keys {
		value, _ := e.Get(key)
		values = append(values, copyOf(value))
	}
	return values, true
}

// copyOf returns a copy of value that is never nil, so that an empty value is not
// mistaken for none.
func copyOf(value []byte) []byte {
	if len(value) == 0 {
		return []byte{}
	}
	return bytes.Clone(value)
}
