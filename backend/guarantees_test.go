package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rallypoint/conformance"
	"rallypoint/core/control"
	"rallypoint/core/election/register"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/core/store/storetest"
	"rallypoint/filestore/fileregister"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
	"rallypoint/roundstore"
)

// meeting is one place where runs can meet.
type meeting struct {
	name string
	// place makes a place for one run and returns what opens its nodes.
	place func(t *testing.T) (open func(p params.Params, log *slog.Logger) (*member.Member, error))
}

var etcd etcdtest.Shared

// meetings are all backends. The guarantees of docs/design.md hold in each.
var meetings = []meeting{
	{"hosted", func(t *testing.T) func(params.Params, *slog.Logger) (*member.Member, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := control.Start(control.Config{}, l)
		t.Cleanup(func() { s.Close() })
		return at(l.Addr().String())
	}},
	{"hosted with a token", func(t *testing.T) func(params.Params, *slog.Logger) (*member.Member, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		file := testkit.TokenFile(t)
		token, err := secret.OpenToken(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := control.Start(control.Config{Token: token}, l)
		t.Cleanup(func() { s.Close() })
		return withToken(file, at(l.Addr().String()))
	}},
	{"file with a token", func(t *testing.T) func(params.Params, *slog.Logger) (*member.Member, error) {
		dir := t.TempDir()
		return checkLeaders(t, withToken(testkit.TokenFile(t), at("file://"+dir)))
	}},
	{"file", func(t *testing.T) func(params.Params, *slog.Logger) (*member.Member, error) {
		dir := t.TempDir()
		here, there := at("file://"+dir), at("file://"+elsewhere(dir))
		var opened atomic.Int64
		return checkLeaders(t, func(p params.Params, log *slog.Logger) (*member.Member, error) {
			if opened.Add(1)%2 == 0 {
				return there(p, log)
			}
			return here(p, log)
		})
	}},
	{"remote file", func(t *testing.T) func(params.Params, *slog.Logger) (*member.Member, error) {
		dir := t.TempDir()
		return checkLeaders(t, func(p params.Params, log *slog.Logger) (*member.Member, error) {
			p.Endpoint = "file://" + dir
			r := fileregister.New(dir, p.RunID, fileregister.Options{Remote: true})
			return roundstore.OpenRegister(p, r, func() string { return "127.0.0.1" }, nil, log)
		})
	}},
	{"etcd", func(t *testing.T) func(params.Params, *slog.Logger) (*member.Member, error) {
		config := etcdclient.Config{Endpoints: []string{etcd.Endpoint(t)}, Prefix: "/" + t.Name()}
		return checkLeaders(t, at("etcd://"+config.Endpoints[0]+"?key_prefix="+url.QueryEscape(config.Prefix)))
	}},
	{"blob", func(t *testing.T) func(params.Params, *slog.Logger) (*member.Member, error) {
		v := &value{}
		return checkLeaders(t, func(p params.Params, log *slog.Logger) (*member.Member, error) {
			p.Endpoint = "a value in memory"
			return OpenRegister(p, v, log)
		})
	}},
}

// checkLeaders has each leader of a test's run record it, and holds the whole history against the
// guarantees when the test is over.
func checkLeaders(t *testing.T, open func(params.Params, *slog.Logger) (*member.Member, error)) func(params.Params, *slog.Logger) (*member.Member, error) {
	dir := t.TempDir()
	t.Cleanup(func() {
		var histories []io.Reader
		for _, name := range testkit.Must(filepath.Glob(filepath.Join(dir, "*")))(t) {
			histories = append(histories, bytes.NewReader(testkit.Must(os.ReadFile(name))(t)))
		}
		audit, err := conformance.ReadAll(histories...)
		if err != nil || len(audit.Runs()) > 0 && !audit.Kept() {
			t.Error(audit, err)
		}
	})
	return func(p params.Params, log *slog.Logger) (*member.Member, error) {
		p.Record = filepath.Join(dir, "history")
		return open(p, log)
	}
}

// elsewhere is the folder as another machine finds it: by another mount, if the variable
// RALLYPOINT_TEST_ELSEWHERE says FOLDER=OTHER (filestore/testdata/two-mounts).
func elsewhere(dir string) string {
	here, there, ok := strings.Cut(os.Getenv("RALLYPOINT_TEST_ELSEWHERE"), "=")
	if rest, below := strings.CutPrefix(dir, here+"/"); ok && below {
		return there + "/" + rest
	}
	return dir
}

func at(endpoint string) func(params.Params, *slog.Logger) (*member.Member, error) {
	return func(p params.Params, log *slog.Logger) (*member.Member, error) {
		p.Endpoint = endpoint
		n, err := Open(p, log)
		if err != nil {
			return nil, err
		}
		return n.(*member.Member), nil
	}
}

// withToken opens nodes that have a token.
func withToken(file string, open func(params.Params, *slog.Logger) (*member.Member, error)) func(params.Params, *slog.Logger) (*member.Member, error) {
	return func(p params.Params, log *slog.Logger) (*member.Member, error) {
		p.TokenFile = file
		return open(p, log)
	}
}

// value is a register that a program brings, in memory.
type value struct {
	mu      sync.Mutex
	state   []byte
	version int
}

func (v *value) GetState(context.Context) (state, token []byte, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state == nil {
		return nil, nil, nil
	}
	return v.state, fmt.Append(nil, v.version), nil
}

func (v *value) SetState(_ context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ok = v.state == nil && token == nil || string(token) == fmt.Sprint(v.version); ok {
		v.state = state
		v.version++
	}
	return v.state, fmt.Append(nil, v.version), ok, nil
}

// run is one run in one place.
type run struct {
	t    *testing.T
	open func(params.Params, *slog.Logger) (*member.Member, error)
}

// everywhere runs a test in each place.
func everywhere(t *testing.T, f func(t *testing.T, r *run)) {
	for _, m := range meetings {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			f(t, &run{t, m.place(t)})
		})
	}
}

