package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/cli/run"
	"rallypoint/internal/testkit"
)

// configFile writes a file of configuration.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestConfigPrecedence: the command line wins over variables, variables over the file,
// the file over the defaults.
func TestConfigPrecedence(t *testing.T) {
	path := configFile(t, "listen: file:1\nmax-nodes: 1\nmax-keys: 1\nhttp-open: true\nhttp-name: [a, b]\nforget-after: 90s\nlog-level: error\n")
	t.Setenv("RALLYPOINT_MAX_NODES", "2")
	t.Setenv("RALLYPOINT_MAX_KEYS", "2")
	t.Setenv("RALLYPOINT_MAX_CONNECTIONS", "2")
	t.Setenv("RALLYPOINT_DATA_DIR", "")
	log := &logging{out: os.Stderr}
	root := newRoot(log, io.Discard)
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.ParseFlags([]string{"--config", path, "--max-nodes=3"}); err != nil {
		t.Fatal(err)
	}
	if err := serve.PersistentPreRunE(serve, nil); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"listen": "file:1", "max-nodes": "3", "max-keys": "2", "max-connections": "2", "http-open": "true", "http-name": "[a,b]",
		"forget-after": "1m30s", "log-level": "error", "data-dir": "", "record": "",
	} {
		if got := serve.Flags().Lookup(flag).Value.String(); got != want {
			t.Errorf("--%s is %q, expected %q", flag, got, want)
		}
	}
	if log.level != 8 {
		t.Errorf("the level of the log is %v", log.level)
	}
}

// TestServeByVariables: also without a file, and a list by commas.
func TestServeByVariables(t *testing.T) {
	t.Setenv("RALLYPOINT_LISTEN", "0")
	t.Setenv("RALLYPOINT_HTTP_NAME", "one.example,two.example")
	s := serve(t, command("serve"))
	for host, code := range map[string]int{"one.example": 200, "two.example": 200, "three.example": 421} {
		request, err := http.NewRequest("GET", "http://"+s.addr+"/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host, request.Close = host, true
		request.Header.Set("User-Agent", "Mozilla/5.0")
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != code {
			t.Errorf("%s: %s", host, resp.Status)
		}
	}
	s.end(t)
}

// TestConfigRefuses what is in a file and is not meant, naming file, key and what is
// expected; wrong usage is exit code 2, a file that cannot be trusted or read 1.
func TestConfigRefuses(t *testing.T) {
	for text, why := range map[string]string{
		"lisen: h:1\n":                               `unknown key "lisen"; did you mean listen?`,
		"max_nodes: 1\n":                             `unknown key "max_nodes"; did you mean max-nodes?`,
		"config: x\n":                                `unknown key "config"`,
		"listen: 29400\n":                            "listen is 29400, expected text (in quotes",
		"max-nodes: \"7\"\n":                         `max-nodes is "7", expected a whole number`,
		"max-nodes: many\n":                          `max-nodes is "many", expected a whole number`,
		"max-nodes: 1.5\n":                           "expected a whole number",
		"max-nodes: true\n":                          "expected a whole number",
		"max-nodes: [1]\n":                           "expected a whole number",
		"max-nodes: 0\n":                             "--max-nodes is 0, it must be greater than 0",
		"max-bytes: 0\n":                             "--max-bytes is 0, it must be greater than 0",
		"max-total-bytes: -1\n":                      "--max-total-bytes is -1, it must be greater than 0",
		"max-runs-per-address: 0\n":                  "--max-runs-per-address is 0, it must be greater than 0",
		"http-open: 1\n":                             "http-open is 1, expected true or false",
		"http-open: yes please\n":                    "expected true or false",
		"forget-after: 7\n":                          "forget-after is 7, expected a time such as 90s",
		"forget-after: soon\n":                       `forget-after is "soon", expected a time such as 90s`,
		"http-name: [a, 1]\n":                        "expected text or a list of texts",
		"http-name: {a: b}\n":                        "neither a value nor a list",
		"log-level: loud\n":                          `--log-level is "loud"`,
		"listen: h:1\nlisten: h:2\n":                 `the key "listen" appears twice`,
		"listen:\n":                                  `"listen" has no value`,
		"listen\n":                                   "expected lines of KEY: VALUE",
		"# " + strings.Repeat("x", maxConfig) + "\n": "has more than",
	} {
		path := configFile(t, text)
		code, stdout, stderr := execute(t, "serve", "--config", path)
		if code != run.ExitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, why) {
			t.Errorf("%.60q: %d, %q, expected %q", text, code, stderr, why)
		}
	}
	t.Setenv("RALLYPOINT_MAX_NODES", "many")
	if code, _, stderr := execute(t, "serve"); code != run.ExitUsage || !strings.Contains(stderr, `RALLYPOINT_MAX_NODES is "many", expected a whole number`) {
		t.Errorf("%d, %q", code, stderr)
	}
}

