// Command files measures a FileStore from Go: files SMALL LARGE, where LARGE holds many
// keys, one of them "key0", prints a line for each operation, its name and what it took
// in microseconds.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"rallypoint/filestore"
)

const times = 20000

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "files:", err)
		os.Exit(1)
	}
}

func run(small, large string) error {
	ctx := context.Background()
	s, err := filestore.Open(ctx, small, filestore.NeverRemove, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Set(ctx, "k", []byte("v")); err != nil {
		return err
	}
	for _, operation := range []struct {
		name  string
		times int
		do    func() error
	}{
		{"get", times, func() error { _, err := s.Get(ctx, "k"); return err }},
		{"set", times, func() error { return s.Set(ctx, "k", []byte("v")) }},
		{"add", times, func() error { _, err := s.Add(ctx, "n", 1); return err }},
		{"open", 1, func() error {
			s, err := filestore.Open(ctx, large, filestore.NeverRemove, nil)
			if err != nil {
				return err
			}
			defer s.Close()
			_, err = s.Get(ctx, "key0")
			return err
		}},
	} {
		began := time.Now()
		for range operation.times {
			if err := operation.do(); err != nil {
				return fmt.Errorf("%s: %w", operation.name, err)
			}
		}
		fmt.Println(operation.name, time.Since(began).Seconds()*1e6/float64(operation.times))
	}
	return nil
}
