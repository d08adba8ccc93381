package store

import (
	"context"
	"fmt"
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

// Doer carries out requests. A Store that is one mostly has its methods from Methods.
type Doer interface {
	// Do carries out a request as the Store's method of that name.
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
	return Reply{}, func(ctx context.Context) (Reply, error) { return Do(ctx, s, r) }, nil
}

// Do carries out a request on a store.
func Do(ctx context.Context, s Store, r Request) (reply Reply, err error) {
	if d, ok := s.(Doer); ok {
		return d.Do(ctx, r)
	}
	switch r.Op {
	case OpSet:
		err = s.Set(ctx, r.Keys[0], r.Values[0])
	case OpGet:
		return oneValue(s.Get(ctx, r.Keys[0]))
	case OpAdd:
		reply.Number, err = s.Add(ctx, r.Keys[0], r.Number)
	case OpCompareSet:
		return oneValue(s.CompareSet(ctx, r.Keys[0], r.Values[0], r.Values[1]))
	case OpAppend:
		err = s.Append(ctx, r.Keys[0], r.Values[0])
	case OpCheck:
		reply.Ready, err = s.Check(ctx, r.Keys)
	case OpWait:
		err = s.Wait(ctx, r.Keys)
	case OpDelete:
		reply.Ready, err = s.Delete(ctx, r.Keys[0])
	case OpNumKeys:
		reply.Number, err = s.NumKeys(ctx)
	case OpListKeys:
		reply.Keys, err = s.ListKeys(ctx)
	case OpMultiGet:
		reply.Values, err = s.MultiGet(ctx, r.Keys)
	case OpMultiSet:
		err = s.MultiSet(ctx, r.Keys, r.Values)
	case OpQueuePush:
		err = s.QueuePush(ctx, r.Keys[0], r.Values[0])
	case OpQueuePop:
		return oneValue(s.QueuePop(ctx, r.Keys[0], r.Block))
	case OpQueueLen:
		reply.Number, err = s.QueueLen(ctx, r.Keys[0])
	case OpBarrier:
		err = s.Barrier(ctx, r.Keys[0], r.Number)
	}
	return reply, err
}

func oneValue(value []byte, err error) (Reply, error) {
	if err != nil {
		return Reply{}, err
	}
	return Reply{Values: [][]byte{value}}, nil
}
