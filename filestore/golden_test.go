package filestore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// session drives one file and compares it with what stock PyTorch left there.
type session struct {
	*testing.T
	ctx  context.Context
	path string
	s    *Store
}

func newSession(t *testing.T, worldSize int) *session {
	path := newPath(t)
	return &session{T: t, ctx: testkit.Within(t, time.Minute), path: path, s: mustOpen(t, path, worldSize, nil)}
}

// golden returns the files of testdata/golden with that number.
func golden(t testing.TB, number string) []byte {
	t.Helper()
	names := testkit.Must(filepath.Glob(filepath.Join("testdata", "golden", number+"-*.bin")))(t)
	if len(names) != 1 {
		t.Fatalf("golden file %s: %d found", number, len(names))
	}
	return testkit.ReadFile(t, names[0])
}

// is checks the file after each of the steps named.
func (se *session) is(numbers ...string) {
	se.Helper()
	for _, number := range numbers {
		if have, want := testkit.ReadFile(se, se.path), golden(se, number); !bytes.Equal(have, want) {
			se.Fatalf("step %s:\nhave %q\nwant %q", number, have, want)
		}
	}
}

func (se *session) removed() {
	se.Helper()
	if _, err := os.Stat(se.path); !errors.Is(err, os.ErrNotExist) {
		se.Fatalf("the file is still there: %v", err)
	}
}

func isError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("have error %v, want %v", err, want)
	}
}

func TestGoldenSession(t *testing.T) {
	g := newSession(t, 2)
	g.is("00")
	g.values()
	g.numbers()
	g.comparing()
	g.asking()
	g.deleting()
	g.combined()
	g.prefixed()
	g.odd()

	second := mustOpen(t, g.path, 2, nil)
	g.is("40")
	testkit.Check(t, second.Close())
	g.is("41")
	clone := mustOpen(t, g.path, 2, nil)
	g.is("42")
	testkit.Check(t, clone.Close())
	g.is("43")
	testkit.Check(t, g.s.Close())
	g.removed()
}

func (se *session) values() {
	testkit.Check(se, se.s.Set(se.ctx, "k", []byte("v")))
	se.is("01")
	testkit.Check(se, se.s.Set(se.ctx, "k", []byte("v2")))
	se.is("02")
	testkit.Check(se, se.s.Set(se.ctx, "", nil))
	se.is("03")
	testkit.Equal(se, string(testkit.Must(se.s.Get(se.ctx, "k"))(se)), "v2")
	testkit.Equal(se, string(testkit.Must(se.s.Get(se.ctx, ""))(se)), "")
	se.is("04")
	_, err := se.s.Get(soon(se), "missing")
	isError(se, err, store.ErrTimeout)
	se.is("05")
}

func (se *session) numbers() {
	testkit.Equal(se, testkit.Must(se.s.Add(se.ctx, "n", 5))(se), 5)
	se.is("06")
	testkit.Equal(se, testkit.Must(se.s.Add(se.ctx, "n", -7))(se), -2)
	se.is("07")
	testkit.Equal(se, testkit.Must(se.s.Add(se.ctx, "z", 0))(se), 0)
	se.is("08")
}

func (se *session) comparing() {
	for _, step := range []struct{ number, key, expected, desired, want string }{
		{"09", "cs", "", "v1", "v1"},
		{"10", "cs", "v1", "v2", "v2"},
		{"11", "cs", "bad", "v3", "v2"},
		{"12", "cs", "", "v3", "v2"},
		{"13", "nokey", "exp", "new", "exp"},
	} {
		now := testkit.Must(se.s.CompareSet(se.ctx, step.key, []byte(step.expected), []byte(step.desired)))(se)
		testkit.Equal(se, string(now), step.want)
		se.is(step.number)
	}
}

func (se *session) asking() {
	testkit.Equal(se, testkit.Must(se.s.NumKeys(se.ctx))(se), 6)
	testkit.Equal(se, testkit.Must(se.s.Check(se.ctx, []string{"k"}))(se), true)
	testkit.Equal(se, testkit.Must(se.s.Check(se.ctx, []string{"k", "zz"}))(se), false)
	testkit.Equal(se, testkit.Must(se.s.Check(se.ctx, nil))(se), true)
	testkit.Check(se, se.s.Wait(se.ctx, []string{"k"}))
	isError(se, se.s.Wait(soon(se), []string{"zz"}), store.ErrTimeout)
	se.is("14", "15", "16", "17", "18", "19")
}

func (se *session) deleting() {
	testkit.Equal(se, testkit.Must(se.s.Delete(se.ctx, "k"))(se), true)
	se.is("20")
	testkit.Equal(se, testkit.Must(se.s.Delete(se.ctx, "k"))(se), false)
	se.is("21")
	testkit.Equal(se, testkit.Must(se.s.NumKeys(se.ctx))(se), 5)
	_, err := se.s.Get(soon(se), "k")
	isError(se, err, store.ErrTimeout)
	se.is("22", "23")
}

