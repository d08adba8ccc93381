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
	"rallypoint/internal/etcdclient"
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
	client *etcdclient.Client
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
func Open(ctx context.Context, config etcdclient.Config) (*Store, error) {
	c, err := etcdclient.New(config)
	if err != nil {
		return nil, err
	}
	s := &Store{client: c, prefix: config.Prefix + "/k/", notes: config.Prefix + "/o/" + rand.Text() + "/"}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if config.TTL > 0 {
		s.lease, err = c.Grant(ctx, config.TTL)
	} else {
		_, err = c.Get(ctx, "connecting", etcdclient.RangeRequest{Key: s.prefix, CountOnly: true})
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
		if err := s.client.KeepAlive(s.ctx, s.lease); err != nil && s.ctx.Err() == nil {
			s.client.Config.Log().Warn("the lease of the keys was not renewed", "error", err)
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
		ctx, cancel := context.WithTimeout(context.Background(), etcdclient.FirstAttempt)
		_ = s.client.Attempt(ctx, etcdclient.FirstAttempt, func(ctx context.Context) error {
			_, err := s.client.TxnOnce(ctx, etcdclient.TxnRequest{Success: []etcdclient.Op{etcdclient.DeleteOp(s.notes, etcdclient.PrefixEnd(s.notes))}})
			return err
		})
		cancel()
	}
	s.stop()
	s.done.Wait()
	s.client.Close()
	return nil
}

// begin returns a context for one operation, which also ends with Close.
func (s *Store) begin(ctx context.Context) (context.Context, func(), error) {
	if s.ctx.Err() != nil {
		return nil, nil, store.ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(store.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }, nil
}

// do runs one operation and explains its error.
func (s *Store) do(ctx context.Context, name string, keys []string, f func(ctx context.Context) error) error {
	began := time.Now()
	inner, end, err := s.begin(ctx)
	if err == nil {
		if err = ctx.Err(); err == nil {
			err = f(inner)
		}
		switch {
		case err == nil:
		case errors.Is(context.Cause(inner), store.ErrClosed):
			err = store.ErrClosed
		case errors.Is(err, etcdclient.ErrLeaseGone):
			err = rendezvous.Errorf(rendezvous.CodeState, "the lease of the keys has run out: this process was stopped, or cut off, for longer than the ttl of %v", s.client.Config.TTL)
		case ctx.Err() != nil && !etcdclient.IsFinal(err):
			err = overdue(ctx, began, keys, err)
		}
		end()
	}
	if err == nil {
		return nil
	}
	first := ""
	if len(keys) > 0 {
		first = keys[0]
	}
	return fmt.Errorf("store at etcd %s: %s%s: %w", s.client.Config.Where(), name, store.Names(first), err)
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
		text += rendezvous.Printable(key)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		text += "; " + err.Error()
	}
	return timedOut{text}
}

// keysToName is how many keys an error names.
const keysToName = 8

// timedOut is store.ErrTimeout in the words of torch's stores.
type timedOut struct{ text string }

func (t timedOut) Error() string { return t.text }

func (t timedOut) Is(target error) bool {
	return target == store.ErrTimeout || target == context.DeadlineExceeded
}

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
func (s *Store) change(ctx context.Context, what string, t etcdclient.TxnRequest) (r etcdclient.TxnResponse, applied bool, err error) {
	p, note := s.takePlace()
	defer func() { s.freePlace(p) }()
	own := t
	for {
		if p.created == 0 {
			if p.created, err = s.makePlace(ctx, what, p.key); err != nil {
				return r, false, err
			}
		}
		t.Conditions = append(slices.Clip(own.Conditions), etcdclient.CreatedAt(p.key, p.created), etcdclient.Below(p.key, note))
		t.Success = append(slices.Clip(own.Success), etcdclient.PutOp(p.key, note, s.lease))
		t.Failure = append(slices.Clip(own.Failure), etcdclient.GetOp(p.key))
		r, err = s.client.Txn(ctx, what, t)
		if err != nil || r.Succeeded {
			return r, err == nil, err
		}
		found, _ := r.Result(len(t.Failure) - 1).First()
		if found.Created == p.created && !bytes.Equal(found.Value, note) {
			if found, err = s.burn(ctx, what, p, note); err != nil {
				return r, false, err
			}
		}
		if found.Created == p.created {
			return r, bytes.Equal(found.Value, note), nil
		}
		p.created = 0 // the lease has run out, which making it says, or somebody has removed the notes
	}
}

// burn makes a note one that no attempt can leave any more, and returns what is in its
// place then: the note itself if one got through just now. Without it an attempt under
// way might find the conditions of its own true again later.
func (s *Store) burn(ctx context.Context, what string, p place, note []byte) (found etcdclient.KeyValue, err error) {
	burnt := append(bytes.Clone(note), 'x')
	r, err := s.client.Txn(ctx, what, etcdclient.TxnRequest{
		Conditions: []etcdclient.Condition{etcdclient.CreatedAt(p.key, p.created), etcdclient.Below(p.key, note)},
		Success:    []etcdclient.Op{etcdclient.PutOp(p.key, burnt, s.lease)},
		Failure:    []etcdclient.Op{etcdclient.GetOp(p.key)},
	})
	if err != nil || r.Succeeded {
		return etcdclient.KeyValue{Created: p.created, Value: burnt}, err
	}
	found, _ = r.Result(0).First()
	return found, nil
}

// makePlace makes the key of a place and returns the revision of its creation.
func (s *Store) makePlace(ctx context.Context, what, key string) (created int64, err error) {
	r, err := s.client.Txn(ctx, what, etcdclient.TxnRequest{
		Conditions: []etcdclient.Condition{etcdclient.Unchanged(key, 0)},
		Success:    []etcdclient.Op{etcdclient.PutOp(key, nil, s.lease)},
		Failure:    []etcdclient.Op{etcdclient.GetOp(key)},
	})
	if err != nil || r.Succeeded {
		return r.Revision, err
	}
	found, _ := r.Result(0).First()
	return found.Created, nil
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
