package fence

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestTwoWriters: who has loaded the present checkpoint replaces it, again and again; the other is
// refused before and after it writes, and is told by whom.
func TestTwoWriters(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			intercept(t, k.withoutExchange(plain))
			path := filepath.Join(t.TempDir(), "checkpoint")
			first, second := k.start(t, path, "gpu-a"), k.start(t, path, "gpu-b")
			if first.fence.Existed() || first.fence.Version() != "" {
				t.Error("it existed")
			}
			if !k.into { // both are under way when the first is done
				temporary := testkit.Must(second.fence.Prepare(soon()))(t)
				testkit.Check(t, second.write(temporary, "late"))
			}
			testkit.Check(t, first.save("a"))
			testkit.Check(t, first.save("b"))
			commit := second.fence.Commit
			if k.into {
				commit = second.fence.Claim
			}
			for _, refused := range []error{commit(soon()), second.save("x")} {
				if !errors.Is(refused, rendezvous.ErrFenced) {
					t.Fatalf("the other was not refused: %v", refused)
				}
				for _, part := range []string{path, `run "job", round 2, process 1 on gpu-a, 20`, "Start this worker again"} {
					if !strings.Contains(refused.Error(), part) {
						t.Errorf("%q is not in %q", part, refused)
					}
				}
			}
			third := k.start(t, path, "gpu-b")
			if third.state != "ab" || !third.fence.Existed() || third.fence.Version() != first.fence.Version() {
				t.Errorf("the next one loads %q", third.state)
			}
			testkit.Check(t, third.save("c"))
			if err := first.save("x"); !errors.Is(err, rendezvous.ErrFenced) {
				t.Errorf("the first was not refused: %v", err)
			}
			if got := k.load(t, path); got != "abc" {
				t.Errorf("the checkpoint is %q", got)
			}
			for _, w := range []*writer{first, second, third} {
				w.fence.Close()
			}
			clean(t, path)
		})
	}
}

// TestHistory: writers come, save, stop at any operation on files, and come again, in random
// orders. Whatever they do, a checkpoint is replaced only by one that continues it.
func TestHistory(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			for seed := range uint64(5) {
				random := rand.New(rand.NewPCG(seed, 1))
				path := filepath.Join(t.TempDir(), "checkpoint")
				countdown := -1
				intercept(t, k.withoutExchange(func(_ string, do func() error) error {
					if countdown--; countdown == 0 {
						panic(crash{})
					}
					return do()
				}))
				writers, saves, refusals := make([]*writer, 4), 0, 0
				present := ""
				for range 60 {
					i := random.IntN(len(writers))
					w := writers[i]
					if w == nil || random.IntN(6) == 0 {
						if crashed(func() { writers[i] = k.start(t, path, fmt.Sprint(i)) }) {
							t.Fatal("a crash was not asked for")
						}
						if got := writers[i].state; got != present {
							t.Fatalf("seed %d: writer %d loads %q, the present one is %q", seed, i, got, present)
						}
						continue
					}
					if random.IntN(3) == 0 {
						countdown = 1 + random.IntN(12)
					}
					loaded, next := w.state, w.state+string(rune('a'+i))
					var err error
					if crashed(func() { err = w.save(string(rune('a' + i))) }) {
						writers[i] = nil
					}
					countdown = -1
					now := k.start(t, path, "reader")
					now.fence.Close()
					switch {
					case now.state == present && err == nil && writers[i] != nil:
						t.Fatalf("seed %d: what writer %d saved is not there", seed, i)
					case now.state == present:
					case now.state != next || loaded != present:
						t.Fatalf("seed %d: writer %d had loaded %q and replaced %q by %q", seed, i, loaded, present, now.state)
					}
					if errors.Is(err, rendezvous.ErrFenced) {
						refusals++
					} else if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					if now.state != present {
						saves++
					}
					present = now.state
				}
				if saves == 0 || refusals == 0 {
					t.Errorf("seed %d: %d saves, %d refusals", seed, saves, refusals)
				}
			}
		})
	}
}

// crash is the panic of a process that stops.
type crash struct{}

// crashed reports whether f stopped. Its locks are free then, as those of a process that ended.
func crashed(f func()) (yes bool) {
	defer func() {
		if v := recover(); v != nil {
			if _, yes = v.(crash); !yes {
				panic(v)
			}
		}
	}()
	f()
	return false
}

