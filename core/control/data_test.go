package control

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/journal"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// durable is a server on a data directory that can be started again on the same
// port.
type durable struct {
	t    *testing.T
	dir  string
	addr string
	cfg  Config
	o    journal.Options
	*Server
	data *Data
	disk *commitGate // since the last start
}

func newDurable(t *testing.T, cfg Config) *durable {
	t.Helper()
	d := &durable{t: t, dir: t.TempDir(), addr: fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)), cfg: cfg}
	d.start()
	t.Cleanup(d.stop)
	return d
}

func (d *durable) start() {
	d.t.Helper()
	data, err := OpenData(d.dir, d.o)
	if err != nil {
		d.t.Fatal(err)
	}
	l, err := net.Listen("tcp", d.addr)
	if err != nil {
		d.t.Fatal(err)
	}
	d.disk = newCommitGate(data.write)
	data.write = d.disk.pass
	cfg := d.cfg
	cfg.Data, cfg.Fixed = data, true
	d.Server, d.data = Start(cfg, l), data
}

// stop ends the server; as far as the runs are concerned, as a kill would.
func (d *durable) stop() {
	if d.Server == nil {
		return
	}
	d.disk.abandon()
	d.Close()
	if err := d.data.Close(); err != nil {
		d.t.Error(err)
	}
	d.Server = nil
}

func (d *durable) restart() {
	d.t.Helper()
	d.stop()
	d.start()
}

// member is a connected client in a round.
type connectedMember struct {
	*client.Client
	obs *controltest.Observer
	in  rendezvous.Outcome
}

// group has n nodes complete a round.
func group(t *testing.T, p params.Params, n int) []*connectedMember {
	t.Helper()
	list := make([]*connectedMember, n)
	calls := make([]*member.Call, n)
	for i := range list {
		obs := controltest.NewObserver()
		list[i] = &connectedMember{Client: connected(t, p, obs), obs: obs}
		calls[i] = list[i].Start(controltest.Join())
	}
	for i, m := range list {
		m.in = controltest.Outcome(t, calls[i])
		m.SetLastRound(m.in.LastRound())
	}
	return list
}

// kill ends the member's connection at once.
func (c *connectedMember) kill() {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	c.Close(canceled)
}

func (c *connectedMember) key(op store.Op, amount int64, keys ...string) *member.Call {
	return c.Start(rendezvous.KeyRequest{Round: c.in.Round, Op: op, Keys: keys, Amount: amount})
}

