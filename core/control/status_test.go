package control

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// oneRun returns the only run's status.
func (f *fakeServer) oneRun(t *testing.T) RunStatus {
	t.Helper()
	st := f.Status()
	if len(st.Runs) != 1 || st.RunsTotal != 1 {
		t.Fatalf("%d runs, want 1: %+v", len(st.Runs), st)
	}
	return st.Runs[0]
}

func wantTexts(t *testing.T, changes []StatusChange, parts ...string) {
	t.Helper()
	for i, part := range parts {
		at := len(changes) - len(parts) + i
		if at < 0 || !strings.Contains(changes[at].Text, part) {
			t.Errorf("change %d of %+v does not say %q", at, changes, part)
		}
	}
}

// TestStatusOfARunsLife follows a run of 2:3 nodes from its first node to its
// end.
func TestStatusOfARunsLife(t *testing.T) {
	atOnce(t)
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 3)
	p.Min = 2
	a, b := s.statusOfForming(t, p)
	s.statusOfALoss(t, p, b)

	a.ask(2, rendezvous.Leave{Ending: rendezvous.EndFailed, Reason: "exit code 3"})
	awaitEvents[rendezvous.Leave](t, s.rec, 1)
	r := s.oneRun(t)
	if r.Phase != rendezvous.PhaseClosed || r.Closed == nil || r.Closed.How != "failed" || r.Closed.By != "a" || r.Closed.Reason != "exit code 3" || len(r.Waiting) != 0 {
		t.Errorf("closed: %+v, %+v", r, r.Closed)
	}
	wantTexts(t, r.Changes, "the run failed by a: exit code 3")
}

// statusOfForming has the nodes a and b form round 1 on an empty server.
func (f *fakeServer) statusOfForming(t *testing.T, p params.Params) (a, b *wireNode) {
	t.Helper()
	began := f.clock.Now()
	if st := f.Status(); len(st.Runs) != 0 || st.Schema != StatusSchema || !st.Server.StartedAt.Equal(began) || st.Server.PID != os.Getpid() {
		t.Errorf("empty: %+v", st)
	}

	a = dialNode(t, f.addr)
	a.enter(testHello("a", "s1", p))
	if r := f.oneRun(t); r.Phase != rendezvous.PhaseEmpty || len(r.Idle) != 1 || r.Idle[0].Node != "a" || r.NotStarted != "no node has asked for a place; 1 node is connected" {
		t.Errorf("no node has joined: %+v", r)
	}
	a.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, f.rec, 1)
	f.clock.Advance(2 * time.Second)
	r := f.oneRun(t)
	if r.Phase != rendezvous.PhaseForming || r.Missing != (rendezvous.Missing{Min: 1, Target: 2, Who: "2"}) || r.Nodes != (rendezvous.NodeRange{Min: 2, Max: 3, Unit: 1, Segment: 1}) ||
		!r.FormingSince.Equal(began) || r.NotStarted != "1 of at least 2 nodes are here, 1 more needed" {
		t.Errorf("one of two: %+v", r)
	}
	if w := r.Waiting; len(w) != 1 || w[0].Role != rendezvous.RoleNewcomer || w[0].WaitingS != 2 || !w[0].Since.Equal(began) || *w[0].LeaseAgeS != 2 || w[0].Address != "127.0.0.1" {
		t.Errorf("one of two: waiting %+v", w)
	}

	b = dialNode(t, f.addr)
	b.enter(testHello("b", "s2", p))
	b.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, f.rec, 2)
	if r := f.oneRun(t); !strings.Contains(r.NotStarted, "last_call_timeout (30s)") || r.Missing.Min != 0 || r.Missing.Target != 1 {
		t.Errorf("enough: %+v", r)
	}
	// Both send beats: the lease is shorter than the last call.
	for range 30 {
		f.clock.Advance(time.Second)
		for _, n := range []*wireNode{a, b} {
			n.send(wire.Beat{})
		}
		f.awaitHeard(t, "s1", "s2")
	}
	f.awaitRound(t, 1)
	r = f.oneRun(t)
	if r.Phase != rendezvous.PhaseRunning || r.Round != 1 || r.RoundStore != "127.0.0.1:1" || !r.RoundAt.Equal(began.Add(32*time.Second)) ||
		r.NotStarted != "" || r.FormingSince != nil || len(r.Members) != 2 || len(r.Waiting) != 0 {
		t.Errorf("running: %+v", r)
	}
	if m := r.Members[1]; m.Rank != 1 || m.Node != "b" || m.State != "running" || m.LeaseAgeS == nil || m.Reconnecting {
		t.Errorf("member %+v", m)
	}
	wantTexts(t, r.Changes, "round 1 is complete")
	return a, b
}

