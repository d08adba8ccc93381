package etcdstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/printable"
)

// Store is a [store.Store] in etcd. Keys lie as they are under the prefix and "/k/", values as
// they are; any number of processes may share a prefix.
//
// Every operation is applied exactly once, also when the member it was sent to
// dies before it answers, and when what was sent first gets through long after it
// was sent again: a transaction writes its token to an idempotency slot (behind "/o/",
// one key a client and operation under way, overwritten by the next one, gone with the
// client) and does nothing if the slot holds that token or a later one, or is gone.
//
// With Config.TTL all keys of this Store hang on a lease that it renews while it
// is open; they vanish TTL after it was closed or killed. Without it they stay.
type Store struct {
	store.Methods

	client     *etcdclient.Client
	prefix     string // of the keys, with "/k/"
	slotPrefix string // of this client's idempotency slots
	lease      int64  // 0: none

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done sync.WaitGroup // renewing

	mu        sync.Mutex
	freeSlots []idempotencySlot
	slotsMade int
	lastToken uint64
}

var _ store.Store = (*Store)(nil)

// Config says which cluster a store is in and how it is reached. The zero value of a
// field is its default.
type Config = etcdclient.Config

// Open reaches the etcd and makes a Store. It tries until ctx or config.Timeout
// ends, and returns at once what no repetition would help: rendezvous.ErrInvalid
// for settings that etcd refuses, certificates, users; else
// rendezvous.ErrConnection. The error says where, for how long, why and what to do.
func Open(ctx context.Context, config Config) (*Store, error) {
	c, err := etcdclient.New(config)
	if err != nil {
		return nil, err
	}
	s := &Store{client: c, prefix: config.Prefix + "/k/", slotPrefix: config.Prefix + "/o/" + rand.Text() + "/"}
	s.Methods = store.MethodsOf(s)
	s.ctx, s.stop = context.WithCancel(context.Background())
	if config.TTL > 0 {
		s.lease, err = c.Grant(ctx, config.TTL)
	} else {
		_, err = c.Get(ctx, "connecting", s.prefix, clientv3.WithCountOnly())
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	if s.lease != 0 {
		s.done.Add(1)
		go s.renew(config.TTL / 3)
	}
	return s, nil
}

// renew keeps the lease alive until Close, or until it is gone.
func (s *Store) renew(every time.Duration) {
	defer s.done.Done()
	t := time.NewTicker(max(every, 100*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		if err := s.client.KeepAlive(s.ctx, s.lease); err != nil && s.ctx.Err() == nil {
			s.client.Config.Log().Warn("the lease of the keys was not renewed", "error", err)
			if errors.Is(err, etcdclient.ErrLeaseGone) {
				return
			}
		}
	}
}

// Close implements store.Store. The keys stay, or go TTL later.
func (s *Store) Close() error {
	select {
	case <-s.ctx.Done():
		return nil
	default:
	}
	s.stop()
	s.done.Wait()
	s.mu.Lock()
	used := s.slotsMade
	s.mu.Unlock()
	if used > 0 { // without the tokens of what may be under way still, which no client repeats
		ctx, cancel := context.WithTimeout(context.Background(), etcdclient.FirstAttempt)
		_ = s.client.Attempt(ctx, etcdclient.FirstAttempt, func(ctx context.Context) error {
			_, err := s.client.Etcd.Delete(ctx, s.slotPrefix, clientv3.WithPrefix())
			return err
		})
		cancel()
	}
	s.client.Close()
	return nil
}

// Do implements store.Doer. The context of an operation also ends with Close.
func (s *Store) Do(ctx context.Context, r store.Request) (reply store.Reply, err error) {
	if r.Op == store.OpBarrier {
		return store.Reply{}, store.GenericBarrier(ctx, s, r.Keys[0], r.Number)
	}
	began := time.Now()
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(store.ErrClosed) })()
	err = ctx.Err()
	switch {
	case s.ctx.Err() != nil:
		err = store.ErrClosed
	case err == nil:
		reply, err = s.perform(inner, r)
	}
	switch {
	case err == nil:
		return reply, nil
	case errors.Is(err, store.ErrClosed), errors.Is(context.Cause(inner), store.ErrClosed):
		err = store.ErrClosed
	case errors.Is(err, etcdclient.ErrLeaseGone):
		err = rendezvous.Errorf(rendezvous.CodeState, "the lease of the keys has run out: this process was stopped, or cut off, for longer than the ttl of %v", s.client.Config.TTL)
	case ctx.Err() != nil && !etcdclient.IsFinal(err):
		err = overdue(ctx, began, r.Keys, err)
	}
	first := ""
	if len(r.Keys) > 0 {
		first = r.Keys[0]
	}
	return store.Reply{}, fmt.Errorf("store at etcd %s: %v%s: %w", s.client.Config.Where(), r.Op, store.Names(first), err)
}

