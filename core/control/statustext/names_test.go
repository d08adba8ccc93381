package statustext

import (
	"strings"
	"testing"

	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
)

// TestNames: a node that is gone is called by its machine, unless another one there shares that.
func TestNames(t *testing.T) {
	a, b, c := memberOf("gpu-a-AAAAAAAA"), waitingRow("gpu-b-BBBBBBBB", rendezvous.RoleNewcomer), idleRow("gpu-b-CCCCCCCC")
	a.Name, b.Name, c.Name = "gpu-a", b.Node, c.Node
	called := NamesOf([]control.RunStatus{{
		Members: []control.MemberStatus{a, memberOf("old")}, Waiting: []control.WaitingStatus{b}, Idle: []control.IdleStatus{c},
	}})
	ids := []string{"gpu-a-AAAAAAAA", "old", "gpu-b-BBBBBBBB", "gpu-c-DDDDDDDD", "gpu-a-EEEEEEEE", "mine"}
	if got := strings.Join(called.all(ids), " "); got != "gpu-a old gpu-b-BBBBBBBB gpu-c gpu-a-EEEEEEEE mine" {
		t.Error(got)
	}
}
