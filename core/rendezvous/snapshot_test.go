package rendezvous

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
)

// busyRig is a run with something of everything: members in each state, waits,
// lingerers, answers, timers.
func busyRig(t tester) *rig {
	p := policy(2, 4)
	p.AdmitDelay = time.Minute
	r := newRig(t, 0)
	n := r.group(p, "a", "b", "c", "d")
	r.key(n[0], store.OpSet, 0, "x", "1")
	r.key(n[0], store.OpQueuePush, 0, "q", "item")
	r.key(n[1], store.OpWait, 0, "missing")
	r.key(n[2], store.OpGet, 0, "missing")
	r.apply(KeyRequest{Request: n[3].request(), Round: 1, Op: store.OpMultiGet, Keys: []string{"other", "missing", "other"}})
	r.key(n[1], store.OpBarrier, 3, "bar")
	r.apply(AwaitPeers{n[0].request()})
	r.apply(Disconnect{Session: n[1].session})
	r.join(n[2])
	r.apply(Leave{Request: n[3].request(), Reason: "why"})
	r.apply(AwaitPeers{n[3].request()})
	e := r.hello("e", p)
	r.join(e, func(j *Join) { j.NodeRank = 3 })
	return r
}

func TestRestoredMachineGoesOn(t *testing.T) {
	r := busyRig(t)
	m, err := Restore(r.m.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	twin := r.m
	apply := func(ev Event) {
		if a, b := m.Apply(ev), twin.Apply(ev); !sameEffects(a, b) {
			t.Fatalf("after %+v:\n%v\n%v", ev, a, b)
		}
		if !bytes.Equal(m.Snapshot(), twin.Snapshot()) {
			t.Fatalf("after %+v the states differ", ev)
		}
	}
	a := r.nodes["a"]
	apply(KeyRequest{Request: a.request(), Round: 1, Op: store.OpSet, Keys: []string{"missing"}, Values: [][]byte{[]byte("now")}})
	apply(Recovered{})
	for _, timer := range m.Timers() {
		apply(TimerFired{timer.Timer})
	}
}

// TestRecoveredNodesComeBack restarts a control plane that has stored its state:
// a node that comes back within a lease continues as before, one that does not is
// lost.
func TestRecoveredNodesComeBack(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 3)
	n := r.group(p, "a", "b", "c")
	waiting := KeyRequest{Request: n[0].request(), Round: 1, Op: store.OpWait, Keys: []string{"k"}}
	r.apply(waiting)
	generation := r.m.generation

	m, err := Restore(r.m.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	r.m = m
	r.apply(Recovered{})
	for timer, after := range r.timers {
		if timer.Kind == TimerGrace && after != p.LeaseTimeout {
			t.Errorf("node of session %s has %v to come back, want a lease", timer.Session, after)
		}
	}
	r.again(n[0], p)
	r.again(n[1], p)
	if len(n[0].replies) != 1 {
		t.Fatalf("replies: %+v", n[0].replies)
	}
	r.apply(waiting) // repeated after the reconnect
	r.key(n[1], store.OpSet, 0, "k", "v")
	if reply, ok := n[0].replies[waiting.Number]; !ok || reply.Err != nil {
		t.Errorf("the wait was answered %v, %+v", ok, reply)
	}
	if n[0].notice.Waiting != 0 {
		t.Errorf("a member was told %+v", n[0].notice)
	}
	r.fire(TimerGrace) // c's
	if n[1].notice.Waiting == 0 || !strings.Contains(n[1].notice.Reason, "did not come back after the control plane was restarted") {
		t.Errorf("the others were told %+v", n[1].notice)
	}
	r.join(n[0])
	r.join(n[1])
	if o := r.wantRound(n[0], n[1]); o.Generation != generation || o.Round != 2 {
		t.Errorf("outcome %+v", o)
	}
}

func TestRestoreRefuses(t *testing.T) {
	state := busyRig(t).m.Snapshot()
	for cut := range state {
		if _, err := Restore(state[:cut]); CodeOf(err) != CodeState {
			t.Fatalf("%d of %d bytes: %v", cut, len(state), err)
		}
	}
	if _, err := Restore(append(bytes.Clone(state), 0)); CodeOf(err) != CodeState {
		t.Errorf("a byte too many: %v", err)
	}
	newer := bytes.Clone(state)
	newer[1] = StateVersion + 1
	if _, err := Restore(newer); CodeOf(err) != CodeState || !strings.Contains(err.Error(), "newer release") {
		t.Errorf("a newer state: %v", err)
	}
}

// TestSnapshotHoldsEveryField fails when a field is added: its author puts
// it into Snapshot and Restore, unless it follows from others, and then here.
func TestSnapshotHoldsEveryField(t *testing.T) {
	for _, x := range []struct {
		sample any
		fields int
	}{
		{Machine{}, 12}, {run{}, 5}, {directives{}, 12}, {forming{}, 12}, {round{}, 23}, {nodes{}, 8}, {output{}, 3}, {Direct{}, 9}, {agreement{}, 4}, {ranks{}, 2}, {DirectiveFacts{}, 6}, {StandingFact{}, 3}, {DrainedFact{}, 6}, {DirectiveReport{}, 3}, {DirectiveNotice{}, 11}, {node{}, 25}, {participant{}, 8}, {Closing{}, 5}, {Command{}, 2}, {Facts{}, 10}, {Succession{}, 7}, {view{}, 13}, {RoundStop{}, 5}, {deadline{}, 2}, {Limits{}, 2}, {keyWait{}, 5}, {agentStore{}, 4},
		{runningTimer{}, 2}, {Policy{}, 13}, {Outcome{}, 12}, {KeyResult{}, 4}, {MembershipUpdate{}, 9}, {LastRound{}, 9}, {Withdrawn{}, 2}, {Progress{}, 3}, {Timer{}, 3},
	} {
		if got := reflect.TypeOf(x.sample).NumField(); got != x.fields {
			t.Errorf("%T has %d fields, %d when Snapshot was written", x.sample, got, x.fields)
		}
	}
}

func FuzzRestore(f *testing.F) {
	f.Add(New(Config{RunID: "job", Generation: "g", Uptime: -1}).Snapshot())
	f.Add(busyRig(f).m.Snapshot())
	closed := newRig(f, -1)
	n := closed.group(policy(1, 2), "a", "b")
	closed.apply(Finish{n[0].request()})
	closed.apply(CloseRun{By: "admin", Reason: "why", At: time.Unix(1, 0)})
	f.Add(closed.m.Snapshot())
	directing := newRig(f, -1)
	n = directing.group(policy(1, 3), "a", "b", "c")
	directing.apply(drainOf("d0", 0, time.Hour, "c"))
	for i, id := range []string{"s1", "s2", "s3"} { // the later ones join the first
		directing.apply(saveOf(id, time.Hour/time.Duration(i+1)))
	}
	directing.held(n[0], "s1", 7)
	f.Add(directing.m.Snapshot())
	directing.held(n[1], "s1", 8)
	directing.saved(n[0], "s1")
	f.Add(directing.m.Snapshot())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Restore(b)
		if err != nil {
			if CodeOf(err) != CodeState {
				t.Fatalf("code %d: %v", CodeOf(err), err)
			}
			return
		}
		state := m.Snapshot()
		twin, err := Restore(state)
		if err != nil {
			t.Fatalf("a snapshot cannot be restored: %v", err)
		}
		if !bytes.Equal(state, twin.Snapshot()) {
			t.Fatal("a restored machine is another one")
		}
		// Whatever was accepted must be able to continue.
		m.Status()
		m.Progress()
		m.Apply(Recovered{})
		number := uint64(1 << 40)
		for session, n := range m.nodes.sessions {
			number++
			m.Apply(Hello{Session: session, Node: n.id, Policy: m.forming.policy})
			m.Apply(KeyRequest{Request: Request{Session: session, Number: number}, Round: m.round.number, Op: store.OpSet, Keys: []string{"missing"}, Values: [][]byte{nil}})
			number++
			m.Apply(Join{Request: Request{Session: session, Number: number}})
		}
		for _, timer := range m.Timers() {
			m.Apply(TimerFired{timer.Timer})
		}
		m.Apply(CloseRun{By: "admin", Stop: true})
		m.Snapshot()
	})
}