// TestCrash stops a writer before each operation on files. The one that had loaded the same
// checkpoint may replace it only if it is the present one still; the next to come finds a whole
// checkpoint, may replace it, and nothing is left behind.
func TestCrash(t *testing.T) {
	for _, k := range kinds[:3] {
		t.Run(k.name, func(t *testing.T) {
			stops := 0
			for stop := 1; ; stop++ {
				at, left := "", stop
				intercept(t, plain)
				path := filepath.Join(t.TempDir(), "checkpoint")
				testkit.Check(t, k.start(t, path, "first").save("a"))
				writer, stale := k.start(t, path, "writer"), k.start(t, path, "stale")
				intercept(t, k.withoutExchange(func(name string, do func() error) error {
					if left--; left == 0 {
						at = name
						panic(crash{})
					}
					return do()
				}))
				stopped := crashed(func() { testkit.Check(t, writer.save("b")) })
				left = -1
				was := k.load(t, path)
				err := stale.save("x")
				now := k.load(t, path)
				switch {
				case err == nil && was != "a" && was != "": // aside
					t.Errorf("stopped before %q: the other replaced %q, which it had not loaded", at, was)
				case err == nil && now != "ax":
					t.Errorf("stopped before %q: the other replaced it by %q", at, now)
				case err != nil && !errors.Is(err, rendezvous.ErrFenced):
					t.Errorf("stopped before %q: %v", at, err)
				case err != nil && now != "a" && now != "ab":
					t.Errorf("stopped before %q: the checkpoint is %q", at, now)
				}
				next := k.start(t, path, "next")
				if next.state != now {
					t.Errorf("stopped before %q: the next one loads %q instead of %q", at, next.state, now)
				}
				testkit.Check(t, next.save("c"))
				if got := k.load(t, path); got != now+"c" {
					t.Errorf("stopped before %q: then it is %q", at, got)
				}
				clean(t, path)
				if !stopped {
					break
				}
				stops++
			}
			if stops < 6 {
				t.Errorf("there were only %d operations", stops)
			}
		})
	}
}

// TestOrder: the data are on the disk before the record, and the record before the data take the
// checkpoint's place.
func TestOrder(t *testing.T) {
	var done []string
	intercept(t, func(name string, do func() error) error {
		done = append(done, name)
		return do()
	})
	path := filepath.Join(t.TempDir(), "checkpoint")
	testkit.Check(t, kinds[0].start(t, path, "a").save("a"))
	want := []string{"sync the data", "write the record", "rename the record", "sync the folder", "rename the data", "sync the folder"}
	if !slices.Equal(done, want) {
		t.Errorf("%q", done)
	}
}

// TestFailedWrite: each operation fails once; the checkpoint stays whole, and the same process
// may save again.
func TestFailedWrite(t *testing.T) {
	for _, k := range kinds {
		for stop := 1; ; stop++ {
			left, failed := stop, ""
			intercept(t, plain)
			path := filepath.Join(t.TempDir(), "checkpoint")
			w := k.start(t, path, "writer")
			testkit.Check(t, w.save("a"))
			intercept(t, k.withoutExchange(func(name string, do func() error) error {
				if left--; left == 0 {
					failed = name
					return unix.EIO
				}
				return do()
			}))
			err := w.save("b")
			if failed == "" {
				break
			}
			if err != nil && (!errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), path)) {
				t.Errorf("%s, %q fails: %v", k.name, failed, err)
			}
			if now := k.load(t, path); now != "a" && now != "ab" {
				t.Errorf("%s, %q fails: the checkpoint is %q", k.name, failed, now)
			}
			w.state = k.load(t, path)
			if err := w.save("c"); err != nil {
				t.Errorf("%s, %q failed: then %v", k.name, failed, err)
			}
		}
	}
}

// TestBadRecord: what is no record of this user's is an error that says what to do, for one who
// comes and for one who is there.
func TestBadRecord(t *testing.T) {
	for _, k := range kinds {
		intercept(t, k.withoutExchange(plain))
		for name, spoil := range map[string]func(record string) error{
			"empty":     func(record string) error { return os.Truncate(record, 0) },
			"not JSON":  func(record string) error { return os.WriteFile(record, []byte("\x1b[2J"), 0o666) },
			"too large": func(record string) error { return os.WriteFile(record, make([]byte, 1<<20), 0o666) },
			"FIFO":      func(record string) error { return errors.Join(os.Remove(record), unix.Mkfifo(record, 0o666)) },
			"folder":    func(record string) error { return errors.Join(os.Remove(record), os.Mkdir(record, 0o777)) },
			"link": func(record string) error {
				return errors.Join(os.Rename(record, record+"x"), os.Symlink(record+"x", record))
			},
			"foreign": func(record string) error {
				if os.Geteuid() != 0 {
					return os.Truncate(record, 0)
				}
				return os.Chown(record, 4711, 4711)
			},
		} {
			path := filepath.Join(t.TempDir(), "checkpoint")
			w := k.start(t, path, "gpu-a")
			testkit.Check(t, w.save("a"))
			testkit.Check(t, spoil(w.fence.record))
			_, opened := Open(Options{Path: path, Into: k.into}, soon())
			for _, err := range []error{opened, w.save("b")} {
				if rendezvous.CodeOf(err) != rendezvous.CodeState || !strings.Contains(err.Error(), w.fence.record) || !strings.Contains(err.Error(), "remove that file") {
					t.Errorf("%s, %s: %v", k.name, name, err)
				}
			}
			testkit.Check(t, os.RemoveAll(w.fence.record))
			if err := w.save("b"); !errors.Is(err, rendezvous.ErrFenced) || !strings.Contains(err.Error(), "is gone") {
				t.Errorf("%s, the record is gone: %v", k.name, err)
			}
			next := k.start(t, path, "gpu-b")
			testkit.Check(t, next.save("b"))
		}
	}
}

