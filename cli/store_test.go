package cli

import (
	"bytes"
	"net"
	"strings"
	"testing"

	"rallypoint/tcpstore"
)

// runWith is run with something on stdin, which Main has no parameter for.
func runWith(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	root := newRoot(&logging{out: &complaints}, &out)
	root.SetIn(strings.NewReader(stdin))
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		return 1, out.String(), err.Error()
	}
	return 0, out.String(), complaints.String()
}

func TestStoreCommands(t *testing.T) {
	s := serve(t, command("store", "serve", "--listen", "127.0.0.1:0"))
	defer s.end(t)
	for _, c := range []struct{ args, stdin, want string }{
		{"set %s k hello", "", ""},
		{"get %s k", "", "hello\n"},
		{"get %s k --raw", "", "hello"},
		{"get %s k --hex", "", "68656c6c6f\n"},
		{"set %s bytes -", "\x00\xff", ""},
		{"get %s bytes", "", "\"\\x00\\xff\"\n"},
		{"get %s bytes --raw", "", "\x00\xff"},
		{"set %s lines -", "a\nb\n", ""},
		{"get %s lines", "", "a\nb\n"},
		{"set %s empty -", "", ""},
		{"get %s empty", "", "\n"},
		{"add %s n", "", "1\n"},
		{"add %s n 41", "", "42\n"},
		{"add %s n -- -2", "", "40\n"},
		{"wait %s k n", "", ""},
		{"list %s", "", "bytes\nempty\nk\nlines\nn\n"},
		{"list %s --prefix e", "", "empty\n"},
		{"delete %s k", "", ""},
		{"list %s --prefix k", "", ""},
	} {
		code, stdout, stderr := runWith(t, c.stdin, strings.Fields("store "+strings.ReplaceAll(c.args, "%s", s.addr))...)
		if code != 0 || stdout != c.want || stderr != "" {
			t.Errorf("%s: %d, %q, %q; want %q", c.args, code, stdout, stderr, c.want)
		}
	}
	c, err := tcpstore.Dial(t.Context(), s.addr, tcpstore.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Set(t.Context(), "odd\x00\nkey", nil); err != nil {
		t.Fatal(err)
	}
	if _, stdout, _ := execute(t, "store", "list", s.addr, "--prefix", "odd"); stdout != `"odd\x00\nkey"`+"\n" {
		t.Errorf("an odd key is listed as %q", stdout)
	}
}

func TestStoreErrors(t *testing.T) {
	s := serve(t, command("store", "serve", "--listen", "127.0.0.1:0", "--log-level", "error"))
	defer s.end(t)
	plane := serve(t, command("serve", "--listen", "127.0.0.1:0", "--log-level", "error"))
	defer plane.end(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	execute(t, "store", "set", s.addr, "there", "x")
	for _, c := range []struct{ args, says string }{
		{"get %s missing --timeout 100ms", `the key "missing" does not exist; waited for 100ms at ` + s.addr},
		{"wait %s there missing --timeout 100ms", `the key "missing" does not exist`},
		{"wait %s a b c d e f g --timeout 100ms", `7 of 7 keys do not exist: ["a" "b" "c" "d" "e"] and 2 more`},
		{"wait %s there a b --timeout 100ms", `2 of 3 keys do not exist: ["a" "b"]`},
		{"delete %s missing", `there is no key "missing" at ` + s.addr},
		{"add %s there", "is the value a number?"},
		{"get " + closed.Addr().String() + " k --timeout 1s", "nothing listens at " + closed.Addr().String()},
		{"get " + plane.addr + " k --timeout 2s", "is a control plane of Rallypoint, not a TCPStore"},
	} {
		args := append(strings.Fields("store "+strings.ReplaceAll(c.args, "%s", s.addr)), "--log-level", "error")
		code, stdout, stderr := execute(t, args...)
		if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %d, %q, %q; want 1 and %q", c.args, code, stdout, stderr, c.says)
		}
	}
	code, _, stderr := runWith(t, strings.Repeat("x", tcpstore.MaxValueBytes+1), "store", "set", s.addr, "k", "-")
	if code != 1 || !strings.Contains(stderr, "which is the limit") {
		t.Errorf("a value that is too large: %d, %q", code, stderr)
	}
}
