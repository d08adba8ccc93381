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
		view View
		want Act
		node string
	}{
		"alone":                                {View{Evidence: proof}, TakeOver, ""},
		"time-out":                             {View{Evidence: Evidence{Direct: true, Refused: Dials}}, Keep, ""},
		"behind a proxy":                       {View{Evidence: Evidence{Ended: true, Refused: Dials}}, Keep, ""},
		"not dialled yet":                      {View{Evidence: Evidence{Ended: true, Direct: true}}, Gather, ""},
		"refused twice":                        {View{Evidence: Evidence{Ended: true, Direct: true, Refused: Dials - 1}}, Gather, ""},
		"the last term":                        {View{Lost: MaxTerm, Term: MaxTerm, Evidence: proof}, Keep, ""},
		"no term":                              {View{Lost: 1<<64 - 1, Term: 1<<64 - 1, Evidence: proof}, Keep, ""},
		"one behind is cut off from us":        {View{Evidence: proof, Behind: []Peer{{"b", Unconnected, 0, false}}}, TakeOver, ""},
		"one behind sees the host":             {View{Evidence: proof, Behind: []Peer{{"b", Stands, 0, false}}}, Wait, "b"},
		"one behind sees it, for long":         {View{Evidence: proof, Waited: 2 * lease, Behind: []Peer{{"b", Stands, 0, false}}}, Wait, "b"},
		"one before sees the host":             {View{Evidence: proof, Waited: 2 * lease, Before: []Peer{{"a", Stands, 0, false}}}, Wait, "a"},
		"one behind is asked":                  {View{Evidence: proof, Behind: []Peer{{"b", Asked, 0, false}}}, Wait, "b"},
		"one behind does not answer":           {View{Evidence: proof, Waited: lease, Behind: []Peer{{"b", Asked, 0, false}}}, TakeOver, ""},
		"one behind lost it, too":              {View{Evidence: proof, Behind: []Peer{{"b", Ended, 0, false}}}, TakeOver, ""},
		"one before lives":                     {View{Evidence: proof, Before: []Peer{{"a", Ended, 0, false}}}, Follow, "a"},
		"one before does not answer":           {View{Evidence: proof, Before: []Peer{{"a", Asked, 0, false}}}, Follow, "a"},
		"one before may live":                  {View{Evidence: proof, Before: []Peer{{"a", Unconnected, 0, false}}}, Follow, "a"},
		"one before did not for a lease":       {View{Evidence: proof, Waited: lease, Before: []Peer{{"a", Asked, 0, false}}}, TakeOver, ""},
		"one before is dead":                   {View{Evidence: proof, Before: []Peer{{"a", Dead, 0, false}}}, TakeOver, ""},
		"one before cannot tell":               {View{Evidence: proof, Before: []Peer{{"a", Abstains, 0, false}}}, TakeOver, ""},
		"one before has left":                  {View{Evidence: proof, Before: []Peer{{"a", Left, 0, false}}}, TakeOver, ""},
		"two before, the first dead":           {View{Evidence: proof, Before: []Peer{{"a", Dead, 0, false}, {"b", Ended, 0, false}}}, Follow, "b"},
		"one before hosts":                     {View{Lost: 1, Term: 1, Evidence: proof, Before: []Peer{{"a", Hosts, 2, false}}}, Follow, "a"},
		"one behind hosts":                     {View{Lost: 1, Term: 1, Evidence: proof, Behind: []Peer{{"b", Hosts, 2, false}}}, Follow, "b"},
		"one hosts while nothing is proven":    {View{Lost: 1, Term: 1, Behind: []Peer{{"b", Hosts, 2, false}}}, Follow, "b"},
		"the later of two hosts":               {View{Lost: 1, Term: 1, Before: []Peer{{"a", Hosts, 2, false}}, Behind: []Peer{{"b", Hosts, 3, false}}}, Follow, "b"},
		"a host of a lower term":               {View{Lost: 3, Term: 3, Evidence: proof, Behind: []Peer{{"b", Hosts, 3, false}}}, TakeOver, ""},
		"a host of a term that is no term":     {View{Lost: 1, Term: 1, Evidence: proof, Behind: []Peer{{"b", Hosts, 1<<64 - 1, false}}}, TakeOver, ""},
		"one hosts that was heard of":          {View{Lost: 1, Term: 2, Behind: []Peer{{"b", Hosts, 2, false}}}, Follow, "b"},
		"a word that this version cannot read": {View{Evidence: proof, Behind: []Peer{{"b", Word(99), 0, false}}}, TakeOver, ""},
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
			Node: rapid.StringMatching("[a-e]").Draw(t, "node"), Word: Word(rapid.IntRange(0, 8).Draw(t, "word")),
			Term: rapid.OneOf(rapid.Uint64Range(0, 4), rapid.Just(uint64(1<<64-1)), rapid.Just(uint64(MaxTerm))).Draw(t, "term"),
		}
	}), 0, 4).Draw(t, label)
}