func (c *connectedMember) add(t *testing.T, key string, amount int64) int64 {
	t.Helper()
	r, err := c.key(store.OpAdd, amount, key).Wait(controltest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return r.(rendezvous.KeyResult).Number
}

// TestRestartIsNotNoticed has the members of a round, a node that waits for keys
// and a spare live through restarts.
func TestRestartIsNotNoticed(t *testing.T) {
	d := newDurable(t, Config{})
	p := controltest.Guest(d.addr, 3)
	members := group(t, p, 3)
	waiting := members[0].key(store.OpWait, 0, "later")
	spareSeen := controltest.NewObserver()
	spare := connected(t, p, spareSeen)
	pending := spare.Start(controltest.Join())
	status := func() RunStatus { return d.runStatus(t) }
	testkit.Eventually(t, "the spare waits", func() bool { return len(status().Waiting) > 0 })
	before := status()
	observers := []*controltest.Observer{members[0].obs, members[1].obs, members[2].obs, spareSeen}
	for i := range 3 {
		if got := members[1].add(t, "sum", 1); got != int64(i+1) {
			t.Fatalf("the sum is %d after %d adds", got, i+1)
		}
		d.stop()
		for _, obs := range observers {
			obs.Await(t, "the loss", func(any) bool { return countOf(obs, controltest.IsLost) > i })
		}
		late := members[2].key(store.OpAdd, 1, "late") // kept for the next server
		d.start()
		r, err := late.Wait(controltest.Context(t))
		if err != nil || r.(rendezvous.KeyResult).Number != int64(i+1) {
			t.Fatalf("a request made while the control plane was gone: %+v, %v", r, err)
		}
		for _, obs := range observers {
			obs.Await(t, "the recovery", func(any) bool { return countOf(obs, controltest.IsBack) > i })
		}
	}
	after := status()
	if after.Generation != before.Generation || after.Round != 1 || after.Phase != rendezvous.PhaseRunning || len(after.Waiting) != 1 {
		t.Errorf("before: %+v\nafter: %+v", before, after)
	}
	members[1].add(t, "later", 1)
	if _, err := waiting.Wait(controltest.Context(t)); err != nil {
		t.Errorf("the wait: %v", err)
	}
	for _, m := range members {
		m.wantNoRegroup(t)
	}
	// A place falls free: the spare gets it.
	gone := members[0]
	if _, err := gone.Start(rendezvous.Leave{}).Wait(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	a, b := members[1].Start(controltest.Join()), members[2].Start(controltest.Join())
	for _, call := range []*member.Call{a, b, pending} {
		if o := controltest.Outcome(t, call); o.Round != 2 || o.World != 3 || o.Generation == before.Generation {
			t.Errorf("%+v", o)
		}
	}
}

func (d *durable) runStatus(t *testing.T) RunStatus {
	t.Helper()
	st, ok := d.RunStatus("run")
	if !ok {
		t.Fatal("the run is not there")
	}
	return st.Runs[0]
}

// wantNoRegroup wants the member neither dropped nor called to a regroup so far.
func (c *connectedMember) wantNoRegroup(t *testing.T) {
	t.Helper()
	for _, e := range c.obs.All() {
		if n, ok := e.(rendezvous.MembershipUpdate); controltest.IsDropped(e) || ok && n.Waiting > 0 {
			t.Errorf("%s received %+v", c.Node(), e)
		}
	}
}

func countOf(s *controltest.Observer, fits func(any) bool) (n int) {
	for _, e := range s.All() {
		if fits(e) {
			n++
		}
	}
	return n
}

// TestWhoDoesNotComeBackIsLost restarts the control plane without one of its
// nodes.
func TestWhoDoesNotComeBackIsLost(t *testing.T) {
	d := newDurable(t, Config{})
	p := controltest.Guest(d.addr, 3)
	p.Min = 1
	p.LeaseTimeout = 300 * time.Millisecond
	members := group(t, p, 3)
	d.stop()
	members[2].kill() // as if killed
	d.start()
	members[0].obs.Await(t, "that a member was lost", func(e any) bool {
		n, ok := e.(rendezvous.MembershipUpdate)
		return ok && n.Waiting > 0 && strings.Contains(n.Reason, "did not come back after the control plane was restarted")
	})
	a, b := members[0].Start(controltest.Join()), members[1].Start(controltest.Join())
	if o := controltest.Outcome(t, a); o.Round != 2 || o.World != 2 {
		t.Errorf("%+v", o)
	}
	controltest.Outcome(t, b)
	text := string(d.metricsPage())
	for _, want := range []string{
		`rallypoint_nodes_lost_total{cause="restart"} 1`, "\nrallypoint_commit_duration_seconds_count ", "\nrallypoint_data_file_bytes ",
		"\nrallypoint_commit_failures_total 0\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics does not say %q:\n%s", want, text)
		}
	}
}

