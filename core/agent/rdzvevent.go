package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"rallypoint/core/rendezvous"
)

// rdzvEvent is one event of the rendezvous as it is written: torch's RdzvEvent (A97).
type rdzvEvent struct {
	Name           string `json:"name"`
	RunID          string `json:"run_id"`
	Message        string `json:"message"`
	Hostname       string `json:"hostname"`
	Pid            int    `json:"pid"`
	NodeState      string `json:"node_state"`
	MasterEndpoint string `json:"master_endpoint"`
	Rank           *int   `json:"rank"`
	LocalID        *int32 `json:"local_id"`
	ErrorTrace     string `json:"error_trace"`
}

// States of a node in events of the rendezvous.
const (
	nodeInit      = "INIT"
	nodeRunning   = "RUNNING"
	nodeSucceeded = "SUCCEEDED"
	nodeFailed    = "FAILED"
)

const nextRendezvous = "next_rendezvous"

// nodeSerial tells apart the agents of one process.
var nodeSerial atomic.Int32

// recordRdzv completes an event of the rendezvous and hands it to the sink, if there is
// one. The name is what torch's handler calls the step. Without a message it is made
// from a format, to which the node's name and the run id come first.
//
// The handler in Python writes the same events (python/rallypoint/_telemetry.py).
func (a *Agent) recordRdzv(e rdzvEvent, format string, args ...any) {
	if a.spec.RdzvEvents == nil {
		return // without asking a name server
	}
	node := fmt.Sprintf("%s_%d_%d", fqdn(), os.Getpid(), a.serial)
	if e.Message == "" {
		e.Message = fmt.Sprintf(format, append([]any{node, a.spec.RunID}, args...)...)
	}
	e.Name = "rallypoint:" + e.Name
	e.RunID, e.Hostname, e.Pid, e.LocalID = a.spec.RunID, fqdn(), os.Getpid(), &a.serial
	if text, err := json.Marshal(e); err == nil {
		a.spec.RdzvEvents.Record(text)
	}
}

// recordJoined records this node's place in a round, and on its first node that the
// round is complete.
func (a *Agent) recordJoined(o *rendezvous.Outcome) {
	e := rdzvEvent{
		Name: "mark_rendezvous_complete", NodeState: nodeSucceeded,
		Rank: &o.Rank, MasterEndpoint: net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort)),
	}
	if o.Rank == 0 {
		without := ""
		if len(o.Dropped) > 0 {
			without = ", without " + strings.Join(o.Dropped, ", ")
		}
		a.recordRdzv(e, "The node '%[1]s' is the first of round %[3]d of the rendezvous '%[2]s', which is complete in a world of size %[4]d%[5]s.",
			o.Round, o.World, without)
	}
	e.Name, e.NodeState = nextRendezvous, nodeRunning
	a.recordRdzv(e, "The node '%[1]s' has joined round %[3]d of the rendezvous '%[2]s' as rank %[4]d in a world of size %[5]d.", o.Round, o.Rank, o.World)
}

// recordRdzvError records an error of the rendezvous, by class and text as torch does.
func (a *Agent) recordRdzvError(step string, err error) {
	text := rdzvErrorClass(err) + ": " + err.Error()
	a.recordRdzv(rdzvEvent{Name: step, NodeState: nodeFailed, Message: text, ErrorTrace: text}, "")
}

// recordLeaving records that this node's round is over.
func (a *Agent) recordLeaving() {
	e := rdzvEvent{Name: "num_nodes_waiting", NodeState: nodeRunning, Rank: &a.assignment.Rank}
	a.recordRdzv(e, "The node '%s' is to leave its round of the rendezvous '%s': %s.", a.rdzv.Reason())
}

// recordShutdown records the end of this node's part in the run.
func (a *Agent) recordShutdown(ending rendezvous.Ending, err error) {
	e := rdzvEvent{Name: "shutdown", NodeState: nodeSucceeded}
	switch {
	case err != nil:
		e.NodeState, e.ErrorTrace = nodeFailed, err.Error()
		a.recordRdzv(e, "The node '%s' has failed to shutdown the rendezvous '%s' due to an error of type %s.", rdzvErrorClass(err))
	case ending == rendezvous.EndLeave:
		a.recordRdzv(e, "The node '%s' has left the rendezvous '%s'.")
	default:
		a.recordRdzv(e, "The node '%s' has closed the rendezvous '%s'.")
	}
}

// rdzvErrorClass is the class of torch that the Python handler raises for an error.
func rdzvErrorClass(err error) string {
	for _, class := range []struct {
		is   error
		name string
	}{
		{rendezvous.ErrClosed, "RendezvousClosedError"},
		{rendezvous.ErrGraceful, "RendezvousGracefulExitError"},
		{rendezvous.ErrTimeout, "RendezvousTimeoutError"},
		{rendezvous.ErrConnection, "RendezvousConnectionError"},
		{rendezvous.ErrState, "RendezvousStateError"},
	} {
		if errors.Is(err, class.is) {
			return class.name
		}
	}
	if signal := new(SignalError); errors.As(err, &signal) {
		return "SignalException"
	}
	return "RendezvousError"
}
