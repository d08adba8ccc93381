package question

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// TestParts: parts come in their order while they are taken; closing ends the wait of the
// agents, and leaves one small key.
func TestParts(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	ctx := testkit.Within(t, testkit.Patience)
	p := PartsOf(s, 7)
	closed := make(chan error)
	go func() { closed <- p.AwaitClose(ctx) }()
	for _, part := range []string{"a", "b"} {
		testkit.Check(t, p.Push(ctx, []byte(part)))
	}
	for _, part := range []string{"a", "b"} {
		testkit.Equal(t, string(testkit.Must(p.Next(ctx))(t)), part)
	}
	testkit.Check(t, p.Push(ctx, []byte("c")))
	testkit.Check(t, p.Close(ctx))
	testkit.Check(t, <-closed)
	testkit.Equal(t, testkit.Must(s.QueueLen(ctx, p.queue))(t), 0)
	testkit.Equal(t, testkit.Must(s.NumKeys(ctx))(t), 1)
}

// TestPartsThatNobodyTakes: an agent that has pushed so many waits, continues when one is taken, and
// gives up in the end.
func TestPartsThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.NewEngine(store.Limits{}))
		defer s.Close()
		ctx := context.Background()
		p := PartsOf(s, 1)
		for range maxBehind {
			testkit.Check(t, p.Push(ctx, []byte("x")))
		}
		pushed := make(chan error)
		go func() { pushed <- p.Push(ctx, []byte("y")) }()
		synctest.Wait()
		testkit.Must(p.Next(ctx))(t)
		testkit.Check(t, <-pushed)
		if err := p.Push(ctx, []byte("z")); !errors.Is(err, errBehind) {
			t.Error(err)
		}
		testkit.Equal(t, testkit.Must(s.QueueLen(ctx, p.queue))(t), maxBehind)
	})
}