// TestNothingIsSentBeforeItIsStored reads what the file holds at the time that a
// node gets its answer.
func TestNothingIsSentBeforeItIsStored(t *testing.T) {
	d := newDurable(t, Config{})
	members := group(t, controltest.Guest(d.addr, 2), 2)
	for want := int64(1); want <= 20; want++ {
		members[0].add(t, "sum", 1)
		copied := t.TempDir()
		content, err := os.ReadFile(d.data.Path())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(copied, filepath.Base(d.data.Path())), content, 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := OpenData(copied, journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m := found.runs[0].machine
		effects := m.Apply(rendezvous.KeyRequest{
			Request: rendezvous.Request{Session: members[1].Session(), Number: 1 << 40}, Round: 1, Op: store.OpAdd, Keys: []string{"sum"},
		})
		if got := effects[0].(rendezvous.Reply).Result.(rendezvous.KeyResult).Number; got != want {
			t.Errorf("the sum on the disk is %d, %d was acknowledged", got, want)
		}
		found.Close()
	}
}

// TestSnapshotsReplaceEvents writes much more than the file may grow to.
func TestSnapshotsReplaceEvents(t *testing.T) {
	d := newDurable(t, Config{})
	members := group(t, controltest.Guest(d.addr, 2), 2)
	value := make([]byte, 64<<10)
	const writes = 200
	for i := range writes {
		_, err := members[0].Start(rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{fmt.Sprint("k", i%4)}, Values: [][]byte{value}}).Wait(controltest.Context(t))
		if err != nil {
			t.Fatal(err)
		}
	}
	members[1].add(t, "sum", 7)
	if size := d.data.Size(); size > writes*int64(len(value))/2 {
		t.Errorf("the file has %d bytes after %d of writes", size, writes*len(value))
	}
	d.restart()
	if got := members[1].add(t, "sum", 0); got != 7 {
		t.Errorf("the sum is %d after the restart", got)
	}
}

// TestForgottenRunsLeaveTheDisk runs many short jobs: neither the server nor its
// file remembers them.
func TestForgottenRunsLeaveTheDisk(t *testing.T) {
	clock := testkit.NewClock()
	d := newDurable(t, Config{Clock: clock, ForgetAfter: time.Minute})
	size := int64(0)
	for i := range 60 {
		p := controltest.Guest(d.addr, 1)
		p.RunID, p.ClosedFor = fmt.Sprint("run", i), 0
		c := group(t, p, 1)[0]
		c.add(t, "k", 1)
		if _, err := c.Start(rendezvous.Leave{Ending: rendezvous.EndSuccess}).Wait(controltest.Context(t)); err != nil {
			t.Fatal(err)
		}
		c.Close(controltest.Context(t))
		if i%20 == 19 {
			awaitIdle(t, d.Server)
			for range 3 {
				clock.Advance(time.Minute)
			}
			if ids := d.runIDs(); len(ids) > 0 {
				t.Fatalf("%q are remembered", ids)
			}
			if i == 19 {
				size = d.data.Size()
			}
		}
	}
	d.stop()
	data := testData(t, d.dir)
	if data.Runs() > 0 || data.Size() > 2*size {
		t.Errorf("%d runs on the disk, %d bytes after %d", data.Runs(), data.Size(), size)
	}
	data.Close()
	d.start()
}