// overdue is the error of an operation whose context has ended, after it had come to err.
func overdue(ctx context.Context, began time.Time, keys []string, err error) error {
	deadline, _ := ctx.Deadline()
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	text := fmt.Sprintf("wait timeout after %dms", deadline.Sub(began).Round(time.Millisecond).Milliseconds())
	for i, key := range keys {
		switch i {
		case 0:
			text += ", keys: "
		case keysToName:
			return timedOut{fmt.Sprintf("%s and %d more", text, len(keys)-i)}
		default:
			text += ", "
		}
		text += printable.Text(key)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		text += "; " + err.Error()
	}
	return timedOut{text}
}

const keysToName = 8

// timedOut is store.ErrTimeout in the words of torch's stores.
type timedOut struct{ text string }

func (t timedOut) Error() string { return t.text }

func (t timedOut) Is(target error) bool {
	return target == store.ErrTimeout || target == context.DeadlineExceeded
}

// idempotencySlot is a key that holds the token of one operation at a time.
type idempotencySlot struct {
	key     string
	created int64 // the revision of its creation; 0: it is still to be made
}

// change runs a transaction that changes something, exactly once. applied is false if
// its own conditions did not hold.
//
// The first of its attempts that gets through writes the token, and no other does
// anything then: the slot holds this token or a later one. When the client is gone, so is
// the slot; a later key of that name has another revision of creation.
func (s *Store) change(ctx context.Context, what string, t etcdclient.Txn) (applied bool, err error) {
	slot, token := s.takeSlot()
	defer func() { s.freeSlot(slot) }()
	own := t
	for {
		if slot.created == 0 {
			if slot.created, err = s.createSlot(ctx, what, slot.key); err != nil {
				return false, err
			}
		}
		t.If = append(slices.Clip(own.If), etcdclient.CreatedAt(slot.key, slot.created), etcdclient.Below(slot.key, token))
		t.Then = append(slices.Clip(own.Then), etcdclient.Put(slot.key, token, s.lease))
		t.Else = []clientv3.Op{clientv3.OpGet(slot.key)}
		r, err := s.client.Txn(ctx, what, t)
		if err != nil || r.Succeeded {
			return err == nil, err
		}
		found := etcdclient.Found(r, 0)
		if found.GetCreateRevision() == slot.created && !bytes.Equal(found.GetValue(), token) {
			if found, err = s.fence(ctx, what, slot, token); err != nil {
				return false, err
			}
		}
		if found.GetCreateRevision() == slot.created {
			return bytes.Equal(found.GetValue(), token), nil
		}
		slot.created = 0 // the lease has run out, which making it says, or the slots were removed
	}
}

// fence overwrites a token so that no attempt that carries it can get through any more,
// and returns what the slot holds then: the token itself if an attempt got through just
// now. Without it an attempt under way might find its own conditions true again later.
func (s *Store) fence(ctx context.Context, what string, slot idempotencySlot, token []byte) (found *mvccpb.KeyValue, err error) {
	fenced := append(bytes.Clone(token), 'x')
	r, err := s.client.Txn(ctx, what, etcdclient.Txn{
		If:   []clientv3.Cmp{etcdclient.CreatedAt(slot.key, slot.created), etcdclient.Below(slot.key, token)},
		Then: []clientv3.Op{etcdclient.Put(slot.key, fenced, s.lease)},
		Else: []clientv3.Op{clientv3.OpGet(slot.key)},
	})
	if err != nil || r.Succeeded {
		return &mvccpb.KeyValue{CreateRevision: slot.created, Value: fenced}, err
	}
	return etcdclient.Found(r, 0), nil
}

// createSlot makes the key of a slot and returns the revision of its creation.
func (s *Store) createSlot(ctx context.Context, what, key string) (created int64, err error) {
	r, err := s.client.Txn(ctx, what, etcdclient.Txn{
		If:   []clientv3.Cmp{etcdclient.Unchanged(key, 0)},
		Then: []clientv3.Op{etcdclient.Put(key, nil, s.lease)},
		Else: []clientv3.Op{clientv3.OpGet(key)},
	})
	switch {
	case err != nil:
		return 0, err
	case r.Succeeded:
		return r.Header.Revision, nil
	}
	return etcdclient.Found(r, 0).GetCreateRevision(), nil
}

// takeSlot returns a slot that no operation uses, and a token that is greater, byte by
// byte, than all before it.
func (s *Store) takeSlot() (slot idempotencySlot, token []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastToken++
	token = fmt.Appendf(nil, "%016x", s.lastToken)
	if n := len(s.freeSlots); n > 0 {
		slot = s.freeSlots[n-1]
		s.freeSlots = s.freeSlots[:n-1]
		return slot, token
	}
	slot.key = s.slotPrefix + strconv.Itoa(s.slotsMade)
	s.slotsMade++
	return slot, token
}

func (s *Store) freeSlot(slot idempotencySlot) {
	s.mu.Lock()
	s.freeSlots = append(s.freeSlots, slot)
	s.mu.Unlock()
}

// maxValue is what etcd takes in one request by default, less what stands around
// a value.
const maxValue = 1<<20 + 1<<18

// fits refuses what etcd would refuse with less clear words.
func fits(size int) error {
	if size > maxValue {
		return fmt.Errorf("%w: %d bytes; etcd takes at most %d in one request", store.ErrTooLarge, size, maxValue)
	}
	return nil
}
