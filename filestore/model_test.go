package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rallypoint/internal/testkit"
)

// model is the store written the naive way: the whole log, read again for each
// question.
type model struct{ log []byte }

func (m *model) entries() map[string]string {
	entries, end := plainRead(m.log)
	if end != len(m.log) {
		panic("the model's log is damaged")
	}
	return entries
}

func (m *model) set(key, value string) { m.log = append(m.log, rec("/"+key, value)...) }

func (m *model) add(key string, delta int64) (int64, bool) {
	value := strings.TrimLeft(m.entries()["/"+key], " \t\n\v\f\r")
	n := int64(0)
	if m.entries()["/"+key] != "" {
		end := 0
		for end < len(value) && (value[end] >= '0' && value[end] <= '9' || end == 0 && (value[0] == '-' || value[0] == '+')) {
			end++
		}
		var err error
		if n, err = strconv.ParseInt(value[:end], 10, 64); err != nil {
			return 0, false
		}
	}
	m.set(key, strconv.FormatInt(n+delta, 10))
	return n + delta, true
}

func (m *model) compareSet(key, expected, desired string) string {
	value, exists := m.entries()["/"+key]
	switch {
	case !exists && expected != "":
		return expected
	case exists && value != expected:
		return value
	}
	m.set(key, desired)
	return desired
}

func (m *model) open() { m.count(refcountKey, 1) }

func (m *model) close() {
	m.count(cleanupKey, 1)
	m.count(refcountKey, -1)
}

func (m *model) count(key string, delta int) {
	n, _ := strconv.Atoi(m.entries()[key])
	m.log = append(m.log, rec(key, strconv.Itoa(n+delta))...)
}

// Any calls on several stores of one file, some of which come and go: the file is
// byte for byte the model's, and each answer is the model's, whichever store gives
// it.
func TestModel(t *testing.T) {
	dir, run := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		path := filepath.Join(dir, strconv.Itoa(run))
		ctx := context.Background()
		var m model
		var stores []*Store
		defer func() {
			for _, s := range stores {
				_ = s.Close()
			}
			_ = os.Remove(path)
		}()
		open := func(t *rapid.T) {
			if len(stores) == 4 {
				t.Skip("enough")
			}
			s, err := Open(ctx, path, NeverRemove, &Options{Remote: rapid.Bool().Draw(t, "remote")})
			if err != nil {
				t.Fatal(err)
			}
			stores = append(stores, s)
			m.open()
		}
		open(t)
		pick := func(t *rapid.T) *Store { return rapid.SampledFrom(stores).Draw(t, "store") }
		actions := modelWrites(ctx, &m, pick)
		maps.Copy(actions, modelReads(ctx, &m, pick))
		actions["open"] = open
		actions["close"] = func(t *rapid.T) {
			if len(stores) == 1 {
				t.Skip("the last")
			}
			i := rapid.IntRange(0, len(stores)-1).Draw(t, "which")
			if err := stores[i].Close(); err != nil {
				t.Fatal(err)
			}
			stores = slices.Delete(stores, i, i+1)
			m.close()
		}
		actions[""] = func(t *rapid.T) {
			log, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(log, m.log) {
				t.Fatalf("have %q (%v)\nwant %q", log, err, m.log)
			}
		}
		t.Repeat(actions)
	})
}

var (
	modelKeys   = rapid.SampledFrom([]string{"", "a", "b", "-", "-/a", "c/d", "\x00\xff"})
	modelValues = rapid.OneOf(
		rapid.SampledFrom([]string{"", "1", "-5", " +7x", "x", "-", "9223372036854775808", strconv.Itoa(math.MaxInt64)}),
		rapid.StringN(0, 40, 100),
	)
)

// A generator makes its text when it is first drawn from, unless it has one: tests that run in parallel share these.
var _ = modelKeys.String() + modelValues.String()

func agree(t *rapid.T, err error, have, want any) {
	t.Helper()
	if err != nil || fmt.Sprint(have) != fmt.Sprint(want) {
		t.Fatalf("have %q (%v), want %q", have, err, want)
	}
}

func modelWrites(ctx context.Context, m *model, pick func(*rapid.T) *Store) map[string]func(*rapid.T) {
	keys, values := modelKeys, modelValues
	return map[string]func(*rapid.T){
		"set": func(t *rapid.T) {
			key, value := keys.Draw(t, "key"), values.Draw(t, "value")
			agree(t, pick(t).Set(ctx, key, []byte(value)), "", "")
			m.set(key, value)
		},
		"multi_set": func(t *rapid.T) {
			names := rapid.SliceOfN(keys, 0, 4).Draw(t, "keys")
			contents := make([][]byte, len(names))
			for i, key := range names {
				contents[i] = []byte(values.Draw(t, "value"))
				m.set(key, string(contents[i]))
			}
			agree(t, pick(t).MultiSet(ctx, names, contents), "", "")
		},
		"add": func(t *rapid.T) {
			key, delta := keys.Draw(t, "key"), rapid.Int64().Draw(t, "delta")
			have, err := pick(t).Add(ctx, key, delta)
			if want, ok := m.add(key, delta); ok {
				agree(t, err, have, want)
			} else if err == nil {
				t.Fatalf("have %d, want an error", have)
			}
		},
		"compare_set": func(t *rapid.T) {
			key, desired := keys.Draw(t, "key"), values.Draw(t, "desired")
			expected := rapid.SampledFrom([]string{m.entries()["/"+key], "", "x"}).Draw(t, "expected")
			have, err := pick(t).CompareSet(ctx, key, []byte(expected), []byte(desired))
			agree(t, err, string(have), m.compareSet(key, expected, desired))
		},
		"append": func(t *rapid.T) {
			key, value := keys.Draw(t, "key"), values.Draw(t, "value")
			agree(t, pick(t).Append(ctx, key, []byte(value)), "", "")
			m.set(key, m.entries()["/"+key]+value)
		},
		"delete": func(t *rapid.T) {
			key := keys.Draw(t, "key")
			have, err := pick(t).Delete(ctx, key)
			_, want := m.entries()["/"+key]
			agree(t, err, have, want)
			m.log = append(m.log, rec("-/"+key, "")...)
		},
	}
}

