package conformance

import (
	"slices"
	"strings"
	"testing"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/trace"
)

// ask records what is answered without a change, and returns which record it is.
func (s *script) ask(ev r.Event) int {
	s.t.Helper()
	effects, ok := s.m.TryRead(ev)
	if !ok {
		s.t.Fatalf("%+v has to be applied", ev)
	}
	last := s.records[len(s.records)-1].Number
	s.records = append(s.records, trace.Record{Run: "job", Number: last, Seconds: s.now.Seconds(), Event: ev, Effects: effects, Aside: true})
	return len(s.records) - 1
}

func (s *script) get(node string, round uint64, key string) r.KeyRequest {
	return r.KeyRequest{Request: s.request(node), Round: round, Op: store.OpGet, Keys: []string{key}}
}

// TestAnswersWithoutAChange has the checker hold what was recorded beside the events
// against the guarantees, too.
func TestAnswersWithoutAChange(t *testing.T) {
	history := func() (records []trace.Record, at map[string]int) {
		p := policy(2, 2)
		s := newScript(t, p)
		s.hello(p, "1", "2")
		s.joins("1")
		at = map[string]int{"pending": s.ask(s.join["1"])}
		s.joins("2")
		at["joined"] = s.ask(s.join["1"])
		s.add("1", 1, "sum")
		at["get"] = s.ask(s.get("2", 1, "sum"))
		at["over"] = s.ask(s.get("2", 7, "sum"))
		return s.records, at
	}
	records, _ := history()
	if a := checkedHistory(t, records); !a.Kept() {
		t.Fatal(a)
	}
	for _, m := range []struct {
		at, says string
		change   func(*trace.Record)
	}{
		{"pending", "guarantee 11", func(rec *trace.Record) { rec.Effects = []r.Effect{placed("s1", 1, r.Outcome{Round: 1})} }},
		{"joined", "guarantee 1,", func(rec *trace.Record) { rec.Effects = nil }},
		{"joined", "guarantee 1,", func(rec *trace.Record) { rec.Effects = []r.Effect{placed("s1", 1, r.Outcome{Round: 1, Rank: 1})} }},
		{"get", "guarantee 11", func(rec *trace.Record) { rec.Effects = nil }},
		{"get", "guarantee 11", func(rec *trace.Record) { rec.Effects = append(rec.Effects, r.StopTimer{}) }},
		{"get", "guarantee 11", func(rec *trace.Record) {
			k := rec.Event.(r.KeyRequest)
			k.Op, k.Amount = store.OpAdd, 1
			rec.Event = k
		}},
		{"get", "guarantee 11", func(rec *trace.Record) { rec.Event = r.Disconnect{Session: "s2"} }},
		{"get", "guarantee 10", func(rec *trace.Record) {
			reply := rec.Effects[0].(r.Reply)
			reply.Result = r.KeyResult{Values: [][]byte{[]byte("2")}}
			rec.Effects = []r.Effect{reply}
		}},
		{"over", "guarantee 4", func(rec *trace.Record) {
			rec.Effects = []r.Effect{r.Reply{Session: "s2", Number: 3, Result: r.KeyResult{}}}
		}},
	} {
		records, at := history()
		i := at[m.at]
		records[i].Effects = slices.Clone(records[i].Effects)
		m.change(&records[i])
		if a := checkedHistory(t, records); a.Kept() || !strings.Contains(a.String(), m.says) {
			t.Errorf("%s, want %s: %s", m.at, m.says, a)
		}
	}
	// One that was too large to be recorded is no gap.
	records, at := history()
	records[at["get"]].Event, records[at["get"]].Effects, records[at["get"]].TooLarge = nil, nil, trace.MaxRecord
	if a := checkedHistory(t, records); !a.Kept() {
		t.Error(a)
	}
}