// statusOfALoss has the node b lost, while c waits and d does not.
func (f *fakeServer) statusOfALoss(t *testing.T, p params.Params, b *wireNode) {
	t.Helper()
	c, d := dialNode(t, f.addr), dialNode(t, f.addr)
	c.enter(testHello("c", "s3", p))
	c.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, f.rec, 3)
	d.enter(testHello("d", "s4", p))
	b.conn.Close()
	awaitEvents[rendezvous.Disconnect](t, f.rec, 1)
	f.clock.Advance(p.ReconnectGrace / 2)
	if m := f.oneRun(t).Members[1]; !m.Reconnecting || *m.LeaseAgeS != 0.5 {
		t.Errorf("inside its grace: %+v", m)
	}
	f.clock.Advance(p.ReconnectGrace)
	r := f.oneRun(t)
	if m := r.Members[1]; m.State != "lost" || m.Cause != "lost: connection closed" || m.LeaseAgeS != nil {
		t.Errorf("lost: %+v", m)
	}
	if len(r.Idle) != 1 || r.Idle[0].Node != "d" || len(r.Waiting) != 1 || r.Waiting[0].Node != "c" {
		t.Errorf("beside the round: idle %+v, waiting %+v", r.Idle, r.Waiting)
	}
	wantTexts(t, r.Changes, "node b lost: connection closed")
}

// awaitHeard waits until what was sent by the sessions has been read.
func (f *fakeServer) awaitHeard(t *testing.T, sessions ...rendezvous.SessionID) {
	t.Helper()
	r := f.lookUp("run")
	ctx := controltest.Context(t)
	for ctx.Err() == nil {
		r.mu.Lock()
		heard := true
		for _, id := range sessions {
			silence, _ := r.silence(id)
			heard = heard && silence == 0
		}
		r.mu.Unlock()
		if heard {
			return
		}
	}
	t.Fatal("what the nodes sent was not read")
}

// awaitRound waits until a round is complete.
func (f *fakeServer) awaitRound(t *testing.T, round uint64) {
	t.Helper()
	f.log.Await(t, fmt.Sprintf("round %d is complete", round), 1)
}

// TestJoinKeepsItsTimeOverAReconnect also repeats the join, as a client does.
func TestJoinKeepsItsTimeOverAReconnect(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	a := dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	a.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 1)
	s.clock.Advance(2 * time.Second)
	a.conn.Close()
	awaitEvents[rendezvous.Disconnect](t, s.rec, 1)
	s.clock.Advance(p.ReconnectGrace / 2)
	if w := s.oneRun(t).Waiting[0]; !w.Reconnecting || w.WaitingS != 2.5 || *w.LeaseAgeS != 0.5 {
		t.Errorf("inside its grace: %+v", w)
	}
	if why := s.oneRun(t).NotStarted; !strings.Contains(why, "1 of at least 2") {
		t.Errorf("not started: %s", why)
	}
	a = dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	a.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 2)
	s.clock.Advance(time.Second)
	if w := s.oneRun(t).Waiting[0]; w.Reconnecting || w.WaitingS != 3.5 {
		t.Errorf("back: %+v", w)
	}
	a.ask(2, rendezvous.Withdraw{Join: 1})
	awaitEvents[rendezvous.Withdraw](t, s.rec, 1)
	if r := s.oneRun(t); len(r.Waiting) != 0 || len(s.lookUp("run").stats.joins) != 0 {
		t.Errorf("withdrawn: %+v", r.Waiting)
	}
}

// TestPendingJoinsAreForgotten ends joins in all ways: nothing may be left.
func TestPendingJoinsAreForgotten(t *testing.T) {
	atOnce(t)
	for name, end := range map[string]func(s *fakeServer, n *wireNode){
		"leave": func(s *fakeServer, n *wireNode) {
			n.ask(2, rendezvous.Leave{})
			awaitEvents[rendezvous.Leave](t, s.rec, 1)
		},
		"close": func(s *fakeServer, n *wireNode) {
			n.ask(2, rendezvous.CloseRun{})
			awaitEvents[rendezvous.CloseRun](t, s.rec, 1)
		},
		"lease": func(s *fakeServer, _ *wireNode) { s.clock.Advance(time.Minute) },
		"evict": func(s *fakeServer, _ *wireNode) {
			s.lookUp("run").applyAdmin(rendezvous.Evict{Node: "a", By: "me", Reason: "why"})
		},
		"asked again": func(s *fakeServer, n *wireNode) {
			n.ask(2, controltest.Join())
			n.ask(3, rendezvous.Withdraw{Join: 2})
			awaitEvents[rendezvous.Withdraw](t, s.rec, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t, Config{})
			a := dialNode(t, s.addr)
			a.enter(testHello("a", "s1", controltest.Params("", 2)))
			a.ask(1, controltest.Join())
			awaitEvents[rendezvous.Join](t, s.rec, 1)
			r := s.lookUp("run") // which is forgotten where its node is lost: it never had a round
			end(s, a)
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.stats.joins) != 0 {
				t.Errorf("left: %v", r.stats.joins)
			}
		})
	}
}

