package logs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// foldRig is a folder whose time is the test's.
type foldRig struct {
	f   *folder
	out bytes.Buffer
	now time.Time
	by  []*foldSource
}

func newFoldRig(ranks ...int) *foldRig {
	r := &foldRig{now: time.Unix(1000, 0)}
	c := consoleOf(&r.out)
	r.f = &folder{c: c, dst: c.Out}
	for _, rank := range ranks {
		r.by = append(r.by, r.f.source(rank))
	}
	return r
}

// write lets the i-th source write.
func (fr *foldRig) write(i int, text string) {
	fr.by[i].take([]byte(text), fr.now)
	fr.f.queue.flushDue(fr.now)
	fr.f.write()
	fr.f.dst.Flush()
}

// pass lets time pass.
func (fr *foldRig) pass(d time.Duration) {
	fr.now = fr.now.Add(d)
	fr.f.expire(fr.now)
	fr.f.write()
	fr.f.dst.Flush()
}

func (fr *foldRig) want(t *testing.T, what, want string) {
	t.Helper()
	if got := fr.out.String(); got != want {
		t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
	}
	fr.out.Reset()
}

// line is what the source by writes.
type line struct {
	by   int
	text string
}

// folds lets sources write and the time pass in which their lines are folded.
func (fr *foldRig) folds(t *testing.T, what, want string, lines ...line) {
	t.Helper()
	for _, l := range lines {
		fr.write(l.by, l.text)
	}
	fr.pass(foldWindow)
	fr.want(t, what, want)
}

func TestFold(t *testing.T) {
	r := newFoldRig(0, 1, 2, 3)
	for i := range 4 {
		r.write(i, fmt.Sprintf("step %d of 10\n", i+8))
	}
	r.want(t, "all ranks", "[0-3] step 8 of 10\n")

	r.write(3, "loss 0.31\n")
	r.write(1, "loss 0.4567\n")
	r.want(t, "too early", "")
	r.pass(foldWindow - 1)
	r.want(t, "a moment too early", "")
	r.write(0, "loss 12.0\n")
	r.pass(1)
	r.want(t, "three of four, with the digits of the lowest", "[0-1,3] loss 12.0\n")
	r.folds(t, "the one that was late", "[2] loss 7.0\n", line{2, "loss 7.0\n"})

	r.folds(t, "the order of each rank stays", "[0,2] a\n[0-1] b\n[0-2] a\n[2] b\n",
		line{0, "a\nb\na\n"}, line{1, "b\na\n"}, line{2, "a\na\nb\n"})

	r.folds(t, "letters differ", "[0] with 7 items\n[1] with x items\n[2] with seven items\n",
		line{0, "with 7 items\n"}, line{1, "with x items\n"}, line{2, "with seven items\n"})

	r.write(0, "un")
	r.write(0, "finished")
	r.pass(foldWindow - 1)
	r.want(t, "an unfinished line waits", "")
	r.pass(1)
	r.want(t, "but not for ever", "unfinished")
	r.folds(t, "its rest follows", " line\n[1] other\n", line{1, "other\n"}, line{0, " line\n"})

	r.folds(t, "bytes", "[0] no UTF-8: \uFFFD\n[0] \n", line{0, "no UTF-8: \xff\r\n\n"})

	r.folds(t, "colours are text", "[0,2] \x1b[31mred\x1b[0m\n",
		line{0, "\x1b[31mred\x1b[0m\n"}, line{2, "\x1b[31mred\x1b[0m\n"})
}

// TestFoldLeavesBarsAlone: a line that draws over itself comes at once and as it was written,
// after what its rank wrote before.
func TestFoldLeavesBarsAlone(t *testing.T) {
	r := newFoldRig(0, 1)
	r.write(1, "epoch 1\n")
	r.write(0, "epoch 2\n\r 0%")
	r.want(t, "the begin", "[0-1] epoch 2\n\r 0%")
	r.write(0, "\r50%")
	r.write(0, "\r100%\n")
	r.want(t, "the bar", "\r50%\r100%\n")
	r.folds(t, "a line behind a bar that ended", "\rbarx\n[1] line\n",
		line{0, "\rbar"}, line{0, "x\n"}, line{1, "line\n"})
	r.folds(t, "a line behind a bar that goes on", "\rbar\n[1] line\n", line{0, "\rbar"}, line{1, "line\n"})
	r.write(0, "\rbar\n")
	for _, text := range []string{"\x1b[2K\x1b[1Aover\n", "a\bb\n", "\x1bM\n", "\x1b\n"} {
		r.out.Reset()
		r.write(1, text)
		r.want(t, "what moves the cursor", text)
	}
	r.write(0, strings.Repeat("x", maxBlock+1))
	r.want(t, "a line without an end", strings.Repeat("x", maxBlock+1))
}

