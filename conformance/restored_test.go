package conformance

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// restore continues from the state that the machine had after an event: as a server records
// it that was started on a copy of its data.
func (s *script) restore(after int, generation string) {
	s.t.Helper()
	old := slices.Clone(s.records[:after+1])
	m, err := r.Restore(old[0].State)
	if err != nil {
		s.t.Fatal(err)
	}
	s.records = append(s.records, old[0])
	for _, rec := range old[1:] {
		m.Apply(rec.Event)
		rec.Seconds = s.now.Seconds()
		s.records = append(s.records, rec)
	}
	s.m = m
	s.do(r.Recovered{Generation: generation})
}

// wentBack is a run of three rounds that continued from a copy made in the first one.
func wentBack(t *testing.T) *script {
	p := policy(2, 2)
	s := newScript(t, p)
	s.hello(p, "1", "2")
	s.joins("1", "2")
	copied := len(s.records) - 1
	s.joins("1", "2")
	s.joins("1", "2")
	s.restore(copied, "h")
	for _, node := range []string{"1", "2"} {
		s.do(r.Hello{Session: r.SessionID("s" + node), Node: node, Policy: p, SeenAddr: "10.0.0.1",
			LastRound: r.LastRound{Generation: "g", Round: 3, World: 2, HostRank: -1}})
	}
	s.joins("1", "2")
	return s
}

func history(t *testing.T, records []trace.Record) *bytes.Reader {
	t.Helper()
	var lines []byte
	for _, rec := range records {
		line, err := rec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line...)
	}
	return bytes.NewReader(lines)
}

// TestHistoryOfARestoredCopy has the checker follow a run that went back in time, twice.
func TestHistoryOfARestoredCopy(t *testing.T) {
	s := wentBack(t)
	rounds := 0
	outcome(func(_ r.SessionID, o *r.Outcome) {
		if rounds++; o.Round != 4 || o.Generation != "h" {
			t.Fatalf("the last round is %+v", o)
		}
	})(slices.Clone(s.records[len(s.records)-1].Effects))
	if rounds != 2 {
		t.Fatalf("%d outcomes of the last round", rounds)
	}
	a, err := Read(history(t, s.records))
	if err != nil || !a.Kept() {
		t.Fatalf("%v\n%v", err, a)
	}
	if !strings.Contains(a.String(), "4 rounds") {
		t.Errorf("%v", a)
	}
	s.restore(4, "i") // the same copy once more
	for _, node := range []string{"1", "2"} {
		s.do(r.Hello{Session: r.SessionID("s" + node), Node: node, Policy: policy(2, 2), SeenAddr: "10.0.0.1",
			LastRound: r.LastRound{Generation: "h", Round: 4, World: 2, HostRank: -1}})
	}
	s.joins("1", "2")
	if a, err = Read(history(t, s.records)); err != nil || !a.Kept() || !strings.Contains(a.String(), "5 rounds") {
		t.Errorf("%v\n%v", err, a)
	}
	// What cannot be read again cannot be checked.
	if a, err = Read(io.MultiReader(history(t, s.records))); err != nil || a.Kept() || !strings.Contains(a.String(), "cannot be read again") {
		t.Errorf("%v\n%v", err, a)
	}
}

// TestWrongHistoriesOfARestoredCopy changes what was done after the copy was restored.
func TestWrongHistoriesOfARestoredCopy(t *testing.T) {
	for _, m := range []struct {
		name, says string
		change     func(records []trace.Record)
	}{
		{"it uses a number again", "guarantee 1,", func(records []trace.Record) {
			records[len(records)-1].Effects = outcome(func(_ r.SessionID, o *r.Outcome) { o.Generation, o.Round = "g", 2 })(records[len(records)-1].Effects)
		}},
		{"it keeps the generation", "guarantee 1,", func(records []trace.Record) {
			records[len(records)-1].Effects = outcome(func(_ r.SessionID, o *r.Outcome) { o.Generation = "g" })(records[len(records)-1].Effects)
		}},
		{"no member is notified", "guarantee 7", func(records []trace.Record) {
			records[len(records)-4].Effects = each(func(e r.Welcome) r.Effect { e.Update = r.MembershipUpdate{}; return e })(records[len(records)-4].Effects)
		}},
	} {
		records := wentBack(t).records
		m.change(records)
		if a, err := Read(history(t, records)); err != nil || a.Kept() || !strings.Contains(a.String(), m.says) {
			t.Errorf("%s: %v\n%v", m.name, err, a)
		}
	}
}

// TestAStrangersLastRoundIsChecked lets a claim change a round that is under way.
func TestAStrangersLastRoundIsChecked(t *testing.T) {
	made := func() []trace.Record {
		p := policy(2, 3)
		s := newScript(t, p)
		s.hello(p, "1", "2")
		s.joins("1", "2")
		s.fire(r.TimerLastCall)
		s.do(r.Hello{Session: "sx", Node: "x", Policy: p, LastRound: r.LastRound{Generation: "other", Round: 7, World: 2, HostRank: -1}})
		s.add("1", 1, "sum")
		return s.records
	}
	if a := checkedHistory(t, made()); !a.Kept() {
		t.Fatal(a)
	}
	records := made()
	i := len(records) - 1
	records[i].Effects = each(func(e r.Reply) r.Effect {
		e.Result, e.Err = nil, &r.Error{Code: r.CodeRoundOver, Text: `run "job": round 1 is over`}
		return e
	})(records[i].Effects)
	if a := checkedHistory(t, records); a.Kept() || !strings.Contains(a.String(), "guarantee 4") {
		t.Error(a)
	}
}