func TestStatusNamesSpares(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 1)
	a, b := dialNode(t, s.addr), dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	a.ask(1, controltest.Join())
	a.wantReply(1)
	b.enter(testHello("b", "s2", p))
	b.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 2)
	r := s.oneRun(t)
	if len(r.Waiting) != 1 || r.Waiting[0].Role != rendezvous.RoleSpare || r.Phase != rendezvous.PhaseRunning || r.NotStarted != "" {
		t.Errorf("%+v", r)
	}
	a.ask(2, rendezvous.Finish{})
	a.wantReply(2)
	if r := s.oneRun(t); !slices.Equal(r.Finished, []string{"a"}) || r.Members[0].State != "finished" {
		t.Errorf("finished: %+v", r)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	var h changelog
	if list := h.list(); len(list) != 0 {
		t.Error(list)
	}
	at := time.Unix(1e9, 0)
	for i := range 3*maxChanges + 5 {
		h.add(at.Add(time.Duration(i)*time.Second), 1, fmt.Sprint("change ", i, strings.Repeat("é", maxChangeText)))
		list := h.list()
		last, n := list[len(list)-1], min(i+1, maxChanges)
		if len(list) != n || !strings.HasPrefix(last.Text, fmt.Sprint("change ", i)) || len(last.Text) > maxChangeText || h.total != uint64(i+1) {
			t.Fatalf("after %d changes: %d, the last %q", i+1, len(list), last.Text)
		}
		if !slices.IsSortedFunc(list, func(a, b StatusChange) int { return a.At.Compare(b.At) }) {
			t.Fatalf("not in order: %v", list)
		}
	}
}

// TestStatusOrder lists runs with nodes first, and not too many.
func TestStatusOrder(t *testing.T) {
	s := newFakeServer(t, Config{})
	for i := range MaxStatusRuns {
		r, _ := s.runFor(fmt.Sprintf("a%03d", i), netip.Addr{})
		r.used = true
	}
	p := controltest.Params("", 2)
	p.RunID = "z"
	dialNode(t, s.addr).enter(testHello("n", "s1", p))
	st := s.Status()
	if len(st.Runs) != MaxStatusRuns || st.RunsTotal != MaxStatusRuns+1 || st.Runs[0].RunID != "z" || st.Runs[1].RunID != "a000" {
		t.Errorf("%d of %d runs, first %s and %s", len(st.Runs), st.RunsTotal, st.Runs[0].RunID, st.Runs[1].RunID)
	}
}

