package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint"
	"rallypoint/cli/run"
	"rallypoint/internal/etcdtest"
	"rallypoint/tcpstore"
)

// etcd is one that the tests share.
var etcd etcdtest.Shared

func TestMain(m *testing.M) {
	etcd.M = m
	goleak.VerifyTestMain(&etcd)
}

// run runs the command to its end.
func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = Main(t.Context(), append([]string{"rallypoint"}, args...), &out, &err)
	return code, out.String(), err.String()
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"serve", "--help"}, {"store", "--help"}, {"store", "serve", "-h"}, {"version", "--help"}, {"help", "version"}, {"help", "admin", "close"}, {"completion", "--help"},
		{"status", "-h"}, {"admin", "close", "-h"}, {"admin", "evict", "-h"}, {"token", "new", "-h"}, {"token", "show", "-h"}, {"store", "get", "-h"}, {"store", "set", "-h"}, {"store", "add", "-h"},
		{"store", "wait", "-h"}, {"store", "list", "-h"}, {"store", "delete", "-h"}} {
		code, stdout, stderr := execute(t, args...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Usage:") {
			t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
		}
		if len(args) != 1 && len(args) != 0 && args[0] != "store" && !strings.Contains(stdout, "Examples:") {
			t.Errorf("%v: no examples", args)
		}
	}
}

func TestVersion(t *testing.T) {
	want := "rallypoint " + rallypoint.Version() + "\n"
	for _, arg := range []string{"version", "--version"} {
		if code, stdout, stderr := execute(t, arg); code != 0 || stdout != want || stderr != "" {
			t.Errorf("%s: %d, %q, %q", arg, code, stdout, stderr)
		}
	}
}

// wrongUsage is a command line and what its refusal says.
type wrongUsage struct{ args, says string }

func TestWrongUsage(t *testing.T) {
	wantRefused(t, []wrongUsage{
		{"srve", `unknown command "srve"; did you mean "serve"?`},
		{"stauts", `unknown command "stauts"; did you mean "status"?`},
		{"drain host0", `unknown command "drain"; did you mean "admin drain"?`},
		{"save host0", `did you mean "admin save"?`},
		{"hlep", `did you mean "help"?`},
		{"stauts --help", `did you mean "status"?`},
		{"--log-level off -h stauts", `did you mean "status"?`},
		{"admin clos h --help", `unknown command "clos"; did you mean "close"?`},
		{"train.py --lr=1", "unknown command \"train.py\"; to run a script, write `rallypoint run train.py`"},
		{"nonsense", `unknown command "nonsense"; see`},
		{"--nonsense", "unknown flag: --nonsense; see"},
		{"serve x", `unexpected argument "x"`},
		{"serve --listen", "flag needs an argument"},
		{"serve --lisn h:1", "unknown flag: --lisn; did you mean --listen?"},
		{"status h --rdzv_id j", "unknown flag: --rdzv_id; did you mean --rdzv-id?"},
		{"status h --jsn", "unknown flag: --jsn; did you mean --json?"},
		{"run --nodes=2 x.py", "unrecognized arguments: --nodes; did you mean --nnodes?"},
		{"run --nproc-per-node=2", "there is nothing to run"},
		{"run", "there is nothing to run"},
		{"serve --listen h:x", `--listen is "h:x", expected HOST:PORT`},
		{"serve --listen=", `--listen is "", expected`},
		{"serve --listen 65536", `--listen is "65536", expected HOST:PORT`},
		{"serve --listen :", `--listen is ":", expected`},
		{"serve --log-level=loud", `--log-level is "loud", expected debug`},
		{"admin scale h --target two", `--target is "two", it must be a whole number; see`},
		{"admin drain h --within soon", `--within is "soon", it must be a time with its unit, such as 30s, 5m or 2h; see`},
		{"store list h:1 --timeout 5", `--timeout is "5", it must be a time with its unit`},
		{"version x", `unexpected argument "x"`},
		{"help srve", `unknown command "srve"; did you mean "serve"?`},
		{"help admin clos", `unknown command "clos"; did you mean "close"?`},
		{"completion", "a command is missing: bash"},
		{"completion zsj", `unknown command "zsj"; did you mean "zsh"?`},
		{"completion zsh x", "unknown command"},
		{"audit history", "rallypoint-audit FILE"},
		{"token", "a command is missing: new"},
		{"token new", "FILE is missing"},
	})
}

