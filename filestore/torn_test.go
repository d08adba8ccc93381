package filestore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// plainRead reads a log the naive way: the entries, and where the last complete
// record ends.
func plainRead(log []byte) (entries map[string]string, end int) {
	entries = make(map[string]string)
	for rest := log; ; {
		var fields [2]string
		for i := range fields {
			if len(rest) < 4 {
				return entries, end
			}
			n := uint64(binary.LittleEndian.Uint32(rest))
			if uint64(len(rest)-4) < n {
				return entries, end
			}
			fields[i], rest = string(rest[4:4+n]), rest[4+n:]
		}
		end = len(log) - len(rest)
		if name, ok := strings.CutPrefix(fields[0], "-"); ok {
			delete(entries, name)
		} else {
			entries[fields[0]] = fields[1]
		}
	}
}

// rec is one record.
func rec(key, value string) []byte {
	log, err := appendRecord(nil, key, []byte(value))
	if err != nil {
		panic(err)
	}
	return log
}

// users returns entries without the store's own.
func users(entries map[string]string) map[string]string {
	entries = maps.Clone(entries)
	delete(entries, refcountKey)
	delete(entries, cleanupKey)
	return entries
}

// A log cut at each of its bytes: a store opens it, knows what is complete, keeps
// every byte of that, and leaves a log without damage.
func TestTornEverywhere(t *testing.T) {
	whole := golden(t, "43")
	dir := t.TempDir()
	for cut := range len(whole) + 1 {
		path := fmt.Sprintf("%s/%d", dir, cut)
		testkit.WriteFile(t, path, whole[:cut])
		before, end := plainRead(whole[:cut])
		s := mustOpen(t, path, NeverRemove, nil)
		ctx := testkit.Within(t, testkit.Patience)
		testkit.Check(t, s.Set(ctx, "more", []byte("x")))
		testkit.Check(t, s.Close())

		log := testkit.ReadFile(t, path)
		if !bytes.Equal(log[:end], whole[:end]) || len(log) < cut {
			t.Fatalf("cut at %d: what was complete has changed:\n%q", cut, log)
		}
		after, end := plainRead(log)
		if end != len(log) {
			t.Fatalf("cut at %d: damage is left at %d of %d", cut, end, len(log))
		}
		before["/more"] = "x"
		if !maps.Equal(users(after), users(before)) {
			t.Fatalf("cut at %d: have %q, want %q", cut, users(after), users(before))
		}
	}
}

// A torn record appears under a store that is open: reading continues, the next
// write covers it, and a store that has seen the torn bytes sees what follows.
func TestTornUnderOpenStores(t *testing.T) {
	for _, torn := range [][]byte{
		{7},
		{7, 0, 0, 0},
		[]byte("\x04\x00\x00\x00/t"),
		[]byte("\x02\x00\x00\x00/t"),
		[]byte("\x02\x00\x00\x00/t\x05\x00\x00"),
		[]byte("\x02\x00\x00\x00/t\x05\x00\x00\x00half"),
		[]byte("\x03\x00\x00\x00-/k\x00"),
		append([]byte("\x02\x00\x00\x00/t\xff\xff\xff\xff"), bytes.Repeat([]byte("x"), 100_000)...),
	} {
		path := newPath(t)
		writer := mustOpen(t, path, NeverRemove, nil)
		reader := mustOpen(t, path, NeverRemove, nil)
		remote := mustOpen(t, path, NeverRemove, &Options{Remote: true})
		ctx := testkit.Within(t, testkit.Patience)
		testkit.Check(t, writer.Set(ctx, "k", []byte("v")))
		appendTo(t, path, torn)
		for _, s := range []*Store{reader, remote} {
			testkit.Equal(t, string(testkit.Must(s.Get(ctx, "k"))(t)), "v")
			testkit.Equal(t, testkit.Must(s.Check(ctx, []string{"t"}))(t), false)
		}
		size := len(testkit.ReadFile(t, path))
		testkit.Check(t, writer.Set(ctx, "k", []byte("v2")))
		for _, s := range []*Store{reader, remote, writer} {
			testkit.Equal(t, string(testkit.Must(s.Get(ctx, "k"))(t)), "v2")
			testkit.Equal(t, testkit.Must(s.Check(ctx, []string{"t"}))(t), false)
			testkit.Equal(t, testkit.Must(s.NumKeys(ctx))(t), 2)
		}
		log := testkit.ReadFile(t, path)
		if _, end := plainRead(log); end != len(log) || len(log) < size {
			t.Fatalf("torn %.20q: damage is left in %.200q", torn, log)
		}
	}
}

