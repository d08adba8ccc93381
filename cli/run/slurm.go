package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"rallypoint/agent"
	"rallypoint/internal/printable"
)

// slurmPorts is how many ports from 29400 on the jobs of a cluster are spread over, so
// that those which share a machine rarely share one.
const slurmPorts = 1000

// fillFromSlurm sets options that neither the command line nor a PET_ variable gives from the
// variables that srun gives its tasks. One task on each node is one node of the job.
func (o *options) fillFromSlurm(env environ) error {
	job, err := strconv.ParseUint(env.get("SLURM_JOB_ID"), 10, 64)
	if err != nil {
		return usagef("argument --slurm: SLURM_JOB_ID is %q: it is for what Slurm starts, as in `srun --ntasks-per-node=1 rallypoint run --slurm ...`", env.get("SLURM_JOB_ID"))
	}
	if o.standalone {
		return usagef("argument --slurm: it says where the nodes of a job meet, --standalone that there is one node")
	}
	if local := env.get("SLURM_LOCALID"); local != "" && local != "0" {
		return usagef("argument --slurm: this is task %s of its node; give srun --ntasks-per-node=1, workers are started by --nproc-per-node", local)
	}
	if gpus := env.get("SLURM_GPUS_ON_NODE"); gpus != "" {
		o.fill("nproc-per-node", gpus)
	}
	nodes := cmp.Or(env.get("SLURM_STEP_NUM_NODES"), env.get("SLURM_JOB_NUM_NODES"), env.get("SLURM_NNODES"))
	if nodes != "" {
		o.fill("nnodes", nodes)
	}
	o.fill("rdzv-id", slurmRunID(job, env))
	_, most, err := parseNodes(o.nnodes)
	if err != nil || most == 1 {
		return err // one node needs no endpoint
	}
	if !o.given["rdzv-endpoint"] && !o.given["master-addr"] {
		list := cmp.Or(env.get("SLURM_STEP_NODELIST"), env.get("SLURM_JOB_NODELIST"), env.get("SLURM_NODELIST"))
		host, ok := firstHost(list)
		if !ok {
			return usagef("argument --slurm: the list of nodes is %.200q, of which the first cannot be told; give --rdzv-endpoint", list)
		}
		o.fill("rdzv-endpoint", host+":"+strconv.FormatUint(29400+job%slurmPorts, 10))
	}
	if rank, err := strconv.Atoi(env.get("SLURM_NODEID")); err == nil && rank < most && o.segment == 1 && !strings.Contains(o.conf, "segment=") { // else one of the spares; with segments it is a hint
		o.fill("node-rank", strconv.Itoa(rank))
	}
	if name := env.get("SLURMD_NODENAME"); name != "" && !strings.Contains(o.conf, "node_id=") {
		o.conf = strings.TrimPrefix(o.conf+",node_id="+name, ",")
	}
	return nil
}

func (o *options) fill(name, value string) {
	if o.given[name] {
		return
	}
	f, _ := findOption(name, o.legacy) // the table has it
	f.convert(o, value)
	o.given[name] = true
}

const scontrolPatience = 10 * time.Second

// unfitReason is why a node has found itself unfit, in one line; "": it has not.
func unfitReason(err error) string {
	var unfit *agent.UnfitError
	var failed *agent.FailedError
	reason := ""
	switch {
	case errors.As(err, &unfit):
		reason = fmt.Sprint(unfit.Verdict)
	case errors.As(err, &failed) && failed.Unfit:
		reason = failed.Root().Summary()
	default:
		return ""
	}
	const most = 250
	reason = printable.Text(reason)
	return strings.ToValidUTF8(reason[:min(len(reason), most)], "")
}

func drainSlurmNode(ctx context.Context, node, reason string, log *slog.Logger) {
	if reason == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, scontrolPatience)
	defer cancel()
	command := exec.CommandContext(ctx, "scontrol", "update", "NodeName="+node, "State=DRAIN", "Reason="+reason+" (rallypoint)") // sinfo shows its first 20 characters
	command.WaitDelay = time.Second
	if said, err := command.CombinedOutput(); err != nil {
		log.Warn(fmt.Sprintf("Slurm does not drain this node (%s): %v %s", node, err, printable.Text(strings.TrimSpace(string(said)))))
		return
	}
	log.Warn(fmt.Sprintf("Slurm drains this node (%s): %s", node, reason))
}

// slurmRunID names a step, and each time that its job is started again another run:
// one that has ended is not joined.
func slurmRunID(job uint64, env environ) string {
	id := "slurm-" + strconv.FormatUint(job, 10)
	if step := env.get("SLURM_STEP_ID"); step != "" && step != "0" {
		id += "." + step
	}
	if count := env.get("SLURM_RESTART_COUNT"); count != "" && count != "0" {
		id += "-restart-" + count
	}
	return id
}

// firstHost is the first name in a list such as n[03-05,9],login or r[1-2]n[1-4]-ib.
func firstHost(list string) (host string, ok bool) {
	var name strings.Builder
	for list != "" && list[0] != ',' {
		if name.Len() > 253 {
			return "", false
		}
		if list[0] != '[' {
			name.WriteByte(list[0])
			list = list[1:]
			continue
		}
		inside, rest, closed := strings.Cut(list[1:], "]")
		number := inside
		if i := strings.IndexAny(inside, "-,"); i >= 0 {
			number = inside[:i]
		}
		if !closed || number == "" {
			return "", false
		}
		name.WriteString(number)
		list = rest
	}
	host = name.String()
	for _, c := range []byte(host) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return "", false
		}
	}
	return host, host != ""
}
