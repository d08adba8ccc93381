package filestore

import (
	"context"
	"fmt"
	"os"
	"testing"

	"rallypoint/internal/testkit"
)

func BenchmarkGet(b *testing.B) {
	s := mustOpen(b, newPath(b), NeverRemove, nil)
	ctx := context.Background()
	testkit.Check(b, s.Set(ctx, "k", []byte("v")))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Get(ctx, "k"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGetRemote is a get that asks for the lock each time.
func BenchmarkGetRemote(b *testing.B) {
	s := mustOpen(b, newPath(b), NeverRemove, &Options{Remote: true})
	ctx := context.Background()
	testkit.Check(b, s.Set(ctx, "k", []byte("v")))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Get(ctx, "k"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	s := mustOpen(b, newPath(b), NeverRemove, nil)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Add(ctx, "n", 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSet(b *testing.B) {
	s := mustOpen(b, newPath(b), NeverRemove, nil)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Set(ctx, "k", []byte("v")); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen opens a file of 4 MB with 144 000 keys, gets one of them, and closes it.
func BenchmarkOpen(b *testing.B) {
	path := newPath(b)
	var log []byte
	for i := 0; len(log) < 4<<20; i++ {
		var err error
		log, err = appendRecord(log, fmt.Sprintf("/key%d", i), []byte("vvvvvvvvvvvv"))
		testkit.Check(b, err)
	}
	testkit.WriteFile(b, path, log)
	b.SetBytes(int64(len(log)))
	b.ReportAllocs()
	for b.Loop() {
		s, err := Open(context.Background(), path, NeverRemove, nil)
		testkit.Check(b, err)
		testkit.Must(s.Get(context.Background(), "key0"))(b)
		testkit.Check(b, s.Close())
	}
	testkit.Check(b, os.Remove(path))
}