func awaitIdle(t *testing.T, s *Server) {
	t.Helper()
	if err := s.WaitIdle(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
}

// TestRefusedRunIsNotKept says hello with a policy that no run can have.
func TestRefusedRunIsNotKept(t *testing.T) {
	d := newDurable(t, Config{})
	h := testHello("n", "s", controltest.Guest(d.addr, 1))
	h.Policy = rendezvous.Policy{}
	if f, ok := dialNode(t, d.addr).greet(h).(wire.Refuse); !ok || f.Err.Code != rendezvous.CodeInvalid {
		t.Fatalf("%+v", f)
	}
	d.stop()
	if data := testData(t, d.dir); data.Runs() > 0 {
		t.Error("the run is on the disk")
	} else {
		data.Close()
	}
	d.start()
}

// TestFullDisk fills the disk, which refuses new nodes and keeps everything else,
// until there is room.
func TestFullDisk(t *testing.T) {
	log, lines := testkit.NewLog(t)
	d := newDurable(t, Config{Log: log})
	d.stop()
	d.o.MaxSize = 256 << 10
	d.start()
	members := group(t, controltest.Guest(d.addr, 2), 2)
	members[0].add(t, "sum", 1)
	// Another process fills the disk: here, another run.
	value := make([]byte, 32<<10)
	other := controltest.Guest(d.addr, 1)
	other.RunID = "other"
	filler := group(t, other, 1)[0]
	var calls []*member.Call
	for i := range 20 {
		calls = append(calls, filler.Start(rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{fmt.Sprint(i)}, Values: [][]byte{value}}))
	}
	lines.Await(t, "cannot be written", 1)

	fresh := controltest.Guest(d.addr, 1)
	fresh.RunID = "third"
	refused, _ := dialNode(t, d.addr).greet(testHello("fresh", "fresh", fresh)).(wire.Refuse)
	controltest.WantCode(t, refused.Err, rendezvous.CodeConnection, "cannot store", d.data.Path(), "make room")
	_, err := members[1].Start(controltest.Join()).Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeConnection, "cannot store", d.data.Path())
	for _, op := range []wire.AdminOp{wire.AdminOpEvict, wire.AdminOpStop, wire.AdminOpCancel, wire.AdminOpUndrain} {
		a := d.executeAdmin(wire.Admin{Op: op, RunID: "run", Node: members[0].Node(), Directive: wire.Directive{ID: "d1"}}, "")
		controltest.WantCode(t, a.Err, rendezvous.CodeConnection, "cannot store")
	}
	held := members[0].key(store.OpAdd, 1, "sum")

	// Room is made: waiting requests are carried out.
	d.stop()
	d.o.MaxSize = 0
	d.start()
	if r, err := held.Wait(controltest.Context(t)); err != nil || r.(rendezvous.KeyResult).Number != 2 {
		t.Errorf("the add that had to wait: %+v, %v", r, err)
	}
	for i, call := range calls {
		if _, err := call.Wait(controltest.Context(t)); err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	for _, m := range members {
		if got := m.add(t, "seen", 1); got == 0 {
			t.Error("a member is not one any more")
		}
	}
}

// TestDirectoryThatCannotBeUsed checks that the errors of OpenData reach people.
func TestDirectoryThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	good := rendezvous.New(rendezvous.Config{RunID: "run"}).Snapshot()
	newer := append([]byte{}, good...)
	newer[1] = rendezvous.StateVersion + 1
	for name, change := range map[string]journal.WriteBatch{
		"newer state": {Run: 1, Snapshot: &journal.Snapshot{ID: "job7", State: newer}},
		"bad state":   {Run: 1, Snapshot: &journal.Snapshot{ID: "job7", State: good[:len(good)-1]}},
		"bad event":   {Run: 1, Snapshot: &journal.Snapshot{ID: "job7", State: good}, First: 1, Events: [][]byte{{0x90}}},
	} {
		if err := j.Write([]journal.WriteBatch{change}); err != nil {
			t.Fatal(err)
		}
		j.Close()
		_, err := OpenData(dir, journal.Options{})
		if err == nil || !strings.Contains(err.Error(), `"job7"`) || !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("%s: %v", name, err)
		}
		if j, err = journal.Open(dir, journal.Options{}); err != nil {
			t.Fatal(err)
		}
		if err := j.Write([]journal.WriteBatch{{Run: 1, Forget: true}}); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
}

