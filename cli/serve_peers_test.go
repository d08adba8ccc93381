package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/internal/host"
	"rallypoint/internal/testkit"
)

func TestWrongUsageOfPeers(t *testing.T) {
	wantRefused(t, []wrongUsage{
		{"serve --peers 127.0.0.1:29400,127.0.0.1:29401", "names 2 servers, it must name three or five"},
		{"serve --peers a,b,c,d", "names 4 servers"},
		{"serve --peers a,b,", "a server in its list is empty"},
		{"serve --peers a,b,a", "twice"},
		{"serve --peers 10.255.0.1,10.255.0.2,10.255.0.3", "does not name this server"},
		{"serve --peers 127.0.0.1,10.255.0.2,10.255.0.3 --listen 127.0.0.1:29401", "does not name this server"},
		{"serve --peers 127.0.0.1,localhost,10.255.0.3", "names this server more than once: 127.0.0.1:29400 and localhost:29400; choose one with --self"},
		{"serve --peers 127.0.0.1,10.255.0.2,10.255.0.3 --self 10.255.0.9", "which is not one of --peers"},
		{"serve --peers 127.0.0.1,10.255.0.2,10.255.0.3:5 --self 10.255.0.3:5", "--self has port 5, and --listen 29400"},
		{"serve --peers 127.0.0.1,10.255.0.2,10.255.0.3 --election-timeout 1ms", "must be at least 100ms"},
		{"serve --self a", "--peers is missing"},
	})
}

