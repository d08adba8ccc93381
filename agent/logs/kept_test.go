package logs

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
	"rallypoint/internal/wake"
)

// keptRig is an attempt of two workers that are not started: the test writes into their files.
type keptRig struct {
	t       *testing.T
	attempt *Attempt
	workers []Worker
	files   [][]uintptr
}

func newKeptRig(t *testing.T, spec *Spec) *keptRig {
	t.Helper()
	log, _ := testkit.NewLog(t)
	spec.Dir = t.TempDir()
	tree := testkit.Must(NewTree(spec, "run", log))(t)
	a := testkit.Must(tree.Attempt(0))(t)
	a.Plan = testkit.Must(a.Layout(2, []int{0, 1}))(t)
	t.Cleanup(a.Close)
	k := &keptRig{t: t, attempt: a}
	for local := range 2 {
		k.workers = append(k.workers, testkit.Must(a.Worker(local))(t))
	}
	return k
}

// streams starts nothing; the workers' stdout and stderr are those of their Worker, else these.
func (k *keptRig) streams(out, err *os.File) []*Stream {
	for _, w := range k.workers {
		files := []uintptr{0, out.Fd(), err.Fd()}
		if w.Out != nil {
			files[1] = w.Out.Fd()
		}
		if w.Err != nil {
			files[2] = w.Err.Fd()
		}
		k.files = append(k.files, files)
	}
	return k.attempt.Streams(k.workers, k.files)
}

func (k *keptRig) read(streams []*Stream, from []int64, most int) []Part {
	return Read(testkit.Within(k.t, testkit.Patience), streams, 4, from, most)
}

func (k *keptRig) write(file *os.File, text string) {
	k.t.Helper()
	testkit.Must(file.WriteString(text))(k.t)
}

// TestKeptInFiles: of a stream that goes to a file the end of the file is told, from an offset on;
// a file that is cut begins again.
func TestKeptInFiles(t *testing.T) {
	k := newKeptRig(t, &Spec{Redirects: StreamSpec{all: stdOut | stdErr}})
	list := k.streams(os.Stdout, os.Stderr)
	if len(list) != 4 || list[2].Name != NameOut || list[3].Name != NameErr || len(Among(list, 1)) != 2 {
		t.Fatalf("%+v", list)
	}
	list = Among(list, 1)
	k.write(k.workers[1].Out, "a\nb\n")
	parts := k.read(list, nil, 2)
	if p := parts[0]; string(p.Text) != "b\n" || p.At != 2 || p.Why != "" || p.Ranks[0] != 5 || len(p.Ranks) != 1 {
		t.Errorf("%+v", p)
	}
	if p := parts[1]; len(p.Text) != 0 || p.Why != "" {
		t.Errorf("%+v", p)
	}
	k.write(k.workers[1].Out, "c\n")
	if p := k.read(list, []int64{4, 0}, Kept)[0]; string(p.Text) != "c\n" || p.At != 4 {
		t.Errorf("%+v", p)
	}
	testkit.Check(t, k.workers[1].Out.Truncate(0))
	testkit.Must(k.workers[1].Out.Seek(0, 0))(t)
	k.write(k.workers[1].Out, "d\n")
	if p := k.read(list, []int64{6, 0}, Kept)[0]; string(p.Text) != "d\n" || p.At != 0 {
		t.Errorf("%+v", p)
	}
	path := k.attempt.Plan.Workers[1].out
	testkit.Check(t, os.Remove(path))
	testkit.Check(t, unix.Mkfifo(path, 0o600))
	if p := k.read(list, nil, Kept)[0]; !strings.Contains(p.Why, "not a regular file") {
		t.Errorf("of a FIFO: %+v", p)
	}
}

// TestKeptOfTheAgent: workers that write into a file of the agent's have one stream, of what came
// after they were started; of a pipe nothing is kept, nor of what is dropped.
func TestKeptOfTheAgent(t *testing.T) {
	shared := testkit.Must(os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(t)
	defer shared.Close()
	testkit.Must(shared.WriteString("before\n"))(t)
	k := newKeptRig(t, &Spec{})
	list := k.streams(shared, shared)
	k.write(shared, "after\n")
	if p := k.read(list, nil, Kept); len(p) != 1 || p[0].Stream != NameBoth || string(p[0].Text) != "after\n" || p[0].At != 0 || len(p[0].Ranks) != 2 {
		t.Errorf("%+v", p)
	}
	// A descriptor of that number is another file now.
	list[0].source.(*fileEnd).ino++
	if p := k.read(list, nil, Kept)[0]; p.Why == "" || len(p.Text) != 0 {
		t.Errorf("%+v", p)
	}
	read, write, err := os.Pipe()
	testkit.Check(t, err)
	defer read.Close()
	defer write.Close()
	k = newKeptRig(t, &Spec{Ranks: []int{0}})
	k.write(write, "x")
	list = k.streams(write, shared)
	told := make(map[string]string)
	for _, p := range k.read(list, nil, Kept) {
		for _, rank := range p.Ranks {
			told[p.Stream+string(rune('0'+rank))] = p.Why + string(p.Text)
		}
	}
	for stream, want := range map[string]string{"stdout4": "the agent's pipe", "stderr4": "", "stdout5": "/dev/null", "stderr5": "/dev/null"} {
		if got, ok := told[stream]; !ok || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q", stream, got)
		}
	}
}

