package cli

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"rallypoint/cli/run"
	"rallypoint/internal/testkit"
)

// The differential test runs the command lines of agent/testdata/torchrun
// and compares with what stock torchrun did there (record.py). Each intended
// difference is a row of docs/deviations.md and asserted here.

const torchrunData = "../agent/testdata/torchrun"

// asCommand makes this test binary the command itself.
const asCommand = "RALLYPOINT_TEST_AS_COMMAND"

func init() {
	if os.Getenv(asCommand) == "1" {
		os.Unsetenv(asCommand)
		os.Unsetenv("GORACE") // EndAtOnce is this process's, not its workers'
		code := Process(append([]string{"rallypoint"}, os.Args[1:]...), os.Stdout, os.Stderr)
		if os.Getenv(envLeaks) != "" {
			if err := goleak.Find(); err != nil {
				fmt.Fprintln(os.Stderr, leaked, err)
			}
		}
		os.Exit(code)
	}
}

// envLeaks makes the command say which goroutines are left when it is done.
const envLeaks = "RALLYPOINT_TEST_LEAKS"

// leaked begins that.
const leaked = "goroutines are left:"

// torchrunCase is one command line of cases.json.
type torchrunCase struct {
	Name   string
	Args   []string
	Env    map[string]string
	Signal string
	Ready  int
}

// recording is what happened.
type recording struct {
	Exit           int
	Stdout, Stderr string
	Dumps          map[string]dump
	Logs, Tmp      map[string]*string
}

type dump struct {
	Env     map[string]string
	Argv    []string
	Session bool
}

// usageExits are the cases where torchrun ends by a stack trace and exit code 1,
// and we by one line and exit code 2, before any side effect.
var usageExits = []string{
	"usage-nnodes-order", "usage-nnodes-zero", "usage-nproc-zero", "usage-nproc-word", "usage-redirects", "usage-conf",
	"usage-interval", "usage-both", "usage-filter", "usage-handler",
	"fail-no-program",
}

func TestRunAsTorchrun(t *testing.T) {
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip("no python3: ", err)
	}
	var cases []torchrunCase
	readJSON(t, filepath.Join(torchrunData, "cases.json"), &cases)
	recorded := filepath.Join(torchrunData, "recorded")
	if fresh := os.Getenv("RALLYPOINT_RECORDED"); fresh != "" { // make test-long records torchrun itself
		recorded = fresh
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			var want recording
			readJSON(t, filepath.Join(recorded, c.Name+".json"), &want)
			got := runCase(t, c, strings.TrimSpace(string(python)))
			compare(t, c, &want, got)
		})
	}
}

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// runCase runs our command in a folder like record.py's.
func runCase(t *testing.T, c torchrunCase, python string) *recording {
	t.Helper()
	dir := t.TempDir()
	work, tmp := filepath.Join(dir, "cwd"), filepath.Join(dir, "tmp")
	scripts := os.DirFS(filepath.Join(torchrunData, "scripts"))
	for _, to := range []string{work, filepath.Join(work, "scripts_with_a_rather_long_name_to_make_the_border_of_the_report_wide")} {
		if err := os.CopyFS(to, scripts); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	base := map[string]string{"PATH": os.Getenv("PATH"), "HOME": "/", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": tmp}
	args := append([]string{"run"}, c.Args...)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "<PORT>", strconv.Itoa(testkit.FreePort(t)))
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir = work
	cmd.Env = []string{testkit.EndAtOnce, asCommand + "=1", "RALLYPOINT_PYTHON=" + python}
	for _, vars := range []map[string]string{base, c.Env} {
		for name, value := range vars {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if c.Signal != "" {
		awaitFiles(t, work, c.Ready)
		if err := cmd.Process.Signal(map[string]os.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT}[c.Signal]); err != nil {
			t.Error(err)
		}
	}
	_ = cmd.Wait()
	got := &recording{
		Exit: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String(),
		Dumps: map[string]dump{}, Logs: tree(t, filepath.Join(work, "logs")), Tmp: tree(t, tmp),
	}
	dumps, _ := filepath.Glob(filepath.Join(work, "dump.*.json"))
	for _, path := range dumps {
		text, _ := os.ReadFile(path)
		var d dump
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(d.Env, func(name, value string) bool { return base[name] == value })
		got.Dumps[filepath.Base(path)] = d
	}
	return got
}

// awaitFiles waits until the workers have written ready.<rank>.
func awaitFiles(t *testing.T, dir string, n int) {
	t.Helper()
	testkit.Eventually(t, "the workers are ready", func() bool {
		found, _ := filepath.Glob(filepath.Join(dir, "ready.*"))
		return len(found) >= n
	})
}

// tree reads all files below a folder; an empty folder is listed with a slash.
func tree(t *testing.T, root string) map[string]*string {
	t.Helper()
	found := map[string]*string{}
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		name, _ := filepath.Rel(root, path)
		if !entry.IsDir() {
			text, _ := os.ReadFile(path)
			s := string(text)
			found[name] = &s
		} else if entries, _ := os.ReadDir(path); len(entries) == 0 {
			found[name+"/"] = nil
		}
		return nil
	})
	return found
}

