package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/promtext"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

func staticParams(port, nodes, rank int) params.Params {
	p := params.Default()
	p.RunID, p.Min, p.Max, p.NodeRank = "run", nodes, nodes, rank
	p.Endpoint = fmt.Sprintf("static://127.0.0.1:%d", port)
	return p
}

func staticNode(t *testing.T, p params.Params) *member.Member {
	t.Helper()
	n := testkit.Must(Open(p, slog.New(slog.NewTextHandler(testWriter{t, fmt.Sprint("n", p.NodeRank)}, nil))))(t)
	t.Cleanup(func() { n.Close() })
	return n.(*member.Member)
}

func staticNodes(t *testing.T, port, count int) (nodes []*member.Member) {
	for rank := range count {
		nodes = append(nodes, staticNode(t, staticParams(port, count, rank)))
	}
	return nodes
}

// ended waits for a join that fails.
func ended(t *testing.T, j *joining) error {
	t.Helper()
	select {
	case <-j.done:
	case <-time.After(patience):
		t.Fatal("the join has not ended")
	}
	if j.err == nil {
		t.Fatalf("the join has an outcome: %+v", j.outcome)
	}
	return j.err
}

// TestStaticRounds goes through two rounds of three nodes: each has its own rank, and keys and a
// store of the round at the endpoint; the node that starts over takes the others with it.
func TestStaticRounds(t *testing.T) {
	port := testkit.FreePort(t)
	nodes := staticNodes(t, port, 3)
	for round := uint64(1); round <= 2; round++ {
		var list []*joining
		for i := range nodes {
			list = append(list, join(t.Context(), nodes[(i+1)%3])) // node 0 is the last
			if round == 2 && i == 0 {
				for _, other := range []*member.Member{nodes[0], nodes[2]} {
					told(t, other, "regrouping already")
					if other.Closed() {
						t.Error("after a restart elsewhere the run is closed")
					}
				}
			}
		}
		for i, o := range outcomes(t, list) {
			if o.Round != round || o.Rank != (i+1)%3 || o.World != 3 || o.StoreAddr != "127.0.0.1" || o.StorePort != port || o.AdvertisedAddr != "127.0.0.1" {
				t.Fatalf("outcome %+v", o)
			}
		}
		for _, n := range nodes {
			if w := n.NodesWaiting(); w != 0 {
				t.Errorf("%d nodes wait in a new round", w)
			}
		}
		there, err := nodes[1].Keys(round).Check(t.Context(), []string{"k"})
		if err != nil || there {
			t.Errorf("round %d begins with keys: %v, %v", round, there, err)
		}
		testkit.Check(t, nodes[2].Keys(round).Set(t.Context(), "k", []byte("v")))
		worker := testkit.Must(tcpstore.Dial(testkit.Within(t, patience), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), tcpstore.ClientOptions{}))(t)
		there, err = worker.Check(t.Context(), []string{"w"})
		if err != nil || there {
			t.Errorf("the store of round %d begins with keys: %v, %v", round, there, err)
		}
		testkit.Check(t, errors.Join(worker.Set(t.Context(), "w", nil), worker.Close()))
	}
}

// TestStaticLoss: the others hear of a node that is lost, and continue with one that takes its place.
func TestStaticLoss(t *testing.T) {
	port := testkit.FreePort(t)
	nodes := staticNodes(t, port, 2)
	round(t, nodes...)
	testkit.Check(t, nodes[1].Close())
	told(t, nodes[0], "lost: ")
	list := joins(t, nodes[0], staticNode(t, staticParams(port, 2, 1)))
	for rank, o := range outcomes(t, list) {
		if o.Round != 2 || o.Rank != rank {
			t.Errorf("outcome %+v", o)
		}
	}
}

// TestStaticHostLoss: node 0 may be started again while the others wait for it.
func TestStaticHostLoss(t *testing.T) {
	port := testkit.FreePort(t)
	nodes := staticNodes(t, port, 2)
	round(t, nodes...)
	testkit.Check(t, nodes[0].Close())
	again := staticNode(t, staticParams(port, 2, 0))
	for rank, o := range outcomes(t, joins(t, again, nodes[1])) {
		if o.Rank != rank || o.StorePort != port {
			t.Errorf("outcome %+v", o)
		}
	}
}

