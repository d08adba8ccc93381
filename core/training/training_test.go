package training

import (
	"math"
	"strings"
	"testing"
	"time"

	"rallypoint/internal/pack"
)

func sample() Report {
	return Report{
		Round: 7, Workers: 8, Reporting: 3, Smallest: 41198, Largest: 41200, SinceFirst: time.Hour, SinceChange: time.Second,
		SinceSlowest: 40 * time.Second, PerStep: 3100 * time.Millisecond, Gap: time.Minute, Stalled: "no step for 65 s", Counted: true, Waits: Waits{true, 9, 0.034, 0.281},
		Failure: Failure{Round: 6, Age: time.Minute, Text: "worker of rank 1 exited with code 3"},
	}
}

func TestReportRoundTrip(t *testing.T) {
	want := sample()
	if got := decode(encode(&want)); got == nil || *got != want {
		t.Errorf("got %+v", got)
	}
}

// TestForeignReports are what a peer may send instead of a report.
func TestForeignReports(t *testing.T) {
	for name, change := range map[string]func(*Report){
		"no round":            func(r *Report) { r.Round = 0 },
		"none reports":        func(r *Report) { r.Reporting, r.Stalled, r.Failure = 0, "", Failure{} },
		"more than there are": func(r *Report) { r.Reporting = 9 },
		"too many workers":    func(r *Report) { r.Workers = math.MaxInt },
		"negative step":       func(r *Report) { r.Smallest = -1 },
		"order":               func(r *Report) { r.Largest = r.Smallest - 1 },
		"negative age":        func(r *Report) { r.SinceChange = -1 },
		"age":                 func(r *Report) { r.SinceSlowest = math.MaxInt64 },
		"age of a failure":    func(r *Report) { r.Failure.Age = -1 },
		"gap":                 func(r *Report) { r.Gap = math.MinInt64 },
		"a rank":              func(r *Report) { r.Waits.Rank = -1 },
		"a share":             func(r *Report) { r.Waits.Least = -0.1 },
		"order of shares":     func(r *Report) { r.Waits.Second = 0.01 },
		"more than a whole":   func(r *Report) { r.Waits.Second = 1.1 },
	} {
		r := sample()
		change(&r)
		if got := decode(encode(&r)); got != nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	if got := decode(encode(nil)); got != nil {
		t.Errorf("no report: got %+v", got)
	}
	whole := sample()
	data := encode(&whole)
	for n := range data {
		_ = decode(data[:n]) // must not panic
	}
	newer := pack.Append(nil, func(p *pack.Packer) {
		Pack(p, &whole)
		p.Text("more")
	})
	newer[2]++ // the length of the list
	if got := decode(newer); got == nil || *got != whole {
		t.Errorf("a newer release's: got %+v", got)
	}
}

func node(smallest, largest int64, change, stalled time.Duration) NodeReport {
	return NodeReport{Report: Report{
		Round: 1, Workers: 2, Reporting: 2, Smallest: smallest, Largest: largest, SinceChange: change, SinceSlowest: stalled, PerStep: 3 * time.Second,
	}}
}

func counted(n NodeReport) NodeReport {
	n.Counted = true
	return n
}

func TestSummarize(t *testing.T) {
	const s = time.Second
	none := SlowRank{Index: -1}
	for _, c := range []struct {
		name     string
		nodes    []NodeReport
		want     Summary
		nothing  bool
		ageOfAll time.Duration
	}{
		{name: "none", nothing: true},
		{name: "one", nodes: []NodeReport{node(5, 6, s, s)}, want: Summary{6, 5, 1, 3 * s, s, -1, false, none}},
		{name: "in step", nodes: []NodeReport{node(6, 6, 2*s, 2*s), node(5, 6, s, 4*s)}, want: Summary{6, 5, 2, 3 * s, s, -1, false, none}},
		{name: "slow, but not for long", nodes: []NodeReport{node(4, 4, 8*s, 8*s), node(6, 6, s, s)}, want: Summary{6, 4, 2, 3 * s, s, -1, false, none}},
		{name: "behind", nodes: []NodeReport{node(6, 6, 31*s, 31*s), node(4, 4, 40*s, 40*s)}, want: Summary{6, 4, 2, 3 * s, 31 * s, 1, false, none}},
		{name: "one worker of a node", nodes: []NodeReport{node(4, 6, s, 40*s), node(6, 6, s, s)}, want: Summary{6, 4, 2, 3 * s, s, 0, false, none}},
		{name: "the slowest of two", nodes: []NodeReport{node(5, 5, 60*s, 60*s), node(4, 4, 40*s, 40*s), node(6, 6, 31*s, 31*s)}, want: Summary{6, 4, 3, 3 * s, 31 * s, 1, false, none}},
		{name: "all stand at one step", nodes: []NodeReport{node(6, 6, 90*s, 90*s), node(6, 6, 91*s, 91*s)}, want: Summary{6, 6, 2, 3 * s, 90 * s, -1, false, none}},
		{name: "by the reports' age", nodes: []NodeReport{node(6, 6, s, s), node(4, 4, s, s)}, ageOfAll: 20 * s, want: Summary{6, 4, 2, 3 * s, 21 * s, 1, false, none}},
		{name: "counted", nodes: []NodeReport{counted(node(6, 6, s, s)), counted(node(5, 5, 90*s, 90*s))}, want: Summary{6, 5, 2, 3 * s, s, -1, true, none}},
		{name: "counted beside reported", nodes: []NodeReport{counted(node(1, 1, 90*s, 90*s)), node(4, 6, 2*s, 2*s), counted(node(9, 9, s, s))}, want: Summary{6, 4, 1, 3 * s, 2 * s, -1, false, none}},
	} {
		for i := range c.nodes {
			c.nodes[i].Age = c.ageOfAll
		}
		if got, ok := Summarize(c.nodes); ok == c.nothing || got != c.want {
			t.Errorf("%s: got %+v, %v", c.name, got, ok)
		}
	}
}

// TestFailureReports: a report tells of a failure also where no worker has reported a step.
func TestFailureReports(t *testing.T) {
	r := Report{Round: 7, Workers: 8, Failure: Failure{6, time.Second, "a\x1b[2Jb" + strings.Repeat("x", 9999)}}
	got := decode(encode(&r))
	if got == nil || got.Failure.Round != 6 || !strings.HasPrefix(got.Failure.Text, "a\uFFFD[2Jb") || len(got.Failure.Text) > maxFailure+2 {
		t.Errorf("got %+v", got)
	}
	var j Job
	j.Begin(7, NodeLost)
	if lost, _ := j.Take(&r, time.Now()); lost != 0 || j.Census(time.Now()).Reported {
		t.Error("it was taken for a report of steps")
	}
}

// TestStalledReports: a report can say that the job is stalled even if no worker has reported a
// step. Its text is short and printable. A report of an older release has none.
func TestStalledReports(t *testing.T) {
	r := Report{Round: 7, Workers: 8, Stalled: "a\x1b[2Jb" + strings.Repeat("x", 9999)}
	got := decode(encode(&r))
	if got == nil || got.Reporting != 0 || !strings.HasPrefix(got.Stalled, "a\uFFFD[2Jb") || len(got.Stalled) > maxStalled+2 {
		t.Errorf("got %+v", got)
	}
	whole := sample()
	whole.Stalled, whole.Counted, whole.Waits, whole.Failure = "", false, Waits{}, Failure{}
	older := pack.Append(nil, func(p *pack.Packer) { Pack(p, &whole) })
	older[2] -= 7 // the length of the list
	if got := decode(older[:len(older)-7]); got == nil || *got != whole {
		t.Errorf("an older release's: got %+v", got)
	}
}

// encode returns a report as a record of its own, nil as an empty one.
func encode(r *Report) []byte {
	return pack.Append(nil, func(p *pack.Packer) { Pack(p, r) })
}

// decode decodes the result of encode; nil for anything else.
func decode(data []byte) *Report {
	u := pack.NewUnpacker(data)
	defer u.Release()
	return Unpack(u)
}