// Waiting calls are not disturbed by torn bytes, nor woken by their cover.
func TestTornWhileWaiting(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	other := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, testkit.Patience)
	done := make(chan error, 1)
	go func() { done <- s.Wait(ctx, []string{"t"}) }()
	appendTo(t, path, []byte("\x02\x00\x00\x00/t\x05\x00\x00\x00half"))
	testkit.Check(t, other.Set(ctx, "k", nil))
	select {
	case err := <-done:
		t.Fatalf("woken by nothing: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	testkit.Check(t, other.Set(ctx, "t", nil))
	testkit.Check(t, <-done)
}

// What a stock process appended after the torn record of another, without
// reading, is kept if the other was killed between two writes.
func TestRecordsBehindTorn(t *testing.T) {
	behind := slices.Concat(rec("/a", "1"), rec("-/b", ""), rec("/c", "three"))
	for _, torn := range []string{
		"\x02\x00\x00\x00",
		"\x09\x00\x00\x00",
		"\x02\x00\x00\x00/t\x50\x00\x00\x00",
		"\x09\x00\x00\x00/keykeyke\x00\x01\x00\x00",
	} {
		path := newPath(t)
		log := slices.Concat(rec("/b", "2"), []byte(torn), behind)
		testkit.WriteFile(t, path, log)
		s := mustOpen(t, path, NeverRemove, nil)
		ctx := testkit.Within(t, testkit.Patience)
		testkit.Equal(t, string(testkit.Must(s.Get(ctx, "a"))(t)), "1")
		testkit.Equal(t, string(testkit.Must(s.Get(ctx, "c"))(t)), "three")
		testkit.Equal(t, testkit.Must(s.Check(ctx, []string{"b"}))(t), false)
		testkit.Check(t, s.Close())
		after := testkit.ReadFile(t, path)
		want := map[string]string{"/a": "1", "/c": "three"}
		if entries, end := plainRead(after); end != len(after) || !maps.Equal(users(entries), want) {
			t.Fatalf("behind %q: %q", torn, after)
		}
	}
}

// Torn records after torn records, among them what a store leaves that is killed
// while it copies records before it covers them.
func TestTornTwice(t *testing.T) {
	behind := rec("/a", "1")
	for _, torn := range []string{"\x02\x00\x00\x00", "\x02\x00\x00\x00/t\x50\x00\x00\x00"} {
		log := slices.Concat(rec("/b", "2"), []byte(torn), behind)
		for cut := range len(behind) + 1 {
			path := newPath(t)
			testkit.WriteFile(t, path, slices.Concat(log, behind[:cut]))
			s := mustOpen(t, path, NeverRemove, nil)
			testkit.Check(t, s.Close())
			after := testkit.ReadFile(t, path)
			want := map[string]string{"/a": "1", "/b": "2"}
			if entries, end := plainRead(after); end != len(after) || !maps.Equal(users(entries), want) {
				t.Fatalf("cut at %d: %q", cut, after)
			}
		}
	}
}

// Behind a key, every reader takes the key of the next record for the value.
func TestRecordsBehindTornKey(t *testing.T) {
	path := newPath(t)
	log := slices.Concat([]byte("\x02\x00\x00\x00/t"), rec("/a", "1"), rec("/b", "2"))
	testkit.WriteFile(t, path, log)
	_, err := Open(testkit.Within(t, testkit.Patience), path, NeverRemove, nil)
	isError(t, err, ErrForeign)
	testkit.Equal(t, string(testkit.ReadFile(t, path)), string(log))
}

func TestForeignFiles(t *testing.T) {
	for name, content := range map[string]string{
		"script":           "#!/bin/sh\nexit 0\n",
		"word":             "hi\n",
		"long key":         "\x00\x00\x01\x00/" + strings.Repeat("x", 100),
		"no key of ours":   "\x04\x00\x00\x00xyz",
		"no counter":       "\x09\x00\x00\x00reform",
		"behind a record":  string(rec("/k", "v")) + "garbage that is no record",
		"absurd length":    string(rec("/k", "v")) + "\xff\xff\xff\xff",
		"absurd and short": "\xff\xff\xff\xff/k",
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			testkit.WriteFile(t, path, []byte(content))
			_, err := Open(testkit.Within(t, testkit.Patience), path, NeverRemove, nil)
			isError(t, err, ErrForeign)
			if !strings.Contains(err.Error(), path) {
				t.Fatalf("the error does not name the file: %v", err)
			}
			testkit.Equal(t, string(testkit.ReadFile(t, path)), content)
		})
	}
	_, err := Open(testkit.Within(t, testkit.Patience), t.TempDir(), NeverRemove, nil)
	if err == nil {
		t.Fatal("a directory was opened")
	}
	_, err = Open(testkit.Within(t, testkit.Patience), "/dev/null", NeverRemove, nil)
	isError(t, err, ErrForeign)
}

// Garbage that appears under an open store is an error at once, for who reads and
// for who waits, and from then on.
func TestForeignUnderOpenStore(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, testkit.Patience)
	done := make(chan error, 1)
	go func() { done <- s.Wait(ctx, []string{"k"}) }()
	appendTo(t, path, []byte("this is no record"))
	isError(t, <-done, ErrForeign)
	_, err := s.Get(ctx, "k")
	isError(t, err, ErrForeign)
	isError(t, s.Set(ctx, "k", nil), ErrForeign)
	isError(t, s.Close(), ErrForeign)
	isError(t, s.Set(ctx, "k", nil), store.ErrClosed)
}

func TestTooLarge(t *testing.T) {
	value, err := unix.Mmap(-1, 0, maxField+1, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Skipf("no 4 GB of address space: %v", err)
	}
	defer func() { testkit.Check(t, unix.Munmap(value)) }()
	_, err = appendRecord(nil, "/k", value)
	isError(t, err, store.ErrTooLarge)
}

func appendTo(t testing.TB, path string, content []byte) {
	t.Helper()
	f := testkit.Must(os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0))(t)
	_, err := f.Write(content)
	testkit.Check(t, errors.Join(err, f.Close()))
}