// node opens a node of a min:max run. Options are those of --rdzv-conf.
func (r *run) node(name string, min, max int, options ...string) *member.Member {
	r.t.Helper()
	p := params.Default()
	p.RunID, p.NodeID, p.Min, p.Max, p.LocalAddr = "job", name, min, max, "127.0.0.1"
	p.JoinTimeout, p.CloseTimeout, p.AdmitDelay = patience, patience, 50*time.Millisecond
	set := map[string]string{}
	for _, o := range options {
		key, v, _ := strings.Cut(o, "=")
		set[key] = v
	}
	if _, err := p.SetOptions(set); err != nil {
		r.t.Fatal(err)
	}
	m, err := r.open(p, slog.New(slog.NewTextHandler(testWriter{r.t, name}, nil)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { m.Close() })
	return m
}

func (r *run) nodes(count, min, max int, options ...string) []*member.Member {
	list := make([]*member.Member, count)
	for i := range list {
		list[i] = r.node(fmt.Sprint("n", i), min, max, options...)
	}
	return list
}

type joining struct {
	done    chan struct{}
	outcome rendezvous.Outcome
	err     error
}

// join begins a Next.
func join(ctx context.Context, m *member.Member) *joining {
	j := &joining{done: make(chan struct{})}
	go func() {
		defer close(j.done)
		j.outcome, j.err = m.Next(ctx)
	}()
	return j
}

func joins(t *testing.T, members ...*member.Member) []*joining {
	list := make([]*joining, len(members))
	for i, m := range members {
		list[i] = join(t.Context(), m)
	}
	return list
}

// outcomes waits for joins that must come to one round: guarantees 1 to 3.
func outcomes(t *testing.T, list []*joining) []rendezvous.Outcome {
	t.Helper()
	got := make([]rendezvous.Outcome, len(list))
	ranks := make([]bool, len(list))
	for i, j := range list {
		select {
		case <-j.done:
		case <-time.After(2 * patience):
			t.Fatalf("join %d has not ended", i)
		}
		if j.err != nil {
			t.Fatalf("join %d: %v", i, j.err)
		}
		o, first := j.outcome, list[0].outcome
		if o.World != len(list) || o.Rank < 0 || o.Rank >= o.World || ranks[o.Rank] {
			t.Fatalf("join %d: %+v of %d", i, o, len(list))
		}
		ranks[o.Rank] = true
		if o.Round != first.Round || o.Generation != first.Generation || o.StoreAddr != first.StoreAddr || o.StorePort != first.StorePort {
			t.Fatalf("join %d: %+v beside %+v", i, o, first)
		}
		got[i] = o
	}
	return got
}

// round brings the nodes together.
func round(t *testing.T, members ...*member.Member) []rendezvous.Outcome {
	t.Helper()
	return outcomes(t, joins(t, members...))
}

func told(t *testing.T, m *member.Member, reason string) {
	t.Helper()
	testkit.Eventually(t, "it hears of "+reason, func() bool { return m.NodesWaiting() > 0 && strings.Contains(m.Reason(), reason) })
}

// Guarantees 1, 2 and 3: round numbers grow, ranks are whole, all see the same.
func TestRoundsGrow(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(3, 3, 3)
		last := uint64(0)
		for want := range uint64(3) {
			o := round(t, nodes...)[0]
			if o.Round != want+1 || o.Round <= last {
				t.Errorf("round %d after %d", o.Round, last)
			}
			last = o.Round
		}
	})
}

