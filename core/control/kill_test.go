package control

import (
	"bufio"
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"rallypoint/conformance"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/journal"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// With these set the test binary is a control plane: where it keeps its runs and
// listens.
const (
	serveIn = "RALLYPOINT_TEST_SERVE_IN"
	serveAt = "RALLYPOINT_TEST_SERVE_AT"
)

func serveUntilKilled(dir, addr string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	data, err := OpenData(dir, journal.Options{})
	fail(err)
	l, err := net.Listen("tcp", addr)
	fail(err)
	history, err := OpenTraceFile(filepath.Join(dir, "history"), slog.New(slog.DiscardHandler))
	fail(err)
	Start(Config{Data: data, Fixed: true, Trace: history.Record}, l)
	fmt.Println("serving")
	select {}
}

// serverProcess is a control plane in a process of its own, on a data directory.
type serverProcess struct {
	t    *testing.T
	dir  string
	addr string
	cmd  *exec.Cmd
}

func newServerProcess(t *testing.T) *serverProcess {
	v := &serverProcess{t: t, dir: t.TempDir(), addr: fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))}
	if err := v.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.kill)
	return v
}

// checkTrace holds what the control plane has recorded, over all kills, against the
// promises.
func (s *serverProcess) checkTrace() {
	s.t.Helper()
	s.kill()
	history, err := os.Open(filepath.Join(s.dir, "history"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer history.Close()
	audit, err := conformance.Read(history)
	if err != nil || !audit.Kept() {
		s.t.Errorf("the history: %v\n%s", err, audit)
	}
	s.t.Log(audit)
}

func (s *serverProcess) start() error {
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), serveIn+"="+s.dir, serveAt+"="+s.addr)
	var stderr strings.Builder
	s.cmd.Stderr = &stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = s.cmd.Wait()
		return fmt.Errorf("the control plane does not start: %q, %w, %s", line, err, stderr.String())
	}
	return nil
}

// kill is SIGKILL.
func (s *serverProcess) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// killRepeatedly kills and restarts the control plane at random moments, until end is
// called, which returns how often. Each life lasts for as many answers as answers draws,
// which wasAnswered reports, and a moment more: a slow machine is not killed more often
// for what it gets done.
func (s *serverProcess) killRepeatedly(seed uint64, answers func(*rand.Rand) int) (wasAnswered func(), end func() int) {
	random := rand.New(rand.NewPCG(seed, 1<<32))
	stop, ended := make(chan struct{}), make(chan struct{})
	answered, kills := make(chan struct{}), 0
	go func() {
		defer close(ended)
		for {
			for range answers(random) {
				select {
				case <-stop:
					return
				case <-answered:
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(random.IntN(150)) * time.Millisecond):
			}
			s.kill()
			if err := s.start(); err != nil {
				s.t.Error(err)
				return
			}
			kills++
		}
	}()
	end = sync.OnceValue(func() int {
		close(stop)
		<-ended
		return kills
	})
	s.t.Cleanup(func() { end() })
	wasAnswered = func() {
		select {
		case answered <- struct{}{}:
		default: // this life does not wait for more
		}
	}
	return wasAnswered, end
}

// persistent are parameters of nodes that are not given up while they are cut off
// again and again.
func persistent(addr string, n int) params.Params {
	p := controltest.Guest(addr, n)
	p.LeaseTimeout, p.ReconnectGrace = 20*time.Second, 20*time.Second
	return p
}

// kvInput is an operation on one key, kvOutput its answer.
type kvInput struct {
	key    string
	op     store.Op
	amount int64
	a, b   string
}

type kvOutput struct {
	value  string
	number int64
	done   bool
	failed rendezvous.Code
}

// kvState is the value of one key.
type kvState struct {
	there bool
	value string
}

var kvModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(kvInput).key
			byKey[key] = append(byKey[key], o)
		}
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return kvState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(kvState), input.(kvInput), output.(kvOutput)
		want, next := kvStep(s, in)
		return want == out, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// kvStep says what an operation answers and leaves behind.
func kvStep(s kvState, in kvInput) (kvOutput, kvState) {
	switch in.op {
	case store.OpSet:
		return kvOutput{}, kvState{true, in.a}
	case store.OpAppend:
		return kvOutput{}, kvState{true, s.value + in.a}
	case store.OpDelete:
		return kvOutput{done: s.there}, kvState{}
	case store.OpCompareSet:
		if s.there && s.value == in.a || !s.there && in.a == "" {
			return kvOutput{value: in.b}, kvState{true, in.b}
		}
		if !s.there {
			return kvOutput{value: in.a}, s
		}
		return kvOutput{value: s.value}, s
	case store.OpCheck:
		return kvOutput{done: s.there}, s
	case store.OpGet:
		if !s.there {
			return kvOutput{failed: -1}, s // it would wait: no answer is right
		}
		return kvOutput{value: s.value}, s
	case store.OpAdd:
		var n int64
		if s.there {
			if c, err := fmt.Sscan(s.value, &n); c != 1 || err != nil {
				return kvOutput{failed: rendezvous.CodeNumber}, s
			}
		}
		n += in.amount
		return kvOutput{number: n}, kvState{true, fmt.Sprint(n)}
	}
	panic(in.op)
}

