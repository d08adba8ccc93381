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

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// Store is a [store.Store] in etcd. Keys lie as they are behind the prefix and
// "/k/", values as they are; any number of processes may share a prefix.
//
// Every operation is applied exactly once, also when the member it was sent to
// dies before it answers, and when what was sent first gets through long after it
// was sent again: a transaction leaves a note of itself (behind "/o/", one key a
// client and operation under way, overwritten by the next one, gone with the client)
// and does nothing if that note, a later one or no place for a note is there.
//
// With Config.TTL all keys of this Store hang on a lease that it renews while it
// is open; they vanish TTL after it was closed or killed. Without it they stay.
type Store struct {
	client *client
	prefix string // of the keys, with "/k/"
	notes  string // of this client's notes
	lease  int64  // 0: none

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done sync.WaitGroup // renewing

	mu     sync.Mutex
	places []place // free ones
	used   int     // places ever made
	count  uint64  // of notes
}

var _ store.Store = (*Store)(nil)

// Open reaches the etcd and makes a Store. It tries until ctx or config.Timeout
// ends, and returns at once what no repetition would help: rendezvous.ErrInvalid
// for settings that etcd refuses, certificates, users; else
// rendezvous.ErrConnection. The error says where, for how long, why and what to do.
func Open(ctx context.Context, config Config) (*Store, error) {
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	s := &Store{client: c, prefix: config.Prefix + "/k/", notes: config.Prefix + "/o/" + rand.Text() + "/"}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if config.TTL > 0 {
		s.lease, err = c.grant(ctx, config.TTL)
	} else {
		_, err = c.get(ctx, "connecting", rangeRequest{key: s.prefix, countOnly: true})
	}
	if err != nil {
		c.close()
		return nil, err
	}
	if s.lease != 0 {
		s.done.Add(1)
		go s.renew(config.TTL / 3)
	}
	return s, nil
}

// renew keeps the lease alive until Close.
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
		if err := s.client.keepAlive(s.ctx, s.lease); err != nil && s.ctx.Err() == nil {
			s.client.config.logger().Warn("the lease of the keys was not renewed", "error", err)
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
	s.mu.Lock()
	used := s.used
	s.mu.Unlock()
	if used > 0 { // without the note of what may be under way still, which nobody repeats
		ctx, cancel := context.WithTimeout(context.Background(), firstAttempt)
		_ = s.client.attempt(ctx, firstAttempt, func(ctx context.Context) error {
			_, err := s.client.txnOnce(ctx, txnRequest{success: []op{deleteOp(s.notes, prefixEnd(s.notes))}})
			return err
		})
		cancel()
	}
	s.stop()
	s.done.Wait()
	s.client.close()
	return nil
}

// begin returns a context for one operation, which also ends with Close.
func (s *Store) begin(ctx context.Context) (context.Context, func(), error) {
	if s.ctx.Err() != nil {
		return nil, nil, store.ErrClosed
	}
	if err := store.ContextError(ctx); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(store.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }, nil
}

// do runs one operation and explains its error.
func (s *Store) do(ctx context.Context, name, key string, f func(ctx context.Context) error) error {
	inner, end, err := s.begin(ctx)
	if err == nil {
		err = f(inner)
		switch {
		case err == nil:
		case errors.Is(context.Cause(inner), store.ErrClosed):
			err = store.ErrClosed
		case errors.Is(err, errLeaseGone):
			err = rendezvous.Errorf(rendezvous.CodeState, "the lease of the keys has run out: this process was stopped, or cut off, for longer than the ttl of %v", s.client.config.TTL)
		case ctx.Err() != nil && !final(err):
			err = fmt.Errorf("%w; %w", store.ContextError(ctx), unnumbered{err})
		}
		end()
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("store at etcd %s: %s%s: %w", s.client.config.where(), name, store.Names(key), err)
}

// unnumbered is an error that is only to be read.
type unnumbered struct{ err error }

func (u unnumbered) Error() string { return u.err.Error() }

// place is a key for notes. One operation uses it at a time.
type place struct {
	key     string
	created int64 // the revision of its creation; 0: it is still to be made
}

// change runs a transaction that changes something, exactly once. applied is false if
// its own conditions did not hold.
//
// Whatever of its attempts gets through first writes the note, and no other does
// anything then: the note's place holds this note or a later one. When the client is
// gone, so is the place; a later key of that name has another revision of creation.
func (s *Store) change(ctx context.Context, what string, t txnRequest) (r txnResponse, applied bool, err error) {
	p, note := s.takePlace()
	defer func() { s.freePlace(p) }()
	own := t
	for {
		if p.created == 0 {
			if p.created, err = s.makePlace(ctx, what, p.key); err != nil {
				return r, false, err
			}
		}
		t.conditions = append(slices.Clip(own.conditions), createdAt(p.key, p.created), below(p.key, note))
		t.success = append(slices.Clip(own.success), putOp(p.key, note, s.lease))
		t.failure = append(slices.Clip(own.failure), getOp(p.key))
		r, err = s.client.txn(ctx, what, t)
		if err != nil || r.succeeded {
			return r, err == nil, err
		}
		found, _ := r.result(len(t.failure) - 1).first()
		if found.created == p.created && !bytes.Equal(found.value, note) {
			if found, err = s.burn(ctx, what, p, note); err != nil {
				return r, false, err
			}
		}
		if found.created == p.created {
			return r, bytes.Equal(found.value, note), nil
		}
		p.created = 0 // the lease has run out, which making it says, or somebody has removed the notes
	}
}

// burn makes a note one that no attempt can leave any more, and returns what is in its
// place then: the note itself if one got through just now. Without it an attempt under
// way might find the conditions of its own true again later.
func (s *Store) burn(ctx context.Context, what string, p place, note []byte) (found keyValue, err error) {
	burnt := append(bytes.Clone(note), 'x')
	r, err := s.client.txn(ctx, what, txnRequest{
		conditions: []condition{createdAt(p.key, p.created), below(p.key, note)},
		success:    []op{putOp(p.key, burnt, s.lease)},
		failure:    []op{getOp(p.key)},
	})
	if err != nil || r.succeeded {
		return keyValue{created: p.created, value: burnt}, err
	}
	found, _ = r.result(0).first()
	return found, nil
}

// makePlace makes the key of a place and returns the revision of its creation.
func (s *Store) makePlace(ctx context.Context, what, key string) (created int64, err error) {
	r, err := s.client.txn(ctx, what, txnRequest{
		conditions: []condition{unchanged(key, 0)},
		success:    []op{putOp(key, nil, s.lease)},
		failure:    []op{getOp(key)},
	})
	if err != nil || r.succeeded {
		return r.revision, err
	}
	found, _ := r.result(0).first()
	return found.created, nil
}

// takePlace returns a place that nobody uses, and a note that is greater, byte by
// byte, than all before it.
func (s *Store) takePlace() (p place, note []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	note = fmt.Appendf(nil, "%016x", s.count)
	if n := len(s.places); n > 0 {
		p = s.places[n-1]
		s.places = s.places[:n-1]
		return p, note
	}
	p.key = s.notes + strconv.Itoa(s.used)
	s.used++
	return p, note
}

func (s *Store) freePlace(p place) {
	s.mu.Lock()
	s.places = append(s.places, p)
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
