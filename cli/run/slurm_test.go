package run

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"rallypoint/agent"
	"rallypoint/agent/check"
	"rallypoint/agent/failure"
	"rallypoint/internal/testkit"
)

// TestSlurmDrain asks a stand-in for scontrol to drain a node that has found itself unfit, and no other.
func TestSlurmDrain(t *testing.T) {
	dir := t.TempDir()
	testkit.WriteFile(t, dir+"/scontrol", []byte("#!/bin/sh\nprintf '%s\\n' \"$@\" >> "+dir+"/asked\n[ \"$2\" = NodeName=n04 ] || { echo 'Access denied' >&2; exit 1; }\n"))
	testkit.Check(t, os.Chmod(dir+"/scontrol", 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	logger, log := testkit.NewLog(t)
	unfit := &agent.UnfitError{Host: "n04", Verdict: check.Verdict{State: check.Unfit, Reason: "gpu_xid", Text: "Xid 79"}}
	drainSlurmNode(t.Context(), "n04", unfitReason(fmt.Errorf("no worker ran: %w", unfit)), logger)
	drainSlurmNode(t.Context(), "n04", unfitReason(&agent.FailedError{Failures: []failure.Failure{{ExitCode: 1}}}), logger)
	drainSlurmNode(t.Context(), "n04", unfitReason(nil), logger)
	asked := string(testkit.ReadFile(t, dir+"/asked"))
	if !strings.HasPrefix(asked, "update\nNodeName=n04\nState=DRAIN\nReason=gpu_xid: Xid 79 (rallypoint)\n") || strings.Count(asked, "update") != 1 {
		t.Errorf("it has asked %q", asked)
	}
	drainSlurmNode(t.Context(), "n05", unfitReason(unfit), logger)
	if text := log.String(); !strings.Contains(text, "Slurm drains this node (n04)") || !strings.Contains(text, "Slurm does not drain this node (n05): exit status 1 Access denied") {
		t.Errorf("it has logged %s", text)
	}
	for _, wrong := range []string{"--slurm-drain x", "--slurm --slurm-drain x"} {
		if _, err := configured(t, wrong, "SLURM_JOB_ID=1"); err == nil || !strings.Contains(err.Error(), "--slurm-drain") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// slurm is what srun tells the task of the second of four nodes.
const slurm = "SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=4 SLURM_JOB_NUM_NODES=5 SLURM_STEP_NODELIST=n[03-05,9] " +
	"SLURM_JOB_NODELIST=n[02-05,9] SLURM_NODEID=1 SLURM_LOCALID=0 SLURMD_NODENAME=n04 SLURM_GPUS_ON_NODE=8"

func TestSlurm(t *testing.T) {
	for _, c := range []struct {
		args, env    string
		endpoint, id string
		nodes        [2]int
		rank         int
		workers      int
		node         string
	}{
		{"", slurm, "n03:30111", "slurm-4711", [2]int{4, 4}, 1, 8, "n04"},
		{"--nnodes=2:4", slurm, "n03:30111", "slurm-4711", [2]int{2, 4}, 1, 8, "n04"},
		{"--rdzv-endpoint=cp:29400 --rdzv-id=mine --node-rank=3 --nproc-per-node=2 --rdzv-conf=node_id=me", slurm, "cp:29400", "mine", [2]int{4, 4}, 3, 2, "me"},
		{"--rdzv-conf=join_timeout=9", slurm, "n03:30111", "slurm-4711", [2]int{4, 4}, 1, 8, "n04"},
		{"", slurm + " PET_NNODES=3 PET_RDZV_ENDPOINT=h:1", "h:1", "slurm-4711", [2]int{3, 3}, 1, 8, "n04"},
		{"", slurm + " SLURM_STEP_ID=2 SLURM_RESTART_COUNT=1", "n03:30111", "slurm-4711.2-restart-1", [2]int{4, 4}, 1, 8, "n04"},
		{"--nnodes=1:2", slurm + " SLURM_NODEID=3", "n03:30111", "slurm-4711", [2]int{1, 2}, -1, 8, "n04"},
		{"--segment=2 --topology=r1", slurm, "n03:30111", "slurm-4711", [2]int{4, 4}, -1, 8, "n04"}, // the task's number orders, but is no rank
		{"--rdzv-conf=segment=2,topology=r1", slurm, "n03:30111", "slurm-4711", [2]int{4, 4}, -1, 8, "n04"},
		// The script of sbatch itself, on the first node.
		{"", "SLURM_JOB_ID=12 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST=a,b", "a:29412", "slurm-12", [2]int{2, 2}, -1, 1, ""},
		{"", "SLURM_JOB_ID=12 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=a SLURM_NODEID=0", "", "slurm-12", [2]int{1, 1}, -1, 1, ""},
	} {
		m, err := configured(t, "--slurm "+c.args+" x", strings.Fields(c.env)...)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		p := m.rendezvous.params
		if p.Endpoint != c.endpoint || p.RunID != c.id || [2]int{p.Min, p.Max} != c.nodes || p.NodeRank != c.rank || m.spec.Workers != c.workers || p.NodeID != c.node {
			t.Errorf("%s: %q %q %d-%d rank %d, %d workers, node %q", c.args, p.Endpoint, p.RunID, p.Min, p.Max, p.NodeRank, m.spec.Workers, p.NodeID)
		}
	}
	for env, what := range map[string]string{
		"":                                "srun --ntasks-per-node=1 rallypoint run --slurm",
		"SLURM_JOB_ID=x":                  `"x"`,
		slurm + " SLURM_LOCALID=3":        "--ntasks-per-node=1",
		slurm + " SLURM_STEP_NODELIST=n[": "--rdzv-endpoint",
		slurm + " SLURM_STEP_NUM_NODES=0": "--nnodes",
		slurm + " SLURM_GPUS_ON_NODE=a":   "nproc_per_node",
	} {
		if _, err := configured(t, "--slurm x", strings.Fields(env)...); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", env, err)
		}
	}
	if _, err := configured(t, "--slurm --standalone x", strings.Fields(slurm)...); err == nil || !strings.Contains(err.Error(), "--standalone") {
		t.Error(err)
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"n1":                        "n1",
		"n1,n2":                     "n1",
		"n[3-5]":                    "n3",
		"n[003-005,7]":              "n003",
		"n[7,3-5],m1":               "n7",
		"rack[1-2]node[04-08]":      "rack1node04",
		"gpu-[01-02].cluster.local": "gpu-01.cluster.local",
		"n[5]-ib":                   "n5-ib",
		"":                          "",
		",n1":                       "",
		"n[":                        "",
		"n[]":                       "",
		"n[-3]":                     "",
		"n1;reboot":                 "",
		"n\x1b[2J]":                 "",
		strings.Repeat("n", 1<<20):  "",
	} {
		if got, ok := firstHost(list); got != want || ok != (want != "") {
			t.Errorf("%.40q: %q, %v", list, got, ok)
		}
	}
}
