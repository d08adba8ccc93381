package rendezvous

import (
	"fmt"
	"testing"

	"rallypoint/core/store"
)

func (r *rig) publish(n *rigNode, role string, size int) {
	r.key(n, store.OpSet, 0, fmt.Sprint(RoleInfoPrefix, n.claim.Rank),
		fmt.Sprintf(`{"role": %q, "rank": %d, "local_world_size": %d}`, role, n.claim.Rank, size))
}

func TestRankAssignmentEndsWhenAMemberIsLost(t *testing.T) {
	for _, when := range []string{"before any node published", "after the others published"} {
		t.Run(when, func(t *testing.T) {
			r := newRig(t, -1)
			n := r.group(policy(1, 3), "a", "b", "c")
			if when == "before any node published" {
				r.lost(n[1])
			}
			r.publish(n[0], "default", 2)
			r.publish(n[2], "default", 2)
			read := r.key(n[0], store.OpGet, 0, RoleInfoPrefix+"1")
			number := n[0].number
			if when != "before any node published" {
				if read.Result != nil {
					t.Fatal("a live member's role info was made up")
				}
				r.lost(n[1])
			}
			got := n[0].replies[number].Result.(KeyResult)
			if want := `{"role":"default","rank":1,"local_world_size":2}`; string(got.Values[0]) != want {
				t.Errorf("got %s, want %s", got.Values[0], want)
			}
		})
	}
}

func TestRankAssignmentEndsWhenRankZeroIsLost(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 5), "a", "b", "c", "d", "e")
	r.publish(n[1], "tr", 1)
	r.publish(n[2], "tr", 2)
	r.publish(n[3], "tr", 3)
	r.publish(n[4], "ps", 5)
	r.key(n[4], store.OpGet, 0, AssignedRanksPrefix+"4")
	number := n[4].number
	r.lost(n[0])
	// A lost member counts as a copy of the first live one: (tr,1).
	if got := string(n[4].replies[number].Result.(KeyResult).Values[0]); got != "[7, 12, 0, 5]" {
		t.Errorf("agent 4 was assigned %s", got)
	}
	if got := string(r.key(n[3], store.OpGet, 0, AssignedRanksPrefix+"3").Result.(KeyResult).Values[0]); got != "[4, 12, 4, 7]" {
		t.Errorf("agent 3 was assigned %s", got)
	}
}
