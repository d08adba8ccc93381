package control

import (
	"bufio"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// bomb is an event that no machine knows: applying it panics, as a defect of a
// machine would.
type bomb struct{ rendezvous.Event }

// TestOneBrokenRunLeavesTheOthers breaks one run of two.
func TestOneBrokenRunLeavesTheOthers(t *testing.T) {
	log, lines := testkit.NewLog(t)
	s, addr := testServer(t, Config{Log: log})
	good, bad := controltest.Guest(addr, 2), controltest.Guest(addr, 1)
	bad.RunID = "bad"
	members := group(t, good, 2)
	broken := group(t, bad, 1)[0]
	r := s.lookUp("bad")
	r.mu.Lock()
	r.applyLocked(bomb{})
	r.unlock()

	broken.obs.Await(t, "that it was dropped", func(e any) bool {
		err, ok := e.(*rendezvous.Error)
		return ok && err.Code == rendezvous.CodeInternal && strings.Contains(err.Text, `run "bad" is broken`)
	})
	line := lines.Await(t, "this run is broken by a defect", 1)[0]
	if !strings.Contains(line, "run=bad") || !strings.Contains(line, "apply.go") {
		t.Errorf("the log has no run or no stack: %s", line)
	}
	_, err := broken.Start(controltest.Join()).Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeInternal, `"bad"`, "--rdzv-id")
	controltest.WantCode(t, newTestClient(t, bad, controltest.NewObserver()).Connect(controltest.Context(t)), rendezvous.CodeInternal, "other runs continue")
	st, _ := s.RunStatus("bad")
	if st.Runs[0].Phase != rendezvous.PhaseClosed || st.Runs[0].Closed == nil || !strings.Contains(st.Runs[0].Closed.Reason, "broken") {
		t.Errorf("%+v", st.Runs[0])
	}
	s.metricsPage()
	if a := s.executeAdmin(wire.Admin{Op: wire.AdminOpClose, RunID: "bad"}, ""); a.Err == nil {
		t.Errorf("an administrator received %q", a.Done)
	}

	if got := members[0].add(t, "sum", 1); got != 1 {
		t.Errorf("the other run's sum is %d", got)
	}
	a, b := members[0].Start(controltest.Join()), members[1].Start(controltest.Join())
	controltest.Outcome(t, a)
	if o := controltest.Outcome(t, b); o.Round != 2 {
		t.Errorf("the other run: %+v", o)
	}
}

// TestReadThatBreaksARun has a machine panic when it is merely asked.
func TestReadThatBreaksARun(t *testing.T) {
	log, lines := testkit.NewLog(t)
	s, addr := testServer(t, Config{Log: log})
	bad := controltest.Guest(addr, 1)
	bad.RunID = "bad"
	member, broken := group(t, controltest.Guest(addr, 1), 1)[0], group(t, bad, 1)[0]
	broken.add(t, "k", 1)
	r := s.lookUp("bad")
	r.mu.Lock()
	r.machine = nil
	r.mu.Unlock()
	broken.key(store.OpGet, 0, "k")
	broken.obs.Await(t, "that it was dropped", controltest.IsDropped)
	lines.Await(t, "this run is broken by a defect", 1)
	member.add(t, "k", 1)
	if _, err := member.key(store.OpGet, 0, "k").Wait(controltest.Context(t)); err != nil {
		t.Errorf("the other run: %v", err)
	}
}

// TestBrokenRunIsForgotten has a new run take the name later.
func TestBrokenRunIsForgotten(t *testing.T) {
	clock := testkit.NewClock()
	s, addr := testServer(t, Config{Clock: clock, ForgetAfter: time.Minute})
	p := controltest.Guest(addr, 1)
	first := group(t, p, 1)[0]
	r := s.lookUp("run")
	r.mu.Lock()
	r.applyLocked(bomb{})
	r.unlock()
	first.obs.Await(t, "that it was dropped", controltest.IsDropped)
	first.kill()
	awaitIdle(t, s)
	for range 3 {
		clock.Advance(time.Minute)
	}
	if ids := s.runIDs(); len(ids) > 0 {
		t.Fatalf("%q are remembered", ids)
	}
	again := connected(t, p, controltest.NewObserver()).Start(controltest.Join())
	for { // the first node may have come back to the new run just before it was ended: that has to be noticed
		select {
		case <-again.Done:
			controltest.Outcome(t, again)
			return
		case <-time.After(time.Millisecond):
			clock.Advance(time.Second)
		}
	}
}