// TestTrust: in a folder whose files others may replace, their records count.
func TestTrust(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to others")
	}
	for mode, want := range map[fs.FileMode]bool{0o755: false, 0o775: true, 0o777: true, 0o777 | fs.ModeSticky: false} {
		path := filepath.Join(t.TempDir(), "checkpoint")
		w := kinds[0].start(t, path, "gpu-a")
		testkit.Check(t, w.save("a"))
		testkit.Check(t, os.Chmod(filepath.Dir(path), mode))
		testkit.Check(t, os.Chown(w.fence.record, 4711, 4711))
		if err := w.save("b"); (err == nil) != want {
			t.Errorf("mode %v: %v", mode, err)
		}
		testkit.Check(t, os.Lchown(path, 4712, 4712))
		testkit.Check(t, os.Chown(w.fence.record, 4712, 4712))
		if err := w.save("c"); err != nil {
			t.Errorf("mode %v, the checkpoint's owner: %v", mode, err)
		}
	}
}

// TestBeforeTheFence: a checkpoint without a record is replaced by whoever opened it so, once.
func TestBeforeTheFence(t *testing.T) {
	for _, k := range kinds {
		intercept(t, k.withoutExchange(plain))
		path := filepath.Join(t.TempDir(), "checkpoint")
		if k.into {
			testkit.Check(t, os.Mkdir(path, 0o777))
			testkit.Check(t, os.WriteFile(filepath.Join(path, "step-000001"), []byte("a"), 0o666))
		} else {
			testkit.Check(t, (&writer{kind: k}).write(path, "a"))
		}
		first, second := k.start(t, path, "gpu-a"), k.start(t, path, "gpu-b")
		if !first.fence.Existed() || first.state != "a" {
			t.Fatalf("%s: not there", k.name)
		}
		testkit.Check(t, first.save("b"))
		if err := second.save("x"); !errors.Is(err, rendezvous.ErrFenced) {
			t.Errorf("%s: %v", k.name, err)
		}
	}
}

// TestPaths: names that lead to one checkpoint are one; what cannot be one is refused.
func TestPaths(t *testing.T) {
	folder := t.TempDir()
	testkit.Check(t, os.Mkdir(filepath.Join(folder, "real"), 0o777))
	testkit.Check(t, os.Symlink("real", filepath.Join(folder, "link")))
	testkit.Check(t, os.Symlink("loop", filepath.Join(folder, "loop")))
	testkit.Check(t, os.Symlink("real/checkpoint", filepath.Join(folder, "latest")))
	a := kinds[0].start(t, filepath.Join(folder, "real/checkpoint"), "a")
	b := kinds[0].start(t, filepath.Join(folder, "link/../link/checkpoint"), "b")
	testkit.Check(t, a.save("a"))
	if err := b.save("x"); !errors.Is(err, rendezvous.ErrFenced) {
		t.Error(err)
	}
	testkit.Check(t, os.Symlink("later", filepath.Join(folder, "dangling")))
	testkit.Check(t, kinds[0].start(t, filepath.Join(folder, "dangling"), "e").save("e"))
	if got := kinds[0].load(t, filepath.Join(folder, "later")); got != "e" {
		t.Errorf("by a link to nothing: %q", got)
	}
	c := kinds[0].start(t, filepath.Join(folder, "latest"), "c")
	testkit.Check(t, c.save("c"))
	if got := kinds[0].load(t, a.path); got != "ac" {
		t.Errorf("by a link: %q", got)
	}
	for _, bad := range []string{"", filepath.Join(folder, "loop"), filepath.Join(folder, "latest/below"), filepath.Join(folder, strings.Repeat("n", 300))} {
		if _, err := Open(Options{Path: bad}, soon()); rendezvous.CodeOf(err) != rendezvous.CodeInvalid {
			t.Errorf("%.50q: %v", bad, err)
		}
	}
	d := kinds[0].start(t, filepath.Join(folder, "new/folder/checkpoint"), "d") // made by the first save
	testkit.Check(t, d.save("d"))
}

