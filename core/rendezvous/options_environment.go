package rendezvous

import (
	"fmt"
	"strings"
)

// envNodeRank is torchrun's variable for --node-rank. Stock torchrun hides the
// flag from plug-ins, but not the variable.
const envNodeRank = "PET_NODE_RANK"

// EnvTokenFile names the token file where no option does.
const EnvTokenFile = "RALLYPOINT_TOKEN_FILE"

// rankHints are the variables by which schedulers number the nodes of a job, in
// the order in which they are asked. A launcher that numbers processes counts
// only where it says that it started one process on this node.
var rankHints = []struct {
	variable string
	alone    string // variable that must be "1": processes of the job on this node
}{
	{"SLURM_NODEID", ""},                                   // Slurm: number of the node in the job step
	{"AWS_BATCH_JOB_NODE_INDEX", ""},                       // AWS Batch: node of a multi-node parallel job
	{"JOB_COMPLETION_INDEX", ""},                           // Kubernetes: pod of an indexed Job, also in a JobSet
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}, // Open MPI
	{"PMI_RANK", "MPI_LOCALNRANKS"},                        // Hydra: MPICH, Intel MPI
}

// SetEnvironment takes what the environment says of this node's rank and of the
// token file. getenv is os.Getenv or of its kind.
//
// PET_NODE_RANK is taken as NodeRank if that is not set. The first of these that
// is set is taken as RankHint, if that is not set: SLURM_NODEID,
// AWS_BATCH_JOB_NODE_INDEX, JOB_COMPLETION_INDEX, OMPI_COMM_WORLD_RANK (if
// OMPI_COMM_WORLD_LOCAL_SIZE is 1), PMI_RANK (if MPI_LOCALNRANKS is 1). A hint
// that is wrong does no harm: it counts only if no other node has it
// (docs/design.md, guarantee 10).
//
// RALLYPOINT_TOKEN_FILE is taken as TokenFile if that is not set and there is an
// endpoint: without one a job has one node, and no peer to prove anything to.
//
// RALLYPOINT_SECURITY is taken as Security.
//
// A value that is no rank is ignored with a warning. Call it after SetOptions and
// after Endpoint and Max are set: a rank that is not below Max is none.
func (p *Params) SetEnvironment(getenv func(string) string) (warnings []string) {
	if p.NodeRank < 0 {
		if text := getenv(envNodeRank); text != "" {
			rank, expected := parseRank(text, p.Max)
			if expected != "" {
				warnings = append(warnings, fmt.Sprintf("environment variable %s=%.80q is ignored: expected %s", envNodeRank, text, expected))
			}
			p.NodeRank = rank
		}
	}
	if p.TokenFile == "" && p.Endpoint != "" {
		p.TokenFile = getenv(EnvTokenFile)
	}
	p.Security = getenv(EnvSecurity)
	if p.RankHint >= 0 {
		return warnings
	}
	for _, hint := range rankHints {
		text := getenv(hint.variable)
		if text == "" || hint.alone != "" && strings.TrimSpace(getenv(hint.alone)) != "1" {
			continue
		}
		rank, expected := parseRank(text, 0)
		if expected != "" {
			warnings = append(warnings, fmt.Sprintf("environment variable %s=%.80q is ignored: expected %s", hint.variable, text, expected))
			continue
		}
		p.RankHint = rank
		break
	}
	return warnings
}

// parseRank returns -1 and what is expected if text is no rank below limit; a
// limit of 0 is none.
func parseRank(text string, limit int) (rank int, expected string) {
	rank = -1
	expected = setInt(&rank, text, 0)
	if expected == "" && limit > 0 && rank >= limit {
		return -1, fmt.Sprintf("a rank below the maximum number of nodes (%d)", limit)
	}
	return rank, expected
}
