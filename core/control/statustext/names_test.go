package statustext

import (
	"strings"
	"testing"

	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
)

// TestNames: a node that is gone is called by its machine, unless another one there shares that.
func TestNames(t *testing.T) {
	a, b, c := memberOf("gpu-a-AAAAAA"), waitingRow("gpu-b-BBBBBB", rendezvous.RoleNewcomer), idleRow("gpu-b-CCCCCC")
	a.Name, b.Name, c.Name = "gpu-a", b.Node, c.Node
	called := NamesOf([]control.RunStatus{{
		Members: []control.MemberStatus{a, memberOf("old")}, Waiting: []control.WaitingStatus{b}, Idle: []control.IdleStatus{c},
	}})
	ids := []string{"gpu-a-AAAAAA", "old", "gpu-b-BBBBBB", "gpu-c-DDDDDD", "gpu-a-EEEEEE", "mine"}
	if got := strings.Join(called.all(ids), " "); got != "gpu-a old gpu-b-BBBBBB gpu-c gpu-a-EEEEEE mine" {
		t.Error(got)
	}
}
