package etcdregister

import (
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/election/register"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// aCutNode is a node in this process whose way to the etcd can be closed.
func aCutNode(t *testing.T, config etcdclient.Config, name string, least, most int) (*member.Member, *etcdtest.Link) {
	t.Helper()
	network := etcdtest.NewLink(t, config.Endpoints[0])
	config.Endpoints = []string{network.Endpoint}
	m, err := openMember(config, nodeParams(name, least, most), slog.New(slog.DiscardHandler))
	testkit.Check(t, err)
	t.Cleanup(func() { m.Close() })
	return m, network
}

// nextOf lets members join and returns what becomes of them.
func nextOf(t *testing.T, members ...*member.Member) []rendezvous.Outcome {
	t.Helper()
	type answer struct {
		i   int
		o   rendezvous.Outcome
		err error
	}
	answers := make(chan answer)
	for i, m := range members {
		go func() {
			o, err := m.Next(testkit.Within(t, time.Minute))
			answers <- answer{i, o, err}
		}()
	}
	outcomes := make([]rendezvous.Outcome, len(members))
	for range members {
		a := <-answers
		if a.err != nil {
			t.Fatalf("node %d: %v", a.i, a.err)
		}
		outcomes[a.i] = a.o
	}
	return outcomes
}

// record reads who leads the run "job".
func record(t *testing.T, r *Register) *register.Record {
	t.Helper()
	state, _, err := r.GetState(testkit.Within(t, testkit.Patience))
	testkit.Check(t, err)
	if state == nil {
		return nil
	}
	return testkit.Must(register.Decode(state))(t)
}

func awaitRecord(t *testing.T, r *Register, what string, fits func(*register.Record) bool) {
	t.Helper()
	testkit.Eventually(t, what, func() bool { now := record(t, r); return now != nil && fits(now) })
}

// TestOutageOfTheRegister: an etcd that nobody reaches for several leases costs no node its place, changes
// no leader, and interrupts nobody; what was asked for meanwhile is answered when it is back.
func TestOutageOfTheRegister(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	direct := aRegister(t, config)
	network := etcdtest.NewLink(t, config.Endpoints[0])
	config.Endpoints = []string{network.Endpoint}
	var nodes []*member.Member
	for _, name := range []string{"a", "b", "c"} {
		m := testkit.Must(openMember(config, nodeParams(name, 3, 4), slog.New(slog.DiscardHandler)))(t)
		t.Cleanup(func() { m.Close() })
		nodes = append(nodes, m)
	}
	first := nextOf(t, nodes...)
	before := record(t, direct)
	network.Close()
	time.Sleep(3 * nodeParams("", 1, 1).LeaseTimeout)
	closed := testkit.Go(func() error { return nodes[1].SetClosed(testkit.Within(t, time.Minute), "enough") })
	select {
	case err := <-closed:
		t.Errorf("it is answered before the register has taken it: %v", err)
	case <-time.After(time.Second):
	}
	network.Open()
	testkit.Check(t, <-closed)
	for _, m := range nodes {
		if m.NodesWaiting() > 0 {
			t.Errorf("a member is told to regroup: %s", m.Reason())
		}
	}
	if after := record(t, direct); after.Term != before.Term || after.Leader != before.Leader || after.Facts.Round != first[0].Round || after.Facts.Closed.Reason != "enough" {
		t.Errorf("%+v after %+v", after, before)
	}
}

// TestLeaderCutOffFromTheRegister: one that alone does not reach the etcd says nothing, and another node
// leads a lease later, which has the same round; the former follows it when it knows. Its place is lost a quarter of
// a lease after that.
func TestLeaderCutOffFromTheRegister(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	direct := aRegister(t, config)
	a, network := aCutNode(t, config, "a", 3, 3)
	joined := testkit.Go(func() error { _, err := a.Next(testkit.Within(t, time.Minute)); return err })
	awaitRecord(t, direct, "the first node leads", func(r *register.Record) bool { return r.Node == "a" })
	b, _ := aCutNode(t, config, "b", 3, 3)
	c, _ := aCutNode(t, config, "c", 3, 3)
	first := nextOf(t, b, c)
	testkit.Check(t, <-joined)
	network.Close()
	awaitRecord(t, direct, "another node leads", func(r *register.Record) bool { return r.Node != "a" && r.Term == 2 })
	testkit.Check(t, c.SetClosed(testkit.Within(t, time.Minute), "enough")) // the new leader answers
	network.Open()
	testkit.Eventually(t, "the first node knows", a.Closed)
	testkit.Equal(t, record(t, direct).Facts.Round, first[0].Round)
}

// TestStoppedLeader: a leader that is stopped for longer than a lease is succeeded, learns it when it
// continues, and comes back.
func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	direct := aRegister(t, config)
	leader := startNode(t, config, "a", 2, 3)
	leader.tell("next")
	awaitRecord(t, direct, "the first node leads", func(r *register.Record) bool { return r.Node == "a" })
	nodes := []*nodeProcess{leader, startNode(t, config, "b", 2, 3), startNode(t, config, "c", 2, 3)}
	tellAll(nodes[1:], "next")
	testkit.Equal(t, met(t, nodes), 1)
	leader.signal(syscall.SIGSTOP)
	tellAll(nodes[1:], "waiting")
	for _, n := range nodes[1:] {
		if reason := n.heard(); !strings.Contains(reason, "a") {
			t.Errorf("the reason is %q", reason)
		}
	}
	tellAll(nodes[1:], "next")
	testkit.Equal(t, met(t, nodes[1:]), 2)
	leader.signal(syscall.SIGCONT)
	leader.tell("waiting")
	leader.heard()
	leader.tell("next")
	tellAll(nodes[1:], "waiting")
	for _, n := range nodes[1:] {
		n.heard()
	}
	tellAll(nodes[1:], "next")
	testkit.Equal(t, met(t, nodes), 3)
}

