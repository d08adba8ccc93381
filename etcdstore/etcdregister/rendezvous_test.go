package etcdregister

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// A rendezvous costs an etcd a few writes, however many nodes there are.
func TestRendezvousOfMany(t *testing.T) {
	config := shared.Config(t)
	const nodes = 32
	ctx := testkit.Within(t, time.Minute)
	var all sync.WaitGroup
	outcomes := make([]rendezvous.Outcome, nodes)
	c := testkit.Must(etcdclient.New(config))(t)
	defer c.Close()
	revision := func() int64 {
		return testkit.Must(c.Get(ctx, "reading", "x"))(t).Header.Revision
	}
	before := revision()
	for i := range nodes {
		p := nodeParams(fmt.Sprint("n", i), nodes, nodes)
		p.LeaseTimeout = time.Minute // a loss, and what follows it, would count
		m, err := openMember(config, p, slog.New(slog.DiscardHandler))
		testkit.Check(t, err)
		t.Cleanup(func() { m.Close() })
		all.Go(func() {
			var err error
			if outcomes[i], err = m.Next(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// The leader, its facts, those of the round, and a beat now and then.
	if writes := revision() - before; writes > 10 {
		t.Errorf("%d writes for %d nodes", writes, nodes)
	}
	ranks := map[int]bool{}
	for _, o := range outcomes {
		ranks[o.Rank] = true
		if o.Round != 1 || o.World != nodes || o.StorePort != outcomes[0].StorePort || o.Generation != outcomes[0].Generation {
			t.Fatalf("%+v beside %+v", o, outcomes[0])
		}
	}
	testkit.Equal(t, len(ranks), nodes)
}

// The guarantees of the reference's older handler (docs/spec/rendezvous.md 5):
// exclusivity, consistent ranks, and recovery from a death between joining and
// completion.
func TestGuaranteesOfTheOlderHandler(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	nodes := []*nodeProcess{}
	for i := range 3 {
		nodes = append(nodes, startNode(t, config, fmt.Sprint("n", i), 3, 3))
	}
	// One dies between joining and completion: it does not count.
	dead := startNode(t, config, "dead", 3, 3)
	nodes[0].tell("next")
	nodes[0].logged("hosting the control plane") // so that it is the one that loses the dead one
	dead.tell("next")
	nodes[0].logged("2 of 3 nodes")
	dead.kill()
	nodes[0].logged("node dead")
	tellAll(nodes[1:2], "next")
	nodes[1].logged("2 of 3 nodes")
	nodes[0].silent()
	nodes[1].silent()
	tellAll(nodes[2:], "next")
	testkit.Equal(t, met(t, nodes), 1)

	// Exclusivity: a late one announces itself at most, and is in no round, while the
	// members share a key.
	late := startNode(t, config, "late", 3, 3)
	late.tell("next")
	for i, n := range nodes {
		n.tell("add 1")
		testkit.Equal(t, n.heard(), fmt.Sprint(i+1, " <nil>"))
	}
	late.silent()

	// A member that dies after completion is the others' reason to regroup, and the
	// late one takes its place.
	nodes[1].kill()
	rest := []*nodeProcess{nodes[0], nodes[2]}
	tellAll(rest, "waiting")
	for _, n := range rest {
		if reason := n.heard(); !strings.Contains(reason, "n1") {
			t.Errorf("the reason is %q", reason)
		}
	}
	tellAll(rest, "next")
	all := append(rest, late)
	testkit.Equal(t, met(t, all), 2)
	tellAll(all, "add 1") // the round's keys begin again
	sums := map[string]bool{}
	for _, n := range all {
		sums[n.heard()] = true
	}
	if !sums["1 <nil>"] || !sums["3 <nil>"] {
		t.Errorf("sums %v", sums)
	}
	tellAll(all, "success")
	for _, n := range all {
		testkit.Equal(t, n.heard(), "ended <nil>")
	}
}

// A node that is stopped for longer than its lease is lost, learns that when it
// continues, and comes back; one that is stopped shortly is not.
func TestStoppedNode(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	nodes := []*nodeProcess{}
	for i := range 3 {
		nodes = append(nodes, startNode(t, config, fmt.Sprint("n", i), 2, 3))
	}
	tellAll(nodes, "next")
	testkit.Equal(t, met(t, nodes), 1)
	nodes[2].signal(syscall.SIGSTOP)
	tellAll(nodes[:2], "waiting")
	for _, n := range nodes[:2] {
		if reason := n.heard(); !strings.Contains(reason, "n2") {
			t.Errorf("the reason is %q", reason)
		}
	}
	tellAll(nodes[:2], "next")
	testkit.Equal(t, met(t, nodes[:2]), 2)
	nodes[2].signal(syscall.SIGCONT)
	nodes[2].tell("waiting")
	nodes[2].heard()
	nodes[2].tell("next")
	tellAll(nodes[:2], "waiting")
	for _, n := range nodes[:2] {
		n.heard()
	}
	tellAll(nodes[:2], "next")
	testkit.Equal(t, met(t, nodes), 3)
}

// One of three members of the etcd is killed while nodes join, and its leader while
// a round runs; a change of the leader goes by unnoticed.
func TestRendezvousSurvivesTheClustersTroubles(t *testing.T) {
	t.Parallel()
	c := etcdtest.NewCluster(t)
	config := c.Config()
	nodes := []*nodeProcess{}
	for i := range 3 {
		own := config // each begins at another member
		own.Endpoints = append(append([]string{}, config.Endpoints[i:]...), config.Endpoints[:i]...)
		nodes = append(nodes, startNode(t, own, fmt.Sprint("n", i), 3, 3))
	}
	tellAll(nodes[:2], "next")
	c.MoveLeader(t)
	time.Sleep(300 * time.Millisecond)
	leader := c.Leader(t)
	leader.Kill()
	nodes[2].tell("next")
	testkit.Equal(t, met(t, nodes), 1)
	leader.Start(t, etcdtest.Binary(t))
	c.Leader(t).Kill()
	for i, n := range nodes {
		n.tell("add 1")
		testkit.Equal(t, n.heard(), fmt.Sprint(i+1, " <nil>"))
	}
	nodes[0].kill()
	tellAll(nodes[1:], "waiting")
	for _, n := range nodes[1:] {
		if reason := n.heard(); !strings.Contains(reason, "n0") {
			t.Errorf("the reason is %q", reason)
		}
	}
	again := startNode(t, config, "n0", 3, 3)
	all := append([]*nodeProcess{again}, nodes[1:]...)
	tellAll(all, "next")
	testkit.Equal(t, met(t, all), 2)
	tellAll(all, "success")
	for _, n := range all {
		testkit.Equal(t, n.heard(), "ended <nil>")
	}
}
