package succession

import (
	"reflect"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const lease = 10 * time.Second

var proof = Evidence{Ended: true, Direct: true, Refused: Dials}

func TestDecide(t *testing.T) {
	for name, test := range map[string]struct {
		view Input
		want Act
		node string
	}{
		"alone":                                 {Input{Evidence: proof}, TakeOver, ""},
		"time-out":                              {Input{Evidence: Evidence{Direct: true, Refused: Dials}}, Keep, ""},
		"behind a proxy":                        {Input{Evidence: Evidence{Ended: true, Refused: Dials}}, Keep, ""},
		"not dialled yet":                       {Input{Evidence: Evidence{Ended: true, Direct: true}}, Gather, ""},
		"refused twice":                         {Input{Evidence: Evidence{Ended: true, Direct: true, Refused: Dials - 1}}, Gather, ""},
		"the last term":                         {Input{Lost: maxTerm, Term: maxTerm, Evidence: proof}, Keep, ""},
		"no term":                               {Input{Lost: 1<<64 - 1, Term: 1<<64 - 1, Evidence: proof}, Keep, ""},
		"one behind is cut off from us":         {Input{Evidence: proof, Behind: []Peer{{"b", Unconnected, 0, false}}}, TakeOver, ""},
		"one behind sees the host":              {Input{Evidence: proof, Behind: []Peer{{"b", Follows, 0, false}}}, Wait, "b"},
		"one behind sees it, for long":          {Input{Evidence: proof, Waited: 2 * lease, Behind: []Peer{{"b", Follows, 0, false}}}, Wait, "b"},
		"one before sees the host":              {Input{Evidence: proof, Waited: 2 * lease, Before: []Peer{{"a", Follows, 0, false}}}, Wait, "a"},
		"one behind is asked":                   {Input{Evidence: proof, Behind: []Peer{{"b", Asked, 0, false}}}, Wait, "b"},
		"one behind does not answer":            {Input{Evidence: proof, Waited: lease, Behind: []Peer{{"b", Asked, 0, false}}}, TakeOver, ""},
		"a voter":                               {Input{Evidence: proof, Votes: true}, Wait, ""},
		"one behind lost it, too":               {Input{Evidence: proof, Behind: []Peer{{"b", Lost, 0, false}}}, TakeOver, ""},
		"one before lives":                      {Input{Evidence: proof, Before: []Peer{{"a", Lost, 0, false}}}, Follow, "a"},
		"one before does not answer":            {Input{Evidence: proof, Before: []Peer{{"a", Asked, 0, false}}}, Follow, "a"},
		"one before may live":                   {Input{Evidence: proof, Before: []Peer{{"a", Unconnected, 0, false}}}, Follow, "a"},
		"one before did not for a lease":        {Input{Evidence: proof, Waited: lease, Before: []Peer{{"a", Asked, 0, false}}}, TakeOver, ""},
		"one before is dead":                    {Input{Evidence: proof, Before: []Peer{{"a", Dead, 0, false}}}, TakeOver, ""},
		"one before cannot tell":                {Input{Evidence: proof, Before: []Peer{{"a", Abstains, 0, false}}}, TakeOver, ""},
		"one before has left":                   {Input{Evidence: proof, Before: []Peer{{"a", Left, 0, false}}}, TakeOver, ""},
		"two before, the first dead":            {Input{Evidence: proof, Before: []Peer{{"a", Dead, 0, false}, {"b", Lost, 0, false}}}, Follow, "b"},
		"one before hosts":                      {Input{Lost: 1, Term: 1, Evidence: proof, Before: []Peer{{"a", Leads, 2, false}}}, Follow, "a"},
		"one behind hosts":                      {Input{Lost: 1, Term: 1, Evidence: proof, Behind: []Peer{{"b", Leads, 2, false}}}, Follow, "b"},
		"one hosts while nothing is proven":     {Input{Lost: 1, Term: 1, Behind: []Peer{{"b", Leads, 2, false}}}, Follow, "b"},
		"the later of two hosts":                {Input{Lost: 1, Term: 1, Before: []Peer{{"a", Leads, 2, false}}, Behind: []Peer{{"b", Leads, 3, false}}}, Follow, "b"},
		"a host of a lower term":                {Input{Lost: 3, Term: 3, Evidence: proof, Behind: []Peer{{"b", Leads, 3, false}}}, TakeOver, ""},
		"a host of a term that is no term":      {Input{Lost: 1, Term: 1, Evidence: proof, Behind: []Peer{{"b", Leads, 1<<64 - 1, false}}}, TakeOver, ""},
		"one hosts that was heard of":           {Input{Lost: 1, Term: 2, Behind: []Peer{{"b", Leads, 2, false}}}, Follow, "b"},
		"a state that this version cannot read": {Input{Evidence: proof, Behind: []Peer{{"b", State(99), 0, false}}}, TakeOver, ""},
	} {
		t.Run(name, func(t *testing.T) {
			test.view.Lease = lease
			got := Decide(test.view)
			if got.Act != test.want || got.Node != test.node {
				t.Errorf("got %+v, want act %d of node %q", got, test.want, test.node)
			}
			if got.Act == TakeOver && got.Term != test.view.Term+1 {
				t.Errorf("term %d after %d", got.Term, test.view.Term)
			}
			if got.Why == "" {
				t.Error("it does not say why")
			}
		})
	}
}

func TestEvidence(t *testing.T) {
	e := Evidence{Ended: true, Direct: true}
	for i, step := range []struct {
		dial   Dial
		proven bool
	}{
		{DialBroken, false}, {DialRefused, false}, {DialRefused, false}, {DialBroken, false},
		{DialRefused, false}, {DialRefused, false}, {DialSilent, false},
		{DialRefused, false}, {DialRefused, false}, {DialAnswered, false},
		{DialRefused, false}, {DialRefused, false}, {DialRefused, true},
	} {
		if e.Observe(step.dial); e.Proves() != step.proven {
			t.Errorf("step %d: proves %v", i, e.Proves())
		}
	}
}

func TestChoose(t *testing.T) {
	const host = "m0"
	far := func(n int) (list []Candidate) {
		for i := range n {
			list = append(list, Candidate{Machine: "m" + strconv.Itoa(i+1)})
		}
		return list
	}
	beside := Candidate{Machine: host}
	loop := Candidate{Machine: host, Loopback: true}
	for name, test := range map[string]struct {
		arrived []Candidate
		spread  bool
		want    []int
	}{
		"none":                        {nil, false, nil},
		"two":                         {far(2), false, []int{0, 1}},
		"seven":                       {far(7), false, []int{0, 1, 2, 3, 4}},
		"one beside the host":         {append([]Candidate{beside}, far(2)...), false, []int{1, 2, 0}},
		"one beside and five":         {append([]Candidate{beside}, far(5)...), false, []int{1, 2, 3, 4, 5}},
		"an unknown machine":          {append([]Candidate{{}}, far(1)...), false, []int{1, 0}},
		"loopback alone":              {[]Candidate{loop, loop}, false, []int{0, 1}},
		"loopback among other nodes":  {append([]Candidate{loop}, far(1)...), true, []int{1}},
		"loopback, the others are of": {[]Candidate{loop, beside}, true, []int{1}},
	} {
		if got := Choose(test.arrived, host, test.spread); !reflect.DeepEqual(got, test.want) && len(got)+len(test.want) > 0 {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func drawPeers(t *rapid.T, label string) []Peer {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Peer {
		return Peer{
			Node: rapid.StringMatching("[a-e]").Draw(t, "node"), State: State(rapid.IntRange(0, 8).Draw(t, "state")),
			Term: rapid.OneOf(rapid.Uint64Range(0, 4), rapid.Just(uint64(1<<64-1)), rapid.Just(uint64(maxTerm))).Draw(t, "term"),
		}
	}), 0, 4).Draw(t, label)
}

// TestTakeOverNeedsProof: no node hosts without proof, against the state of another, or
// before its turn; and terms only rise.
func TestTakeOverNeedsProof(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := Input{
			Lost: rapid.Uint64Range(0, 4).Draw(t, "lost"),
			Term: rapid.OneOf(rapid.Uint64Range(0, 4), rapid.Just(uint64(1<<64-1)), rapid.Just(uint64(maxTerm))).Draw(t, "term"),
			Evidence: Evidence{
				Ended: rapid.Bool().Draw(t, "ended"), Direct: rapid.Bool().Draw(t, "direct"), Refused: rapid.IntRange(0, 4).Draw(t, "refused"),
			},
			Before: drawPeers(t, "before"), Behind: drawPeers(t, "behind"),
			Waited: time.Duration(rapid.IntRange(0, 20).Draw(t, "waited")) * time.Second, Lease: lease,
		}
		v.Term = max(v.Term, v.Lost)
		got := Decide(v)
		if (got.Act == TakeOver || got.Act == Follow && got.Term != 0) && (got.Term <= v.Lost || got.Term < v.Term || got.Act == TakeOver && got.Term == v.Term || !Believable(got.Term)) {
			t.Fatalf("term %d after %d", got.Term, v.Term)
		}
		if got.Act != TakeOver {
			return
		}
		if !v.Evidence.Ended || !v.Evidence.Direct || v.Evidence.Refused < Dials {
			t.Fatalf("took over without proof: %+v", v.Evidence)
		}
		for _, p := range append(v.Before, v.Behind...) {
			if p.State == Follows {
				t.Fatalf("took over against the state of %s", p.Node)
			}
		}
		for _, p := range v.Before {
			if (p.State == Lost || p.State == Unconnected || p.State == Asked) && v.Waited < v.Lease {
				t.Fatalf("took over before %s", p.Node)
			}
		}
	})
}