// drawKV draws an operation. Values are numbers, or else add has nothing to do.
// Comparing with a value that never is reads the key, too, but is stored. A key that
// is got is never deleted, and each node begins with it.
func drawKV(random *rand.Rand, first bool) kvInput {
	in := kvInput{key: fmt.Sprint("key", random.IntN(4))}
	digit := func() string { return fmt.Sprint(1 + random.IntN(9)) }
	if first {
		return kvInput{key: "kept", op: store.OpAdd, amount: 1}
	}
	switch random.IntN(15) {
	case 10:
		in.key, in.op, in.amount = "kept", store.OpAdd, 1
	case 11, 12:
		in.key, in.op = "kept", store.OpGet
	case 13, 14:
		in.op = store.OpCheck
	case 0:
		in.op, in.a = store.OpSet, digit()
	case 1:
		in.op = store.OpDelete
	case 2:
		in.op, in.a = store.OpAppend, digit()
	case 3, 4:
		in.op, in.a, in.b = store.OpCompareSet, digit(), digit()
	case 5:
		in.op, in.b = store.OpCompareSet, digit()
	case 6:
		in.op, in.a, in.b = store.OpCompareSet, "never", digit()
	default:
		in.op, in.amount = store.OpAdd, int64(1+random.IntN(3))
	}
	return in
}

func (k kvInput) request(round uint64) rendezvous.KeyRequest {
	r := rendezvous.KeyRequest{Round: round, Op: k.op, Keys: []string{k.key}, Amount: k.amount}
	switch k.op {
	case store.OpSet, store.OpAppend:
		r.Values = [][]byte{[]byte(k.a)}
	case store.OpCompareSet:
		r.Values = [][]byte{[]byte(k.a), []byte(k.b)}
	}
	return r
}

func outputOf(result rendezvous.Result, err error) kvOutput {
	if err != nil {
		return kvOutput{failed: rendezvous.CodeOf(err)}
	}
	r := result.(rendezvous.KeyResult)
	out := kvOutput{number: r.Number, done: r.Ready}
	if len(r.Values) > 0 {
		out.value = string(r.Values[0])
	}
	return out
}

// TestExactlyOnceThroughCutsAndKills has nodes change and read keys while every connection
// is cut after a few hundred random bytes in either direction, and the control
// plane is killed and restarted at random moments. What they see must be what one
// store without any fault could have answered.
func TestExactlyOnceThroughCutsAndKills(t *testing.T) {
	t.Parallel()
	const nodes = 5
	operations := 70
	if long {
		operations = 1500
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	v := newServerProcess(t)
	proxy := newProxy(t, v.addr)
	members := group(t, persistent(proxy.addr, nodes), nodes)
	proxy.cutRandomly(seed, 600)

	histories := make([][]porcupine.Operation, nodes)
	begin := time.Now()
	wasAnswered, end := v.killRepeatedly(seed, func(random *rand.Rand) int { return random.IntN(9) })
	var clients sync.WaitGroup
	for id, m := range members {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(id)))
			for i := range operations {
				op := porcupine.Operation{ClientId: id, Input: drawKV(random, i == 0), Call: time.Since(begin).Nanoseconds()}
				out, ok := m.perform(t, op.Input.(kvInput))
				if !ok {
					return
				}
				wasAnswered()
				op.Output, op.Return = out, time.Since(begin).Nanoseconds()
				histories[id] = append(histories[id], op)
			}
		})
	}
	clients.Wait()
	history := slices.Concat(histories...)
	kills := end()
	if got := porcupine.CheckOperationsTimeout(kvModel, history, time.Minute); got != porcupine.Ok {
		t.Errorf("the answers of %d operations with %d kills are those of no store: %v", len(history), kills, got)
	}
	reconnects := 0
	for _, m := range members {
		reconnects += countOf(m.obs, controltest.IsBack)
		m.wantNoRegroup(t)
	}
	if kills == 0 || reconnects == 0 {
		t.Errorf("%d kills, %d reconnects", kills, reconnects)
	}
	t.Logf("%d operations, %d kills, %d reconnects", len(history), kills, reconnects)
	v.checkTrace()
}

// perform has the member's store do what in says; false if it is never answered.
func (c *connectedMember) perform(t *testing.T, in kvInput) (kvOutput, bool) {
	call := c.Start(in.request(c.in.Round))
	select {
	case <-call.Done:
		return outputOf(call.Wait(t.Context())), true
	case <-time.After(2 * time.Minute):
		t.Errorf("%+v was never answered", in)
		return kvOutput{}, false
	}
}

// TestJoinsAreAppliedOnce forms round after round under the same conditions: a
// join that were applied twice would ask for a round that no node wants.
func TestJoinsAreAppliedOnce(t *testing.T) {
	t.Parallel()
	const nodes = 4
	rounds := uint64(12)
	if long {
		rounds = 300
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	v := newServerProcess(t)
	proxy := newProxy(t, v.addr)
	members := group(t, persistent(proxy.addr, nodes), nodes)
	proxy.cutRandomly(seed, 800)
	// One life in five lasts until a round is complete.
	wasAnswered, end := v.killRepeatedly(seed, func(random *rand.Rand) int { return random.IntN(5) / 4 })
	for want := uint64(2); want <= rounds; want++ {
		calls := make([]*member.Call, nodes)
		for i, m := range members {
			calls[i] = m.Start(controltest.Join())
		}
		ranks, generation := map[int]bool{}, ""
		for i, call := range calls {
			select {
			case <-call.Done:
			case <-time.After(time.Minute):
				t.Fatalf("round %d: a join was never answered", want)
			}
			o, err := controltest.AwaitOutcome(t.Context(), call)
			if err != nil || o.Round != want || o.World != nodes || o.Generation != cmp.Or(generation, o.Generation) || ranks[o.Rank] {
				t.Fatalf("round %d: %+v, %v; ranks so far %v", want, o, err, ranks)
			}
			wasAnswered()
			ranks[o.Rank], generation = true, o.Generation
			members[i].SetLastRound(o.LastRound())
		}
	}
	kills := end()
	if kills == 0 {
		t.Error("nothing was killed")
	}
	t.Logf("%d kills", kills)
	v.checkTrace()
}
