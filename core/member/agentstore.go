package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// agentStore is the store of Member.Keys: each call is one request to the control
// plane.
type agentStore struct {
	m      *Member
	round  uint64
	closed chan struct{}
	once   sync.Once
}

var _ store.Store = (*agentStore)(nil)

// popPatience bounds how long a QueuePop whose context has ended waits to learn
// whether it got an item after all, which would be lost otherwise.
const popPatience = time.Second

// Close implements store.Store. The keys stay: they belong to all members.
func (k *agentStore) Close() error {
	k.once.Do(func() { close(k.closed) })
	return nil
}

// Set implements store.Store.
func (k *agentStore) Set(ctx context.Context, key string, value []byte) error {
	_, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeySet, Keys: []string{key}, Values: [][]byte{value}})
	return err
}

// Get implements store.Store.
func (k *agentStore) Get(ctx context.Context, key string) ([]byte, error) {
	return k.value(k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyGet, Keys: []string{key}}))
}

// Add implements store.Store.
func (k *agentStore) Add(ctx context.Context, key string, delta int64) (int64, error) {
	r, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyAdd, Keys: []string{key}, Amount: delta})
	if err == nil && key == rendezvous.ExitBarrierCount {
		k.m.setFinished(k.round)
	}
	return r.Number, err
}

// CompareSet implements store.Store.
func (k *agentStore) CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return k.value(k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyCompareSet, Keys: []string{key}, Values: [][]byte{expected, desired}}))
}

// Append implements store.Store.
func (k *agentStore) Append(ctx context.Context, key string, value []byte) error {
	_, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyAppend, Keys: []string{key}, Values: [][]byte{value}})
	return err
}

// Check implements store.Store.
func (k *agentStore) Check(ctx context.Context, keys []string) (bool, error) {
	r, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyCheck, Keys: keys})
	return r.Ready, err
}

// Wait implements store.Store.
func (k *agentStore) Wait(ctx context.Context, keys []string) error {
	_, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyWait, Keys: keys})
	return err
}

// Delete implements store.Store.
func (k *agentStore) Delete(ctx context.Context, key string) (bool, error) {
	r, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyDelete, Keys: []string{key}})
	return r.Ready, err
}

// NumKeys implements store.Store.
func (k *agentStore) NumKeys(ctx context.Context) (int64, error) {
	r, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyCount})
	return r.Number, err
}

// ListKeys implements store.Store.
func (k *agentStore) ListKeys(ctx context.Context) ([]string, error) {
	r, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyList})
	return r.Keys, err
}

// MultiGet implements store.Store.
func (k *agentStore) MultiGet(ctx context.Context, keys []string) ([][]byte, error) {
	r, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyMultiGet, Keys: keys})
	if err != nil {
		return nil, err
	}
	if len(r.Values) != len(keys) {
		return nil, rendezvous.Errorf(rendezvous.CodeState, "run %q, round %d: %d values for %d keys", k.m.params.RunID, k.round, len(r.Values), len(keys))
	}
	return r.Values, nil
}

// MultiSet implements store.Store.
func (k *agentStore) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if len(keys) != len(values) {
		return store.ErrArguments
	}
	_, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyMultiSet, Keys: keys, Values: values})
	return err
}

// QueuePush implements store.Store.
func (k *agentStore) QueuePush(ctx context.Context, key string, value []byte) error {
	_, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyQueuePush, Keys: []string{key}, Values: [][]byte{value}})
	return err
}

// QueuePop implements store.Store.
func (k *agentStore) QueuePop(ctx context.Context, key string, block bool) ([]byte, error) {
	r := rendezvous.KeyRequest{Op: rendezvous.KeyQueuePop, Keys: []string{key}}
	if block {
		r.Amount = 1
	}
	return k.value(k.do(ctx, r))
}

// QueueLen implements store.Store.
func (k *agentStore) QueueLen(ctx context.Context, key string) (int64, error) {
	r, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyQueueLen, Keys: []string{key}})
	return r.Number, err
}

// Barrier implements store.Store.
func (k *agentStore) Barrier(ctx context.Context, key string, worldSize int64) error {
	_, err := k.do(ctx, rendezvous.KeyRequest{Op: rendezvous.KeyBarrier, Keys: []string{key}, Amount: worldSize})
	return err
}