// TestOneSuccessor: standbys that see the same of each other have one successor, the
// first that lives and can tell.
func TestOneSuccessor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := rapid.SliceOfN(rapid.SampledFrom([]State{Lost, Dead, Abstains}), 1, MaxStandbys).Draw(t, "states")
		var all []Peer
		first := -1
		for i, w := range states {
			all = append(all, Peer{Node: strconv.Itoa(i), State: w})
			if w == Lost && first < 0 {
				first = i
			}
		}
		for i, w := range states {
			if w != Lost {
				continue
			}
			got := Decide(Input{Lost: 1, Term: 1, Evidence: proof, Before: all[:i], Behind: all[i+1:], Lease: lease})
			switch {
			case i == first && got.Act != TakeOver:
				t.Fatalf("standby %d of %v: %+v", i, states, got)
			case i > first && (got.Act != Follow || got.Node != strconv.Itoa(first)):
				t.Fatalf("standby %d of %v: %+v", i, states, got)
			}
		}
	})
}

// TestOneYields: of two servers that meet, exactly one steps down.
func TestOneYields(t *testing.T) {
	draw := rapid.Custom(func(t *rapid.T) Identity {
		return Identity{
			Group: rapid.StringMatching("[ab]").Draw(t, "group"), Term: rapid.Uint64Range(1, 3).Draw(t, "term"),
			Node: rapid.StringMatching("[abc]").Draw(t, "node"), Round: rapid.Bool().Draw(t, "round"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		if a.Group == b.Group && a.Term == b.Term && a.Node == b.Node {
			t.Skip("the same server")
		}
		if Yields(a, b) == Yields(b, a) {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
	restarted, job := Identity{"r", 1, "r", false}, Identity{"j", 2, "b", true}
	if !Yields(restarted, job) {
		t.Error("a restarted host does not yield to its job")
	}
	restarted.Round = true
	if !Yields(restarted, job) {
		t.Error("a lower term does not yield")
	}
	if !Yields(Identity{"j", 1, "a", true}, Identity{"j", 2, "b", false}) {
		t.Error("the host before does not yield to its successor")
	}
}

// TestVotersSucceed: a standby that does not vote leaves a dead host's succession to the voters. If all of them seem
// dead, too, it takes over after some leases: until then it may be its own machine that a firewall rejects.
func TestVotersSucceed(t *testing.T) {
	for name, test := range map[string]struct {
		state  State
		waited time.Duration
		want   Act
	}{
		"a voter lives":                   {Lost, 10 * GiveUp * lease, Wait},
		"all voters seem dead":            {Dead, 0, Wait},
		"all voters seem dead for long":   {Dead, GiveUp * lease, TakeOver},
		"all voters have left long since": {Left, GiveUp * lease, TakeOver},
	} {
		v := Input{Lost: 1, Term: 1, Evidence: proof, Waited: test.waited, Lease: lease,
			Before: []Peer{{Node: "b", State: test.state, Votes: true}, {Node: "c", State: Dead, Votes: true}}}
		if got := Decide(v); got.Act != test.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestStandbyThatHeardNothingFoundsNothing: voters that all seem dead may have gone on without this one, and have ended.
func TestStandbyThatHeardNothingFoundsNothing(t *testing.T) {
	late := proof
	late.Silent = true
	v := Input{Lost: 1, Term: 1, Evidence: late, Waited: 10 * GiveUp * time.Second, Lease: time.Second, Behind: []Peer{{Node: "b", State: Dead, Votes: true}}}
	if d := Decide(v); d.Act != Wait {
		t.Errorf("%+v", d)
	}
	v.Behind[0].Votes = false // where nobody votes proof decides
	if d := Decide(v); d.Act != TakeOver {
		t.Errorf("%+v", d)
	}
}