func TestWrongUsageOfStore(t *testing.T) {
	wantRefused(t, []wrongUsage{
		{"store", "a command is missing"},
		{"store srve", `did you mean "serve"?`},
		{"store serve --listen 127.0.0.1:65536", "expected HOST:PORT, such as 127.0.0.1:29500"},
		{"store get h", "KEY is missing"},
		{"store get h k k2", `unexpected argument "k2"`},
		{"store get h k --raw --hex", "none of the others can be"},
		{"store set h k", "VALUE is missing"},
		{"store add h k x", `AMOUNT is "x", expected a whole number`},
		{"store add h k 1 2", `unexpected argument "2"`},
		{"store wait h", "KEY is missing"},
		{"store delete h:x k", `the endpoint "h:x" is not valid`},
	})
}

// TestWrongUsageOfAnEndpoint: of the commands that ask, change or record the run at one.
func TestWrongUsageOfAnEndpoint(t *testing.T) {
	wantRefused(t, []wrongUsage{
		{"status", "ENDPOINT is missing"},
		{"status a b", `unexpected argument "b"`},
		{"status h:x", `the endpoint "h:x" is not valid`},
		{"status h:0", "nothing listens on port 0"},
		{"status h --timeout 0", "--timeout"},
		{"status h --timeout 0s", "--timeout is 0s, it must be greater than 0"},
		{"admin", "a command is missing: close, evict, save, drain, scale, stop, cancel, cordon, undrain, forget or backup"},
		{"admin clos", `did you mean "close"?`},
		{"admin close", "ENDPOINT is missing"},
		{"admin close h:x --rdzv-id x --reason y", `the endpoint "h:x" is not valid`},
		{"admin evict h --rdzv-id x --reason y", "--node is missing"},
		{"admin evict h --rdzv-id x --reason y --node n --timeout -1s", "--timeout is -1s"},
	})
}

// wantRefused wants each command line refused in one line.
func wantRefused(t *testing.T, lines []wrongUsage) {
	t.Helper()
	t.Setenv(run.EnvLogLevel, "")
	for _, c := range lines {
		code, stdout, stderr := execute(t, strings.Fields(c.args)...)
		if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.says) ||
			!strings.HasPrefix(stderr, "rallypoint") || !strings.Contains(stderr, "--help") {
			t.Errorf("%s: %d, %q, %q; want 2 and one line that says %q", c.args, code, stdout, stderr, c.says)
		}
	}
}

func TestWrongLogLevelInTheEnvironment(t *testing.T) {
	t.Setenv(run.EnvLogLevel, "loud")
	if code, _, stderr := execute(t, "version"); code != 2 || !strings.Contains(stderr, `RALLYPOINT_LOG is "loud"`) {
		t.Errorf("%d, %q", code, stderr)
	}
	if code, _, _ := execute(t, "version", "--log-level", "WARN"); code != 0 {
		t.Errorf("the flag does not overrule the environment: %d", code)
	}
}

// TestLogIsOff is documented for nodes, and holds for all commands.
func TestLogIsOff(t *testing.T) {
	t.Setenv(run.EnvLogLevel, "off")
	if code, _, stderr := execute(t, "version"); code != 0 {
		t.Errorf("%d, %q", code, stderr)
	}
	var b strings.Builder
	l := logging{out: &b}
	if err := l.check(); err != nil {
		t.Fatal(err)
	}
	l.logger().Error("an error")
	if b.Len() > 0 {
		t.Error(b.String())
	}
}

func TestNoArguments(t *testing.T) {
	var out, err bytes.Buffer
	if code := Main(t.Context(), nil, &out, &err); code != 0 || !strings.Contains(out.String(), "Usage:") {
		t.Errorf("%d, %q, %q", code, out.String(), err.String())
	}
}

func TestParseListen(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:1": "127.0.0.1:1", "host0": "host0:7", "host0:0": "host0:0", ":1": ":1", "0.0.0.0:1": "0.0.0.0:1",
		"29400": "127.0.0.1:29400", " 0 ": "127.0.0.1:0",
		"::1": "[::1]:7", "[::]:1": "[::]:1", " [::1]:2 ": "[::1]:2",
	} {
		if got, err := parseListen(text, 7); err != nil || got.String() != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
}

// serving is a command that serves until it is stopped.
type serving struct {
	stop   context.CancelFunc
	line   string // that says where it listens
	addr   string
	code   chan int
	stderr bytes.Buffer
}

