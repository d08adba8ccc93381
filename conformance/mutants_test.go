package conformance

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/trace"
)

// effects changes the effects of one event of a history.
func effects(at int, change func([]r.Effect) []r.Effect) func([]trace.Record) []trace.Record {
	return func(records []trace.Record) []trace.Record {
		records[at].Effects = change(slices.Clone(records[at].Effects))
		return records
	}
}

// nothing is what a control plane does that sleeps.
func nothing([]r.Effect) []r.Effect { return nil }

// each changes the effects of a kind; nil ones are left out.
func each[E r.Effect](change func(E) r.Effect) func([]r.Effect) []r.Effect {
	return func(list []r.Effect) (out []r.Effect) {
		found := false
		for _, e := range list {
			if v, ok := e.(E); ok {
				found = true
				e = change(v)
			}
			if e != nil {
				out = append(out, e)
			}
		}
		if !found {
			panic("nothing to change")
		}
		return out
	}
}

// outcome changes the outcomes.
func outcome(change func(s r.SessionID, o *r.Outcome)) func([]r.Effect) []r.Effect {
	return each(func(e r.Reply) r.Effect {
		if o, ok := e.Result.(r.Outcome); ok {
			change(e.Session, &o)
			e.Result = o
		}
		return e
	})
}

// swapped has two sessions receive each other's ranks.
func swapped(a, b r.SessionID) func([]r.Effect) []r.Effect {
	return func(list []r.Effect) []r.Effect {
		ranks := map[r.SessionID]int{}
		outcome(func(s r.SessionID, o *r.Outcome) { ranks[s] = o.Rank })(list)
		return outcome(func(s r.SessionID, o *r.Outcome) {
			switch s {
			case a:
				o.Rank = ranks[b]
			case b:
				o.Rank = ranks[a]
			}
		})(list)
	}
}

// without leaves out what a session receives.
func without[E r.Reply | r.Notify](session r.SessionID) func([]r.Effect) []r.Effect {
	return func(list []r.Effect) []r.Effect {
		return slices.DeleteFunc(list, func(e r.Effect) bool {
			_, fits := e.(any).(E)
			switch e := e.(type) {
			case r.Reply:
				return fits && e.Session == session
			case r.Notify:
				return fits && e.Session == session
			}
			return false
		})
	}
}

func with(more ...r.Effect) func([]r.Effect) []r.Effect {
	return func(list []r.Effect) []r.Effect { return append(list, more...) }
}

func says(text string) func([]r.Effect) []r.Effect {
	return func(list []r.Effect) []r.Effect {
		for i, e := range list {
			switch e := e.(type) {
			case r.Reply:
				if e.Err != nil {
					e.Err = &r.Error{Code: e.Err.Code, Text: text}
					list[i] = e
				}
			case r.Refuse:
				list[i] = r.Refuse{Session: e.Session, Err: &r.Error{Code: e.Err.Code, Text: text}}
			case r.Drop:
				list[i] = r.Drop{Session: e.Session, Err: &r.Error{Code: e.Err.Code, Text: text}}
			}
		}
		return list
	}
}

func placed(s string, number uint64, o r.Outcome) r.Effect {
	return r.Reply{Session: r.SessionID(s), Number: number, Result: o}
}