// TestKilledRunIsTakenOver: the next nodes begin at once where all were killed, and with other settings,
// too; round numbers go on.
func TestKilledRunIsTakenOver(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	killed := []*nodeProcess{startNode(t, config, "a", 2, 2), startNode(t, config, "b", 2, 2)}
	tellAll(killed, "next")
	testkit.Equal(t, met(t, killed), 1)
	for _, n := range killed {
		n.kill()
	}
	var nodes []*nodeProcess
	for i := range 3 { // one with a name of those
		nodes = append(nodes, startNode(t, config, string(rune('a'+i)), 3, 3))
	}
	tellAll(nodes, "next")
	testkit.Equal(t, met(t, nodes) > 1, true)
}

// TestChainOfKills: each leader that dies is succeeded at once, down to the last node.
func TestChainOfKills(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	direct := aRegister(t, config)
	left := map[string]*nodeProcess{}
	var nodes []*nodeProcess
	for i := range 4 {
		n := startNode(t, config, string(rune('a'+i)), 1, 4)
		left[n.name] = n
		nodes = append(nodes, n)
	}
	tellAll(nodes, "next")
	round := 0
	for len(left) > 1 {
		for _, n := range left {
			n.heard()
		}
		now := record(t, direct)
		left[now.Node].kill()
		delete(left, now.Node)
		for _, n := range left {
			n.tell("waiting")
		}
		for _, n := range left {
			n.heard()
			n.tell("next")
		}
		awaitRecord(t, direct, "another node leads", func(r *register.Record) bool { return r.Term == now.Term+1 })
		round++
	}
	for _, n := range left {
		n.heard()
	}
	testkit.Equal(t, round, 3)
}

// TestMemberLearnsOfTheEndThatItSlept has a member fall silent for longer than its lease, and
// the job end meanwhile: the member, and who comes late, are told of one and the same end.
func TestMemberLearnsOfTheEndThatItSlept(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	direct := aRegister(t, config)
	first := startNode(t, config, "a", 2, 2)
	first.tell("next")
	awaitRecord(t, direct, "the first node leads", func(r *register.Record) bool { return r.Node == "a" })
	second := startNode(t, config, "b", 2, 2)
	second.tell("next")
	testkit.Equal(t, met(t, []*nodeProcess{first, second}), 1)
	second.signal(syscall.SIGSTOP)
	first.tell("waiting")
	first.heard()
	first.tell("success")
	testkit.Equal(t, first.heard(), "ended <nil>")
	late, _ := aCutNode(t, config, "late", 2, 2)
	if _, err := late.Next(testkit.Within(t, time.Minute)); !errors.Is(err, rendezvous.ErrGraceful) && !errors.Is(err, rendezvous.ErrClosed) {
		t.Errorf("who comes late gets %v", err)
	}
	testkit.Check(t, late.Shutdown(testkit.Within(t, time.Minute), rendezvous.EndLeave, ""))
	second.signal(syscall.SIGCONT)
	second.tell("next")
	if told := second.heard(); !strings.Contains(told, "ended") && !strings.Contains(told, "closed") {
		t.Errorf("the member is told %q", told)
	}
}

// TestForeignRecord: a value that is no record is refused by name, and left alone.
func TestForeignRecord(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	r := aRegister(t, config)
	addTexts(t, r, "another program's")
	m, _ := aCutNode(t, config, "a", 1, 1)
	if _, err := m.Next(testkit.Within(t, time.Minute)); rendezvous.CodeOf(err) != rendezvous.CodeState || !strings.Contains(err.Error(), "another release") {
		t.Error(err)
	}
	holds(t, r, "another program's")
}