// serve starts a command and reads the line that says where it listens.
func serve(t *testing.T, main func(ctx context.Context, stdout, stderr io.Writer) int) *serving {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &serving{stop: cancel, code: make(chan int, 1)}
	r, w := io.Pipe()
	go func() {
		s.code <- main(ctx, w, &s.stderr)
		w.Close()
	}()
	t.Cleanup(func() {
		cancel()
		r.Close()
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("no line: %v; exit code %d, %s", err, <-s.code, s.stderr.String())
	}
	_, addr, ok := strings.Cut(strings.TrimSpace(line), " listening on ")
	if !ok {
		t.Fatalf("line %q", line)
	}
	s.line, s.addr = line, addr
	return s
}

func command(args ...string) func(context.Context, io.Writer, io.Writer) int {
	return func(ctx context.Context, stdout, stderr io.Writer) int {
		return Main(ctx, append([]string{"rallypoint"}, args...), stdout, stderr)
	}
}

func (s *serving) end(t *testing.T) {
	t.Helper()
	s.stop()
	if code := <-s.code; code != 0 {
		t.Errorf("exit code %d: %s", code, s.stderr.String())
	}
	if conn, err := net.Dial("tcp", s.addr); err == nil {
		conn.Close()
		t.Errorf("%s still listens", s.addr)
	}
}

func TestServe(t *testing.T) {
	s := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/healthz: %s", resp.Status)
	}

	code, stdout, stderr := execute(t, "serve", "--listen", s.addr)
	if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, s.addr) || !strings.Contains(stderr, "--listen") {
		t.Errorf("on a port in use: %d, %q, %q", code, stdout, stderr)
	}
	s.end(t)
}

func TestStoreServe(t *testing.T) {
	s := serve(t, command("store", "serve", "--listen", "127.0.0.1:0", "--log-level", "debug"))
	c, err := tcpstore.Dial(t.Context(), s.addr, tcpstore.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Set(t.Context(), "k", []byte("v")); err != nil {
		t.Error(err)
	}
	if v, err := c.Get(t.Context(), "k"); err != nil || string(v) != "v" {
		t.Errorf("got %q, %v", v, err)
	}
	code, _, stderr := execute(t, "store", "serve", "--listen", s.addr)
	if code != 1 || !strings.Contains(stderr, s.addr) {
		t.Errorf("on a port in use: %d, %q", code, stderr)
	}
	s.end(t)
}

func TestAddressOfAnotherMachine(t *testing.T) {
	code, _, stderr := execute(t, "serve", "--listen", "192.0.2.1:29400")
	if code != 1 || !strings.Contains(stderr, "192.0.2.1:29400: this machine does not have that address") {
		t.Errorf("%d, %q", code, stderr)
	}
}

// The resolver's own words, such as which server it asked, stay out.
func TestNameWithoutAnAddress(t *testing.T) {
	code, _, stderr := execute(t, "serve", "--listen", "nohost.invalid")
	want := regexp.MustCompile(`^rallypoint serve: cannot listen on nohost\.invalid:29400: cannot resolve "nohost\.invalid": [\w ]+; name an address of this machine with --listen\n$`)
	if code != 1 || !want.MatchString(stderr) {
		t.Errorf("%d, %q", code, stderr)
	}
}

// A signal ends a serving process cleanly.
func TestProcessEndsOnSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(fmt.Sprint(sig), func(t *testing.T) {
			s := serve(t, func(_ context.Context, stdout, stderr io.Writer) int {
				return Process([]string{"rallypoint", "serve", "--listen", "127.0.0.1:0"}, stdout, stderr)
			})
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				t.Fatal(err)
			}
			select {
			case code := <-s.code:
				if code != 0 {
					t.Errorf("exit code %d: %s", code, s.stderr.String())
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it goes on")
			}
		})
	}
}

// TestServeSaysWhatItIs: the first line of its log has the settings, in the form that `run` logs in.
func TestServeSaysWhatItIs(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, command("serve", "--listen", "127.0.0.1:0", "--data-dir", dir, "--max-nodes", "77"))
	s.end(t)
	first, _, _ := strings.Cut(s.stderr.String(), "\n")
	if !regexp.MustCompile(`^I\d{4} [\d:.]+ \d+ rallypoint\] rallypoint serve begins version=\S+ data_dir=` + dir + ` token_file=none .*max_nodes=77 `).MatchString(first + " ") {
		t.Errorf("%q", first)
	}
	s = serve(t, command("serve", "--listen", "127.0.0.1:0", "--log-format", "json"))
	s.addr, _, _ = strings.Cut(s.addr, `"`)
	s.end(t)
	var record map[string]any
	if err := json.Unmarshal([]byte(s.line), &record); err != nil || record["msg"] != "control plane listening on "+s.addr {
		t.Errorf("%q: %v", s.line, err)
	}
	for line := range strings.Lines(s.stderr.String()) {
		record = nil
		if err := json.Unmarshal([]byte(line), &record); err != nil || record["msg"] == nil || record["pid"] == nil {
			t.Errorf("%q: %v", line, err)
		}
	}
	if record == nil {
		t.Error("it logs nothing")
	}
}
