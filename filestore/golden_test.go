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
func (g *session) is(numbers ...string) {
	g.Helper()
	for _, number := range numbers {
		if have, want := testkit.ReadFile(g, g.path), golden(g, number); !bytes.Equal(have, want) {
			g.Fatalf("step %s:\nhave %q\nwant %q", number, have, want)
		}
	}
}

func (g *session) removed() {
	g.Helper()
	if _, err := os.Stat(g.path); !errors.Is(err, os.ErrNotExist) {
		g.Fatalf("the file is still there: %v", err)
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

func (g *session) values() {
	testkit.Check(g, g.s.Set(g.ctx, "k", []byte("v")))
	g.is("01")
	testkit.Check(g, g.s.Set(g.ctx, "k", []byte("v2")))
	g.is("02")
	testkit.Check(g, g.s.Set(g.ctx, "", nil))
	g.is("03")
	testkit.Equal(g, string(testkit.Must(g.s.Get(g.ctx, "k"))(g)), "v2")
	testkit.Equal(g, string(testkit.Must(g.s.Get(g.ctx, ""))(g)), "")
	g.is("04")
	_, err := g.s.Get(soon(g), "missing")
	isError(g, err, store.ErrTimeout)
	g.is("05")
}

func (g *session) numbers() {
	testkit.Equal(g, testkit.Must(g.s.Add(g.ctx, "n", 5))(g), 5)
	g.is("06")
	testkit.Equal(g, testkit.Must(g.s.Add(g.ctx, "n", -7))(g), -2)
	g.is("07")
	testkit.Equal(g, testkit.Must(g.s.Add(g.ctx, "z", 0))(g), 0)
	g.is("08")
}

func (g *session) comparing() {
	for _, step := range []struct{ number, key, expected, desired, want string }{
		{"09", "cs", "", "v1", "v1"},
		{"10", "cs", "v1", "v2", "v2"},
		{"11", "cs", "bad", "v3", "v2"},
		{"12", "cs", "", "v3", "v2"},
		{"13", "nokey", "exp", "new", "exp"},
	} {
		now := testkit.Must(g.s.CompareSet(g.ctx, step.key, []byte(step.expected), []byte(step.desired)))(g)
		testkit.Equal(g, string(now), step.want)
		g.is(step.number)
	}
}

func (g *session) asking() {
	testkit.Equal(g, testkit.Must(g.s.NumKeys(g.ctx))(g), 6)
	testkit.Equal(g, testkit.Must(g.s.Check(g.ctx, []string{"k"}))(g), true)
	testkit.Equal(g, testkit.Must(g.s.Check(g.ctx, []string{"k", "zz"}))(g), false)
	testkit.Equal(g, testkit.Must(g.s.Check(g.ctx, nil))(g), true)
	testkit.Check(g, g.s.Wait(g.ctx, []string{"k"}))
	isError(g, g.s.Wait(soon(g), []string{"zz"}), store.ErrTimeout)
	g.is("14", "15", "16", "17", "18", "19")
}

func (g *session) deleting() {
	testkit.Equal(g, testkit.Must(g.s.Delete(g.ctx, "k"))(g), true)
	g.is("20")
	testkit.Equal(g, testkit.Must(g.s.Delete(g.ctx, "k"))(g), false)
	g.is("21")
	testkit.Equal(g, testkit.Must(g.s.NumKeys(g.ctx))(g), 5)
	_, err := g.s.Get(soon(g), "k")
	isError(g, err, store.ErrTimeout)
	g.is("22", "23")
}

func (g *session) combined() {
	testkit.Check(g, g.s.Append(g.ctx, "ap", []byte("xy")))
	g.is("24")
	testkit.Check(g, g.s.Append(g.ctx, "ap", []byte("z")))
	g.is("25")
	testkit.Check(g, g.s.MultiSet(g.ctx, []string{"m1", "m2"}, [][]byte{[]byte("a"), []byte("bb")}))
	g.is("26")
	values := testkit.Must(g.s.MultiGet(g.ctx, []string{"m1", "m2"}))(g)
	testkit.Equal(g, string(bytes.Join(values, []byte("|"))), "a|bb")
	isError(g, g.s.QueuePush(g.ctx, "q", nil), errors.ErrUnsupported)
	keys := testkit.Must(g.s.ListKeys(g.ctx))(g)
	testkit.Equal(g, strings.Join(keys, "|"), "|ap|cs|efcount/|m1|m2|n|z")
	g.is("27", "28", "29", "30")
	testkit.Check(g, g.s.Barrier(g.ctx, "b", 1))
	g.is("31")
	ctx, expire := expiring(g.ctx)
	late := testkit.Go(func() error { return g.s.Barrier(ctx, "b2", 2) })
	waits(g, g.s, 1) // it has counted itself
	expire()
	isError(g, <-late, store.ErrTimeout)
	g.is("32")
}

func (g *session) prefixed() {
	p := store.NewPrefix("pre", g.s)
	testkit.Check(g, p.Set(g.ctx, "k", []byte("v")))
	g.is("33")
	testkit.Equal(g, testkit.Must(p.Add(g.ctx, "c", 1))(g), 1)
	g.is("34")
	testkit.Equal(g, len(testkit.Must(p.ListKeys(g.ctx))(g)), 2)
	g.is("35")
}

func (g *session) odd() {
	testkit.Check(g, g.s.Set(g.ctx, "k\u00e9\n\x00x", []byte("\u00ff\x00")))
	g.is("36")
	_, err := g.s.Add(g.ctx, "cs", 1)
	isError(g, err, store.ErrNotNumber)
	g.is("37", "38")
	testkit.Check(g, g.s.Set(g.ctx, "-/cs", []byte("x")))
	g.is("39")
	testkit.Equal(g, string(testkit.Must(g.s.Get(g.ctx, "cs"))(g)), "v2")
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

func (c timedOut) Err() error {
	if c.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// expiring returns a context whose deadline passes with a call of expire.
func expiring(ctx context.Context) (_ context.Context, expire func()) {
	ctx, expire = context.WithCancel(ctx)
	return timedOut{ctx}, expire
}
