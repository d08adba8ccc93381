package control

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rallypoint/conformance"
	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// recorded has the server record into a file, and returns what checks that.
func (d *durable) recorded() (check func()) {
	d.t.Helper()
	path := filepath.Join(d.t.TempDir(), "history")
	log, _ := testkit.NewLog(d.t)
	rec, err := OpenTraceFile(path, log)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { rec.Close() })
	d.cfg.Trace = rec.Record
	d.restart()
	return func() {
		d.t.Helper()
		d.stop()
		file, err := os.Open(path)
		if err != nil {
			d.t.Fatal(err)
		}
		defer file.Close()
		audit, err := conformance.Read(file)
		if err != nil || !audit.Kept() {
			d.t.Errorf("%v\n%v", err, audit)
		}
	}
}

// copyData copies the data directory's file, while no server has it.
func copyData(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(from, "control.db"))
	if err == nil {
		err = os.WriteFile(filepath.Join(to, "control.db"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// nextRound has members complete a round.
func nextRound(t *testing.T, members ...*connectedMember) rendezvous.Outcome {
	t.Helper()
	calls := make([]*member.Call, len(members))
	for i, m := range members {
		calls[i] = m.Start(controltest.Join())
	}
	for i, m := range members {
		m.in = controltest.Outcome(t, calls[i])
		m.SetLastRound(m.in.LastRound())
	}
	return members[0].in
}

func regroups(text string) func(any) bool {
	return func(e any) bool {
		n, ok := e.(rendezvous.MembershipUpdate)
		return ok && n.Waiting > 0 && strings.Contains(n.Reason, text)
	}
}

// TestARestoredCopyOfTheData continues from a copy that is two rounds old, in the first of
// which a member was lost: the members have to regroup, the lost one is not waited for
// longer than a lease, and no number names two rounds.
func TestARestoredCopyOfTheData(t *testing.T) {
	d := newDurable(t, Config{})
	check := d.recorded()
	p := controltest.Guest(d.addr, 3)
	p.Min, p.LeaseTimeout, p.LastCallTimeout = 2, time.Second, 100*time.Millisecond
	members := group(t, p, 3)
	first := members[0].in
	back := func() {
		for _, m := range members {
			m.obs.Await(t, "the recovery", func(any) bool {
				return countOf(m.obs, controltest.IsBack) == countOf(m.obs, controltest.IsLost) && countOf(m.obs, controltest.IsBack) > 0
			})
		}
	}
	d.stop()
	old := t.TempDir()
	copyData(t, d.dir, old)
	d.start()
	back()
	nextRound(t, members...)
	members[2].kill() // as if killed
	members[0].obs.Await(t, "the loss of a member", regroups("lost: "))
	members = members[:2]
	before := nextRound(t, members...)
	if before.Round != 3 || before.Generation == first.Generation {
		t.Fatalf("before: %+v", before)
	}
	d.stop()
	for _, m := range members {
		m.obs.Await(t, "the loss", func(any) bool { return countOf(m.obs, controltest.IsLost) == 2 })
	}
	copyData(t, old, d.dir)
	d.start()
	for _, m := range members {
		m.obs.Await(t, "that it has to regroup", regroups("was in round 3, of which the control plane knows nothing"))
	}
	after := nextRound(t, members...)
	if after.Round != 4 || after.Generation == first.Generation || after.Generation == before.Generation || after.World != 2 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	d.restart()
	members[0].add(t, "sum", 1) // the round is that of before
	if again := nextRound(t, members...); again.Round != 5 || again.Generation == after.Generation {
		t.Errorf("after %+v, again %+v", after, again)
	}
	check()
}

// TestARestoredCopyWhoseNodesAreDead continues from a copy that is older than the last two rounds,
// of which no node is left to tell: the next round has a name that none of these had.
func TestARestoredCopyWhoseNodesAreDead(t *testing.T) {
	d := newDurable(t, Config{})
	check := d.recorded()
	p := controltest.Guest(d.addr, 2)
	p.Min, p.LeaseTimeout, p.LastCallTimeout = 1, time.Second, 100*time.Millisecond
	members := group(t, p, 2)
	d.stop()
	old := t.TempDir()
	copyData(t, d.dir, old)
	d.start()
	for _, m := range members {
		m.obs.Await(t, "the recovery", controltest.IsBack)
	}
	before := []rendezvous.Outcome{nextRound(t, members...), nextRound(t, members...)}
	d.stop()
	for _, m := range members {
		m.kill()
	}
	copyData(t, old, d.dir)
	d.start()
	m := group(t, p, 1)[0]
	o := m.in
	for _, b := range before {
		if o.Round == b.Round && o.Generation == b.Generation {
			t.Errorf("round %d of generation %s is named again", o.Round, o.Generation)
		}
	}
	d.restart()
	m.obs.Await(t, "the recovery", controltest.IsBack)
	if again := nextRound(t, m); again.Round != o.Round+1 {
		t.Errorf("after round %d comes %d", o.Round, again.Round)
	}
	check()
}

// TestAnAgentHadTheServersPort has an agent on the server's machine host meanwhile.
func TestAnAgentHadTheServersPort(t *testing.T) {
	d := newDurable(t, Config{})
	check := d.recorded()
	p := controltest.Guest(d.addr, 3)
	p.Min = 2
	members := group(t, p, 3)
	d.stop()
	for _, m := range members {
		m.obs.Await(t, "the loss", controltest.IsLost)
	}
	log, lines := testkit.NewLog(t)
	p = controltest.Params(d.addr, 3)
	p.Min = 2
	agent := client.New(p, controltest.NewObserver(), log, startHost)
	if err := agent.Connect(controltest.Context(t)); err != nil || !agent.Hosting() {
		t.Fatalf("hosting %v, %v", agent.Hosting(), err)
	}
	for _, m := range members {
		m.obs.Await(t, "the recovery", controltest.IsBack)
	}
	lines.Await(t, "is_host=0", 1)
	if o := nextRound(t, members...); o.Round != 2 {
		t.Fatalf("the agent's round is %+v", o)
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	agent.Close(canceled) // it does not wait for the others
	d.start()
	for _, m := range members {
		m.obs.Await(t, "that it has to regroup", regroups("was in round 2, of which the control plane knows nothing"))
	}
	if o := nextRound(t, members...); o.Round != 3 {
		t.Errorf("then the round is %+v", o)
	}
	check()
}

// TestRankAssignmentThroughARestart restarts a control plane that keeps nothing while a
// node waits for what another one has written: the wait ends, and both regroup.
func TestRankAssignmentThroughARestart(t *testing.T) {
	s, addr := testServer(t, Config{Fixed: true})
	members := group(t, controltest.Guest(addr, 2), 2)
	for _, m := range members {
		if m.in.Rank == 0 {
			set := rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"torchelastic/role_info/0"}, Values: [][]byte{[]byte("{}")}}
			if _, err := m.Start(set).Wait(controltest.Context(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	waiting := members[0].key(store.OpMultiGet, 0, "torchelastic/role_info/0", "torchelastic/role_info/1")
	s.Close()
	for _, m := range members {
		m.obs.Await(t, "the loss", controltest.IsLost)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecorder(t)
	s = Start(Config{Fixed: true, Trace: rec.record}, l)
	t.Cleanup(func() { s.Close() })
	_, err = waiting.Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeRoundOver, "the ranks of round 1 were being assigned")
	for _, m := range members {
		m.obs.Await(t, "that it has to regroup", regroups("the ranks of round 1 were being assigned"))
	}
	if o := nextRound(t, members...); o.Round != 2 {
		t.Errorf("the next round is %+v", o)
	}
}
