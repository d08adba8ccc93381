package filestore

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/filetest"
	"rallypoint/internal/testkit"
)

// pythonVariable names the interpreter whose torch is the peer; the project's
// own if it is not set.
const pythonVariable = "RALLYPOINT_TORCH_PYTHON"

// torch is a process that uses torch.distributed.FileStore as its input says
// (testdata/torch_peer.py).
type torch struct {
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Reader
	cmd *exec.Cmd
}

func startTorch(t testing.TB) *torch {
	t.Helper()
	if testing.Short() {
		t.Skip("importing torch takes seconds")
	}
	python := cmp.Or(os.Getenv(pythonVariable), filepath.Join("..", ".venv", "bin", "python"))
	if _, err := os.Stat(python); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no Python with torch at %s (`make venv` makes one; %s names another)", python, pythonVariable)
	}
	p := &torch{t: t, cmd: exec.CommandContext(testkit.Within(t, 2*time.Minute), python, filepath.Join("testdata", "torch_peer.py"))}
	p.cmd.Stderr = os.Stderr
	p.in = testkit.Must(p.cmd.StdinPipe())(t)
	p.out = bufio.NewReader(testkit.Must(p.cmd.StdoutPipe())(t))
	testkit.Check(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.in.Close()
		kill := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		kill.Stop()
	})
	version, err := p.answer()
	if err != nil {
		t.Skipf("%s has no torch: %v", python, err)
	}
	t.Logf("torch %v", version)
	return p
}

// ask begins an operation; call answer for it.
func (to *torch) ask(operation string, args ...any) {
	to.t.Helper()
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = filetest.Elsewhere(text)
		}
	}
	line := testkit.Must(json.Marshal(append([]any{operation}, args...)))(to.t)
	_, err := to.in.Write(append(line, '\n'))
	testkit.Check(to.t, err)
}

func (to *torch) answer() (any, error) {
	line, err := to.out.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var answer struct {
		OK    any
		Error string
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return answer.OK, nil
}

// do is an operation that must succeed; its answer as text.
func (to *torch) do(operation string, args ...any) string {
	to.t.Helper()
	to.ask(operation, args...)
	return to.done()
}

// done is the answer, as text, of an operation that must succeed.
func (to *torch) done() string {
	to.t.Helper()
	return fmt.Sprint(testkit.Must(to.answer())(to.t))
}

// has reports whether the peer's torch has the method: old ones have fewer.
func (to *torch) has(name, method string) bool {
	to.t.Helper()
	to.ask("call", name, "__getattribute__", method)
	_, err := to.answer()
	return err == nil || !strings.Contains(err.Error(), "AttributeError")
}

func TestTorch(t *testing.T) {
	p := startTorch(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *torch)
	}{
		{"reads ours", torchReadsOurs},
		{"read by us", torchReadByUs},
		{"arithmetic", torchArithmetic},
		{"wakes", torchWakes},
		{"adds at once", torchAddsAtOnce},
		{"barrier", torchBarrier},
		{"users", torchUsers},
		{"torn", torchTorn},
		{"cover", torchCover},
		{"hangs", torchHangs}, // the last: it kills the peer
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &torch{t: t, in: p.in, out: p.out, cmd: p.cmd}) })
	}
}

func torchReadsOurs(t *testing.T, p *torch) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, time.Minute)
	p.do("open", "s", path, -1)
	testkit.Check(t, s.MultiSet(ctx, []string{"a", "", "k\u00e9\n\x00x"}, [][]byte{[]byte("1"), nil, []byte("\x00\xff")}))
	testkit.Check(t, s.Append(ctx, "a", []byte("2")))
	testkit.Check(t, s.Set(ctx, "large", make([]byte, 1<<20)))
	testkit.Check(t, s.Set(ctx, "gone", nil))
	testkit.Must(s.Delete(ctx, "gone"))(t)
	testkit.Equal(t, p.do("call", "s", "get", "a"), "12")
	testkit.Equal(t, p.do("call", "s", "get", ""), "")
	testkit.Equal(t, p.do("call", "s", "get", "k\u00e9\n\x00x"), "\u0000\u00ff")
	testkit.Equal(t, len(p.do("call", "s", "get", "large")), 1<<20)
	testkit.Equal(t, p.do("call", "s", "num_keys"), fmt.Sprint(testkit.Must(s.NumKeys(ctx))(t)))
	if p.has("s", "check") {
		testkit.Equal(t, p.do("call", "s", "check", []string{"a", "gone"}), "false")
	}
	if p.has("s", "list_keys") {
		p.ask("call", "s", "list_keys")
		var theirs []string
		for _, key := range testkit.Must(p.answer())(t).([]any) {
			theirs = append(theirs, key.(string))
		}
		ours := testkit.Must(s.ListKeys(ctx))(t)
		slices.Sort(ours)
		slices.Sort(theirs)
		testkit.Equal(t, strings.Join(theirs, "|"), strings.Join(ours, "|"))
	}
	p.do("prefix", "p", "pre", "s")
	testkit.Check(t, store.NewPrefix("pre", s).Set(ctx, "k", []byte("v")))
	testkit.Equal(t, p.do("call", "p", "get", "k"), "v")
	p.do("close", "p")
	p.do("close", "s")
}

