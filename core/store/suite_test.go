package store_test

import (
	"context"
	"testing"

	"rallypoint/core/store"
	"rallypoint/core/store/storetest"
)

func TestOperations(t *testing.T) {
	for name, wrap := range map[string]func(store.Store) store.Store{
		"memory": func(s store.Store) store.Store { return s },
		"prefix": func(s store.Store) store.Store { return store.NewPrefix("p", s) },
	} {
		t.Run(name, func(t *testing.T) {
			s := wrap(store.NewMemory(store.NewEngine(store.Limits{})))
			defer s.Close()
			storetest.Operations(t, s)
			storetest.Queues(t, s)
		})
	}
}

func TestTimeoutText(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	storetest.TimeoutText(t, s, map[string]func(context.Context) error{
		"queue_pop": func(ctx context.Context) error { _, err := s.QueuePop(ctx, "k/1", true); return err },
	})
}