func compare(t *testing.T, c torchrunCase, want, got *recording) {
	t.Helper()
	exit := want.Exit
	if slices.Contains(usageExits, c.Name) {
		exit = run.ExitUsage
	}
	if got.Exit != exit {
		t.Errorf("exit code %d, expected %d; stderr:\n%s", got.Exit, exit, got.Stderr)
	}
	if exit == run.ExitUsage {
		if strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("a usage error takes more than one line:\n%s", got.Stderr)
		}
		if len(got.Tmp) != 1 || len(got.Logs) != 0 {
			t.Errorf("a usage error left something behind: %v %v", got.Tmp, got.Logs)
		}
		return
	}
	same(t, "lines on stdout", lines(got.Stdout), lines(want.Stdout))
	same(t, "workers' lines on stderr", workerLines(got.Stderr), workerLines(want.Stderr))
	same(t, "report", report(got.Stderr), report(want.Stderr))
	same(t, "events", eventsOf(t, got.Stderr, false), eventsOf(t, want.Stderr, true))
	if shown := strings.Contains(got.Stderr, "\n  stderr    :\n    Traceback (most recent call last):\n"); shown != (c.Name == "fail-exception") { // A78
		t.Errorf("the report shows the end of stderr: %v", shown)
	}
	same(t, "log files", logFiles(got.Logs), logFiles(want.Logs))
	if _, empty := got.Tmp["./"]; !empty { // W16
		same(t, "temporary files", logFiles(got.Tmp), nil)
	}
	compareDumps(t, c, want.Dumps, got.Dumps)
}

