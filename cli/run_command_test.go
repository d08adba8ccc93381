package cli

import (
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// meetingPlace is where the jobs of a test meet: options of `rallypoint run`, with an id of the job
// where the place has many.
type meetingPlace struct {
	name    string
	options func(t *testing.T) []string
}

var meetingPlaces = []meetingPlace{
	{"at a node", func(t *testing.T) []string {
		return []string{"--rdzv-endpoint=127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))}
	}},
	{"at a node with an id", func(t *testing.T) []string {
		return []string{"--rdzv-id=job", "--rdzv-endpoint=127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))}
	}},
	{"serve", func(t *testing.T) []string {
		server := serve(t, command("serve", "--listen", "127.0.0.1:0"))
		return []string{"--rdzv-id=job", "--rdzv-endpoint=" + server.addr}
	}},
	{"file", func(t *testing.T) []string { return []string{"--rdzv-id=job", "--rdzv-endpoint=file://" + t.TempDir()} }},
	{"file without an id", func(t *testing.T) []string { return []string{"--rdzv-endpoint=file://" + t.TempDir()} }},
	{"etcd", func(t *testing.T) []string {
		return []string{"--rdzv-id=job", "--rdzv-endpoint=etcd://" + etcd.Endpoint(t) + "?key_prefix=" + url.QueryEscape("/"+t.Name())}
	}},
}

// running says that a worker runs, and waits for the end of the test.
const running = `echo up > $SAY; until [ -e finish ]; do sleep 0.1; done`

// logged runs a command whose stderr can be read meanwhile.
func (h *harness) logged(script string, options ...string) (p *nodeProcess, text func() string) {
	h.t.Helper()
	file := testkit.Must(os.CreateTemp(h.dir, "stderr"))(h.t)
	h.t.Cleanup(func() { file.Close() })
	p = h.command(script, options...)
	p.Stderr = file
	testkit.Check(h.t, p.Start())
	return p, func() string { return string(testkit.Must(os.ReadFile(file.Name()))(h.t)) }
}

// mustSay asserts that a text holds words.
func mustSay(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("it does not say %q: %s", word, text)
		}
	}
}

// TestTwoJobsOfOneEndpoint: two jobs get the same endpoint, as the trials of a sweep do. The second
// is refused at once and says so in one line; a further node of the first job
// waits, and says at its start and at its end that it runs nothing.
func TestTwoJobsOfOneEndpoint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		place string
		nodes int
	}{{"at a node", 1}, {"at a node", 2}, {"file without an id", 2}} {
		place := meetingPlaces[slices.IndexFunc(meetingPlaces, func(m meetingPlace) bool { return m.name == c.place })]
		t.Run(c.place+"/"+strconv.Itoa(c.nodes), func(t *testing.T) {
			h := newHarness(t)
			options := append(place.options(t), "--nnodes="+strconv.Itoa(c.nodes))
			var first []*nodeProcess
			for range c.nodes {
				first = append(first, h.run(running, options...))
			}
			for range c.nodes {
				testkit.Equal(t, h.readLine(), "up")
			}
			for _, second := range []*nodeProcess{h.run("touch ran", options...), h.run(running, append(options, "--nproc-per-node=2")...)} {
				second.expect(t, 2)
				text := second.stderr.String()
				mustSay(t, text, "no worker ran on this node", "would wait as a spare", "`sh -c echo up", "(1 worker)", "round 1 on node", "--rdzv-id", "any_command=1")
				if n := strings.Count(text, "error: "); n != 1 {
					t.Errorf("it said %d errors: %s", n, text)
				}
			}
			spare, said := h.logged(running, options...)
			meant, meantSaid := h.logged("touch ran", append(options, "--rdzv-conf=any_command=1")...)
			testkit.Eventually(t, "both spares say what they are", func() bool {
				return strings.Contains(said(), "this node runs nothing, since it is a spare: round 1 runs with") && strings.Contains(meantSaid(), "this node runs nothing")
			})
			h.finish()
			for _, p := range append(first, spare, meant) {
				p.expect(t, 0)
			}
			mustSay(t, said(), "this node was not needed, and no worker ran on it")
			if _, err := os.Stat(h.dir + "/ran"); err == nil {
				t.Error("the second job's workers ran")
			}
		})
	}
}

// TestNextJobUnderTheSameID: a job that comes after another one has succeeded, under its id, is
// refused too, and a late node of the first job was not needed.
func TestNextJobUnderTheSameID(t *testing.T) {
	t.Parallel()
	for _, place := range meetingPlaces {
		t.Run(place.name, func(t *testing.T) {
			h := newHarness(t)
			options := place.options(t)
			h.run("exit 0", options...).expect(t, 0)
			next := h.run("touch ran", options...)
			code := next.end()
			_, err := os.Stat(h.dir + "/ran")
			if ran := err == nil; ran != (code == 0) || !ran && code != 2 {
				t.Errorf("it ended with %d, its worker ran: %v\n%s", code, ran, next.stderr.String())
			}
			if code == 2 {
				mustSay(t, next.stderr.String(), "no worker ran on this node", "ran another command", "--rdzv-id", "begin_again=1")
				h.env = append(h.env, "RALLYPOINT_LOG=off")
				late := h.run("exit 0", options...)
				late.expect(t, 0)
				mustSay(t, late.stderr.String(), "no worker ran on it")
			}
		})
	}
}