// mutants are histories that break a guarantee, made of those that keep all. The
// numbers are those of the events of life and failing.
var mutants = []struct {
	guarantee int
	name      string
	of        func(*testing.T) []trace.Record
	change    func([]trace.Record) []trace.Record
}{
	{1, "a round's number is left out", life, effects(16, outcome(func(_ r.SessionID, o *r.Outcome) { o.Round = 3 }))},
	{1, "a round's number is used again", life, effects(16, outcome(func(_ r.SessionID, o *r.Outcome) { o.Round = 1 }))},
	{1, "a round is of another generation", life, effects(16, outcome(func(_ r.SessionID, o *r.Outcome) { o.Generation = "h" }))},
	{1, "an outcome is not delivered again", life, effects(7, nothing)},
	{1, "another outcome is delivered again", life, effects(7, outcome(func(_ r.SessionID, o *r.Outcome) { o.Rank = 1 }))},
	{1, "a withdrawn join is called completed", life, effects(30, each(func(e r.Reply) r.Effect {
		if w, ok := e.Result.(r.Withdrawn); ok {
			w.Completed = true
			e.Result = w
		}
		return e
	}))},
	{1, "a completed join is withdrawn", life, effects(31, each(func(e r.Reply) r.Effect { e.Result = r.Withdrawn{}; return e }))},
	{2, "a rank twice", life, effects(6, outcome(func(_ r.SessionID, o *r.Outcome) { o.Rank = 0 }))},
	{2, "a rank beyond the world", life, effects(16, outcome(func(s r.SessionID, o *r.Outcome) {
		if s == "s3" {
			o.Rank = 3
		}
	}))},
	{2, "a world of more than there are", life, effects(6, outcome(func(_ r.SessionID, o *r.Outcome) { o.World = 3 }))},
	{2, "a member receives nothing", life, effects(6, without[r.Reply]("s2"))},
	{2, "fewer than min", failing, effects(7, func(list []r.Effect) []r.Effect {
		return outcome(func(_ r.SessionID, o *r.Outcome) { o.World = 2 })(without[r.Reply]("s3")(list))
	})},
	{2, "a node that wants another size is taken", life, effects(17, func([]r.Effect) []r.Effect {
		return []r.Effect{r.Welcome{Session: "s5"}}
	})},
	{2, "a segment in two domains", racks, effects(15, swapped("s5", "s3"))},
	{11, "a node without a domain is taken", racks, effects(16, func([]r.Effect) []r.Effect { return []r.Effect{r.Welcome{Session: "s6"}} })},
	{10, "a segment that is whole moves", racks, effects(15, swapped("s3", "s4"))},
	{10, "a member of a segment that has lost another moves", racks, effects(15, swapped("s2", "s5"))},
	{10, "segments change places", racks, effects(15, outcome(func(_ r.SessionID, o *r.Outcome) { o.Rank = (o.Rank + 2) % 4 }))},
	{3, "members receive different stores", life, effects(6, outcome(func(_ r.SessionID, o *r.Outcome) { o.StorePort += o.Rank }))},
	{3, "the store is not the one of rank 0", life, effects(6, outcome(func(_ r.SessionID, o *r.Outcome) { o.StoreAddr = "10.0.0.2" }))},
	{3, "members disagree about the host", life, effects(6, outcome(func(_ r.SessionID, o *r.Outcome) { o.HostRank = 1 }))},
	{4, "an outcome for a node that is not there", life, effects(10, func([]r.Effect) []r.Effect {
		return []r.Effect{placed("s3", 1, r.Outcome{Generation: "g", Round: 1, Rank: 2, World: 3})}
	})},
	{4, "an outcome without a join", life, effects(8, with(placed("s2", 7, r.Outcome{Generation: "g", Round: 1, Rank: 1, World: 2})))},
	{4, "a node that waits is left out though there is room", life, effects(16, func(list []r.Effect) []r.Effect {
		return outcome(func(_ r.SessionID, o *r.Outcome) { o.World = 2 })(without[r.Reply]("s3")(list))
	})},
	{4, "keys of a round for a node that is not in it", life, effects(23, each(func(e r.Reply) r.Effect {
		return r.Reply{Session: e.Session, Number: e.Number, Result: r.KeyResult{Number: 1}}
	}))},
	{4, "a join is refused without a reason", life, effects(12, func([]r.Effect) []r.Effect {
		return []r.Effect{r.Reply{Session: "s3", Number: 1, Err: r.Errorf(r.CodeClosed, "run \"job\" is closed")}}
	})},
	{4, "two nodes of one name", life, effects(18, func([]r.Effect) []r.Effect { return []r.Effect{r.Welcome{Session: "other"}} })},
	{5, "a first round before the last call", life, func(records []trace.Record) []trace.Record {
		return effects(4, with(records[6].Effects...))(records)
	}},
	{5, "a first round is overdue", life, effects(6, nothing)},
	{5, "no last call", life, effects(4, nothing)},
	{5, "another last call than the policy's", life, effects(4, each(func(e r.SetTimer) r.Effect { e.After++; return e }))},
	{5, "the last call runs out early", life, func(records []trace.Record) []trace.Record { records[6].Seconds -= 10; return records }},
	{5, "a round inside a grace", life, func(records []trace.Record) []trace.Record {
		grace := trace.Record{Run: "job", Seconds: records[5].Seconds, Event: r.Disconnect{Session: "s2"}, Effects: []r.Effect{
			r.SetTimer{Timer: r.Timer{Kind: r.TimerGrace, Session: "s2", Seq: 99}, After: time.Second}}}
		return slices.Insert(records, 6, grace)
	}},
	{6, "a regroup without a member that lives", life, func(records []trace.Record) []trace.Record {
		return effects(15, func([]r.Effect) []r.Effect {
			o := r.Outcome{Generation: "g", Round: 2, World: 3, HostRank: -1, StoreAddr: "10.0.0.2", StorePort: 1015}
			one, two := o, o
			one.Rank, two.Rank = 1, 2
			return []r.Effect{placed("s2", 3, one), placed("s3", 1, o), placed("s4", 1, two)}
		})(records)
	}},
	{6, "a regroup is overdue", life, effects(16, nothing)},
	{6, "nothing ends the waiting for a member", life, effects(15, nothing)},
	{6, "who is missing is not named", life, effects(22, outcome(func(_ r.SessionID, o *r.Outcome) { o.Dropped = nil }))},
	{6, "who came later comes first", life, effects(16, each(func(e r.Reply) r.Effect {
		if e.Session == "s3" {
			e.Session = "s4"
		}
		return e
	}))},
	{6, "a node is lost without a reason", life, effects(8, with(r.Drop{Session: "s2", Err: r.Errorf(r.CodeEvicted, "run \"job\": node 2")}))},
	{6, "a lease is ended too early", failing, func(records []trace.Record) []trace.Record {
		records[9].Seconds = records[5].Seconds + 1
		return records
	}},
	{6, "nothing ends a grace", life, effects(19, nothing)},
	{7, "a loss is not announced to all", life, effects(20, without[r.Notify]("s2"))},
	{7, "a loss that was none", life, effects(8, with(r.Notify{Session: "s1", Update: r.MembershipUpdate{Waiting: 1, Reason: "why"}}))},
	{7, "newcomers are announced early", life, effects(13, with(r.Notify{Session: "s1", Update: r.MembershipUpdate{Waiting: 1, Reason: "why"}}))},
	{7, "newcomers are not announced", life, effects(14, nothing)},
	{7, "nothing announces newcomers", life, effects(12, nothing)},
	{7, "who was lost and comes back is not told", failing, effects(13, func([]r.Effect) []r.Effect {
		return []r.Effect{r.Welcome{Session: "s2b"}}
	})},
	{7, "a loss is not told behind an outcome that comes again", resumed, effects(10, without[r.Notify]("s1"))},
	{8, "the exit barrier stays shut", life, effects(34, without[r.Reply]("s1"))},
	{8, "all stop after a success", life, effects(36, each(func(e r.Notify) r.Effect { e.Update.Waiting = 1; return e }))},
	{8, "a failure does not stop all", failing, effects(15, nothing)},
	{8, "a round after a finish", failing, effects(10, func([]r.Effect) []r.Effect {
		return []r.Effect{placed("s3", 2, r.Outcome{Generation: "g", Round: 2, World: 1, HostRank: -1, StoreAddr: "10.0.0.3", StorePort: 1010})}
	})},
	{8, "a member waits for a regroup that cannot be", failing, effects(10, nothing)},
	{9, "the end is not announced", life, effects(36, without[r.Notify]("s2"))},
	{9, "an end that was none", life, effects(28, with(r.Notify{Session: "s1", Update: r.MembershipUpdate{Closed: true, Reason: "why"}}))},
	{9, "a join waits in a closed run", life, effects(37, nothing)},
	{9, "a pending join outlives the end", failing, effects(14, without[r.Reply]("s4"))},
	{10, "ranks are not those of the rule", life, effects(16, outcome(func(s r.SessionID, o *r.Outcome) {
		o.Rank = map[r.SessionID]int{"s1": 1, "s2": 0, "s3": 2}[s]
		o.StoreAddr, o.StorePort = "10.0.0.2", 1015
	}))},
	{11, "who closed the run, and why, is not said", life, effects(37, says(`run "job" is closed`))},
	{11, "who has finished is not said", failing, effects(10, says(`run "job" cannot regroup`))},
	{11, "over what nodes differ is not said", life, effects(17, says(`run "job": node 5 differs from node 1`))},
	{11, "why a node was evicted is not said", life, effects(24, says(`run "job": node 4 was dropped`))},
	{11, "an error without words", life, effects(23, says(""))},
	{11, "a reason is not said", life, effects(14, each(func(e r.Notify) r.Effect { e.Update.Reason = ""; return e }))},
	{11, "an addition counts twice", life, effects(9, each(func(e r.Reply) r.Effect { e.Result = r.KeyResult{Number: 3}; return e }))},
	{11, "a repeated join is applied again", life, effects(5, with(r.SetTimer{Timer: r.Timer{Kind: r.TimerQuiet, Seq: 9}}))},
	{11, "an answer to no request", life, effects(8, with(r.Reply{Session: "s1", Number: 77}))},
	{11, "a withdrawn join has no answer", life, effects(30, func(list []r.Effect) []r.Effect {
		return slices.DeleteFunc(list, func(e r.Effect) bool { reply, ok := e.(r.Reply); return ok && reply.Err != nil })
	})},
}