func modelReads(ctx context.Context, m *model, pick func(*rapid.T) *Store) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"get": func(t *rapid.T) {
			key, s := modelKeys.Draw(t, "key"), pick(t)
			want, exists := m.entries()["/"+key]
			ready, err := s.Check(ctx, []string{key})
			agree(t, err, ready, exists)
			if exists {
				have, err := s.Get(ctx, key)
				agree(t, err, string(have), want)
			}
		},
		"list_keys": func(t *rapid.T) {
			s, want := pick(t), []string{}
			for key := range maps.Keys(m.entries()) {
				want = append(want, key[1:])
			}
			have, err := s.ListKeys(ctx)
			slices.Sort(have)
			slices.Sort(want)
			agree(t, err, have, want)
			n, err := s.NumKeys(ctx)
			agree(t, err, n, len(want))
		},
	}
}

func TestParseNumber(t *testing.T) {
	for value, want := range map[string]int64{
		"": 0, "0": 0, "12": 12, "-7": -7, "+3": 3, " \t\n\v\f\r8": 8, "5x": 5, "1 2": 1, "007": 7,
		"-9223372036854775808": math.MinInt64, "9223372036854775807": math.MaxInt64,
	} {
		testkit.Equal(t, testkit.Must(parseNumber([]byte(value)))(t), want)
	}
	for _, value := range []string{" ", "-", "+", "x", "--1", "+-1", "- 1", "9223372036854775808", "-9223372036854775809", "\x00"} {
		if n, err := parseNumber([]byte(value)); err == nil {
			t.Errorf("%q: %d", value, n)
		}
	}
}

// FuzzLog: the scanner yields what the naive reader yields, however it is read;
// and whatever is in a file, a store opens it, or says why not, in either case
// without harm to what is complete.
func FuzzLog(f *testing.F) {
	names, err := filepath.Glob(filepath.Join("testdata", "golden", "*.bin"))
	testkit.Check(f, err)
	for _, name := range names {
		f.Add(testkit.ReadFile(f, name))
	}
	f.Add([]byte("\x02\x00\x00\x00/t\xff\xff\xff\xff" + "half"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x02\x00\x00\x00" + string(rec("/a", "1"))))
	path := newPath(f)
	f.Fuzz(func(t *testing.T, log []byte) {
		before, end := plainRead(log)
		testkit.Equal(t, scanAll(t, log), end)
		testkit.WriteFile(t, path, log)
		s, err := Open(testkit.Within(t, testkit.Patience), path, NeverRemove, nil)
		if err != nil {
			if errors.Is(err, ErrForeign) {
				end = len(log)
			}
			testkit.Equal(t, string(testkit.ReadFile(t, path)[:end]), string(log[:end]))
			return
		}
		testkit.Check(t, s.Set(context.Background(), "fuzz", nil))
		after := testkit.ReadFile(t, path)
		if !bytes.Equal(after[:end], log[:end]) {
			t.Fatal("complete records have changed")
		}
		entries, whole := plainRead(after)
		testkit.Equal(t, whole, len(after))
		if len(log) == end {
			before["/fuzz"] = ""
			if !maps.Equal(users(entries), users(before)) {
				t.Fatalf("have %q, want %q", entries, before)
			}
		}
		testkit.Equal(t, testkit.Must(s.NumKeys(context.Background()))(t), int64(len(entries)))
		testkit.Check(t, s.Close())
	})
}

// scanAll reads log by a scanner, with little memory, and returns how far it came.
func scanAll(t *testing.T, log []byte) int {
	t.Helper()
	sc := &scanner{source: bytes.NewReader(log), end: int64(len(log))}
	for {
		r, err := sc.next()
		if err == io.EOF || err == errTorn {
			return int(sc.pos)
		}
		testkit.Check(t, err)
		if whole, n := plainRead(r.raw); n != len(r.raw) || len(whole) > 1 {
			t.Fatalf("no record: %q", r.raw)
		}
		if cap(sc.buffer) > max(scanChunk, len(log)) {
			t.Fatalf("%d bytes of memory for %d", cap(sc.buffer), len(log))
		}
	}
}