// do carries out one request. The plane may send it again after this call has
// returned, so that it is given copies.
func (k *agentStore) do(ctx context.Context, r rendezvous.KeyRequest) (rendezvous.KeyResult, error) {
	select {
	case <-k.closed:
		return rendezvous.KeyResult{}, store.ErrClosed
	default:
	}
	if err := store.ContextError(ctx); err != nil {
		return rendezvous.KeyResult{}, err
	}
	switch {
	case k.m.isStopped():
		return rendezvous.KeyResult{}, store.ErrClosed
	case k.round == 0 || k.m.lastRound() == 0:
		return rendezvous.KeyResult{}, rendezvous.Errorf(rendezvous.CodeRoundOver, "%s: it has not been in round %d", k.m.subject(), k.round)
	}
	r.Round = k.round
	r.Keys = slices.Clone(r.Keys)
	r.Values = slices.Clone(r.Values)
	for i, v := range r.Values {
		r.Values[i] = append([]byte{}, v...)
	}
	var orphaned <-chan struct{}
	if ofExitBarrier(r) {
		orphaned, _ = k.m.hostLost()
	}
	call := k.m.control.Start(r)
	select {
	case <-call.Done:
	default:
		select {
		case <-call.Done:
		case <-orphaned:
			k.m.setFinished(k.round)
			return k.m.leaveBarrier(r), nil
		case <-ctx.Done():
			if !k.cancel(call, r) {
				return rendezvous.KeyResult{}, fmt.Errorf("%s, round %d: %v %s at %s: %w",
					k.m.subject(), k.round, r.Op, namedKeys(r.Keys), k.m.endpoint(), store.ContextError(ctx))
			}
		case <-k.closed:
			if !k.cancel(call, r) {
				return rendezvous.KeyResult{}, store.ErrClosed
			}
		case <-k.m.work.Done():
			if !k.cancel(call, r) {
				return rendezvous.KeyResult{}, store.ErrClosed
			}
		}
	}
	if call.Err != nil {
		return rendezvous.KeyResult{}, storeError(call.Err)
	}
	result, ok := call.Result.(rendezvous.KeyResult)
	if !ok {
		return rendezvous.KeyResult{}, rendezvous.Errorf(rendezvous.CodeState, "%s: the control plane at %s answered a request for keys with %T", k.m.subject(), k.m.endpoint(), call.Result)
	}
	return result, nil
}

// namedKeys lists keys for people, a few of many.
func namedKeys(keys []string) string {
	const most = 4
	if len(keys) > most {
		return fmt.Sprintf("%.100q and %d more", keys[:most], len(keys)-most)
	}
	return fmt.Sprintf("%.100q", keys)
}

// cancel takes back a request whose caller is gone and reports whether it had
// been carried out before.
func (k *agentStore) cancel(call *Call, r rendezvous.KeyRequest) (done bool) {
	switch r.Op {
	case rendezvous.KeyGet, rendezvous.KeyMultiGet, rendezvous.KeyWait, rendezvous.KeyBarrier:
		k.m.control.Start(rendezvous.KeyRequest{Round: k.round, Op: rendezvous.KeyCancelWait, Amount: int64(call.Number)})
	case rendezvous.KeyQueuePop:
		back := k.m.control.Start(rendezvous.KeyRequest{Round: k.round, Op: rendezvous.KeyCancelWait, Amount: int64(call.Number)})
		ctx, stop := k.m.withTimeout(context.Background(), popPatience)
		defer stop()
		if k.m.outage() == nil {
			_, _ = back.Wait(ctx)
		}
	}
	select {
	case <-call.Done:
		return rendezvous.CodeOf(call.Err) != rendezvous.CodeCanceled
	default:
		return false
	}
}

// value returns the one value of a result.
func (k *agentStore) value(r rendezvous.KeyResult, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if len(r.Values) != 1 {
		return nil, rendezvous.Errorf(rendezvous.CodeState, "run %q, round %d: %d values where there must be one", k.m.params.RunID, k.round, len(r.Values))
	}
	if r.Values[0] == nil {
		return []byte{}, nil
	}
	return r.Values[0], nil
}

// keysError is an error of the control plane that is one of store's sentinels,
// too.
type keysError struct {
	error
	kind error
}

func (e keysError) Unwrap() []error { return []error{e.error, e.kind} }

// storeError lets an error match the sentinels that store.Store promises.
func storeError(err error) error {
	var own *rendezvous.Error
	if !errors.As(err, &own) {
		return err
	}
	switch own.Code {
	case rendezvous.CodeNumber:
		return keysError{err, store.ErrNotNumber}
	case rendezvous.CodeEmpty:
		return keysError{err, store.ErrQueueEmpty}
	case rendezvous.CodeTooLarge:
		return keysError{err, store.ErrTooLarge}
	case rendezvous.CodeConnection:
		return keysError{err, store.ErrConnection}
	case rendezvous.CodeCanceled:
		return keysError{err, store.ErrClosed}
	}
	return err
}