func TestQuotas(t *testing.T) {
	_, addr := testServer(t, Config{Quota: Quota{Nodes: 3, Connections: 10, Keys: 5, KeyBytes: 1000}})
	p := controltest.Guest(addr, 2)
	members := group(t, p, 2)
	connected(t, p, controltest.NewObserver())
	err := newTestClient(t, p, controltest.NewObserver()).Connect(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeTooLarge, `run "run" has 3 nodes`, "--max-nodes")
	again := p
	again.NodeID = members[1].Node() // a new start of a node that is counted
	connected(t, again, controltest.NewObserver())
	members = members[:1]

	other := controltest.Guest(addr, 1)
	other.RunID = "other"
	neighbour := group(t, other, 1)[0] // has quotas of its own
	set := func(m *connectedMember, key string, size int) error {
		_, err := m.Start(rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{key}, Values: [][]byte{make([]byte, size)}}).Wait(controltest.Context(t))
		return err
	}
	controltest.WantCode(t, set(members[0], "big", 1001), rendezvous.CodeTooLarge, "1000", "--max-key-bytes")
	for i := range 5 {
		if err := set(members[0], fmt.Sprint(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	controltest.WantCode(t, set(members[0], "one more", 1), rendezvous.CodeTooLarge, "5", "--max-keys")
	if err := set(neighbour, "k", 900); err != nil {
		t.Errorf("another run: %v", err)
	}
	if err := set(members[0], "0", 2); err != nil {
		t.Errorf("a key that is there: %v", err)
	}
}

func TestQuotaOfConnections(t *testing.T) {
	_, addr := testServer(t, Config{Quota: Quota{Connections: 2}})
	p := controltest.Guest(addr, 1)
	first := connected(t, p, controltest.NewObserver())
	connected(t, p, controltest.NewObserver())
	err := newTestClient(t, p, controltest.NewObserver()).Connect(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeTooLarge, "2 connections", "--max-connections")
	first.Close(controltest.Context(t))
	for {
		err := newTestClient(t, p, controltest.NewObserver()).Connect(controltest.Context(t))
		if err == nil {
			return
		}
		controltest.WantCode(t, err, rendezvous.CodeTooLarge) // the server has not read the goodbye yet
	}
}

// TestMemoryOfShortRuns has many runs come and go. The rest of each must not
// add up.
func TestMemoryOfShortRuns(t *testing.T) {
	runs := 1000
	if long {
		runs = 10_000
	}
	clock := testkit.NewClock()
	s, addr := testServer(t, Config{Clock: clock, ForgetAfter: time.Minute})
	var early uint64
	for i := range runs {
		p := controltest.Params(addr, 1)
		p.RunID, p.ClosedFor = fmt.Sprint("run ", i), 0
		n := dialBriefly(t, addr)
		n.enter(testHello(fmt.Sprint("node ", i), fmt.Sprint("session ", i), p))
		n.ask(1, controltest.Join())
		n.wantReply(1)
		n.ask(2, rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, 1000)}})
		n.wantReply(2)
		n.ask(3, rendezvous.Leave{Ending: rendezvous.EndSuccess})
		n.wantReply(3)
		n.send(wire.Goodbye{})
		n.conn.Close()
		if (i+1)%(runs/10) != 0 {
			continue
		}
		awaitIdle(t, s)
		for range 3 {
			clock.Advance(time.Minute)
		}
		if ids := s.runIDs(); len(ids) > 0 {
			t.Fatalf("after %d runs %d are remembered", i+1, len(ids))
		}
		if i+1 == 2*runs/10 {
			early = heap()
		}
	}
	late := heap()
	t.Logf("%d runs; the heap after a fifth of them: %d bytes, at the end: %d", runs, early, late)
	if late > early+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes over %d runs", early, late, runs*8/10)
	}
}

// dialBriefly is dialNode for a connection that the test does not remember.
func dialBriefly(t *testing.T, addr string) *wireNode {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(testkit.Patience))
	n := &wireNode{t: t, conn: conn}
	n.frames.In = bufio.NewReader(conn)
	return n
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