func compareDumps(t *testing.T, c torchrunCase, want, got map[string]dump) {
	t.Helper()
	same(t, "dumps", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	for name, w := range want {
		g := got[name]
		same(t, name+": argv", g.Argv, wantArgv(c, w.Argv))
		if !g.Session {
			t.Errorf("%s: no session of its own", name)
		}
		if g.Env["RALLYPOINT_ROUND"] != "1" {
			t.Errorf("%s: RALLYPOINT_ROUND is %q", name, g.Env["RALLYPOINT_ROUND"])
		}
		delete(g.Env, "RALLYPOINT_ROUND")
		if g.Env["RALLYPOINT_GENERATION"] == "" {
			t.Errorf("%s: there is no RALLYPOINT_GENERATION", name)
		}
		delete(g.Env, "RALLYPOINT_GENERATION")
		if g.Env["RALLYPOINT_MASTER_ADDR"] != g.Env["MASTER_ADDR"] {
			t.Errorf("%s: RALLYPOINT_MASTER_ADDR is %q, MASTER_ADDR %q", name, g.Env["RALLYPOINT_MASTER_ADDR"], g.Env["MASTER_ADDR"])
		}
		delete(g.Env, "RALLYPOINT_MASTER_ADDR")
		if g.Env["RALLYPOINT_PROGRESS_FILE"] == "" {
			t.Errorf("%s: there is no RALLYPOINT_PROGRESS_FILE", name)
		}
		delete(g.Env, "RALLYPOINT_PROGRESS_FILE")
		delete(g.Env, "RALLYPOINT_DIRECTIVE_FILE")
		delete(g.Env, "RALLYPOINT_STACKS_FILE")
		if c.Name == "env-rdzv-id" && g.Env["TORCHELASTIC_RUN_ID"] != "job7" { // W19
			t.Errorf("%s: the run id is %q", name, g.Env["TORCHELASTIC_RUN_ID"])
		}
		same(t, name+": environment", maskEnv(g.Env), maskEnv(w.Env))
	}
}

// wantArgv is torchrun's, but for the second -- of a line, which Python 3.11
// drops and we pass on.
func wantArgv(c torchrunCase, argv []string) []string {
	if c.Name != "argv-macros" {
		return argv
	}
	i := slices.Index(argv, "-x")
	if i < 0 || argv[i-1] == "--" {
		return argv
	}
	return slices.Insert(slices.Clone(argv), i, "--")
}

var (
	uuidPattern   = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	jobPattern    = regexp.MustCompile(`(?:<UUID>|none|job7)_[a-z0-9_]{8}/`)
	tempPattern   = regexp.MustCompile(`.*/torchelastic_[a-z0-9_]{8}/`)
	timePattern   = regexp.MustCompile(`\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d`)
	pidPattern    = regexp.MustCompile(`(pid: |PID )\d+`)
	borderPattern = regexp.MustCompile(`(?m)^(?:=+|-{20,})$`)
	stderrPattern = regexp.MustCompile(`(?m)^  stderr    :.*\n(?:    .*\n)*`)
	nextPattern   = regexp.MustCompile(`(?m)^  next      : .*\n`)
	hostPattern   = regexp.MustCompile(`(host      : ).*`)
	agentLine     = regexp.MustCompile(`^[DIWE]\d{4} `)
	spoken        = regexp.MustCompile(`(?:(?:out|err) \d|[oe]\d of \d|well \d)`)
)

func maskJob(path string) string {
	path = tempPattern.ReplaceAllString(path, "<TMP>/")
	return jobPattern.ReplaceAllString(uuidPattern.ReplaceAllString(path, "<UUID>"), "<JOB>/")
}

func maskEnv(env map[string]string) []string {
	var list []string
	for name, value := range env {
		switch name {
		case "MASTER_ADDR": // 127.0.0.1, where torchrun has the host's name
			value = strings.ReplaceAll(value, "<HOST>", "127.0.0.1")
		case "MASTER_PORT":
			value = "<PORT>"
		case "TORCHELASTIC_RUN_ID":
			value = "<ID>"
		default:
			value = maskJob(value)
		}
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// lines are those of a text in any order, since workers run side by side.
func lines(text string) []string {
	if text == "" {
		return nil
	}
	list := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	slices.Sort(list)
	return list
}

// workerLines are the lines of stderr that workers wrote.
func workerLines(text string) []string {
	return slices.DeleteFunc(lines(text), func(line string) bool {
		return agentLine.MatchString(line) || !spoken.MatchString(line)
	})
}

// eventsOf are the events on stderr in their order, without what differs between
// runs, the backend's name, and the node's place in its first round, which torchrun's
// first two events lack.
func eventsOf(t *testing.T, text string, torchrun bool) (list []string) {
	t.Helper()
	numbers := map[string]string{} // of pids
	pid := func(value any) any {
		if value == nil {
			return nil
		}
		key := fmt.Sprint(value)
		if numbers[key] == "" {
			numbers[key] = fmt.Sprintf("<PID%d>", len(numbers))
		}
		return numbers[key]
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.UseNumber()
		var e struct {
			Name, Source string
			Timestamp    json.Number
			Metadata     map[string]any
		}
		if err := decoder.Decode(&e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		m := e.Metadata
		var detail map[string]any
		decoder = json.NewDecoder(strings.NewReader(m["metadata"].(string)))
		decoder.UseNumber()
		if err := decoder.Decode(&detail); err != nil {
			t.Fatalf("%v: %s", err, m["metadata"])
		}
		if of, ok := detail["worker_pid"].([]any); ok {
			of[0] = pid(of[0])
		}
		detail["entry_point"] = regexp.MustCompile(`^python[0-9.]*$`).ReplaceAllString(detail["entry_point"].(string), "<PYTHON>")
		m["metadata"], m["worker_id"] = detail, pid(m["worker_id"])
		if state := m["state"]; state == "RENDEZVOUS" || state == "ASSIGN_WORKER_RANKS" {
			if m["group_rank"] == nil && torchrun {
				m["group_rank"], detail["group_world_size"] = json.Number("0"), json.Number("1")
			}
		}
		m["run_id"], m["hostname"], m["total_run_time"] = "<ID>", "<HOST>", "<S>"
		if m["duration_ms"] != nil {
			m["duration_ms"] = "<MS>"
		}
		if backend := m["rdzv_backend"]; backend == "c10d" || backend == "standalone" {
			m["rdzv_backend"] = "<BACKEND>"
		}
		list = append(list, fmt.Sprintf("%s %s %s %v", e.Name, e.Source, e.Timestamp, m))
	}
	return list
}

// report is the failure report on stderr, masked.
func report(text string) []string {
	border := strings.Index(text, "\n====")
	if border < 0 {
		return nil
	}
	text = stderrPattern.ReplaceAllString(text, "")                    // A78
	text = nextPattern.ReplaceAllString(text, "")                      // A78
	text = borderPattern.ReplaceAllString(text[border+1:], "<BORDER>") // as wide as the digits of a pid make it
	text = timePattern.ReplaceAllString(text, "<TIME>")
	text = pidPattern.ReplaceAllString(text, "${1}<PID>")
	text = hostPattern.ReplaceAllString(text, "${1}<HOST>")
	text = strings.ReplaceAll(text, " (terminated by agent)", "") // W21
	return strings.Split(strings.TrimRight(maskJob(text), "\n"), "\n")
}

func logFiles(files map[string]*string) []string {
	var list []string
	for name, text := range files {
		entry := maskJob("/" + name)
		if text != nil {
			entry += fmt.Sprintf(": %q", lines(*text))
		}
		list = append(list, entry)
	}
	slices.Sort(list)
	return list
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n  got  %q\n  want %q", what, got, want)
	}
}