// TestEachGuaranteeCanBeBroken has the checker find every mutant, at the event where it
// departs from the history that keeps all guarantees, and by the guarantee that it
// breaks.
func TestEachGuaranteeCanBeBroken(t *testing.T) {
	tried := map[int]int{}
	for _, m := range mutants {
		records := m.change(m.of(t))
		c := New("job")
		for _, rec := range records[1:] {
			c.at(seconds(rec.Seconds), seconds(rec.Slack), rec.Event)
			c.Apply(rec.Event, rec.Effects)
			if len(c.Violations()) > 0 {
				break
			}
		}
		if !slices.ContainsFunc(c.Violations(), func(b Violation) bool { return b.Guarantee == m.guarantee }) {
			t.Errorf("guarantee %d, %s: found %v", m.guarantee, m.name, c.Violations())
		}
		tried[m.guarantee]++
	}
	for guarantee := 1; guarantee <= 11; guarantee++ {
		if tried[guarantee] == 0 {
			t.Errorf("nothing breaks guarantee %d", guarantee)
		}
	}
}

// TestReplayFindsWhatNoRuleSays has a machine do the same again.
func TestReplayFindsWhatNoRuleSays(t *testing.T) {
	records := effects(16, each(func(e r.HistoryEntry) r.Effect { e.Text += "!"; return e }))(life(t))
	if found := checkedHistory(t, records).Violations(); len(found) != 1 || found[0].Guarantee != 10 || found[0].Event != 16 {
		t.Errorf("found %v", found)
	}
}

