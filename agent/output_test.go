package agent

import (
	"testing"

	"rallypoint/agent/logs"
)

// TestOutputOfARank asks the second of two nodes, which has ranks 2 and 3: a question about a rank
// of the first gets no output, one about its own gets that worker's alone.
func TestOutputOfARank(t *testing.T) {
	n := &node{spec: Spec{Workers: 2}, assignment: &assignment{ranks: ranks{base: 2, world: 4}}}
	ran := attempt{launcher: &launcher{node: n}}
	for local := range 2 {
		ran.streams = append(ran.streams, &logs.Stream{Locals: []int{local}, Name: logs.NameOut, Why: "a terminal"})
	}
	for rank, want := range map[int]int{-1: 2, 0: 0, 1: 0, 2: 1, 3: 1, 4: 0} {
		n := ran.outputNode(t.Context(), nil, logs.Request{Rank: rank, Bytes: 100}, 1)
		if len(n.Parts) != want || n.Parts == nil || want == 1 && n.Parts[0].Ranks[0] != rank {
			t.Errorf("asked for rank %d: %+v", rank, n.Parts)
		}
	}
}