// TestOwnNameAmongPeers: a server knows by its addresses and its name which one it is.
func TestOwnNameAmongPeers(t *testing.T) {
	for _, c := range []struct{ peers, listen, self, want string }{
		{"127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "127.0.0.1:2", "", "127.0.0.1:2"},
		{"127.0.0.1:1,10.255.0.1:2,10.255.0.2:2", "0.0.0.0:1", "", "127.0.0.1:1"},
		{host.Name() + ":7,10.255.0.1:7,10.255.0.2:7", ":7", "", host.Name() + ":7"},
		{"a:7,b:7,c:7", "0.0.0.0:7", "b:7", "b:7"},
		{"a,b,c", "0.0.0.0:29400", "c", "c:29400"},
	} {
		o := servePeers{list: c.peers, self: c.self, election: time.Second}
		_, own, err := o.servers(t.Context(), testkit.Must(parseListen(c.listen, 29400))(t))
		if err != nil || own != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// peerProcesses are servers that succeed each other, each in a process of its own.
type peerProcesses struct {
	t       *testing.T
	list    string
	dir     string // of their histories
	servers []*serverProcess
}

// peersElection is their --election-timeout.
const peersElection = time.Second

func startPeers(t *testing.T) *peerProcesses {
	t.Helper()
	p := &peerProcesses{t: t, dir: t.TempDir()}
	var addrs []string
	for range 3 {
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", quietPort(t)))
	}
	p.list = strings.Join(addrs, ",")
	for _, addr := range addrs {
		s := &serverProcess{args: []string{"serve", "--listen", addr, "--peers", p.list, "--election-timeout", peersElection.String(), "--record", filepath.Join(p.dir, addr)}}
		testkit.Check(t, s.start())
		t.Cleanup(func() {
			_ = s.cmd.Process.Signal(syscall.SIGCONT)
			s.kill()
			if t.Failed() {
				t.Logf("%s:\n%s", s.addr, s.stderr)
			}
		})
		p.servers = append(p.servers, s)
	}
	p.ready()
	return p
}

// get asks one server for a page, and follows it to the leader.
func (p *peerProcesses) get(s *serverProcess, path string) (code int, body []byte, from string) {
	c := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + s.addr + path)
	if err != nil {
		return 0, nil, ""
	}
	defer resp.Body.Close()
	body, _ = io.ReadAll(resp.Body)
	return resp.StatusCode, body, resp.Request.URL.Host
}

// ready waits until each server votes.
func (p *peerProcesses) ready() {
	p.t.Helper()
	testkit.Eventually(p.t, "all servers are ready", func() bool {
		return !slices.ContainsFunc(p.servers, func(s *serverProcess) bool {
			code, _, _ := p.get(s, "/readyz")
			return code != http.StatusOK
		})
	})
}

// leader waits until a server leads with a majority that sees so many live members of the run.
func (p *peerProcesses) leader(members int, others ...*serverProcess) (leader *serverProcess) {
	p.t.Helper()
	testkit.Eventually(p.t, "a server leads, and all nodes are with it", func() bool {
		for _, s := range p.servers {
			if slices.Contains(others, s) {
				continue
			}
			_, body, from := p.get(s, "/status")
			var st control.Status
			if json.Unmarshal(body, &st) != nil || st.Server == nil || st.Server.Succession == nil || st.Server.Succession.Majority == nil || !*st.Server.Succession.Majority {
				continue
			}
			alive := 0
			for _, r := range st.Runs {
				for _, m := range r.Members {
					if m.Alive && !m.Reconnecting {
						alive++
					}
				}
			}
			at := slices.IndexFunc(p.servers, func(s *serverProcess) bool { return s.addr == from })
			if alive == members && !slices.Contains(others, p.servers[at]) {
				leader = p.servers[at]
				return true
			}
		}
		return false
	})
	return leader
}

// startJob starts a job of three nodes, whose workers run until end is called. That checks that each
// was started once, and that all nodes end well and were never told that they had lost their place.
func (p *peerProcesses) startJob() (end func()) {
	p.t.Helper()
	return p.startJobs(map[string]int{"job": 3})
}

// startJobs starts jobs of so many nodes each.
func (p *peerProcesses) startJobs(jobs map[string]int) (end func()) {
	p.t.Helper()
	t, h := p.t, newHarness(p.t)
	var nodes []*nodeProcess
	for id, n := range jobs {
		for range n {
			nodes = append(nodes, h.run(`echo start > $SAY; while [ ! -e stop ]; do sleep 0.5; done`,
				"--nnodes="+strconv.Itoa(n), "--rdzv-id="+id, "--rdzv-endpoint="+p.list, "--max-restarts=3", "--rdzv-conf=lease_timeout=10"))
		}
	}
	for range nodes {
		if line := h.readLine(); line != "start" {
			t.Fatal(line)
		}
	}
	return func() {
		t.Helper()
		testkit.Check(t, os.WriteFile(h.dir+"/stop", nil, 0o600))
		for i, n := range nodes {
			if code := n.end(); code != 0 || strings.Contains(n.stderr.String(), "taken out of the run") {
				t.Errorf("node %d: code %d, %s", i, code, n.stderr.String())
			}
		}
		if _, err := h.pipe.WriteString("end\n"); err != nil {
			t.Fatal(err)
		}
		if line := h.readLine(); line != "end" {
			t.Errorf("a worker was started again: %q", line)
		}
	}
}

// audit checks the histories of all servers together.
func (p *peerProcesses) audit() {
	p.t.Helper()
	auditHistory(p.t, testkit.Must(filepath.Glob(p.dir+"/*"))(p.t)...)
}

// TestPeersReplaceEachOther: three real servers and a job of three nodes. The leader is killed, and
// stopped for good; each server is replaced in turn. The job's workers start once.
func TestPeersReplaceEachOther(t *testing.T) {
	t.Parallel()
	p := startPeers(t)
	endJob := p.startJob()
	first := p.leader(3)

	first.kill()
	second := p.leader(3, first)
	testkit.Check(t, first.start())
	p.ready()

	testkit.Check(t, second.cmd.Process.Signal(syscall.SIGSTOP))
	third := p.leader(3, second)
	if third == second {
		t.Fatal("a stopped server leads")
	}
	second.kill()
	testkit.Check(t, second.start())
	p.ready()

	for _, s := range p.servers { // a new release, one after the other
		testkit.Check(t, s.cmd.Process.Signal(syscall.SIGTERM))
		_ = s.cmd.Wait()
		testkit.Check(t, s.start())
		p.ready()
		p.leader(3)
	}

	for _, args := range [][]string{{"status", p.list}, {"status", p.servers[1].addr, "--rdzv-id", "job"}, {"stacks", p.list}, {"logs", p.list}, {"admin", "save", p.list, "--rdzv-id", "job", "--reason", "test"}} {
		if code, stdout, stderr := execute(t, args...); code != 0 {
			t.Errorf("%v: code %d, %q, %q", args, code, stdout, stderr)
		}
	}
	endJob()
	p.audit()
}

// TestPeersAreReplacedUnderManyJobs: while 50 jobs run, of one and of two nodes, a server is stopped for
// less than an election takes, and each one is replaced in turn, as by a new release. No worker notices.
func TestPeersAreReplacedUnderManyJobs(t *testing.T) {
	t.Parallel()
	onlyLong(t)
	p := startPeers(t)
	jobs, nodes := map[string]int{}, 0
	for i := range 50 {
		n := 1 + i/45 // the last five have two
		jobs["job-"+strconv.Itoa(i)], nodes = n, nodes+n
	}
	endJobs := p.startJobs(jobs)
	p.leader(nodes)
	for _, s := range p.servers {
		testkit.Check(t, s.cmd.Process.Signal(syscall.SIGSTOP))
		time.Sleep(peersElection * 4 / 5) // what is tested
		testkit.Check(t, s.cmd.Process.Signal(syscall.SIGCONT))
		p.ready()
		p.leader(nodes)
	}
	for _, s := range p.servers {
		testkit.Check(t, s.cmd.Process.Signal(syscall.SIGTERM))
		_ = s.cmd.Wait()
		testkit.Check(t, s.start())
		p.ready()
		p.leader(nodes)
	}
	endJobs()
	p.audit()
}

// TestPeersThatForget: both followers lose their memory, and the same process leads again. Then the leader is
// stopped while the two others lose their memory. They found a group of their own, the nodes bring their
// round to it, and the former leader joins it when it goes on. Then all three lose their memory at one time. No
// worker restarts.
func TestPeersThatForget(t *testing.T) {
	t.Parallel()
	onlyLong(t)
	p := startPeers(t)
	endJob := p.startJob()
	first := p.leader(3)
	others := slices.DeleteFunc(slices.Clone(p.servers), func(s *serverProcess) bool { return s == first })
	for _, s := range others {
		s.kill()
	}
	for _, s := range others {
		testkit.Check(t, s.start())
	}
	p.ready()
	if again := p.leader(3); again != first {
		t.Errorf("%s leads, which knows nothing, and not %s", again.addr, first.addr)
	}
	testkit.Check(t, first.cmd.Process.Signal(syscall.SIGSTOP))
	for _, s := range others {
		s.kill()
		testkit.Check(t, s.start())
	}
	second := p.leader(3, first)
	testkit.Check(t, first.cmd.Process.Signal(syscall.SIGCONT))
	p.ready()
	if now := p.leader(3); now != second {
		t.Errorf("%s leads, not %s", now.addr, second.addr)
	}
	for _, s := range p.servers {
		s.kill()
	}
	for _, s := range p.servers {
		testkit.Check(t, s.start())
	}
	p.leader(3)
	endJob()
	p.audit()
}