// TestFoldKeepsTracebacksWhole: that of each rank is one block, of all that have the same
// one; lines of other ranks do not come in between.
func TestFoldKeepsTracebacksWhole(t *testing.T) {
	trace := func(rank int, prefix string) string {
		text := strings.ReplaceAll(`Traceback (most recent call last):
  File "x.py", line 3, in f
    g()
    ^^^
ValueError: bad 7

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 9, in <module>
KeyError: RANK
`, "RANK", strconv.Itoa(rank))
		return prefix + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+prefix) + "\n"
	}
	for _, prefix := range []string{"", "[rank%d]: "} {
		of := func(rank int) string {
			if prefix == "" {
				return trace(rank, "")
			}
			return trace(rank, fmt.Sprintf(prefix, rank))
		}
		r := newFoldRig(0, 1, 2)
		lines := make([][]string, 3)
		for i := range lines {
			lines[i] = strings.SplitAfter(of(i), "\n")
		}
		for n := range lines[0] { // line by line, in turn
			for i := range lines {
				r.write(i, lines[i][n])
			}
			r.write(2, "")
		}
		r.write(1, "then 1\n")
		r.pass(foldWindow)
		r.pass(foldWindow)
		want := "[0-2] " + strings.ReplaceAll(strings.TrimSuffix(of(0), "\n"), "\n", "\n[0-2] ") + "\n[1] then 1\n"
		r.want(t, "tracebacks "+prefix, want)
	}
	r := newFoldRig(0, 1)
	group := "  + Exception Group Traceback (most recent call last):\n  |   File \"x.py\", line 1\n  | ExceptionGroup: two (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | ValueError: 1\n    +------------------------------------\n"
	r.write(0, group+"next\n")
	r.write(1, "between\n")
	r.write(1, group)
	r.pass(foldWindow)
	r.pass(foldWindow)
	indented := "[0-1] " + strings.ReplaceAll(strings.TrimSuffix(group, "\n"), "\n", "\n[0-1] ") + "\n"
	if got := r.out.String(); !strings.Contains(got, indented) && !strings.Contains(got, strings.ReplaceAll(indented, "[0-1]", "[0]")) || !strings.Contains(got, "next\n") {
		t.Errorf("an exception group:\n%s", got)
	}
}

// TestFoldIsBounded: a rank that writes without end makes the oldest wait no more.
func TestFoldIsBounded(t *testing.T) {
	r := newFoldRig(0, 1)
	for i := range 3 * maxGroups {
		r.write(0, strings.Repeat("a", i%50)+"\n")
	}
	if n := len(r.f.queue.groups) - r.f.queue.head; n > maxGroups {
		t.Errorf("%d groups", n)
	}
	for range 12 {
		r.write(0, strings.Repeat("b", maxFolded/8)+"\n")
	}
	if r.f.queue.bytes > maxFolded {
		t.Errorf("%d bytes wait", r.f.queue.bytes)
	}
}

// TestFoldLosesNothing: whatever ranks write in whatever pieces and times, each rank's
// lines come in their order, once, but for their digits.
func TestFoldLosesNothing(t *testing.T) {
	words := []string{"a", "b 1", "b 22", "step 3", "x\x1b[1my", "Traceback (most recent call last):", "  File", "E: 4", ""}
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(1, 4).Draw(t, "ranks")
		var all []int
		for i := range ranks {
			all = append(all, i*3)
		}
		r := newFoldRig(all...)
		written := make([]string, ranks)
		for range rapid.IntRange(0, 60).Draw(t, "writes") {
			i := rapid.IntRange(0, ranks-1).Draw(t, "rank")
			text := rapid.SampledFrom(words).Draw(t, "word") + "\n"
			written[i] += text
			cut := rapid.IntRange(0, len(text)).Draw(t, "cut")
			r.write(i, text[:cut])
			r.write(i, text[cut:])
			r.pass(time.Duration(rapid.IntRange(0, 3).Draw(t, "time")) * foldWindow / 2)
		}
		r.pass(foldWindow)
		r.pass(foldWindow)
		read := make([]string, ranks)
		for line := range strings.Lines(r.out.String()) {
			label, text, ok := strings.Cut(strings.TrimPrefix(line, "["), "] ")
			if !ok {
				t.Fatalf("a line without ranks: %q", line)
			}
			for item := range strings.SplitSeq(label, ",") {
				first, last, _ := strings.Cut(item, "-")
				from, _ := strconv.Atoi(first)
				to, err := strconv.Atoi(last)
				if err != nil {
					to = from
				}
				for rank := from; rank <= to; rank++ {
					read[rank/3] += text
				}
			}
		}
		for i := range ranks {
			if foldKey(read[i]) != foldKey(written[i]) {
				t.Fatalf("rank %d wrote %q, shown is %q", all[i], written[i], read[i])
			}
		}
	})
}

// TestFoldByItself: the folder passes on what waits without being asked, and the rest at
// its end.
func TestFoldByItself(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = read.Close(), write.Close() }()
	c := consoleOf(write)
	f := newFolder(c, c.Out)
	one, other := f.source(0), f.source(1)
	buf := make([]byte, 100)
	for _, text := range []string{"a\n", "b"} {
		one.print([]byte(text))
		n, err := read.Read(buf)
		if want := map[string]string{"a\n": "[0] a\n", "b": "b"}[text]; err != nil || string(buf[:n]) != want {
			t.Errorf("%q, %v; want %q", buf[:n], err, want)
		}
	}
	one.print([]byte("c\n"))
	other.print([]byte("d\nhalf"))
	f.stop()
	const want = "c\n[1] d\nhalf"
	if _, err := io.ReadFull(read, buf[:len(want)]); err != nil || string(buf[:len(want)]) != want {
		t.Errorf("at the end: %q, %v", buf, err)
	}
}

func foldKey(text string) string { return string(appendFoldKey(nil, []byte(text))) }

func TestFoldKey(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"", "", true}, {"a", "a", true}, {"a1", "a22", true}, {"1a", "a1", false}, {"a", "a1", false}, {"a1b", "a1c", false},
		{"1.5", "12.25", true}, {"1.5", "15", false}, {"-1", "1", false}, {"a1", "a1 ", false},
	} {
		if c.same != (foldKey(c.a) == foldKey(c.b)) {
			t.Errorf("the keys of %q and %q: same is %v", c.a, c.b, !c.same)
		}
	}
}
