package failure

import (
	"slices"
	"strings"
	"testing"

	"rallypoint/agent/process"
)

func TestTailLines(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
		more bool
	}{
		{"", nil, false},
		{"\n\n", nil, false},
		{"a\nb\n", []string{"a", "b"}, false},
		{"a\nb\nc\n\n", []string{"b", "c"}, true},
		{"10%\r50%\r\nend", []string{"50%", "end"}, false},
		{"\x1b[31mred\x1b[0m\x1b]0;title\x07\a\n\tx\xff", []string{"red", "\tx\uFFFD"}, false},
	} {
		got, more := tailLines([]byte(c.text), 2)
		if !slices.Equal(got, c.want) || more != c.more {
			t.Errorf("%q: %q, %v", c.text, got, more)
		}
	}
}

func TestLastError(t *testing.T) {
	const traceback = "epoch 3\nTraceback (most recent call last):\n  File \"t.py\", line 4, in <module>\n    raise X\nValueError: bad batch\n"
	const unguarded = "Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\n    raise RuntimeError('''\nRuntimeError: \n        An attempt has been made to start a new process before the\n        current process has finished its bootstrapping phase.\n"
	const mixed = "[rank5]: Traceback (most recent call last):\n[rank6]: Traceback (most recent call last):\n[rank5]:   File \"t.py\"\n[rank6]:   File \"t.py\"\n[rank5]: KeyError: 'x'\n[rank6]: ValueError: closed\n"
	for name, c := range map[string]struct {
		f    Failure
		want string
	}{
		"traceback":            {Failure{ExitCode: 1, Stderr: []byte(traceback)}, "ValueError: bad batch"},
		"line after it":        {Failure{ExitCode: 1, Stderr: []byte(traceback + "[W1123 ProcessGroup] destroy\n")}, "ValueError: bad batch"},
		"torch's prefix":       {Failure{ExitCode: 1, Stderr: []byte("[rank3]: Traceback (most recent call last):\n[rank3]:   File \"t.py\"\n[rank3]: KeyError: 'x'\n")}, "KeyError: 'x'"},
		"the last of two":      {Failure{ExitCode: 1, Stderr: []byte(traceback + "\nDuring handling of the above exception, another exception occurred:\n\n" + strings.ReplaceAll(traceback, "ValueError: bad batch", "OSError: full"))}, "OSError: full"},
		"no traceback":         {Failure{ExitCode: 2, Stderr: []byte("usage: t.py FILE\nt.py: error: no \x1b[31mFILE\x1b[0m\n\n")}, "t.py: error: no FILE"},
		"progress bar":         {Failure{ExitCode: 2, Stderr: []byte(" 10%\r 20%\rno more disk\n")}, "no more disk"},
		"killed":               {Failure{ExitCode: -9, Stderr: []byte(traceback)}, ""},
		"aborted":              {Failure{ExitCode: -6, Stderr: []byte("terminate called without an active exception\n")}, "terminate called without an active exception"},
		"stopped":              {Failure{ExitCode: 1, Terminated: true, Stderr: []byte(traceback)}, ""},
		"error file":           {Failure{ExitCode: 1, ErrorFile: "/e", Message: traceback, Stderr: []byte("noise\n")}, "ValueError: bad batch"},
		"shared":               {Failure{ExitCode: 1, SharedOutput: true, Stderr: []byte(traceback + "another worker\n")}, "ValueError: bad batch"},
		"shared, two of them":  {Failure{ExitCode: 1, SharedOutput: true, Stderr: []byte(traceback + strings.ReplaceAll(traceback, "bad", "no"))}, ""},
		"shared, alike":        {Failure{ExitCode: 1, SharedOutput: true, Stderr: []byte(traceback + traceback)}, "ValueError: bad batch"},
		"shared, one of two":   {Failure{ExitCode: 1, SharedOutput: true, Stderr: []byte(traceback + "\nThe above exception was the direct cause of the following exception:\n\n" + strings.ReplaceAll(traceback, "ValueError: bad batch", "OSError: full"))}, "OSError: full"},
		"shared, torch's own":  {Failure{ExitCode: 1, Rank: 5, SharedOutput: true, Stderr: []byte(mixed)}, "KeyError: 'x'"},
		"shared, torch's, far": {Failure{ExitCode: 1, Rank: 6, SharedOutput: true, Stderr: []byte(mixed)}, "ValueError: closed"},
		"shared, torch's, not": {Failure{ExitCode: 1, Rank: 3, SharedOutput: true, Stderr: []byte(mixed)}, ""},
		"spawn, no guard":      {Failure{ExitCode: 1, Stderr: []byte(unguarded + traceback)}, noMainGuard},
		"spawn, set twice":     {Failure{ExitCode: 1, Stderr: []byte("Traceback (most recent call last):\n  File \"spawn.py\", line 297, in _fixup_main_from_path\n    main_content = x\nRuntimeError: context has already been set\n")}, noMainGuard},
		"method set twice":     {Failure{ExitCode: 1, Stderr: []byte("Traceback (most recent call last):\n  File \"t.py\", line 297, in <module>\nRuntimeError: context has already been set\n")}, "RuntimeError: context has already been set"},
		"spawn, then killed":   {Failure{ExitCode: -9, Stderr: []byte(unguarded)}, ""},
		"shared, no traceback": {Failure{ExitCode: 1, SharedOutput: true, Stderr: []byte("another worker\n")}, ""},
		"nothing":              {Failure{ExitCode: 1}, ""},
		"long":                 {Failure{ExitCode: 1, Stderr: []byte(strings.Repeat("é", 9000))}, strings.Repeat("é", 150)},
	} {
		if c.f.ErrorFile == "" {
			c.f.ErrorFile = process.NotAvailable
		}
		if got := c.f.lastError(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