func torchReadByUs(t *testing.T, p *torch) {
	path := newPath(t)
	p.do("open", "s", path, -1)
	p.do("call", "s", "set", "a", "1")
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, time.Minute)
	testkit.Equal(t, string(testkit.Must(s.Get(ctx, "a"))(t)), "1")
	p.do("call", "s", "set", "a", "2")
	p.do("call", "s", "set", "k\u00e9", "\u00ff")
	testkit.Equal(t, string(testkit.Must(s.Get(ctx, "a"))(t)), "2")
	testkit.Equal(t, string(testkit.Must(s.Get(ctx, "k\u00e9"))(t)), "\u00ff")
	p.do("call", "s", "delete_key", "a")
	testkit.Equal(t, testkit.Must(s.Check(ctx, []string{"a"}))(t), false)
	p.do("prefix", "p", "pre", "s")
	p.do("call", "p", "set", "k", "v")
	testkit.Equal(t, string(testkit.Must(store.NewPrefix("pre", s).Get(ctx, "k"))(t)), "v")
	p.do("close", "p")
	p.do("close", "s")
	testkit.Equal(t, testkit.Must(s.NumKeys(ctx))(t), 4)
}

func torchArithmetic(t *testing.T, p *torch) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, time.Minute)
	p.do("open", "s", path, -1)
	for _, value := range []string{"", " \t+7x", "-5", "12 3", "x", "-", " ", "9223372036854775808"} {
		testkit.Check(t, s.MultiSet(ctx, []string{"ours", "theirs"}, [][]byte{[]byte(value), []byte(value)}))
		sum, err := s.Add(ctx, "ours", 3)
		p.ask("call", "s", "add", "theirs", 3)
		theirs, theirErr := p.answer()
		if (err == nil) != (theirErr == nil) {
			t.Fatalf("%q: ours %v, theirs %v", value, err, theirErr)
		}
		if err == nil {
			testkit.Equal(t, fmt.Sprint(theirs), strconv.FormatInt(sum, 10))
		}
		testkit.Equal(t, string(testkit.Must(s.Get(ctx, "theirs"))(t)), string(testkit.Must(s.Get(ctx, "ours"))(t)))
	}
	for i, c := range [][3]string{{"", "", "a"}, {"v", "", "a"}, {"v", "v", "a"}, {"v", "w", "a"}, {"", "w", "a"}} {
		key := "cs" + strconv.Itoa(i)
		if c[0] != "" {
			testkit.Check(t, s.MultiSet(ctx, []string{key, key + "'"}, [][]byte{[]byte(c[0]), []byte(c[0])}))
		}
		ours := string(testkit.Must(s.CompareSet(ctx, key, []byte(c[1]), []byte(c[2])))(t))
		testkit.Equal(t, p.do("call", "s", "compare_set", key+"'", c[1], c[2]), ours)
		testkit.Equal(t, testkit.Must(s.Check(ctx, []string{key}))(t), testkit.Must(s.Check(ctx, []string{key + "'"}))(t))
	}
	p.do("close", "s")
}

// Each side is woken by the other's write.
func torchWakes(t *testing.T, p *torch) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, time.Minute)
	p.do("open", "s", path, -1)
	p.do("timeout", "s", 30)
	for i := range 5 {
		key := strconv.Itoa(i)
		p.ask("call", "s", "get", "to torch "+key)
		time.Sleep(5 * time.Millisecond)
		testkit.Check(t, s.Set(ctx, "to torch "+key, []byte("hello")))
		testkit.Equal(t, p.done(), "hello")

		done := testkit.Go(func() error { return s.Wait(ctx, []string{"to us " + key}) })
		waits(t, s, 1)
		p.do("call", "s", "set", "to us "+key, "hello")
		testkit.Check(t, <-done)
	}
	p.ask("wait", "s", []string{"x", "y"}, 30)
	testkit.Check(t, s.MultiSet(ctx, []string{"x", "y"}, [][]byte{nil, nil}))
	p.done()
	p.do("close", "s")
}