// TestStatusFieldNames pins the names that programs know. A name may be added
// here, none taken away.
func TestStatusFieldNames(t *testing.T) {
	want := `below below.nodes below.who changes changes.at changes.round changes.text changes_total closed closed.at closed.by closed.how closed.reason counts counts.finished counts.idle counts.lost counts.newcomers counts.rejoined counts.running counts.spares counts.unknown directives directives.at directives.by directives.id directives.kind directives.members directives.missing directives.nodes directives.phase directives.reason directives.round directives.saved directives.step directives.target directives.within_s ` +
		`drained drained.by drained.cause drained.cordoned drained.node drained.reason finished forming_since generation ` +
		`idle idle.address idle.fingerprint idle.label idle.lease_age_s idle.name idle.node idle.reason idle.reconnecting idle.topology kept_bytes last_failure last_failure.at last_failure.round last_failure.text lease_timeout_s ` +
		`members members.address members.alive members.cause members.failed_workers members.fingerprint members.host members.label members.lease_age_s members.name members.node ` +
		`members.progress members.progress.change_age_s members.progress.counted members.progress.reporting_workers members.progress.seconds_per_step ` +
		`members.progress.slowest_age_s members.progress.smallest_step members.progress.step members.progress.workers members.rank members.reconnecting members.state members.suspect members.topology members.workers ` +
		`missing missing.min missing.target missing.who nodes nodes.max nodes.min nodes.segment nodes.target nodes.unit not_started phase ` +
		`progress progress.behind progress.behind.for_s progress.behind.label progress.behind.node progress.behind.rank progress.behind.steps ` +
		`progress.change_age_s progress.counted progress.nodes progress.seconds_per_step progress.slow progress.slow.label progress.slow.node progress.slow.others progress.slow.rank progress.slow.text progress.slow.waits progress.smallest_step progress.step round round_at round_generation round_store run_id scaled_to stalled state stopping ` +
		`waiting waiting.address waiting.fingerprint waiting.label waiting.lease_age_s waiting.name waiting.node waiting.node_rank waiting.reconnecting waiting.role waiting.since waiting.topology waiting.waiting_s`
	if got := strings.Join(fieldNames(reflect.TypeFor[RunStatus](), ""), " "); got != want {
		t.Errorf("a run has\n%s\nwant\n%s", got, want)
	}
	want = `place runs runs_total schema server server.address server.connections server.descriptors server.descriptors.limit server.descriptors.needed server.descriptors.open server.fingerprints server.forwarders_refused server.host server.id server.kept_bytes server.now server.only_run server.pid ` +
		`server.protocol server.refused server.started_at server.stores_refused server.succession server.succession.elected server.succession.elections server.succession.group server.succession.host server.succession.host_node ` +
		`server.succession.majority server.succession.missing server.succession.not_by server.succession.peers server.succession.register server.succession.role server.succession.since server.succession.standbys server.succession.standbys.address ` +
		`server.succession.standbys.connected server.succession.standbys.label server.succession.standbys.node server.succession.term ` +
		`server.succession.took_over server.succession.took_over_s server.succession.voters server.succession.voters.heard_s server.succession.voters.node server.succession.voters.reachable server.version`
	names := slices.DeleteFunc(fieldNames(reflect.TypeFor[Status](), ""), func(n string) bool { return strings.HasPrefix(n, "runs.") })
	if got := strings.Join(names, " "); got != want {
		t.Errorf("the status has\n%s\nwant\n%s", got, want)
	}
	page, err := os.ReadFile("../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range fieldNames(reflect.TypeFor[Status](), "") {
		if last := name[strings.LastIndex(name, ".")+1:]; !strings.Contains(string(page), "`"+last+"`") {
			t.Errorf("docs/status.md does not describe %s", name)
		}
	}
	// Lists are never null.
	s := newFakeServer(t, Config{})
	s.runFor("x", netip.Addr{})
	text, err := json.Marshal(s.Status())
	if err != nil || strings.Contains(strings.ReplaceAll(string(text), `"progress":null`, ""), "s\":null") { // which is no list
		t.Errorf("%s, %v", text, err)
	}
}

// fieldNames returns the JSON names of a type's fields, sorted.
func fieldNames(t reflect.Type, prefix string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	var names []string
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return nil
	}
	for i := range t.NumField() {
		name := prefix + t.Field(i).Tag.Get("json")
		switch {
		case t.Field(i).Anonymous:
			names = append(names, fieldNames(t.Field(i).Type, prefix)...)
			continue
		case name == prefix+"-":
			continue
		}
		names = append(names, name)
		names = append(names, fieldNames(t.Field(i).Type, name+".")...)
	}
	slices.Sort(names)
	return names
}

// TestDescriptors: the status tells what the nodes of the next rounds will need, and one line warns
// when that is more than the process may have.
func TestDescriptors(t *testing.T) {
	var old unix.Rlimit
	testkit.Check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	testkit.Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1000, Max: old.Max}))
	defer func() { testkit.Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	s := newFakeServer(t, Config{})
	lines := s.log
	come := func(run string, most int) {
		h := testHello(run, run, controltest.Params("", most))
		h.RunID = run
		dialNode(t, s.addr).enter(h)
	}
	warnings := func() (n int) {
		for _, line := range lines.All() {
			if strings.Contains(line, "this control plane will have 1001 connections, and this process may have 1000 descriptors") {
				n++
			}
		}
		return n
	}
	want := func(needed, said int) {
		t.Helper()
		if d := s.Status().Server.Descriptors; d.Limit != 1000 || d.Open < 3 || d.Needed != needed || warnings() != said {
			t.Errorf("%+v and %d warnings, want %d needed and %d", d, warnings(), needed, said)
		}
	}
	want(64, 0)
	come("a", 501)
	want(565, 0)
	come("b", 500)
	lines.Await(t, "1001 connections", 1)
	want(1065, 1)
	come("c", 2)
	want(1067, 1)
}
