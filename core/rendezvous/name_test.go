package rendezvous

import (
	"strings"
	"testing"
)

func TestMachineOf(t *testing.T) {
	for id, want := range map[string]string{
		"gpu-a-K3QD7XBM":                    "gpu-a",
		"K3QD7XBM":                          "K3QD7XBM",
		"-K3QD7XBM":                         "-K3QD7XBM",
		"gpu-a":                             "gpu-a",
		"trainer-00001":                     "trainer-00001",
		"gpu-a-k3qd7xbm":                    "gpu-a-k3qd7xbm",
		"gpu-a-K3QD7XB1":                    "gpu-a-K3QD7XB1",
		"":                                  "",
		NodeID("gpu-b.example", "ABCDEFGH"): "gpu-b.example",
	} {
		if got := MachineOf(id); got != want {
			t.Errorf("%q is of %q, want %q", id, got, want)
		}
	}
}

// TestNames: texts call a node by its machine, and by its id where two nodes share that.
func TestNames(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 3)
	nodes := r.group(p, "gpu-a-AAAAAAAA", "gpu-b-BBBBBBBB", "gpu-b-CCCCCCCC")
	var names []string
	s := r.m.Status()
	for _, m := range s.Members {
		names = append(names, m.Name)
	}
	if got := strings.Join(names, " "); got != "gpu-a gpu-b-BBBBBBBB gpu-b-CCCCCCCC" {
		t.Error(got)
	}
	r.lost(nodes[0])
	r.wantChange("node gpu-a lost: connection closed")
	r.lost(nodes[1]) // a member of the round still
	r.wantChange("node gpu-b-BBBBBBBB lost: connection closed")
	r.join(nodes[2])
	r.wantRound(nodes[2])
	if got := r.m.Status().Members[0].Name; got != "gpu-b" {
		t.Errorf("the only one left is called %s", got)
	}
}
