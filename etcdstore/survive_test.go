package etcdstore

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// changeOnce has client i change the store in each way that must be applied once, and
// counts what was answered; false if something failed.
func changeOnce(ctx context.Context, t *testing.T, s *Store, i int, count *int64, appends *int) bool {
	if _, err := s.Add(ctx, "sum", 1); err != nil {
		t.Error(err)
		return false
	}
	*count++
	if err := s.Append(ctx, fmt.Sprint("text", i), []byte("x")); err != nil {
		t.Error(err)
		return false
	}
	*appends++
	key := fmt.Sprint("new ", i, *count)
	if err := s.Set(ctx, key, []byte("v")); err != nil {
		t.Error(err)
		return false
	}
	if existed, err := s.Delete(ctx, key); err != nil || !existed {
		t.Error("deleted", existed, err)
		return false
	}
	return true
}

// A store continues, and applies everything once, while the leader changes, a member
// is stopped, and a member is killed.
func TestStoreSurvivesTheClustersTroubles(t *testing.T) {
	t.Parallel()
	c := etcdtest.NewCluster(t)
	config := c.Config()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	var all sync.WaitGroup
	const clients = 3
	counts := make([]int64, clients)
	texts := make([]int, clients)
	done := make(chan struct{})
	for i := range clients {
		s := mustOpen(t, config)
		all.Go(func() {
			for ok := true; ok; {
				select {
				case <-done:
					return
				default:
				}
				ok = changeOnce(ctx, t, s, i, &counts[i], &texts[i])
			}
		})
	}
	waiter := mustOpen(t, config)
	waited := make(chan error, 1)
	go func() { waited <- waiter.Wait(ctx, []string{"the end"}) }()
	for range 2 {
		c.MoveLeader(t)
	}
	stopped := c.Leader(t)
	stopped.Process.Signal(syscall.SIGSTOP)
	c.Leader(t)
	stopped.Process.Signal(syscall.SIGCONT)
	c.Leader(t).Kill()
	c.Leader(t)
	close(done)
	all.Wait()
	s := mustOpen(t, config)
	testkit.Check(t, s.Set(ctx, "the end", nil))
	testkit.Check(t, <-waited)
	sum := int64(0)
	for i := range clients {
		sum += counts[i]
		if n := len(testkit.Must(s.Get(ctx, fmt.Sprint("text", i)))(t)); n != texts[i] || n == 0 {
			t.Errorf("%d appends gave %d", texts[i], n)
		}
	}
	testkit.Equal(t, testkit.Must(s.Add(ctx, "sum", 0))(t), sum)
}