// Guarantee 1: a node that withdraws in time is not in the round.
func TestWithdraw(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(3, 2, 2)
		ctx, cancel := context.WithCancel(t.Context())
		early := join(ctx, nodes[0])
		time.Sleep(20 * time.Millisecond)
		cancel()
		<-early.done
		if !errors.Is(early.err, rendezvous.ErrCanceled) {
			t.Errorf("got %v", early.err)
		}
		round(t, nodes[1], nodes[2])
	})
}

// Guarantee 4: a spare gets no rank while there is no seat, and the next one that is.
func TestSpare(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := append(r.nodes(2, 2, 2), r.node("n2", 2, 2, "join_timeout=1.5"))
		first := round(t, nodes[0], nodes[1])
		spare := join(t.Context(), nodes[2])
		select {
		case <-spare.done: // it waits without a limit
			t.Fatalf("a spare: %+v, %v", spare.outcome, spare.err)
		case <-time.After(1700 * time.Millisecond):
		}
		if nodes[0].NodesWaiting() > 0 {
			t.Error("a spare disturbs the others")
		}
		nodes[1].Close()
		told(t, nodes[0], "n1")
		second := outcomes(t, []*joining{spare, join(t.Context(), nodes[0])})
		if second[1].Rank != first[0].Rank {
			t.Errorf("who stays has rank %d, had %d", second[1].Rank, first[0].Rank)
		}
	})
}

// Guarantee 5: the first round is complete at target, after the last call, or after a
// quiet period.
func TestFirstRound(t *testing.T) {
	for name, option := range map[string]string{
		"target": "target=2", "last call": "last_call_timeout=0.2", "quiet": "quiet_period=0.2",
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, r *run) {
				// A control plane that has just begun waits a lease for nodes of an
				// earlier one.
				round(t, r.nodes(2, 2, 4, option, "lease_timeout=1")...)
			})
		})
	}
}

// Guarantees 6 and 7: a lost member is announced to all others, which regroup at once
// without it; a newcomer is announced after a while, and seated.
func TestRegroup(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(4, 2, 4)
		first := round(t, nodes...)
		lost := slices.IndexFunc(first, func(o rendezvous.Outcome) bool { return o.Rank == 0 })
		nodes[lost].Close()
		left := slices.Delete(slices.Clone(nodes), lost, lost+1)
		for _, m := range left {
			told(t, m, fmt.Sprint("n", lost))
		}
		second := round(t, left...)
		for _, m := range left {
			if m.NodesWaiting() > 0 {
				t.Errorf("in a new round, but told of %s", m.Reason())
			}
		}
		late := join(t.Context(), r.node("late", 2, 4))
		for _, m := range left {
			told(t, m, "late")
		}
		third := outcomes(t, append(joins(t, left...), late))
		for i, o := range second {
			if third[i].Rank != o.Rank {
				t.Errorf("rank %d became %d", o.Rank, third[i].Rank)
			}
		}
	})
}

