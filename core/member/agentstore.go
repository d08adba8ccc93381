package member

import (
	"context"
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
	store.Methods

	m      *Member
	round  uint64
	closed chan struct{}
	once   sync.Once
}

var _ store.Store = (*agentStore)(nil)

func newAgentStore(m *Member, round uint64) *agentStore {
	k := &agentStore{m: m, round: round, closed: make(chan struct{})}
	k.Methods = store.MethodsOf(k)
	return k
}

// popPatience bounds how long a QueuePop whose context has ended waits to learn
// whether it got an item after all, which would be lost otherwise.
const popPatience = time.Second

// Close implements store.Store. The keys stay: they belong to all members.
func (a *agentStore) Close() error {
	a.once.Do(func() { close(a.closed) })
	return nil
}

// Do implements store.Doer.
func (a *agentStore) Do(ctx context.Context, r store.Request) (store.Reply, error) {
	if r.Op == store.OpMultiSet && len(r.Keys) != len(r.Values) {
		return store.Reply{}, store.ErrArguments
	}
	request := rendezvous.KeyRequest{Op: r.Op, Keys: r.Keys, Values: r.Values, Amount: r.Number}
	if r.Block {
		request.Amount = 1
	}
	result, err := a.do(ctx, request)
	if err != nil {
		return store.Reply{}, err
	}
	switch r.Op {
	case store.OpGet, store.OpCompareSet, store.OpQueuePop, store.OpMultiGet:
		want := 1
		if r.Op == store.OpMultiGet {
			want = len(r.Keys)
		}
		if len(result.Values) != want {
			return store.Reply{}, rendezvous.Errorf(rendezvous.CodeState, "run %q, round %d: %v was answered by %d values, not %d", a.m.params.RunID, a.round, r.Op, len(result.Values), want)
		}
		for i, value := range result.Values {
			if value == nil {
				result.Values[i] = []byte{} // none would be no value
			}
		}
	case store.OpAdd:
		if r.Keys[0] == rendezvous.ExitBarrierCount {
			a.m.setFinished(a.round)
		}
	}
	return store.Reply(result), nil
}

// do carries out one request. The control plane may send it again after this call has
// returned, so that it is given copies.
func (a *agentStore) do(ctx context.Context, r rendezvous.KeyRequest) (rendezvous.KeyResult, error) {
	if isClosed(a.closed) {
		return rendezvous.KeyResult{}, store.ErrClosed
	}
	if err := store.ContextError(ctx); err != nil {
		return rendezvous.KeyResult{}, err
	}
	switch {
	case a.m.isStopped():
		return rendezvous.KeyResult{}, store.ErrClosed
	case a.round == 0 || a.m.lastRound() == 0:
		return rendezvous.KeyResult{}, rendezvous.Errorf(rendezvous.CodeRoundOver, "%s: it has not been in round %d", a.m.subject(), a.round)
	}
	r.Round = a.round
	r.Keys = slices.Clone(r.Keys)
	r.Values = slices.Clone(r.Values)
	for i, v := range r.Values {
		r.Values[i] = append([]byte{}, v...)
	}
	var orphaned <-chan struct{}
	if ofExitBarrier(r) {
		orphaned, _ = a.m.hostLost()
	}
	call := a.m.control.Start(r)
	var gaveUp error
	if !isClosed(call.Done) {
		select {
		case <-call.Done:
		case <-orphaned:
			a.m.setFinished(a.round)
			return a.m.leaveBarrier(r), nil
		case <-ctx.Done():
			gaveUp = fmt.Errorf("%s, round %d: %v %s at %s: %w",
				a.m.subject(), a.round, r.Op, namedKeys(r.Keys), a.m.endpoint(), store.ContextError(ctx))
		case <-a.closed:
			gaveUp = store.ErrClosed
		case <-a.m.work.Done():
			gaveUp = store.ErrClosed
		}
	}
	if gaveUp != nil && !a.cancel(call, r) {
		return rendezvous.KeyResult{}, gaveUp
	}
	if call.Err != nil {
		return rendezvous.KeyResult{}, storeError(call.Err)
	}
	result, ok := call.Result.(rendezvous.KeyResult)
	if !ok {
		return rendezvous.KeyResult{}, rendezvous.Errorf(rendezvous.CodeState, "%s: the control plane at %s answered a request for keys with %T", a.m.subject(), a.m.endpoint(), call.Result)
	}
	return result, nil
}

func namedKeys(keys []string) string {
	const most = 4
	if len(keys) > most {
		return fmt.Sprintf("%.100q and %d more", keys[:most], len(keys)-most)
	}
	return fmt.Sprintf("%.100q", keys)
}

// cancel cancels a request whose caller is gone and reports whether it had
// been carried out before.
func (a *agentStore) cancel(call *Call, r rendezvous.KeyRequest) (done bool) {
	switch r.Op {
	case store.OpGet, store.OpMultiGet, store.OpWait, store.OpBarrier:
		a.m.control.Start(rendezvous.KeyRequest{Round: a.round, Op: store.OpCancelWait, Amount: int64(call.Number)})
	case store.OpQueuePop:
		back := a.m.control.Start(rendezvous.KeyRequest{Round: a.round, Op: store.OpCancelWait, Amount: int64(call.Number)})
		ctx, stop := a.m.withTimeout(context.Background(), popPatience)
		defer stop()
		if a.m.outage() == nil {
			_, _ = back.Wait(ctx)
		}
	}
	return isClosed(call.Done) && rendezvous.CodeOf(call.Err) != rendezvous.CodeCanceled
}

// keysError is an error of the control plane that is one of store's sentinels,
// too.
type keysError struct {
	error
	kind error
}

func (e keysError) Unwrap() []error { return []error{e.error, e.kind} }

// storeError lets an error match the sentinels that store.Store documents.
func storeError(err error) error {
	switch rendezvous.CodeOf(err) {
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
