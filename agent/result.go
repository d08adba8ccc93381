package agent

import (
	"errors"

	"rallypoint/agent/failure"
)

// Result is how a run ended, and where this node and its workers stood at last.
type Result struct {
	Err   error // of Run
	Spare bool  // the run ended well and did not need this node
	// Notice is what to say of a node that was not needed, in one line; "" for any other.
	Notice string
	Idle   bool // no worker was started on this node

	Round     uint64 // of the last round; 0 if there was none
	GroupRank int    // of this node in it
	Groups    int    // nodes in it
	World     int    // workers in it
	Restarts  int    // charged to the job's budget

	// Workers are those of the last attempt, by local rank; none if none was
	// started.
	Workers []WorkerResult

	// Failures are of this node's workers, and of other nodes' as far as they published them;
	// Root is the index of the one that caused the others, -1 if there are none.
	Failures []failure.Failure
	Root     int
	Report   string // the report of the failures; "" if there are none
}

// WorkerResult is how one worker ended.
type WorkerResult struct {
	LocalRank, Rank         int
	RoleRank, RoleWorldSize int
	Pid                     int
	ExitCode                int // negative: minus the signal; -1 also if it could not be learned

	// Where it wrote: "" if its output went where the agent's goes, or nowhere.
	OutFile, ErrFile string
	ErrorFile        string // where its error file would be; "" without log files
}

// Result tells how the run ended. Call it after Run has returned.
func (a *Agent) Result() Result {
	r := Result{Err: a.err, Spare: a.unneeded != "", Notice: a.unneededText(), Idle: a.last == nil, Restarts: a.restarts.agreed, Root: -1}
	if s := a.assignment; s != nil {
		r.Round, r.GroupRank, r.Groups, r.World = s.Round, s.group, s.groups, s.ranks.world
	}
	if a.last != nil {
		r.Workers = a.last.results(a.assignment.ranks)
	}
	var failed *FailedError
	var peer *PeerError
	switch {
	case errors.As(a.err, &failed):
		r.Failures, r.Report = failed.Failures, failed.Error()
	case errors.As(a.err, &peer):
		r.Failures, r.Report = peer.Failures, peer.Report()
	case a.err == nil && a.spec.Keep:
		r.Failures, r.Report = a.lastFailures, failure.Report(a.name, a.lastFailures, "")
	}
	r.Root = failure.RootCause(r.Failures)
	return r
}

// unneededText is Result.Notice.
func (a *Agent) unneededText() string {
	switch {
	case a.unneeded == "":
		return ""
	case a.last == nil:
		return "this node was not needed, and no worker ran on it: " + a.unneeded
	}
	return "this node was not needed any more: " + a.unneeded
}

// results tells how the workers of an attempt ended, which they must have.
func (t *attempt) results(r ranks) []WorkerResult {
	var results []WorkerResult
	for _, p := range t.workers.Procs {
		output := &t.outputs[p.Local]
		w := WorkerResult{
			LocalRank: p.Local, Rank: r.base + p.Local, RoleRank: r.roleBase + p.Local, RoleWorldSize: r.roleWorld,
			Pid: p.Pid, ExitCode: -1, ErrFile: output.ErrFile, ErrorFile: output.ErrorFile,
		}
		if p.HasExited() {
			w.ExitCode = p.Code
		}
		if f := output.Out; f != nil {
			w.OutFile = f.Name()
		}
		results = append(results, w)
	}
	return results
}
