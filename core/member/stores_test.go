package member_test

import (
	"context"
	"io"
	"sync"

	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

// stores is a RoundStores that only keeps book.
type stores struct {
	mu     sync.Mutex
	opened []*roundStore
	fail   error
	at     string // where workers find the store; "": where it is
	noWay  error  // of Begin and Reach
	ways   []*way
}

type roundStore struct {
	s              *stores
	host           string
	port           int
	begun, release bool
}

func (s *stores) Open(_ context.Context, host string, port int) (member.RoundStore, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return nil, s.fail
	}
	if port == 0 {
		port = 40000 + len(s.opened)
	}
	r := &roundStore{s: s, host: host, port: port}
	s.opened = append(s.opened, r)
	return r, nil
}

func (r *roundStore) Port() int { return r.port }

func (r *roundStore) Begin(o rendezvous.Outcome) (rendezvous.Outcome, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.begun = true
	return r.s.here(o)
}

// Reach implements member.RoundStores.
func (s *stores) Reach(_ context.Context, o rendezvous.Outcome) (rendezvous.Outcome, io.Closer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.here(o)
	if err != nil || s.at == "" {
		return o, nil, err
	}
	w := &way{s: s}
	s.ways = append(s.ways, w)
	return o, w, nil
}

// here is where the workers find the store of o.
func (s *stores) here(o rendezvous.Outcome) (rendezvous.Outcome, error) {
	if s.at != "" {
		o.StoreAddr = s.at
	}
	return o, s.noWay
}

// way is one that Reach has opened.
type way struct {
	s      *stores
	closed bool
}

func (w *way) Close() error {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.closed = true
	return nil
}

// openWays is how many ways are open.
func (s *stores) openWays() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.ways {
		if !w.closed {
			n++
		}
	}
	return n
}

func (r *roundStore) Close() error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.release = true
	return nil
}

// states lists the stores in the order of opening: "waiting", "begun", "closed".
func (s *stores) states() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, r := range s.opened {
		switch {
		case r.release:
			list = append(list, "closed")
		case r.begun:
			list = append(list, "begun")
		default:
			list = append(list, "waiting")
		}
	}
	return list
}
