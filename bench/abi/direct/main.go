// Command direct prints the nanoseconds of CPU time of the calls that calls.c makes,
// made from Go: "NAME NS" a line. A call has a time limit, as each has in C.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
)

const calls = 200_000

func cpu() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return float64(t.Nano())
}

func measure(name string, call func(context.Context) error) {
	timed := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := call(ctx); err != nil {
			fmt.Fprintln(os.Stderr, name, err)
			os.Exit(1)
		}
	}
	for range calls / 10 {
		timed()
	}
	begin := cpu()
	for range calls {
		timed()
	}
	fmt.Printf("%s %.1f\n", name, (cpu()-begin)/calls)
}

func main() {
	runtime.LockOSThread()
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	value := []byte("0123456789abcdef")
	measure("num_keys", func(ctx context.Context) error {
		_, err := s.NumKeys(ctx)
		return err
	})
	measure("add", func(ctx context.Context) error {
		_, err := s.Add(ctx, "counter", 1)
		return err
	})
	measure("set", func(ctx context.Context) error { return s.Set(ctx, "key", value) })
	measure("get", func(ctx context.Context) error {
		_, err := s.Get(ctx, "key")
		return err
	})
}