// Guarantee 8: the exit barrier waits for the living, and for no other node; then no node
// is admitted.
func TestFinish(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(3, 2, 3)
		o := round(t, nodes...)[0]
		barrier := make(chan error, 2)
		for _, m := range nodes[:2] {
			go func() {
				barrier <- store.GenericBarrier(t.Context(), m.Keys(o.Round), "torchelastic/agent/terminal_state", 3)
			}()
		}
		select {
		case err := <-barrier:
			t.Fatalf("the barrier did not wait for who lives: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		nodes[2].Close()
		for range 2 {
			if err := <-barrier; err != nil {
				t.Error(err)
			}
		}
	})
}

// Guarantee 8: after the first finish a member that needs a regroup learns who has
// finished.
func TestNoRegroupAfterAFinish(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(3, 2, 3)
		round(t, nodes...)
		if err := nodes[0].Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		nodes[1].Close()
		told(t, nodes[2], "n1")
		_, err := nodes[2].Next(t.Context())
		if !errors.Is(err, rendezvous.ErrClosed) {
			t.Fatalf("got %v", err)
		}
		if text := err.Error(); !strings.Contains(text, "n0") && !strings.Contains(text, "whose name died with the control plane before") { // of n1, and n0 was not back yet
			t.Errorf("got %v", err)
		}
	})
}

// Guarantee 9: leaving closes nothing, succeeding and failing do; a node that comes then is
// told who closed, and why.
func TestEndings(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(4, 2, 4)
		round(t, nodes...)
		left := make(chan error, 1) // it may host the round's store, and waits for the next round then
		go func() { left <- nodes[3].Shutdown(t.Context(), rendezvous.EndLeave, "had enough") }()
		told(t, nodes[0], "had enough")
		if nodes[0].Closed() {
			t.Error("leaving has closed the run")
		}
		round(t, nodes[:3]...)
		if err := <-left; err != nil {
			t.Error(err)
		}
		go nodes[0].Shutdown(t.Context(), rendezvous.EndFailed, "exit code 7")
		told(t, nodes[1], "exit code 7")
		if !nodes[1].Closed() {
			t.Error("a failure has not closed the run")
		}
		if _, err := r.node("late", 2, 4).Next(t.Context()); !errors.Is(err, rendezvous.ErrClosed) || !strings.Contains(err.Error(), "exit code 7") {
			t.Errorf("got %v", err)
		}
	})
}

// lastWord is a register that takes the first leader's second round only by the record by which that leader leaves.
type lastWord struct{ value }

func (v *lastWord) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	if r, err := register.Decode(state); err == nil && r.Term == 1 && (r.Phase == register.Leads) == (r.Facts.Round == 2) {
		return nil, nil, false, errors.New("it does not answer")
	}
	return v.value.SetState(ctx, state, token)
}

// The record by which a leader leaves confirms its last round, of which it still tells the nodes: they would ask
// its successor for the round after that one, which waits for nodes that are in it.
func TestLeaderThatLeavesTellsItsLastRound(t *testing.T) {
	v := &lastWord{}
	r := &run{t, func(p params.Params, log *slog.Logger) (*member.Member, error) {
		p.Endpoint = "a value in memory"
		return OpenRegister(p, v, log)
	}}
	leader := r.node("n0", 2, 3, "node_rank=2") // whose workers have no store in its process
	first := join(t.Context(), leader)
	testkit.Eventually(t, "n0 leads", func() bool { state, _, _ := v.GetState(t.Context()); return state != nil })
	others := []*member.Member{r.node("n1", 2, 3), r.node("n2", 2, 3)}
	outcomes(t, append(joins(t, others...), first))
	left := make(chan error, 1)
	go func() { left <- leader.Shutdown(t.Context(), rendezvous.EndLeave, "had enough") }()
	told(t, others[0], "had enough")
	if o := round(t, others...)[0]; o.Round != 2 {
		t.Errorf("round %d after the first", o.Round)
	}
	if err := <-left; err != nil {
		t.Error(err)
	}
}

