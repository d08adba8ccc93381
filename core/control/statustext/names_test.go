package statustext

import (
	"strings"
	"testing"

	"rallypoint/core/control"
)

// TestNames: a node that is gone is called by its machine, unless another one there shares that.
func TestNames(t *testing.T) {
	called := NamesOf([]control.RunStatus{{
		Members: []control.MemberStatus{{Node: "gpu-a-AAAAAA", Name: "gpu-a"}, {Node: "old", Name: ""}},
		Waiting: []control.WaitingStatus{{Node: "gpu-b-BBBBBB", Name: "gpu-b-BBBBBB"}},
		Idle:    []control.IdleStatus{{Node: "gpu-b-CCCCCC", Name: "gpu-b-CCCCCC"}},
	}})
	ids := []string{"gpu-a-AAAAAA", "old", "gpu-b-BBBBBB", "gpu-c-DDDDDD", "gpu-a-EEEEEE", "mine"}
	if got := strings.Join(called.all(ids), " "); got != "gpu-a old gpu-b-BBBBBB gpu-c gpu-a-EEEEEE mine" {
		t.Error(got)
	}
}
