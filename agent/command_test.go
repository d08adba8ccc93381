package agent

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"rallypoint/internal/testkit"
)

// commandOf is the command of a node that runs argv.
func commandOf(workers int, argv ...string) (digest, text string) {
	s := Spec{Argv: argv, Workers: workers}
	c := s.command(EntryPoint(argv, "/usr/bin/python3"))
	return c.Digest, c.Text
}

// TestSameCommands: interpreters and folders may differ between the nodes of a job.
func TestSameCommands(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, script := range []string{dir + "/train.py", other + "/train.py"} {
		testkit.WriteFile(t, script, []byte("print('hello')\n"))
	}
	testkit.WriteFile(t, dir+"/run.sh", []byte("#!/bin/sh\nexit 0\n"))
	testkit.WriteFile(t, other+"/run.sh", []byte("#!/usr/bin/env bash\nexit 0\n"))
	t.Chdir(dir)
	for _, same := range [][2][]string{
		{{"/usr/bin/python3", "-u", "train.py", "--lr", "1"}, {"/usr/bin/python3", "-u", other + "/train.py", "--lr", "1"}},
		{{"/usr/bin/python3", "train.py"}, {"/opt/conda/bin/python3.12", "-u", "./train.py"}},
		{{"/usr/bin/python3", "-u", "-m", "pkg.train", "x"}, {"/opt/bin/python", "-m", "pkg.train", "x"}},
		{{"./run.sh", "x"}, {other + "/run.sh", "x"}},
		{{"/bin/sh", "-c", "exit 0"}, {"sh", "-c", "exit 0"}},
		{{"missing", "x"}, {"/nowhere/missing", "x"}},
	} {
		if a, text := commandOf(2, same[0]...); len(a) != 32 {
			t.Errorf("%q has the digest %q", text, a)
		} else if b, _ := commandOf(2, same[1]...); a != b {
			t.Errorf("%q and %q are different commands", same[0], same[1])
		}
	}
}

// TestDifferentCommands: what tells the jobs of a sweep apart.
func TestDifferentCommands(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	testkit.WriteFile(t, dir+"/train.py", []byte("print('hello')\n"))
	testkit.WriteFile(t, other+"/train.py", []byte("print('hello there')\n"))
	t.Chdir(dir)
	seen := map[string]string{}
	add := func(workers int, argv ...string) {
		t.Helper()
		digest, text := commandOf(workers, argv...)
		if before, twice := seen[digest]; twice {
			t.Errorf("%q is the same as %q", text, before)
		}
		seen[digest] = text
	}
	add(1, "/usr/bin/python3", "train.py")
	add(2, "/usr/bin/python3", "train.py")
	add(1, "/usr/bin/python3", other+"/train.py")
	add(1, "/usr/bin/python3", "-m", "train")
	add(1, "/usr/bin/python3", "-m", "train.py")
	add(1, "/usr/bin/python3", "train.py", "a", "b")
	add(1, "/usr/bin/python3", "train.py", "a b")
	add(1, "/usr/bin/python3", "train.py", "--token=1")
	add(1, "/usr/bin/python3", "train.py", "--token=2")
	add(1, "/usr/bin/python3", "-c", "print(1)")
	add(1, "/usr/bin/python3", "-c", "print(2)")
	add(1, "sh", "-c", "train.py")
	add(1, "train.py")
}

// TestCommandOfAFunction: where argv says nothing of it, the launcher says what runs.
func TestCommandOfAFunction(t *testing.T) {
	a := (&Spec{Argv: []string{"python3", "-c", "/tmp/one"}, Command: "train.py: main(1)", Workers: 1}).command("main")
	b := (&Spec{Argv: []string{"python3", "-c", "/tmp/two"}, Command: "train.py: main(1)", Workers: 1}).command("main")
	c := (&Spec{Argv: []string{"python3", "-c", "/tmp/one"}, Command: "train.py: main(2)", Workers: 1}).command("main")
	if a.Digest != b.Digest || a.Digest == c.Digest || a.Text != "train.py: main(1) (1 worker)" {
		t.Errorf("%+v, %+v, %+v", a, b, c)
	}
}

// TestCommandText: other nodes see a short text in one line, without what is secret by its name.
func TestCommandText(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"/usr/bin/python3", "-u", "/home/me/train.py", "--lr", "0.1"}, "train.py --lr 0.1 (1 worker)"},
		{[]string{"/usr/bin/python3", "-m", "pkg.train", "x"}, "-m pkg.train x (1 worker)"},
		{[]string{"t", "--token=abc", "--api-key", "abc", "--secret-name", "abc", "HF_TOKEN=abc", "--max-tokens=5", "--tokenizer=gpt2"},
			"t --token=… --api-key… … --secret… … HF_TOKEN=… --max-tokens=5 --tokenizer=gpt2 (1 worker)"},
		{[]string{"t", "--password", "--lr=1"}, "t --passw… --lr=1 (1 worker)"},
		{[]string{"/usr/bin/python3", "-c", "password = 1"}, "-c passw… (1 worker)"},
		{[]string{"t", "https://host/x?sv=1&sig=abc"}, "t https://host/x?sv=1&sig=… (1 worker)"},
		{[]string{"t", "s3://me:abc@host/x"}, "t s3://…@host/x (1 worker)"},
		{[]string{"sh", "-c", "curl -H 'Authorization: Bearer abc' x"}, "sh -c curl -H 'Authorization… (1 worker)"},
		{[]string{"t", "a\nb\x1b[2J"}, "t a b\ufffd[2J (1 worker)"},
	} {
		if _, text := commandOf(1, c.argv...); text != c.want {
			t.Errorf("%q is shown as %q; want %q", c.argv, text, c.want)
		}
	}
	_, text := commandOf(8, "t", strings.Repeat("é", 1000))
	if len(text) > maxCommandText+20 || !utf8.ValidString(text) || !strings.HasSuffix(text, "… (8 workers)") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

// TestScriptThatIsNoFile: a FIFO is left to the worker, and a folder is none.
func TestScriptThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	testkit.Check(t, syscall.Mkfifo(dir+"/pipe.py", 0o600))
	testkit.Check(t, os.Mkdir(dir+"/folder.py", 0o700))
	for _, script := range []string{dir + "/pipe.py", dir + "/folder.py", "/dev/stdin"} {
		if digest, _ := commandOf(1, "/usr/bin/python3", script); digest == "" {
			t.Errorf("%s has no digest", script)
		}
	}
}

// TestScriptAt finds the script behind interpreters and behind a program that becomes one.
func TestScriptAt(t *testing.T) {
	for _, c := range []struct {
		argv  []string
		entry string
		want  int
	}{
		{[]string{"/usr/bin/env", "A=1", "python", "-u", "train.py"}, "python", 4},
		{[]string{"/opt/python3.12", "-u", "-m", "train"}, "/opt/python3.12", 3},
		{[]string{"/usr/bin/python3", "-u", "-c", "code", "train.py", "x"}, "train.py", 4},
		{[]string{"python3"}, "python3", 0},
		{[]string{"python3", "-V"}, "python3", 0},
		{[]string{"sh", "python3"}, "sh", 0},
	} {
		if got := scriptAt(c.argv, c.entry); got != c.want {
			t.Errorf("%q: %d, want %d", c.argv, got, c.want)
		}
	}
}
