package store_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"rallypoint/core/store"
)

// A store in this process. Its users share one engine, each under a prefix of its own.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	memory := store.NewMemory(store.NewEngine(store.Limits{}))
	defer memory.Close()
	job := store.NewPrefix("job", memory)

	if err := job.Set(ctx, "epoch", []byte("3")); err != nil {
		log.Fatal(err)
	}
	epoch, err := memory.Get(ctx, "job/epoch")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", epoch)
	// Output: 3
}

// Get waits for a key that is missing until its context ends.
func ExampleMemory_Get() {
	memory := store.NewMemory(store.NewEngine(store.Limits{}))
	defer memory.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := memory.Get(ctx, "missing")
	fmt.Println(errors.Is(err, store.ErrTimeout))
	// Output: true
}