func (se *session) combined() {
	testkit.Check(se, se.s.Append(se.ctx, "ap", []byte("xy")))
	se.is("24")
	testkit.Check(se, se.s.Append(se.ctx, "ap", []byte("z")))
	se.is("25")
	testkit.Check(se, se.s.MultiSet(se.ctx, []string{"m1", "m2"}, [][]byte{[]byte("a"), []byte("bb")}))
	se.is("26")
	values := testkit.Must(se.s.MultiGet(se.ctx, []string{"m1", "m2"}))(se)
	testkit.Equal(se, string(bytes.Join(values, []byte("|"))), "a|bb")
	isError(se, se.s.QueuePush(se.ctx, "q", nil), errors.ErrUnsupported)
	keys := testkit.Must(se.s.ListKeys(se.ctx))(se)
	testkit.Equal(se, strings.Join(keys, "|"), "|ap|cs|efcount/|m1|m2|n|z")
	se.is("27", "28", "29", "30")
	testkit.Check(se, se.s.Barrier(se.ctx, "b", 1))
	se.is("31")
	ctx, expire := expiring(se.ctx)
	late := testkit.Go(func() error { return se.s.Barrier(ctx, "b2", 2) })
	waits(se, se.s, 1) // it has counted itself
	expire()
	isError(se, <-late, store.ErrTimeout)
	se.is("32")
}

func (se *session) prefixed() {
	p := store.NewPrefix("pre", se.s)
	testkit.Check(se, p.Set(se.ctx, "k", []byte("v")))
	se.is("33")
	testkit.Equal(se, testkit.Must(p.Add(se.ctx, "c", 1))(se), 1)
	se.is("34")
	testkit.Equal(se, len(testkit.Must(p.ListKeys(se.ctx))(se)), 2)
	se.is("35")
}

func (se *session) odd() {
	testkit.Check(se, se.s.Set(se.ctx, "k\u00e9\n\x00x", []byte("\u00ff\x00")))
	se.is("36")
	_, err := se.s.Add(se.ctx, "cs", 1)
	isError(se, err, store.ErrNotNumber)
	se.is("37", "38")
	testkit.Check(se, se.s.Set(se.ctx, "-/cs", []byte("x")))
	se.is("39")
	testkit.Equal(se, string(testkit.Must(se.s.Get(se.ctx, "cs"))(se)), "v2")
}

func TestGoldenNeverRemoved(t *testing.T) {
	g := newSession(t, NeverRemove)
	g.is("45")
	testkit.Check(t, g.s.Set(g.ctx, "a", []byte("b")))
	g.is("46")
	testkit.Check(t, g.s.Close())
	g.is("47")
	last := mustOpen(t, g.path, 1, nil)
	g.is("48")
	testkit.Equal(t, string(testkit.Must(last.Get(g.ctx, "a"))(t)), "b")
	testkit.Check(t, last.Close())
	g.removed()
}

func TestGoldenWorldSizes(t *testing.T) {
	g := newSession(t, 0)
	g.is("50")
	testkit.Check(t, g.s.Close())
	g.removed()

	g = newSession(t, 2)
	g.is("52")
	testkit.Check(t, g.s.Close())
	g.is("53")
	last := mustOpen(t, g.path, 2, nil)
	g.is("54")
	testkit.Check(t, last.Close())
	g.removed()
}

// Each recorded file reads as the reference left it.
func TestGoldenReading(t *testing.T) {
	path := newPath(t)
	testkit.WriteFile(t, path, golden(t, "43"))
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, time.Minute)
	for key, want := range map[string]string{
		"": "", "n": "-2", "z": "0", "cs": "v2", "ap": "xyz", "m1": "a", "m2": "bb",
		"b/num_members": "1", "b/last_member": "1", "b2/num_members": "1",
		"pre/k": "v", "pre/c": "1", "k\u00e9\n\x00x": "\u00ff\x00", "-/cs": "x",
	} {
		testkit.Equal(t, string(testkit.Must(s.Get(ctx, key))(t)), want)
	}
	testkit.Equal(t, testkit.Must(s.NumKeys(ctx))(t), 14+2)
}

func soon(t testing.TB) context.Context {
	t.Helper()
	return testkit.Within(t, 5*time.Millisecond)
}

// timedOut is a context that has ended by its deadline once the one below has ended.
type timedOut struct{ context.Context }

func (t timedOut) Err() error {
	if t.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// expiring returns a context whose deadline passes with a call of expire.
func expiring(ctx context.Context) (_ context.Context, expire func()) {
	ctx, expire = context.WithCancel(ctx)
	return timedOut{ctx}, expire
}