// TestHistoriesOfSeveralProcesses joins what a control plane has recorded before and
// after it was killed.
func TestHistoriesOfSeveralProcesses(t *testing.T) {
	records := life(t)
	lines := func(records []trace.Record) []byte {
		var b []byte
		for _, rec := range records {
			line, err := rec.Encode()
			if err != nil {
				t.Fatal(err)
			}
			b = append(b, line...)
		}
		return b
	}
	// The second process restores a snapshot after event 5 and the events since, of
	// which the first has recorded some.
	machine := r.New(r.Config{RunID: "job", Generation: "g", Uptime: -1})
	for _, rec := range records[1:6] {
		machine.Apply(rec.Event)
	}
	begin := []trace.Record{{Run: "job", Number: 5, State: machine.Snapshot()}}
	rest := append(begin, records[6:]...)
	torn := []byte(`{"at":"2026-01-01T0`)
	for _, c := range []struct {
		name, says string
		history    []byte
	}{
		{"whole", "", lines(records)},
		{"continued", "", append(lines(records[:10]), lines(rest)...)},
		{"continued after a torn line", "", slices.Concat(lines(records[:10]), torn, []byte("\n"), lines(rest))},
		{"torn at the end", "", append(lines(records), torn...)},
		{"torn in the middle", "line 11", slices.Concat(lines(records[:10]), torn, []byte("\n"), lines(records[10:]))},
		{"continued otherwise", "guarantee 10, event 9: event 7 is recorded twice", append(lines(records[:10]), lines(effects(2, nothing)(slices.Clone(rest)))...)},
		{"a gap", "events 10 to 10 are missing", append(lines(records[:10]), lines(records[11:])...)},
		{"from the middle", "its history begins with event 5", lines(rest)},
		{"another file", "line 1", []byte("hello\nworld\n")},
		{"nothing", "", nil},
	} {
		a, err := Read(bytes.NewReader(c.history))
		text := a.String()
		if err != nil {
			text += err.Error()
		}
		if kept := c.says == "" && c.history != nil; a.Kept() != kept && err == nil || !strings.Contains(text, c.says) || (err != nil) != strings.HasPrefix(c.says, "line") {
			t.Errorf("%s: %v, %s", c.name, err, text)
		}
	}
}