// TestConfigIsTrusted: who else may write the file rules over the control plane.
func TestConfigIsTrusted(t *testing.T) {
	path := configFile(t, "listen: \"127.0.0.1:0\"\n")
	refused := func(why string) {
		t.Helper()
		if code, _, stderr := execute(t, "serve", "--config", path); code != run.ExitFailure || !strings.Contains(stderr, why) {
			t.Errorf("%d, %q, expected %q", code, stderr, why)
		}
	}
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		refused("users other than its owner may write to it")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 65534, -1); err != nil {
			t.Fatal(err)
		}
		refused("it belongs to user 65534")
		if err := os.Chown(path, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Dir(path)
	refused("it is not a regular file")
	path += "/fifo"
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("it is not a regular file")
	path += "/none"
	refused("cannot read the configuration " + path + ": not a directory\n")
}

// TestLogFormat: in JSON each line on stderr is a record, also that of an error.
func TestLogFormat(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"serve --log-format json --listen h:x", run.ExitUsage, "expected HOST:PORT"},
		{"serve --log-format=json --nonsense", run.ExitUsage, "unknown flag"},
		{"status 127.0.0.1:1 --log-format=json", run.ExitFailure, "nothing listens"},
		{"run --log-format=json --no-such-option true", run.ExitUsage, "unrecognized arguments"},
		{"run --log-format=json no-such-script", run.ExitUsage, "does not exist"},
	} {
		code, _, stderr := execute(t, strings.Fields(c.args)...)
		if code != c.code {
			t.Errorf("%s: %d", c.args, code)
		}
		var record struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(stderr), &record); err != nil || record.Level != "ERROR" || !strings.Contains(record.Msg, c.says) || record.Time == "" {
			t.Errorf("%s: %v, %q", c.args, err, stderr)
		}
	}
	t.Setenv(run.EnvLogFormat, "xml")
	if code, _, stderr := execute(t, "version"); code != run.ExitUsage || !strings.Contains(stderr, `RALLYPOINT_LOG_FORMAT is "xml", expected text or json`) {
		t.Errorf("%d, %q", code, stderr)
	}
}

// TestRunLogsInJSON: the agent's lines, from the first one to the report.
func TestRunLogsInJSON(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.run("exit 3", "--log-format=json", "--nnodes=1:2", "--rdzv-endpoint=127.0.0.1:"+strconv.Itoa(testkit.FreePort(t)), "--rdzv-conf=last_call_timeout=0.1")
	if code := p.end(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	said := map[string]bool{}
	for line := range strings.Lines(p.stderr.String()) {
		var record struct {
			Time, Level, Msg, Source string
			PID                      int
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.PID != p.Process.Pid || !strings.Contains(record.Source, ".go:") {
			t.Errorf("%v: %q", err, line)
		}
		for _, part := range []string{`run "none" on `, "round 1", "sh FAILED"} {
			said[part] = said[part] || strings.Contains(record.Msg, part)
		}
	}
	if len(said) != 3 || !said[`run "none" on `] || !said["round 1"] || !said["sh FAILED"] {
		t.Errorf("%v\n%s", said, p.stderr.String())
	}
}

// TestDocumentedConfig: docs/serve.md's file is taken as it is.
func TestDocumentedConfig(t *testing.T) {
	page, err := os.ReadFile("../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```yaml\n")
	block, _, ok := strings.Cut(block, "```")
	if !ok || !strings.Contains(block, "listen:") {
		t.Fatal("docs/serve.md shows no file")
	}
	root := newRoot(&logging{out: os.Stderr}, io.Discard)
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.ParseFlags([]string{"--config", configFile(t, block)}); err != nil {
		t.Fatal(err)
	}
	if err := serve.PersistentPreRunE(serve, nil); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(block) {
		key, _, _ := strings.Cut(line, ":")
		if flag := serve.Flags().Lookup(key); !strings.HasPrefix(line, "#") && (flag == nil || !flag.Changed) {
			t.Errorf("%q has no effect", line)
		}
	}
}
