package conformance

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// successor continues with a history in another node's process, which brings what it knows.
func (s *script) successor(node, from string, p r.Policy, last r.LastRound) {
	s.takeOver(node, r.Succession{Term: max(s.m.Succession().Term, 1) + 1, From: from, Facts: last.Facts})
	s.follow(node, p, last, true)
}

func (s *script) takeOver(node string, succession r.Succession) {
	s.m = r.New(r.Config{RunID: "job", Generation: s.m.Generation() + "+", Succession: succession})
	s.records = append(s.records, trace.Record{Run: "job", State: s.m.Snapshot(), Host: node, Succession: &succession})
}

func (s *script) follow(node string, p r.Policy, last r.LastRound, host bool) {
	s.do(r.Hello{Session: r.SessionID("s" + node), Node: node, Policy: p, SeenAddr: "10.0.0.1", LastRound: last, InHost: host})
}

// report is what the node of an outcome says of it later.
func report(o r.Outcome, rank int, change ...func(*r.Facts)) r.LastRound {
	c := o.LastRound()
	c.Rank, c.Facts = rank, o.Facts()
	for _, f := range change {
		f(&c.Facts)
	}
	return c
}

// takenOver is a run of three whose host dies, and which regroups at the next: a spare is
// admitted in its place. Then that one has finished, and dies, and the last host closes.
func takenOver(t *testing.T) []trace.Record {
	p := policy(1, 3)
	s := newScript(t, p)
	s.records[0].Host, s.records[0].Succession = "1", &r.Succession{Term: 1}
	s.follow("1", p, r.LastRound{HostRank: -1}, true) // 1
	s.hello(p, "2", "3", "4")
	s.joins("1", "2", "3", "4") // 5 to 8
	first := r.Outcome{Generation: "g", Round: 1, World: 3}
	s.successor("2", "1", p, report(first, 1)) // 9, 10
	s.follow("4", p, r.LastRound{HostRank: -1, Facts: first.Facts()}, false)
	s.do(s.join["4"])
	s.follow("3", p, report(first, 2), false) // 13
	s.joins("2", "3")                         // 14, 15
	second := r.Outcome{Generation: "g+", Round: 2, World: 3, HostRank: 1}
	s.add("2", 2, barrierCount) // 16
	finished := func(f *r.Facts) { f.Finished, f.FinishedHosts = true, []int{1} }
	s.successor("3", "2", p, report(second, 2, finished)) // 17, 18
	s.follow("4", p, report(second, 0, finished), false)  // 19
	s.add("4", 2, barrierCount)
	s.do(r.CloseRun{By: "admin", Reason: "why"}) // 21
	closed := func(f *r.Facts) {
		f.Generation, f.HostRank, f.Closed = "g++", 2, r.Closing{Kind: r.ClosedAdmission, By: "admin", Reason: "why"}
	}
	s.successor("4", "3", p, report(second, 0, finished, closed)) // 22, 23
	s.hello(p, "5")
	s.joins("5") // 25
	return s.records
}

// lifeAcross is what a checker makes of a history that goes from host to host.
func lifeAcross(records []trace.Record) *Checker {
	j := New("job")
	for _, rec := range records {
		if rec.State != nil {
			j.TookOver(rec.Host, *rec.Succession)
			continue
		}
		j.Apply(rec.Event, rec.Effects)
	}
	return j
}

func TestTakeoversKeepTheGuarantees(t *testing.T) {
	j := lifeAcross(takenOver(t))
	if len(j.Violations()) > 0 || j.Rounds() != 2 {
		t.Fatalf("%d rounds, found %v", j.Rounds(), j.Violations())
	}
	var a Audit
	for _, rec := range takenOver(t) {
		a.Add(rec)
	}
	if !a.Kept() {
		t.Errorf("%v", a.String())
	}
}