// TestWhatMayHaveBeenInTime is not checked: an event whose time is known only roughly.
func TestWhatMayHaveBeenInTime(t *testing.T) {
	for _, slack := range []float64{0, 40} {
		records := failing(t)
		records[9].Seconds = records[5].Seconds + 1 // the end of a lease
		records[7].Seconds -= 20                    // the last call
		records[5].Slack, records[6].Slack = slack, slack
		if a := checkedHistory(t, records); a.Kept() != (slack > 0) {
			t.Errorf("slack %v: %s", slack, a)
		}
	}
}

// TestFollowerThatWasKilled continues: the timers that it finds set were set before it began,
// as far as it knows.
func TestFollowerThatWasKilled(t *testing.T) {
	const longAgo = 1e6
	for _, slack := range []float64{0, longAgo} {
		records := life(t)
		fired := slices.IndexFunc(records, func(rec trace.Record) bool {
			ev, is := rec.Event.(r.TimerFired)
			return is && ev.Timer.Kind == r.TimerAdmit
		})
		history := slices.Clone(records[:fired])
		for _, rec := range records {
			rec.Seconds, rec.Slack = 0.001, longAgo
			if rec.State != nil {
				rec.Slack = slack
			}
			history = append(history, rec)
		}
		if a := checkedHistory(t, history); a.Kept() != (slack > 0) {
			t.Errorf("slack %v: %s", slack, a)
		}
	}
}

// TestEventsThatAreTooLarge are not kept, and the run is not checked any further.
func TestEventsThatAreTooLarge(t *testing.T) {
	records := life(t)
	records[8].Event = r.KeyRequest{
		Request: r.Request{Session: "s1", Number: 2}, Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, trace.MaxRecord)},
	}
	a := checkedHistory(t, records)
	if why := a.Unchecked()["job"]; a.Kept() || !strings.Contains(why, "event 8 was too large to be recorded (1") {
		t.Errorf("%q, %s", why, a)
	}
}

func FuzzRead(f *testing.F) {
	whole := life(&testing.T{})
	for _, records := range [][]trace.Record{whole[:8], whole[9:10], whole[13:15], whole[22:23], failing(&testing.T{})[9:12]} {
		var all []byte
		for _, rec := range records {
			b, err := rec.Encode()
			if err != nil {
				f.Fatal(err)
			}
			all = append(all, b...)
		}
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for line := range bytes.Lines(b) {
			if rec, err := trace.Decode(line); err == nil {
				if _, err := rec.Encode(); err != nil {
					t.Fatal(err)
				}
			}
		}
		a, _ := Read(bytes.NewReader(b))
		_ = a.String()
	})
}