func torchAddsAtOnce(t *testing.T, p *torch) {
	const each = 200
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, time.Minute)
	p.ask("hammer", path, "sum", each, 2)
	var all sync.WaitGroup
	for i := range 3 {
		mine := mustOpen(t, path, NeverRemove, &Options{Remote: i == 0})
		all.Go(func() {
			for range each {
				if _, err := mine.Add(ctx, "sum", 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	p.done()
	testkit.Equal(t, string(testkit.Must(s.Get(ctx, "sum"))(t)), strconv.Itoa(5*each))
	entries, _ := plainRead(testkit.ReadFile(t, path))
	testkit.Equal(t, entries[cleanupKey], "2")
	testkit.Equal(t, entries[refcountKey], "4")
}

func torchBarrier(t *testing.T, p *torch) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	p.do("open", "s", path, -1)
	p.do("timeout", "s", 30)
	if !p.has("s", "barrier") {
		t.Skip("this torch has no barrier")
	}
	done := testkit.Go(func() error { return s.Barrier(testkit.Within(t, time.Minute), "b", 2) })
	p.do("call", "s", "barrier", "b", 2)
	testkit.Check(t, <-done)
	p.do("close", "s")
}

// The last of both removes the file, whichever it is.
func torchUsers(t *testing.T, p *torch) {
	for _, torchLast := range []bool{false, true} {
		path := newPath(t)
		p.do("open", "s", path, 2)
		s := mustOpen(t, path, 2, nil)
		if torchLast {
			testkit.Check(t, s.Close())
		} else {
			p.do("close", "s")
		}
		entries, end := plainRead(testkit.ReadFile(t, path))
		testkit.Equal(t, end, len(testkit.ReadFile(t, path)))
		want := map[string]string{refcountKey: "1", cleanupKey: "1"}
		if !maps.Equal(entries, want) {
			t.Fatalf("have %q, want %q", entries, want)
		}
		if torchLast {
			p.do("close", "s")
		} else {
			testkit.Check(t, s.Close())
		}
		_, err := os.Stat(path)
		isError(t, err, fs.ErrNotExist)
	}
}

// A stock process that ran before the torn record reads on after its
// cover, and one that comes later reads all.
func torchTorn(t *testing.T, p *torch) {
	for _, torn := range []string{
		"\x07", "\x02\x00\x00\x00", "\x04\x00\x00\x00/t", "\x02\x00\x00\x00/t", "\x02\x00\x00\x00/t\x05\x00",
		"\x02\x00\x00\x00/t\x05\x00\x00\x00half", "\x02\x00\x00\x00/t\xff\xff\xff\xff" + strings.Repeat("x", 5000),
		"\x05\x00\x00\x00-/ol", "\x05\x00\x00\x00-/old\x00\x00",
	} {
		path := newPath(t)
		s := mustOpen(t, path, NeverRemove, nil)
		ctx := testkit.Within(t, time.Minute)
		p.do("open", "early", path, -1)
		p.do("call", "early", "set", "old", "1")
		testkit.Equal(t, p.do("call", "early", "get", "old"), "1")
		appendTo(t, path, []byte(torn))
		testkit.Check(t, s.Set(ctx, "new", []byte("2")))
		p.do("open", "late", path, -1)
		for _, name := range []string{"early", "late"} {
			testkit.Equal(t, p.do("call", name, "get", "old"), "1")
			testkit.Equal(t, p.do("call", name, "get", "new"), "2")
			testkit.Equal(t, p.do("call", name, "num_keys"), fmt.Sprint(testkit.Must(s.NumKeys(ctx))(t)))
			testkit.Equal(t, p.do("call", name, "add", "n", 1), string(testkit.Must(s.Get(ctx, "n"))(t)))
		}
		p.do("close", "early")
		p.do("close", "late")
	}
}

// Records that a stock process wrote after a torn one without reading exist
// for it and for us once the torn one is covered.
func torchCover(t *testing.T, p *torch) {
	for _, torn := range []string{"\x02\x00\x00\x00", "\x02\x00\x00\x00/t\x00\x10\x00\x00"} {
		path := newPath(t)
		s := mustOpen(t, path, NeverRemove, nil)
		ctx := testkit.Within(t, time.Minute)
		p.do("open", "s", path, -1)
		p.do("call", "s", "set", "old", "1")
		appendTo(t, path, []byte(torn))
		p.do("call", "s", "set", "unread", "2")
		testkit.Check(t, s.Set(ctx, "new", []byte("3")))
		for key, want := range map[string]string{"old": "1", "unread": "2", "new": "3"} {
			testkit.Equal(t, p.do("call", "s", "get", key), want)
			testkit.Equal(t, string(testkit.Must(s.Get(ctx, key))(t)), want)
		}
		p.do("close", "s")
	}
}

// A stock process that meets a torn record spins and keeps its lock: our writers
// say who it is, and continue once it is gone.
func torchHangs(t *testing.T, p *torch) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, time.Minute)
	p.do("open", "s", path, -1)
	testkit.Check(t, s.Set(ctx, "k", []byte("v")))
	appendTo(t, path, []byte("\x02\x00"))
	p.ask("call", "s", "get", "k")
	holder := "process " + strconv.Itoa(p.cmd.Process.Pid)
	if !s.local { // the kernel knows of the file system's daemon at most
		holder = "process"
	}
	for deadline := time.Now().Add(testkit.Patience); !strings.Contains(s.file.LockHolder(), holder) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	err := s.Set(testkit.Within(t, 50*time.Millisecond), "k", []byte("v2"))
	isError(t, err, store.ErrTimeout)
	if !strings.Contains(err.Error(), holder) {
		t.Errorf("the error does not name %s: %v", holder, err)
	}
	testkit.Check(t, p.cmd.Process.Kill())
	testkit.Check(t, s.Set(ctx, "k", []byte("v3")))
	testkit.Equal(t, string(testkit.Must(s.Get(ctx, "k"))(t)), "v3")
}
