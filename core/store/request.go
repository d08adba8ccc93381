package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Op is an operation of a Store. The numbers are those of the C ABI and of the agents' keys
// in the control plane's formats: they are append-only.
type Op int

// The operations.
const (
	OpSet Op = iota + 1
	OpGet
	OpAdd
	OpCompareSet
	OpAppend
	OpCheck
	OpWait
	OpDelete
	OpNumKeys
	OpListKeys
	OpMultiGet
	OpMultiSet
	OpQueuePush
	OpQueuePop
	OpQueueLen
	OpBarrier

	// OpCancelWait is no method of a Store: by it a node cancels a wait for the agents' keys.
	OpCancelWait

	numOps
)

var opNames = [numOps]string{
	OpSet: "set", OpGet: "get", OpAdd: "add", OpCompareSet: "compare_set", OpAppend: "append", OpCheck: "check",
	OpWait: "wait", OpDelete: "delete_key", OpNumKeys: "num_keys", OpListKeys: "list_keys", OpMultiGet: "multi_get",
	OpMultiSet: "multi_set", OpQueuePush: "queue_push", OpQueuePop: "queue_pop", OpQueueLen: "queue_len",
	OpBarrier: "barrier", OpCancelWait: "cancel wait",
}

// String is the operation's name in PyTorch.
func (o Op) String() string {
	if o >= 1 && o < numOps {
		return opNames[o]
	}
	return fmt.Sprintf("store operation %d", int(o))
}

// Reads reports whether the operation changes nothing. It may still have to wait.
func (o Op) Reads() bool {
	switch o {
	case OpGet, OpMultiGet, OpCheck, OpWait, OpNumKeys, OpListKeys, OpQueueLen:
		return true
	}
	return false
}

// Request is one call of a Store's method.
type Request struct {
	Op     Op
	Keys   []string // one, or those of Check, Wait, MultiGet and MultiSet
	Values [][]byte // one of Set, Append and QueuePush, expected and desired of CompareSet, those of MultiSet
	Number int64    // delta of Add, world size of Barrier
	Block  bool     // of QueuePop
}

// Reply is the result of a Store's method.
type Reply struct {
	Values [][]byte // one of Get, CompareSet and QueuePop; MultiGet's
	Keys   []string // of ListKeys
	Number int64    // of Add, NumKeys and QueueLen
	Ready  bool     // of Check, and whether Delete removed a key
}

// Doer carries out requests.
type Doer interface {
	// Do carries out a request as the Store's method of that name. The lists of r must fit its
	// operation, except that those of a MultiSet may differ in length.
	Do(ctx context.Context, r Request) (Reply, error)
}

// Trier is a Store for callers that must return soon: it does what is possible at once.
type Trier interface {
	// TryDo waits only for the answer of a server and for the connection to it, for about
	// patience at most. Meanwhile it blocks the thread and does not notice the end of ctx. If
	// that time is not enough, pending is not nil: the request was not started or waits for its
	// answer, and the caller must call pending.
	TryDo(ctx context.Context, r Request, patience time.Duration) (reply Reply, pending Pending, err error)
}

// Pending completes a request that TryDo has not, and waits as calls do. It must be called
// once, also with a context that has ended: other calls may wait for the connection it holds.
type Pending func(ctx context.Context) (Reply, error)

// TryDo is the store's own, if it is a Trier. For other stores the whole request is pending.
func TryDo(ctx context.Context, s Store, r Request, patience time.Duration) (Reply, Pending, error) {
	if t, ok := s.(Trier); ok {
		return t.TryDo(ctx, r, patience)
	}
	return Reply{}, func(ctx context.Context) (Reply, error) { return s.Do(ctx, r) }, nil
}

// Update returns what an Add, a CompareSet or an Append makes of the value of its key, and its reply:
// for stores that write whole values. write is false if the value stays as it is. The results share no
// memory with value and r.
func (r Request) Update(value []byte, exists bool) (next []byte, write bool, reply Reply, err error) {
	switch r.Op {
	case OpAdd:
		sum := r.Number
		if exists {
			old, err := ParseNumber(value)
			if err != nil {
				return nil, false, Reply{}, err
			}
			sum += old
		}
		return strconv.AppendInt(nil, sum, 10), true, Reply{Number: sum}, nil
	case OpCompareSet:
		expected, desired := r.Values[0], r.Values[1]
		switch {
		case !exists && len(expected) > 0:
			return nil, false, Reply{Values: [][]byte{copyOf(expected)}}, nil
		case exists && !bytes.Equal(value, expected):
			return nil, false, Reply{Values: [][]byte{copyOf(value)}}, nil
		}
		return copyOf(desired), true, Reply{Values: [][]byte{copyOf(desired)}}, nil
	case OpAppend:
		return slices.Concat(value, r.Values[0]), true, Reply{}, nil
	}
	panic("store: no value is updated by a " + r.Op.String())
}