// TestOthersFiles: a sweep removes nothing but what a fence has made.
func TestOthersFiles(t *testing.T) {
	for _, k := range kinds {
		intercept(t, k.withoutExchange(plain))
		folder := t.TempDir()
		path := filepath.Join(folder, "checkpoint")
		w := k.start(t, path, "gpu-a")
		testkit.Check(t, w.save("a"))
		id := short(newVersion())
		kept := []string{path + ".fence.bak", path + "-old", filepath.Join(folder, ".checkpoint.fence-mine-"+id), filepath.Join(folder, ".checkpoint2.fence--"+id), w.fence.record + ".bak", w.fence.record + "." + id + "x"}
		gone := []string{w.fence.record + "." + id}
		if !k.into {
			gone = append(gone, filepath.Join(folder, ".checkpoint.fence--"+id), filepath.Join(folder, ".checkpoint.fence-"+id+"-"+id))
		}
		for _, name := range append(kept, gone...) {
			testkit.Check(t, os.WriteFile(name, nil, 0o666))
		}
		testkit.Check(t, w.save("b"))
		for _, name := range kept {
			if _, err := os.Lstat(name); err != nil {
				t.Errorf("%s: %v", k.name, err)
			}
		}
		for _, name := range gone {
			if _, err := os.Lstat(name); err == nil {
				t.Errorf("%s: %s is left", k.name, name)
			}
		}
	}
}

// TestWrongCalls: the calls of one form are refused by the other, and none is left after Close.
func TestWrongCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint")
	whole := testkit.Must(Open(Options{Path: path}, soon()))(t)
	into := testkit.Must(Open(Options{Path: path + "s", Into: true}, soon()))(t)
	_, err := into.Prepare(soon())
	temporary := testkit.Must(whole.Prepare(soon()))(t)
	unwritten := whole.Commit(soon())
	if !strings.Contains(fmt.Sprint(unwritten), temporary) {
		t.Errorf("nothing is written: %v", unwritten)
	}
	for _, err := range []error{err, whole.Claim(soon()), into.Commit(soon()), unwritten} {
		if rendezvous.CodeOf(err) != rendezvous.CodeInvalid {
			t.Error(err)
		}
	}
	testkit.Check(t, os.WriteFile(temporary, nil, 0o666))
	whole.Close()
	whole.Close()
	into.Close()
	clean(t, path)
	for _, err := range []error{whole.Commit(soon()), whole.Release(), into.Claim(soon())} {
		if rendezvous.CodeOf(err) != rendezvous.CodeCanceled {
			t.Error(err)
		}
	}
}

// TestMany: many processes' worth of writers at one time, some of them refused; no save is lost.
func TestMany(t *testing.T) {
	for _, k := range kinds {
		intercept(t, k.withoutExchange(plain))
		path := filepath.Join(t.TempDir(), "checkpoint")
		var saves sync.Map
		var all sync.WaitGroup
		for id := range 8 {
			all.Go(func() {
				for range 5 {
					w := k.start(t, path, fmt.Sprint(id))
					for save := range 3 {
						err := w.save(string(rune('a' + id)))
						if err == nil {
							saves.Store(fmt.Sprint(id, save, w.fence.Version()), true)
						} else if !errors.Is(err, rendezvous.ErrFenced) {
							t.Error(err)
						}
					}
					w.fence.Close()
				}
			})
		}
		all.Wait()
		count := 0
		saves.Range(func(any, any) bool { count++; return true })
		if got := k.load(t, path); count == 0 || len(got) != count {
			t.Errorf("%s: %d saves, and the checkpoint has %d", k.name, count, len(got))
		}
		if !k.into {
			clean(t, path)
		}
	}
}

// TestWriter: the environment of a worker.
func TestWriter(t *testing.T) {
	w := NewWriter(func(name string) string {
		return map[string]string{"TORCHELASTIC_RUN_ID": "job7", "RALLYPOINT_ROUND": "12", "RALLYPOINT_GENERATION": "G"}[name]
	})
	if w.Run != "job7" || w.Round != 12 || w.Generation != "G" || w.PID != os.Getpid() || w.Machine == "" {
		t.Errorf("%+v", w)
	}
	if encoded := (record{Version: newVersion(), Writer: NewWriter(func(string) string { return "" })}).encode(); bytes.Contains(encoded, []byte("round")) {
		t.Errorf("%s", encoded)
	}
}