// TestStaticAdmin: an administrator asks a static job by its endpoint, as any other one.
func TestStaticAdmin(t *testing.T) {
	port := testkit.FreePort(t)
	nodes := staticNodes(t, port, 2)
	round(t, nodes...)
	place := testkit.Must(Locate(staticParams(port, 2, 0).Endpoint))(t)
	a := Admin{At: place, RunID: "run", By: "carol"}
	st := testkit.Must(a.Status(testkit.Within(t, patience)))(t)
	if st.Phase != rendezvous.PhaseRunning || len(st.Members) != 2 || st.RoundStore != place.Servers() {
		t.Errorf("%+v", st)
	}
	_, err := a.Ask(testkit.Within(t, patience), rendezvous.Direct{Kind: rendezvous.DirectiveSave, Within: time.Minute, Reason: "why"})
	testkit.Check(t, err)
	for _, n := range nodes {
		directed(t, n, "the save", func(d rendezvous.DirectiveNotice) bool { return d.Kind == rendezvous.DirectiveSave })
	}
}

// TestStaticFailure tells the others, and node 0 stays until they know.
func TestStaticFailure(t *testing.T) {
	nodes := staticNodes(t, testkit.FreePort(t), 2)
	host, other := nodes[0], nodes[1]
	round(t, nodes...)
	end := testkit.Go(func() error { return host.Shutdown(t.Context(), rendezvous.EndFailed, "rank 0 failed\x1b[2J\r\n") })
	told(t, other, "rank 0 failed")
	if !other.Closed() || strings.ContainsAny(other.Reason(), "\x1b\r\n") {
		t.Errorf("closed %v, %q", other.Closed(), other.Reason())
	}
	if err := ended(t, join(t.Context(), other)); !errors.Is(err, rendezvous.ErrClosed) || !strings.Contains(err.Error(), "rank 0 failed") {
		t.Errorf("joining a failed run: %v", err)
	}
	testkit.Check(t, other.Shutdown(t.Context(), rendezvous.EndLeave, ""))
	testkit.Check(t, <-end)
}

// TestStaticMissing says who is not there when the time is over.
func TestStaticMissing(t *testing.T) {
	p := staticParams(testkit.FreePort(t), 3, 0)
	p.JoinTimeout = 2 * time.Second // in which a busy machine starts the control plane, too
	err := ended(t, join(t.Context(), staticNode(t, p)))
	if !errors.Is(err, rendezvous.ErrTimeout) || !strings.Contains(err.Error(), "missing: node ranks 1, 2") {
		t.Errorf("error %v", err)
	}
	p.NodeRank, p.Endpoint = 1, staticParams(testkit.FreePort(t), 3, 1).Endpoint
	err = ended(t, join(t.Context(), staticNode(t, p)))
	for _, once := range []string{strings.TrimPrefix(p.Endpoint, "static://"), "control plane", " s of ", "refused"} { // where, what, how long, why
		if !errors.Is(err, rendezvous.ErrConnection) || strings.Count(err.Error(), once) != 1 {
			t.Errorf("%q: error %v", once, err)
		}
	}
}

// TestStaticEarlierRun leaves a run alone that an earlier start with the same name and rank has
// still, and takes part once its own exists.
func TestStaticEarlierRun(t *testing.T) {
	port := testkit.FreePort(t)
	earlier := staticNodes(t, port, 2)
	round(t, earlier...)
	joined := join(t.Context(), staticNode(t, staticParams(port, 2, 1)))
	for _, n := range earlier {
		testkit.Check(t, n.Close())
	}
	first := join(t.Context(), staticNode(t, staticParams(port, 2, 0)))
	for rank, o := range outcomes(t, []*joining{first, joined}) {
		if o.Rank != rank {
			t.Errorf("outcome %+v", o)
		}
	}
}

// TestStaticRankTwice: of two nodes that were given one rank, one has no other.
func TestStaticRankTwice(t *testing.T) {
	port := testkit.FreePort(t)
	var nodes []*member.Member
	for _, rank := range []int{0, 1, 1} {
		nodes = append(nodes, staticNode(t, staticParams(port, 3, rank)))
	}
	var failed []error
	for _, j := range joins(t, nodes...) {
		<-j.done
		if j.err != nil {
			failed = append(failed, j.err)
		}
	}
	if len(failed) != 1 || !errors.Is(failed[0], rendezvous.ErrNodeInUse) || !strings.Contains(failed[0].Error(), "another node has node rank 1, too") {
		t.Errorf("errors %v", failed)
	}
}

