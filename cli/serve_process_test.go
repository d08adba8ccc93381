package cli

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/cli/run"
	"rallypoint/conformance"
	"rallypoint/core/control/controltest"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/roundstore"
)

// serverProcess is `rallypoint serve` in a process of its own.
type serverProcess struct {
	args   []string
	dir    string // to run in; "": this one
	cmd    *exec.Cmd
	addr   string
	stderr *strings.Builder
}

func (s *serverProcess) start() error {
	s.stderr = &strings.Builder{}
	s.cmd = exec.Command(os.Args[0], s.args...)
	s.cmd.Env = append(os.Environ(), asCommand+"=1")
	s.cmd.Dir = s.dir
	s.cmd.Stderr = s.stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = s.cmd.Wait()
		return fmt.Errorf("serve does not start: %w, %s", err, s.stderr)
	}
	_, s.addr, _ = strings.Cut(strings.TrimSpace(line), " listening on ")
	return nil
}

func (s *serverProcess) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// quietPort returns a port without a listener, below those that the system
// gives to others: it stays free while the server is down.
func quietPort(t *testing.T) int {
	t.Helper()
	for {
		port := 12000 + rand.IntN(18000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
}

// killUntil kills and starts the server until done. Half of the lives last for some
// answers, all for a moment more: a slow machine is not killed more often for what it gets
// done.
func (s *serverProcess) killUntil(done, answered <-chan struct{}) (kills int, err error) {
	for answers := 0; ; answers = rand.IntN(200) - 120 {
		for ; answers > 0; answers-- {
			select {
			case <-done:
				return kills, nil
			case <-answered:
			}
		}
		select {
		case <-done:
			return kills, nil
		case <-time.After(time.Duration(rand.IntN(150)) * time.Millisecond):
			s.kill()
			kills++
			if err := s.start(); err != nil {
				return kills, err
			}
		}
	}
}

// TestServeIsKilled kills the control plane of several jobs again and again. Their
// nodes go through rounds and use their keys meanwhile: nothing is lost, nothing
// is done twice, and no node has to restart its workers.
func TestServeIsKilled(t *testing.T) {
	t.Parallel()
	const jobs, nodes, adds = 3, 3, 40
	rounds := 3
	if os.Getenv(envChaos) != "" {
		rounds = 20
	}
	dir := t.TempDir()
	s := &serverProcess{args: []string{
		"serve", "--listen", fmt.Sprintf("127.0.0.1:%d", quietPort(t)), "--data-dir", dir + "/data", "--record", dir + "/history", "--log-level", "warn",
	}}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.kill() })
	// Only a hang takes so long: with much else to do, each of some 60 starts takes seconds.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	answered := make(chan struct{})
	var everybody sync.WaitGroup
	for job := range jobs {
		j := &killedJob{t: t, ctx: ctx, answered: answered, generations: map[uint64]string{}, sums: map[uint64][]int64{}, ranks: map[uint64][]int{}}
		p := params.Default()
		p.RunID, p.Min, p.Max = fmt.Sprint("job", job), nodes, nodes
		controltest.MeetAt(&p, s.addr)
		no := false
		p.IsHost = &no
		var members sync.WaitGroup
		for range nodes {
			members.Go(func() { j.node(p, rounds, adds) })
		}
		everybody.Go(func() {
			members.Wait()
			j.check(nodes, rounds, adds)
		})
	}
	done := make(chan struct{})
	go func() {
		everybody.Wait()
		close(done)
	}()
	kills, err := s.killUntil(done, answered)
	if err != nil {
		t.Error(err)
		cancel()
		<-done
		return
	}
	t.Logf("%d kills", kills)
	if kills == 0 {
		t.Error("nothing was killed")
	}
	auditHistory(t, dir+"/history")
}

func TestRecordIsNoFile(t *testing.T) {
	t.Parallel()
	if code, _, stderr := execute(t, "serve", "--record", t.TempDir()); code != run.ExitFailure || !strings.Contains(stderr, "--record: open ") {
		t.Errorf("%d, %s", code, stderr)
	}
}

// auditHistory holds what a control plane has recorded against the guarantees.
func auditHistory(t *testing.T, paths ...string) {
	t.Helper()
	var result strings.Builder
	err := conformance.CheckFiles(&result, paths...)
	t.Log(result.String())
	if err != nil {
		t.Errorf("the history of %v: %v", paths, err)
	}
}

// killedJob is what the nodes of one job have seen.
type killedJob struct {
	t        *testing.T
	ctx      context.Context
	answered chan<- struct{} // a sum, to the one who kills, if it waits for it

	mu          sync.Mutex
	generations map[uint64]string // by round
	sums        map[uint64][]int64
	ranks       map[uint64][]int
}

func (k *killedJob) node(p params.Params, rounds, adds int) {
	m, err := roundstore.Open(p, nil)
	if err != nil {
		k.t.Error(err)
		return
	}
	ending := rendezvous.EndSuccess
	defer func() {
		if err := m.Shutdown(k.ctx, ending, ""); err != nil {
			k.t.Errorf("%s: shutdown: %v", p.RunID, err)
		}
	}()
	for round := range rounds {
		if err := k.round(m, p, uint64(round+1), adds); err != nil {
			k.t.Errorf("%s, round %d: %v", p.RunID, round+1, err)
			ending = rendezvous.EndFailed
			return
		}
	}
}

// round goes through one round: all meet, all count, all wait for each other.
func (k *killedJob) round(m *member.Member, p params.Params, want uint64, adds int) error {
	o, err := m.Next(k.ctx)
	if err != nil {
		return err
	}
	if o.Round != want || o.World != p.Max {
		return fmt.Errorf("outcome %+v", o)
	}
	keys := m.Keys(o.Round)
	var sums []int64
	for range adds {
		sum, err := keys.Add(k.ctx, "sum", 1)
		if err != nil {
			return err
		}
		sums = append(sums, sum)
		select {
		case k.answered <- struct{}{}:
		default:
		}
	}
	if n := m.NodesWaiting(); n > 0 {
		return fmt.Errorf("the workers are to be restarted: %d waiting, %s", n, m.Reason())
	}
	k.mu.Lock()
	if was := cmp.Or(k.generations[o.Round], o.Generation); was != o.Generation {
		k.t.Errorf("round %d is one of generation %s, and of %s", o.Round, was, o.Generation)
	}
	k.generations[o.Round] = o.Generation
	k.sums[o.Round] = append(k.sums[o.Round], sums...)
	k.ranks[o.Round] = append(k.ranks[o.Round], o.Rank)
	k.mu.Unlock()
	return keys.Barrier(k.ctx, "all have counted", int64(p.Max))
}

func (k *killedJob) check(nodes, rounds, adds int) {
	for round := uint64(1); round <= uint64(rounds); round++ {
		sums, ranks := k.sums[round], k.ranks[round]
		slices.Sort(sums)
		slices.Sort(ranks)
		for i, sum := range sums {
			if sum != int64(i+1) {
				k.t.Errorf("round %d: an add was lost or done twice: %v", round, sums)
				break
			}
		}
		if len(sums) != nodes*adds || len(ranks) != nodes || ranks[0] != 0 || ranks[nodes-1] != nodes-1 {
			k.t.Errorf("round %d: %d adds, ranks %v", round, len(sums), ranks)
		}
	}
}
