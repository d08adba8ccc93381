package stacks

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// dump is what faulthandler of Python 3.14 writes; older ones write no names.
const dump = `Thread 0x00007fe75f3356c0 [pin_memory] (most recent call first):
  File "/opt/venv/lib/python3.14/threading.py", line 982 in wait
  File "/opt/venv/lib/python3.14/site-packages/torch/utils/data/_utils/pin_memory.py", line 10 in do

Thread 0x00007fe75f3356c1 (most recent call first):
  File "/opt/venv/lib/python3.14/threading.py", line 982 in wait
  File "/home/a/it's "mine".py", line 4 in feed

Current thread 0x00007fe76009ab80 [MainThread] (most recent call first):
  File "/opt/venv/lib/python3.14/site-packages/torch/distributed/distributed_c10d.py", line 2781 in all_reduce
  File "/home/a/hang.py", line 7 in <module>
`

func TestParse(t *testing.T) {
	threads := parse(dump).threads
	if len(threads) != 3 || !threads[2].Main || threads[1].Main {
		t.Fatalf("%+v", threads)
	}
	want := []Frame{{"/opt/venv/lib/python3.14/threading.py", 982, "wait"}, {`/home/a/it's "mine".py`, 4, "feed"}}
	for i, f := range threads[1].Frames {
		if f != want[i] {
			t.Errorf("%+v, want %+v", f, want[i])
		}
	}
	matter := thatMatter(threads)
	if len(matter) != 2 || !matter[0].Main || matter[0].Frames[1].Function != "<module>" || matter[1].Frames[1].Function != "feed" {
		t.Errorf("%+v", matter)
	}
	if alone := parse("Stack (most recent call first):\n  File \"a.py\", line 1 in f\n"); !alone.whole || len(alone.threads) != 1 || !alone.threads[0].Main {
		t.Errorf("of one thread: %+v", alone)
	}
	if again := parse(dump + dump).threads; len(again) != 3 || len(again[2].Frames) != 2 {
		t.Errorf("of two answers: %+v", again)
	}
	cut := parse("Current thread 0x01 (most recent call first):\n" + strings.Repeat("  File \"a.py\", line ??? in ???\n", 99) + "  ...\n").threads
	if len(cut) != 1 || len(cut[0].Frames) != maxFrames || !cut[0].Cut {
		t.Errorf("%+v", cut)
	}
	if p := parse("Current thread 0x01 (most recent call first):\n  File \"a.py\", line 1 in f"); p.whole || len(p.threads[0].Frames) != 0 {
		t.Errorf("half a line: %+v", p)
	}
	if p := parse("Current thread 0x01 (most recent call first):\n  <no Python frame>\n"); !p.whole {
		t.Errorf("no frame: %+v", p)
	}
}

func TestUserFrames(t *testing.T) {
	for file, user := range map[string]bool{
		"/home/a/train.py": true, "train.py": true, "/home/a/python/lib/model.py": true, "/srv/lib/model.py": true,
		"/usr/lib/python3.11/threading.py": false, "/v/lib64/python3.9/site-packages/x.py": false, "/usr/lib/python3/dist-packages/x.py": false,
		"<frozen runpy>": false, "<string>": false,
	} {
		if (Frame{File: file}).user() != user {
			t.Errorf("%s", file)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(dump)
	f.Add("Thread 0x1 (most recent call first):\n  File \"\x1b[2J\xff\", line -1 in \x00\n")
	f.Fuzz(func(t *testing.T, text string) {
		threads := parse(text).threads
		if len(threads) > maxParsed {
			t.Fatalf("%d threads", len(threads))
		}
		for _, th := range threads {
			if len(th.Frames) > maxFrames {
				t.Fatalf("%d frames", len(th.Frames))
			}
			for _, fr := range th.Frames {
				if len(fr.File) > maxFile || len(fr.Function) > maxFunction || fr.Line < 0 || !utf8.ValidString(fr.File+fr.Function) || strings.ContainsAny(fr.File+fr.Function, "\n\x1b\x00") {
					t.Fatalf("%q", fmt.Sprint(fr))
				}
			}
		}
		if len(thatMatter(threads)) > maxThreads+1 {
			t.Fatal("too many threads matter")
		}
	})
}