// TestSilentBeforeItsFirstWord: a host that was elected and fell silent before it told anybody anything
// may be passed over, and one that has told its node something may not.
func TestSilentBeforeItsFirstWord(t *testing.T) {
	p := policy(1, 3)
	first := r.Outcome{Generation: "g", Round: 1, World: 3}
	for _, spoke := range []bool{false, true} {
		s := newScript(t, p)
		s.records[0].Host, s.records[0].Succession = "1", &r.Succession{Term: 1}
		s.follow("1", p, r.LastRound{HostRank: -1}, true)
		s.hello(p, "2", "3")
		s.joins("1", "2", "3")
		s.takeOver("2", r.Succession{Term: 2, From: "1", Facts: first.Facts()})
		if spoke {
			s.follow("2", p, report(first, 1), true)
		}
		s.takeOver("3", r.Succession{Term: 3, From: "1", Facts: first.Facts(), Silent: true})
		s.follow("3", p, report(first, 2), true)
		if j := lifeAcross(s.records); (len(j.Violations()) > 0) != spoke {
			t.Errorf("it has told its node something: %v; found %v", spoke, j.Violations())
		}
	}
}

// TestSilentBeforeItTellsNodes: the voters may keep a directive that the host before had no time to
// tell nodes of. What they keep of an older one must have been told.
func TestSilentBeforeItTellsNodes(t *testing.T) {
	p := policy(1, 3)
	for later, kept := range map[uint64]bool{0: false, 1: true} {
		s := newScript(t, p)
		s.records[0].Host, s.records[0].Succession = "1", &r.Succession{Term: 1}
		s.follow("1", p, r.LastRound{HostRank: -1}, true)
		s.hello(p, "2", "3")
		s.joins("1", "2", "3")
		s.do(r.Direct{Kind: r.DirectiveSave, ID: "d", By: "admin", Within: time.Minute})
		last := report(r.Outcome{Generation: "g", Round: 1, World: 3}, 1, func(f *r.Facts) {
			f.Directives = s.m.Facts().Directives
			f.Directives.Seq += later
			f.Directives.Standing = nil
			f.Directives.Ended = []string{"d"}
		})
		s.successor("2", "1", p, last)
		found := slices.ContainsFunc(lifeAcross(s.records).Violations(), func(v Violation) bool { return strings.Contains(v.Text, "no control plane told") })
		if found == kept {
			t.Errorf("change %d later: %v", later, lifeAcross(s.records).Violations())
		}
	}
}

// begins changes how a host begins.
func begins(at int, change func(host *string, s *r.Succession)) func([]trace.Record) []trace.Record {
	return func(records []trace.Record) []trace.Record {
		s := *records[at].Succession
		change(&records[at].Host, &s)
		records[at].Succession = &s
		return records
	}
}

// updates changes what nodes see of their run.
func updates(change func(u *r.MembershipUpdate)) func([]r.Effect) []r.Effect {
	return func(list []r.Effect) []r.Effect {
		for i, e := range list {
			switch e := e.(type) {
			case r.Welcome:
				change(&e.Update)
				list[i] = e
			case r.Notify:
				change(&e.Update)
				list[i] = e
			}
		}
		return list
	}
}