// Guarantee 9: set_closed ends admission and leaves the running round alone.
func TestSetClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(2, 2, 3, "target=2", "lease_timeout=1")
		o := round(t, nodes...)[0]
		if err := nodes[0].SetClosed(t.Context(), "enough"); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the other knows", nodes[1].Closed)
		if nodes[1].NodesWaiting() > 0 {
			t.Error("the running round is disturbed")
		}
		if _, err := nodes[1].Keys(o.Round).Add(t.Context(), "n", 1); err != nil {
			t.Error(err)
		}
		late := r.node("late", 2, 3, "target=2", "lease_timeout=1")
		if _, err := late.Next(t.Context()); !errors.Is(err, rendezvous.ErrClosed) || !strings.Contains(err.Error(), "enough") {
			t.Errorf("got %v", err)
		}
	})
}

// Guarantee 10: unique preferences are met.
func TestPreferredRanks(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		var list []*member.Member
		for i := range 3 {
			list = append(list, r.node(fmt.Sprint("n", i), 3, 3, fmt.Sprint("node_rank=", 2-i)))
		}
		for i, o := range round(t, list...) {
			if o.Rank != 2-i {
				t.Errorf("node %d has rank %d", i, o.Rank)
			}
		}
	})
}

// Guarantee 11: a timeout says who is here, who is missing, how long it was tried.
func TestTimeoutsSayWhy(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		_, err := r.node("alone", 2, 2, "join_timeout=1", "node_rank=1").Next(t.Context())
		if !errors.Is(err, rendezvous.ErrTimeout) {
			t.Fatalf("got %v", err)
		}
		for _, what := range []string{`run "job"`, "alone", "1 of 2 nodes here", "missing: node ranks 0", " s of 1 s"} {
			if !strings.Contains(err.Error(), what) {
				t.Errorf("the error does not say %q: %v", what, err)
			}
		}
	})
}

// Guarantee 11: settings that differ are refused, with both.
func TestMismatch(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		errs := make(chan error, 2)
		for _, m := range []*member.Member{r.node("a", 2, 2), r.node("b", 2, 3)} {
			go func() {
				_, err := m.Next(ctx)
				errs <- err
			}()
		}
		err := <-errs // of the one that came later
		cancel()
		<-errs
		if !errors.Is(err, rendezvous.ErrMismatch) {
			t.Fatalf("got %v", err)
		}
		if !strings.Contains(err.Error(), "nnodes=2:3") || strings.Count(err.Error(), "nnodes=2") != 2 {
			t.Errorf("got %v", err)
		}
	})
}

// The agents' keys count right, whichever node counts, and end with their round.
func TestAgentKeys(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(4, 4, 4)
		round(t, nodes...)
		var wg sync.WaitGroup
		for _, m := range nodes {
			wg.Go(func() {
				for range 10 {
					if _, err := m.Keys(1).Add(t.Context(), "sum", 1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if v, err := nodes[0].Keys(1).Get(t.Context(), "sum"); err != nil || string(v) != "40" {
			t.Errorf("%s, %v", v, err)
		}
		round(t, nodes...)
		if _, err := nodes[1].Keys(1).Get(t.Context(), "sum"); !errors.Is(err, rendezvous.ErrRoundOver) {
			t.Errorf("got %v", err)
		}
	})
}

// The agents' keys do what every store does, wherever the nodes meet.
func TestAgentKeysAreAStore(t *testing.T) {
	everywhere(t, func(t *testing.T, r *run) {
		nodes := r.nodes(2, 2, 2)
		keys := nodes[1].Keys(round(t, nodes...)[1].Round)
		storetest.Operations(t, keys)
		storetest.Queues(t, keys)
	})
}