// TestStaticCanceled ends a join by its context, and by Close.
func TestStaticCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ended(t, join(ctx, staticNode(t, staticParams(testkit.FreePort(t), 2, 0)))); !errors.Is(err, rendezvous.ErrCanceled) {
		t.Errorf("error %v", err)
	}
	other := staticNode(t, staticParams(testkit.FreePort(t), 2, 0))
	second := join(t.Context(), other)
	other.Close()
	if err := ended(t, second); !errors.Is(err, rendezvous.ErrCanceled) && !errors.Is(err, rendezvous.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

func TestStaticParams(t *testing.T) {
	for want, change := range map[string]func(*params.Params){
		"endpoint":     func(p *params.Params) { p.Endpoint = "static://" },
		"needs a port": func(p *params.Params) { p.Endpoint = "static://host" },
		"port of node": func(p *params.Params) { p.Endpoint = "static://host:0" },
		"fixed number": func(p *params.Params) { p.Min = 1 },
		"give the option node_rank (--rdzv-conf=node_rank=N) or the variable PET_NODE_RANK=N": func(p *params.Params) { p.NodeRank = -1 },
		"node_rank is": func(p *params.Params) { p.NodeRank = 2 },
		"run id":       func(p *params.Params) { p.RunID = "" },
	} {
		p := staticParams(1, 2, 1)
		change(&p)
		if _, err := Open(p, nil); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that has %q", err, want)
		}
	}
	p := staticParams(1, 2, -1)
	p.RankHint = 1
	n := testkit.Must(Open(p, nil))(t)
	defer n.Close()
	if n.Params().NodeRank != 1 {
		t.Error("a scheduler's hint is not taken")
	}
}

// TestStaticProtected goes through two rounds of a static job with a token: workers use the store
// by a loopback address, and nothing else gets there.
func TestStaticProtected(t *testing.T) {
	port, token := testkit.FreePort(t), testkit.TokenFile(t)
	var nodes []*member.Member
	for rank := range 3 {
		p := staticParams(port, 3, rank)
		p.TokenFile = token
		nodes = append(nodes, staticNode(t, p))
	}
	for n := uint64(1); n <= 2; n++ {
		for i, got := range round(t, nodes...) {
			addr, err := netip.ParseAddr(got.StoreAddr)
			if err != nil || !addr.IsLoopback() || addr.As4()[1] == 0 || got.StorePort != port || got.AdvertisedAddr != "127.0.0.1" || got.Round != n || got.Rank != i {
				t.Fatalf("outcome %+v", got)
			}
			c := testkit.Must(tcpstore.Dial(testkit.Within(t, patience), net.JoinHostPort(got.StoreAddr, strconv.Itoa(got.StorePort)), tcpstore.ClientOptions{}))(t)
			defer c.Close()
			testkit.Check(t, c.Set(t.Context(), "key", nil))
		}
	}
	conn := testkit.Must(net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))))(t)
	defer conn.Close()
	_, _ = io.WriteString(conn, "\x00plain")
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a plain client of the real port: %d bytes, %v", n, err)
	}
	for i, want := range []string{`rallypoint_round_store_refused_total{reason="plain"} 1`, `rallypoint_forwarder_refused_total{reason="other_user"} 0`} {
		testkit.Eventually(t, "node "+strconv.Itoa(i)+" reports "+want, func() bool { // it closes first
			var page promtext.Buffer
			nodes[i].Expose(&page)
			return strings.Contains(string(page.Bytes()), want+"\n")
		})
	}
}

// TestStaticFailureAfterStop: a node that announced a stop and then gives up ends the run for
// those that stop, and for those that wait for the next round already.
func TestStaticFailureAfterStop(t *testing.T) {
	nodes := staticNodes(t, testkit.FreePort(t), 3)
	round(t, nodes...)
	testkit.Check(t, nodes[1].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Reason: "rank 3 failed"}))
	for _, n := range []*member.Member{nodes[0], nodes[2]} {
		told(t, n, "rank 3 failed")
		if got := n.Stopped(1); got.Rank != 1 || got.Reason != "rank 3 failed" || n.Closed() {
			t.Errorf("%+v, closed %v", got, n.Closed())
		}
	}
	early := join(t.Context(), nodes[2])
	testkit.Check(t, nodes[1].Shutdown(t.Context(), rendezvous.EndFailed, "rank 3 failed for good"))
	told(t, nodes[0], "rank 3 failed for good")
	late := join(t.Context(), nodes[0])
	for _, j := range []*joining{early, late} {
		if err := ended(t, j); !errors.Is(err, rendezvous.ErrClosed) || !strings.Contains(err.Error(), "rank 3 failed for good") {
			t.Errorf("got %v", err)
		}
	}
	for _, n := range []*member.Member{nodes[2], nodes[0]} {
		testkit.Check(t, n.Shutdown(t.Context(), rendezvous.EndLeave, ""))
	}
}
