package prove

import (
	"testing"
	"time"
)

// sight is what is seen of two nodes with a worker each, of these starts; 0: it has none.
func sight(world int, starts ...uint64) seen {
	s := seen{workers: map[int][]worker{}, ended: map[int]int{}}
	for i, start := range starts {
		if start > 0 {
			s.workers[i] = []worker{{pid: 100 + i, start: start, world: world}}
		}
	}
	return s
}

func (s seen) end(node, code int) seen {
	delete(s.workers, node)
	s.ended[node] = code
	return s
}

func TestWatch(t *testing.T) {
	crash, one, extra := Scenario{here: []int{0, 1}}, Scenario{here: []int{0}}, Scenario{here: []int{0, 1}, undisturbed: true}
	type at struct {
		after time.Duration
		now   seen
	}
	for name, test := range map[string]struct {
		scenario Scenario
		sights   []at
		outcome  Outcome // after the last one, and none before
		lost     time.Duration
		timed    bool
	}{
		"both start again":             {crash, []at{{0, sight(2, 1, 1)}, {1, sight(2, 1, 0)}, {2, sight(2, 5, 0)}, {3, sight(2, 5, 6)}, {7, sight(2, 5, 6)}, {8, sight(2, 5, 6)}}, Survived, 3, true},
		"and once more":                {crash, []at{{3, sight(2, 5, 6)}, {7, sight(2, 0, 0)}, {8, sight(2, 9, 9)}, {12, sight(2, 9, 9)}, {13, sight(2, 9, 9)}}, Survived, 8, true},
		"in between they are replaced": {crash, []at{{3, sight(2, 5, 6)}, {7, sight(2, 8, 8)}, {8, sight(2, 8, 8)}, {12, sight(2, 8, 8)}}, Survived, 7, true},
		"alone":                        {one, []at{{1, sight(2, 1, 1)}, {2, sight(1, 4)}, {7, sight(1, 4)}}, Survived, 2, true},
		"with the old size":            {one, []at{{2, sight(2, 4)}, {20, sight(2, 4)}, {21, sight(2, 4)}}, Failed, 0, false},
		"nobody notices":               {one, []at{{20, sight(2, 1, 1)}, {21, sight(2, 1, 1)}}, Failed, 0, false},
		"again and again":              {one, []at{{20, sight(1, 20)}, {24, sight(1, 24)}, {71, sight(1, 71)}}, Failed, 0, false},
		"it fails":                     {crash, []at{{1, sight(2, 5, 6)}, {2, sight(2, 5).end(1, 3)}}, Failed, 0, false},
		"the other one's end":          {one, []at{{1, sight(2, 1).end(1, -1)}, {2, sight(1, 4).end(1, -1)}, {7, sight(1, 4)}}, Survived, 2, true},
		"it ends well":                 {one, []at{{1, sight(2, 1)}, {2, sight(1).end(0, 0)}}, Survived, 0, false},
		"one ends before the other":    {crash, []at{{1, sight(2, 5, 6)}, {2, sight(2, 0, 6).end(0, 0)}, {3, sight(2).end(0, 0).end(1, 0)}}, Survived, 0, false},
		"undisturbed":                  {extra, []at{{0, sight(2, 1, 1)}, {4, sight(2, 1, 1)}, {5, sight(2, 1, 1)}}, Survived, 0, true},
		"disturbed":                    {extra, []at{{0, sight(2, 1, 1)}, {4, sight(2, 1, 9)}}, Failed, 0, false},
	} {
		w := watch{scenario: test.scenario, procs: 1, settle: 5, limit: 20, before: sight(2, 1, 1)}
		for i, x := range test.sights {
			v := w.look(x.now, x.after)
			if i < len(test.sights)-1 {
				if v != nil {
					t.Errorf("%s: after %d %+v", name, x.after, v)
				}
				continue
			}
			if v == nil || v.outcome != test.outcome || v.timed != test.timed || v.lost != test.lost || v.text == "" {
				t.Errorf("%s: %+v", name, v)
			}
		}
	}
}

func TestFind(t *testing.T) {
	if none, err := Find(nil); err != nil || len(none) > 0 {
		t.Errorf("%+v, %v", none, err)
	}
	if some, err := Find([]string{"hang", "agent-kill", "hang"}); err != nil || len(some) != 2 || some[0].Name != "agent-kill" {
		t.Errorf("%+v, %v", some, err)
	}
	if _, err := Find([]string{"hang", "fire"}); err == nil {
		t.Error("fire is a scenario")
	}
}
