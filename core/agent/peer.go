package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// failuresKey collects one line for each node that ended the run, in the order
// in which the store got them: the first is the culprit, whatever the clocks of
// the nodes say (W21).
const failuresKey = "rallypoint/failures"

// maxPublished bounds what one node tells the others of a failure's message.
const maxPublished = 16 << 10

// peerFailure is a Failure as nodes tell it to each other.
type peerFailure struct {
	Rank      int       `json:"rank"`
	LocalRank int       `json:"local_rank"`
	Pid       int       `json:"pid"`
	ExitCode  int       `json:"exit_code"`
	Host      string    `json:"host"`
	Time      time.Time `json:"time"`
	ErrorFile string    `json:"error_file"`
	Message   string    `json:"message"`
}

// publish tells the other nodes the cause before the run is closed.
func (a *Agent) publish(f *Failure) {
	if a.seat.groups < 2 {
		return
	}
	message := f.Message
	if len(message) > maxPublished {
		message = "..." + strings.ToValidUTF8(message[len(message)-maxPublished:], "")
	}
	text, err := json.Marshal(peerFailure{f.Rank, f.LocalRank, f.Pid, f.ExitCode, f.Host, f.Time, f.ErrorFile, message})
	if err != nil {
		return
	}
	ctx, cancel := a.untilInterrupt(leastReport)
	defer cancel()
	if err := a.seat.keys.Append(ctx, failuresKey, append(text, '\n')); err != nil {
		a.log.Warn("cannot tell the other nodes of the failure: " + err.Error())
	}
}

// reportPeers reads what other nodes published if the run has ended by them,
// while the keys of the round can still be read.
func (a *Agent) reportPeers() {
	if !a.rdzv.Closed() || a.seat.groups < 2 {
		return
	}
	ctx, cancel := a.untilInterrupt(leastReport)
	defer cancel()
	there, err := a.seat.keys.Check(ctx, []string{failuresKey})
	if err != nil || !there {
		return
	}
	text, err := a.seat.keys.Get(ctx, failuresKey)
	if err != nil {
		return
	}
	a.seat.peers = parsePeers(text)
}

// parsePeers reads the lines of failuresKey; what is not understood is left out.
func parsePeers(text []byte) []Failure {
	var failures []Failure
	for line := range bytes.Lines(text) {
		var p peerFailure
		if json.Unmarshal(line, &p) != nil {
			continue
		}
		failures = append(failures, Failure{
			Rank: p.Rank, LocalRank: p.LocalRank, Pid: p.Pid, ExitCode: p.ExitCode,
			Host: p.Host, Time: p.Time, ErrorFile: p.ErrorFile, Message: p.Message,
			// The order of the store counts.
			order: time.Unix(0, int64(len(failures))),
		})
	}
	return failures
}

// summary is a failure in one line.
func (f *Failure) summary() string {
	how := fmt.Sprintf("exited with code %d", f.ExitCode)
	if f.ExitCode < 0 {
		how = fmt.Sprintf("was ended by signal %d (%s)", -f.ExitCode, f.SignalName())
	}
	return fmt.Sprintf("worker of rank %d (local rank %d, pid %d on %s) %s", f.Rank, f.LocalRank, f.Pid, f.Host, how)
}

// PeerError ends a run on a node whose own workers did not fail: the run was
// closed by another node.
type PeerError struct {
	Err      error     // of the rendezvous: who closed the run, and why
	Name     string    // of the entry point
	Failures []Failure // of other nodes, the first is the cause; may be empty
}

func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the rendezvous.
func (e *PeerError) Unwrap() error { return e.Err }

// Report is the report of the other nodes' failures (A78); "" if none is known.
func (e *PeerError) Report() string {
	if len(e.Failures) == 0 {
		return ""
	}
	return report(e.Name, e.Failures)
}