// TestRunThatBreaksAgain restores a run whose machine panics while its events are
// replayed.
func TestRunThatBreaksAgain(t *testing.T) {
	log, lines := testkit.NewLog(t)
	d := newDurable(t, Config{Log: log})
	good, bad := controltest.Guest(d.addr, 1), controltest.Guest(d.addr, 1)
	bad.RunID = "bad"
	member := group(t, good, 1)[0]
	group(t, bad, 1)[0].kill()
	d.stop()
	data := testData(t, d.dir)
	for i := range data.runs {
		if r := &data.runs[i]; r.ID == "bad" {
			if r.broken, r.stack = replay(r.machine, r.ID, bomb{}); r.broken == nil {
				t.Fatal("nothing was caught")
			}
			r.machine = nil
		}
	}
	l, err := net.Listen("tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	s := Start(Config{Data: data, Log: log}, l)
	lines.Await(t, "this run is broken by a defect", 1)
	controltest.WantCode(t, newTestClient(t, bad, controltest.NewObserver()).Connect(controltest.Context(t)), rendezvous.CodeInternal, `"bad"`)
	member.add(t, "k", 1)
	s.Close()
	data.Close()
	if again := testData(t, d.dir); again.Runs() != 2 {
		t.Errorf("%d runs are on the disk", again.Runs())
	} else {
		again.Close()
	}
	d.start()
}

// TestRoomIsMadeWhileItRuns fills a disk with something else and takes it away
// again.
func TestRoomIsMadeWhileItRuns(t *testing.T) {
	d := newDurable(t, Config{})
	d.stop()
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("mounting a disk is not allowed here (%v)", err)
	}
	t.Cleanup(func() {
		d.stop()
		if err := syscall.Unmount(d.dir, 0); err != nil {
			t.Error(err)
		}
	})
	log, lines := testkit.NewLog(t)
	d.cfg.Log = log
	d.start()
	members := group(t, controltest.Guest(d.addr, 2), 2)
	filler, err := os.Create(filepath.Join(d.dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	value := make([]byte, 64<<10)
	held := members[0].Start(rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{value}})
	lines.Await(t, "cannot be written", 1)
	started := make(chan error, 1) // of a node that starts while there is no room: it tries on
	late := newTestClient(t, controltest.Guest(d.addr, 2), controltest.NewObserver())
	go func() { started <- late.Connect(controltest.Context(t)) }()
	lines.Await(t, "refused a node", 1)
	select {
	case err := <-started:
		t.Fatal("a node that starts does not try on: ", err)
	default:
	}
	if err := filler.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := held.Wait(controltest.Context(t)); err != nil {
		t.Error(err)
	}
	lines.Await(t, "can be written again", 1)
	if n := len(lines.Await(t, "cannot be written", 1)); n > 1 {
		t.Errorf("%d lines about one full disk", n)
	}
	if err := <-started; err != nil {
		t.Error(err)
	}
	members[1].add(t, "sum", 1)
	d.restart()
	if got := members[1].add(t, "sum", 1); got != 2 {
		t.Errorf("the sum is %d", got)
	}
}

// TestRefusalsAloneAreNoRecovery has nothing wait for a full disk: it is still
// full at the next try.
func TestRefusalsAloneAreNoRecovery(t *testing.T) {
	log, lines := testkit.NewLog(t)
	d := newDurable(t, Config{Log: log})
	d.stop()
	d.o.MaxSize = 32 << 10 // what an empty one has
	d.start()
	for i := range 3 {
		p := controltest.Guest(d.addr, 1)
		p.RunID = strings.Repeat("long name ", 50) + fmt.Sprint(i)
		p.NodeID = strings.Repeat("long name ", 50)
		var err error
		for ; err == nil || !strings.Contains(err.Error(), "cannot store"); p.RunID += "x" {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // a node that starts tries on for as long
			err = newTestClient(t, p, controltest.NewObserver()).Connect(ctx)
			cancel()
		}
		controltest.WantCode(t, err, rendezvous.CodeConnection, "cannot store")
		time.Sleep(2 * firstRetry) // for a wrong line to come
	}
	if n := len(lines.Await(t, "cannot be written", 1)); n != 1 {
		t.Errorf("%d lines about one full disk", n)
	}
	for _, line := range lines.All() {
		if strings.Contains(line, "can be written again") {
			t.Errorf("nothing was written: %s", line)
		}
	}
}

// TestRequestThatIsVoid: an administrator whose request another leader may have or not is told to ask again.
func TestRequestThatIsVoid(t *testing.T) {
	d := newDurable(t, Config{})
	group(t, controltest.Guest(d.addr, 1), 1)
	d.disk.write = func([]journal.WriteBatch) error { return standby.ErrDeposed }
	a := d.executeAdmin(wire.Admin{Op: wire.AdminOpClose, RunID: "run"}, "")
	if a.Err == nil {
		t.Fatalf("it was told %q", a.Done)
	}
	controltest.WantCode(t, a.Err, rendezvous.CodeConnection, "ask again")
}