// TestKeptOnItsWay: output that passes the agent is kept while it passes, each rank's by itself; where
// stdout and stderr pass as one they are one stream.
func TestKeptOnItsWay(t *testing.T) {
	console := testkit.Must(os.Create(filepath.Join(t.TempDir(), "console")))(t)
	defer console.Close()
	k := newKeptRig(t, &Spec{Fold: true})
	for local := range k.workers {
		testkit.Check(t, k.attempt.FoldConsole(&k.workers[local], local, consoleOf(console), console, console))
	}
	list := k.streams(os.Stdout, os.Stderr)
	news := wake.New()
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		Watch(ctx, list, news)
	}()
	text := strings.Repeat("0123456\n", Kept/8+5)
	for from := 0; from < len(text); from += 1 << 10 {
		k.write(k.workers[1].Out, text[from:min(from+1<<10, len(text))])
	}
	k.write(k.workers[1].Err, "end\n")
	want := []byte((text + "end\n")[44:])
	testkit.Eventually(t, "all has passed", func() bool {
		p := k.read(list, nil, Kept)
		return len(p) == 2 && bytes.Equal(p[1].Text, want) && p[1].At == 44 && p[1].Stream == NameBoth && len(p[0].Text) == 0
	})
	select {
	case <-news:
	case <-time.After(testkit.Patience):
		t.Error("nobody was told that something has passed")
	}
	cancel()
	<-watched
}

// TestWatchOfAFile: a file that is written wakes who follows it.
func TestWatchOfAFile(t *testing.T) {
	k := newKeptRig(t, &Spec{Redirects: StreamSpec{all: stdOut | stdErr}})
	list := k.streams(os.Stdout, os.Stderr)
	news := wake.New()
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		Watch(ctx, list, news)
	}()
	for range 2 {
		select {
		case <-news:
			k.write(k.workers[0].Err, "x")
		case <-time.After(testkit.Patience):
			t.Fatal("nobody was told that the file was written")
		}
	}
	cancel()
	<-watched
}

// TestText: a terminal is shown characters only, and of a bar what was drawn last.
func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"a\nb\n":                                "a\nb\n",
		"\x1b[31mred\x1b[0m \x1b[1;4mx":         "red x",
		"\x1b]0;title\x07a\x1b]2;b\x1b\\c\x1b(": "ac\uFFFD(",
		" 10%\r 20%\r 30%\r\nnext":              " 30%\nnext",
		"a\x00\x7f\xff\u202e":                   "a\uFFFD\uFFFD\uFFFD\uFFFD",
		"\x1b\x1b[[2J":                          "\uFFFD2J",
		"":                                      "",
	} {
		if got := Text([]byte(text)); got != want {
			t.Errorf("%q became %q, expected %q", text, got, want)
		}
	}
}

// TestAnswersOfStrangers: a worker that writes into the store cannot make more of it than an
// answer may be, nor write on a terminal.
func TestAnswersOfStrangers(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":         "x",
		"too long":        `{"logs":[{"ranks":[1],"why":"` + strings.Repeat("x", maxNode) + `"}]}`,
		"too many":        `{"logs":[` + strings.Repeat(`{"ranks":[1]},`, maxParts) + `{"ranks":[1]}]}`,
		"no ranks":        `{"logs":[{"ranks":[]}]}`,
		"a negative rank": `{"logs":[{"ranks":[-1]}]}`,
		"a long text":     `{"logs":[{"ranks":[1],"text":"` + strings.Repeat("eHh4", Kept/3+2) + `"}]}`,
		"workers":         `{"workers":-1,"logs":[]}`,
	} {
		if n, err := DecodeNode([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, n)
		}
	}
	n, err := DecodeNode([]byte(`{"host":"\u001b[2J","failure":"\u001b","refused":"\u001b","logs":[{"ranks":[1],"stream":"\u001b","why":"\u001b"}]}`))
	if err != nil || strings.Contains(n.Host+n.Failure+n.Refused+n.Parts[0].Stream+n.Parts[0].Why, "\x1b") {
		t.Errorf("%v %+v", err, n)
	}
	if r, err := DecodeRequest([]byte(`{"bytes":9999999999}`)); err != nil || r.Bytes != maxNodeBytes {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzDecodeNode(f *testing.F) {
	f.Add([]byte(`{"host":"h","first":2,"workers":2,"round":1,"logs":[{"ranks":[2],"stream":"stdout","at":3,"text":"YQ==","why":""}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := DecodeNode(text)
		if err != nil {
			return
		}
		for _, p := range n.Parts {
			if strings.ContainsAny(Text(p.Text), "\x1b\r") || strings.ContainsAny(p.Stream+p.Why, "\x1b\n") {
				t.Fatal(p)
			}
		}
	})
}