// TestSweepOfThree: of three jobs at one endpoint one runs, and the others end with a reason.
func TestSweepOfThree(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := []string{"--rdzv-endpoint=127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))}
	var jobs []*nodeProcess
	for _, lr := range []string{"0.1", "0.2", "0.3"} {
		jobs = append(jobs, h.run("lr="+lr+"; "+running, options...))
	}
	testkit.Equal(t, h.readLine(), "up")
	ended := make(chan *nodeProcess)
	for _, p := range jobs {
		go func() {
			p.end()
			ended <- p
		}()
	}
	for i := range jobs {
		if i == 2 {
			h.finish()
		}
		p, want := <-ended, 2
		if i == 2 {
			want = 0
		}
		if got := p.ProcessState.ExitCode(); got != want {
			t.Errorf("end %d has exit code %d, want %d: %s", i, got, want, p.stderr.String())
		}
	}
}

// TestSameCommandElsewhere: the nodes of a job may keep their script in other folders, and name it
// in other ways. A copy with other contents is another command.
func TestSameCommandElsewhere(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	server := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	options := []string{"--rdzv-endpoint=" + server.addr}
	python := func(dir, script string, args ...string) (p *nodeProcess, text func() string) {
		t.Helper()
		file := testkit.Must(os.CreateTemp(h.dir, "stderr"))(t)
		t.Cleanup(func() { file.Close() })
		p = h.command("")
		p.Args = append(append(append(p.Args[:2:2], options...), script), args...)
		p.Dir, p.Stderr = dir, file
		testkit.Check(t, p.Start())
		return p, func() string { return string(testkit.Must(os.ReadFile(file.Name()))(t)) }
	}
	script := "import os, time\nopen(os.environ['SAY'], 'w').write('up\\n')\nwhile not os.path.exists('" + h.dir + "/finish'): time.sleep(0.1)\n"
	var dirs []string
	for _, contents := range []string{script, "#!/elsewhere/python\n" + script, "# edited\n" + script} {
		dirs = append(dirs, t.TempDir())
		testkit.WriteFile(t, dirs[len(dirs)-1]+"/train.py", []byte(contents))
	}
	first, _ := python(dirs[0], "train.py", "--lr=1")
	testkit.Equal(t, h.readLine(), "up")
	spare, said := python(h.dir, dirs[1]+"/train.py", "--lr=1")
	edited, editedSaid := python(dirs[2], "train.py", "--lr=1")
	other, _ := python(dirs[0], "train.py", "--lr=2")
	module, _ := python(dirs[0], "-m", "train", "--lr=1")
	for _, p := range []*nodeProcess{edited, other, module} {
		p.expect(t, 2)
	}
	mustSay(t, editedSaid(), "reads the same and differs in the script's contents")
	testkit.Eventually(t, "the node with the same script waits", func() bool { return strings.Contains(said(), "this node runs nothing") })
	h.finish()
	first.expect(t, 0)
	spare.expect(t, 0)
	server.end(t)
}

// TestArgumentsOfEachNode: the nodes of a job may differ in their arguments; they are told in one
// line, and a node that is started again beside the others gets its place.
func TestArgumentsOfEachNode(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "2:2")
	script := func(rank string) string { return "rank=" + rank + "; " + printPlacement }
	host, said := h.logged(script("0"), options...)
	lost := h.run(script("1"), options...)
	h.readRound(2)
	testkit.Check(t, lost.Process.Signal(syscall.SIGKILL))
	_ = lost.Wait()
	again := h.run(script("1"), options...)
	h.readRound(2)
	h.finish()
	host.expect(t, 0)
	again.expect(t, 0)
	mustSay(t, said(), "round 1: the nodes run different commands: `sh -c rank=")
}

// TestSpareSaysSoAtEveryLevel: a node that ran no worker says so in one line however little is logged.
func TestSpareSaysSoAtEveryLevel(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"off", "error", "warning", "info", "debug"} {
		t.Run(level, func(t *testing.T) {
			h := newHarness(t)
			h.env = []string{"RALLYPOINT_LOG=" + level}
			options := elastic(t, "1:1")
			needed := h.run(printPlacement, options...)
			h.readRound(1)
			spare := h.run(printPlacement, options...)
			testkit.Eventually(t, "there is a spare node", func() bool { return strings.Contains(metrics(options), `rallypoint_nodes{state="spare"} 1`) })
			h.finish()
			needed.expect(t, 0)
			spare.expect(t, 0)
			if n := strings.Count(spare.stderr.String(), "no worker ran on it"); n != 1 {
				t.Errorf("it said so %d times: %s", n, spare.stderr.String())
			}
		})
	}
}