// TestEachGuaranteeCanBeBrokenByASuccessor has the checker find what a next host does wrong
// that would be right for a control plane without a past.
func TestEachGuaranteeCanBeBrokenByASuccessor(t *testing.T) {
	quiet := updates(func(u *r.MembershipUpdate) { u.Waiting = 0 })
	for _, m := range []struct {
		guarantee int
		name      string
		change    func([]trace.Record) []trace.Record
	}{
		{1, "a term comes twice", begins(17, func(_ *string, s *r.Succession) { s.Term = 2 })},
		{1, "it succeeds the host before the one that has told it", begins(17, func(_ *string, s *r.Succession) { s.From = "1" })},
		{1, "it succeeds a node that did not host", begins(9, func(_ *string, s *r.Succession) { s.From = "3" })},
		{1, "a number is used again", effects(15, outcome(func(_ r.SessionID, o *r.Outcome) { o.Round = 1 }))},
		{1, "a round of an earlier host is completed again", effects(15, outcome(func(_ r.SessionID, o *r.Outcome) { o.Generation, o.Round = "g", 1 }))},
		{3, "the outcome names the dead host", effects(15, outcome(func(_ r.SessionID, o *r.Outcome) { o.HostRank = 0 }))},
		{4, "a member's join is refused", effects(14, with(r.Reply{Session: "s2", Number: 2, Err: r.Errorf(r.CodeClosed, "run \"job\" is closed")}))},
		{5, "it waits though no member is missing", effects(13, func(list []r.Effect) []r.Effect {
			return slices.DeleteFunc(list, func(e r.Effect) bool { _, stops := e.(r.StopTimer); return stops })
		})},
		{6, "it waits for members for a lease", effects(10, each(func(e r.SetTimer) r.Effect { e.After = 10 * 1e9; return e }))},
		{6, "nothing ends the wait for members", effects(10, func(list []r.Effect) []r.Effect {
			return slices.DeleteFunc(list, func(e r.Effect) bool { _, sets := e.(r.SetTimer); return sets })
		})},
		{6, "a round without a member that may come", effects(12, with(
			placed("s4", 1, r.Outcome{Generation: "g+", Round: 2, World: 1, HostRank: -1, StoreAddr: "10.0.0.4", StorePort: 1008})))},
		{7, "the dead host's member is not lost", effects(10, quiet)},
		{7, "who has finished is not told on", effects(16, func([]r.Effect) []r.Effect { return nil })},
		{7, "the next host forgets who has finished", effects(18, updates(func(u *r.MembershipUpdate) { u.Facts.FinishedHosts = nil }))},
		{7, "the host's member has finished, and is called lost", effects(18, updates(func(u *r.MembershipUpdate) { u.Waiting, u.Reason = 1, "lost" }))},
		{8, "a member waits for a regroup that cannot be", func(records []trace.Record) []trace.Record {
			join := r.Join{Request: r.Request{Session: "s4", Number: 9}, NodeRank: -1, RankHint: -1, StorePort: 1}
			return slices.Insert(records, 20, trace.Record{Run: "job", Event: join})
		}},
		{9, "the next host forgets the end", effects(23, updates(func(u *r.MembershipUpdate) { u.Closed, u.Facts.Closed = false, r.Closing{} }))},
		{9, "a closed run admits a node", effects(25, nothing)},
		{9, "it begins with what was never told", begins(17, func(_ *string, s *r.Succession) { s.Facts.World = 2 })},
		{10, "a member that came back has another rank", effects(15, outcome(func(s r.SessionID, o *r.Outcome) {
			o.Rank = map[r.SessionID]int{"s2": 0, "s3": 2, "s4": 1}[s]
		}))},
		{11, "who closed the run is not said", effects(25, says(`run "job" is closed`))},
	} {
		j := lifeAcross(m.change(takenOver(t)))
		if !slices.ContainsFunc(j.Violations(), func(b Violation) bool { return b.Guarantee == m.guarantee }) {
			t.Errorf("guarantee %d, %s: found %v", m.guarantee, m.name, j.Violations())
		}
	}
}

// TestRestartedHostFoundsAGroupBeside: the history of a host that was started again, and
// stepped down before the others, is judged by itself, in whatever order the histories come.
func TestRestartedHostFoundsAGroupBeside(t *testing.T) {
	records := takenOver(t)
	s := newScript(t, policy(1, 3))
	s.m = r.New(r.Config{RunID: "job", Generation: "beside"})
	s.records = []trace.Record{{Run: "job", State: s.m.Snapshot(), Host: "again", Succession: &r.Succession{Term: 1}}}
	s.follow("again", policy(1, 3), r.LastRound{HostRank: -1}, true)
	var histories [][]byte
	for _, recs := range [][]trace.Record{records, s.records} {
		var history []byte
		number := uint64(0)
		for _, rec := range recs {
			if number++; rec.State != nil {
				number = 0
			}
			rec.Number = number
			b, err := rec.Encode()
			if err != nil {
				t.Fatal(err)
			}
			history = append(history, b...)
		}
		histories = append(histories, history)
	}
	for _, first := range []int{0, 1} {
		a, err := ReadAll(bytes.NewReader(histories[first]), bytes.NewReader(histories[1-first]))
		if err != nil || !a.Kept() {
			t.Errorf("%v\n%v", err, a)
		}
	}
}