// TestTakeOverNeedsProof: no node hosts without proof, against the word of another, or
// before its turn; and terms only rise.
func TestTakeOverNeedsProof(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := View{
			Lost: rapid.Uint64Range(0, 4).Draw(t, "lost"),
			Term: rapid.OneOf(rapid.Uint64Range(0, 4), rapid.Just(uint64(1<<64-1)), rapid.Just(uint64(MaxTerm))).Draw(t, "term"),
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
			if p.Word == Stands {
				t.Fatalf("took over against the word of %s", p.Node)
			}
		}
		for _, p := range v.Before {
			if (p.Word == Ended || p.Word == Unconnected || p.Word == Asked) && v.Waited < v.Lease {
				t.Fatalf("took over before %s", p.Node)
			}
		}
	})
}

// TestOneSuccessor: standbys that see the same of each other have one successor, the
// first that lives and can tell.
func TestOneSuccessor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.SampledFrom([]Word{Ended, Dead, Abstains}), 1, MaxStandbys).Draw(t, "words")
		var all []Peer
		first := -1
		for i, w := range words {
			all = append(all, Peer{Node: strconv.Itoa(i), Word: w})
			if w == Ended && first < 0 {
				first = i
			}
		}
		for i, w := range words {
			if w != Ended {
				continue
			}
			got := Decide(View{Lost: 1, Term: 1, Evidence: proof, Before: all[:i], Behind: all[i+1:], Lease: lease})
			switch {
			case i == first && got.Act != TakeOver:
				t.Fatalf("standby %d of %v: %+v", i, words, got)
			case i > first && (got.Act != Follow || got.Node != strconv.Itoa(first)):
				t.Fatalf("standby %d of %v: %+v", i, words, got)
			}
		}
	})
}

// TestOneYields: of two servers that meet, exactly one steps down.
func TestOneYields(t *testing.T) {
	draw := rapid.Custom(func(t *rapid.T) Standing {
		return Standing{
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
	restarted, job := Standing{"r", 1, "r", false}, Standing{"j", 2, "b", true}
	if !Yields(restarted, job) {
		t.Error("a restarted host does not yield to its job")
	}
	restarted.Round = true
	if !Yields(restarted, job) {
		t.Error("a lower term does not yield")
	}
	if !Yields(Standing{"j", 1, "a", true}, Standing{"j", 2, "b", false}) {
		t.Error("the host before does not yield to its successor")
	}
}

// TestVotersSucceed: a standby that does not vote leaves a dead host's succession to the voters. If all of them seem
// dead, too, it takes over after some leases: until then it may be its own machine that a firewall rejects.
func TestVotersSucceed(t *testing.T) {
	for name, test := range map[string]struct {
		word   Word
		waited time.Duration
		want   Act
	}{
		"a voter lives":                   {Ended, 10 * GiveUp * lease, Wait},
		"all voters seem dead":            {Dead, 0, Wait},
		"all voters seem dead for long":   {Dead, GiveUp * lease, TakeOver},
		"all voters have left long since": {Left, GiveUp * lease, TakeOver},
	} {
		v := View{Lost: 1, Term: 1, Evidence: proof, Waited: test.waited, Lease: lease,
			Before: []Peer{{Node: "b", Word: test.word, Votes: true}, {Node: "c", Word: Dead, Votes: true}}}
		if got := Decide(v); got.Act != test.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