// TestSnapshotOfVersion3 reads what a program of state version 3 stored: a run of two nodes that
// an administrator has closed. Its policy has no time for which it stays closed.
func TestSnapshotOfVersion3(t *testing.T) {
	b, _ := hex.DecodeString("9e03dc0010a36a6f62af6730783331666564613337383930389a01020100cf00000006fc23ac0000cf00000014f46b0400ce3b9aca00cf00000002540be400ce3b9aca00" +
		"a161af6730783331666564613337383930380102c2ffc2ce10000000ce0040000000c2a0a0930198c2c2c2c2c2c2c2c2909296a161a161c200a0c396a162a162c200a0c3" +
		"92dc0012a3612f30a161a16100c2a831302e302e302e31a931302e302e302e3939c2c2c2a001c00091950100c00199af673078333166656461333738393038010002ffa831302e302e302e31cd03e890c2" +
		"909700c3d9207468652072756e2077617320636c6f7365642062792061646d696e3a20776879c099af673078333166656461333738393038af6730783331666564613337383930380102ffc2909401a561646d696ea377687900c0c0c2" +
		"02dc0012a3622f31a162a16200c2a831302e302e302e32a931302e302e302e3939c2c2c2a002c00091950100c00199af673078333166656461333738393038010102ffa831302e302e302e31cd03e890c2" +
		"909700c3d9207468652072756e2077617320636c6f7365642062792061646d696e3a20776879c099af673078333166656461333738393038af6730783331666564613337383930380102ffc2909401a561646d696ea377687900c0c0c2" +
		"0292a161a1629401a561646d696ea3776879009097c20101c2c2a000c090c09c00a0c000ff90c2af673078333166656461333738393038ffc200c29a909090900000c200c200")
	m, err := Restore(b)
	if err != nil {
		t.Fatal(err)
	}
	s := m.Status()
	if s.Round != 1 || len(s.Members) != 2 || s.Closed == nil || s.Closed.Reason != "why" || m.Policy().ClosedFor != 0 || s.Nodes.Max != 2 {
		t.Errorf("%+v", s)
	}
	if kept, ok := m.Kept(); ok {
		t.Errorf("it stays closed: %+v", kept)
	}
}
