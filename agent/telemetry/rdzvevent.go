package telemetry

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/host"
)

// rdzvEvent is one event of the rendezvous as it is written: torch's RdzvEvent.
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

// rdzvEvents hands torch's events of the rendezvous to a sink.
type rdzvEvents struct{ run *Run }

// Take implements Consumer.
func (r *rdzvEvents) Take(s State, message Message) {
	switch m := message.(type) {
	case Created:
		r.record(rdzvEvent{Name: "create_handler", NodeState: nodeInit}, "The node '%s' takes part in the rendezvous '%s' by the backend '%s'.", r.run.Backend)
	case Joining:
		r.record(rdzvEvent{Name: nextRendezvous, NodeState: nodeRunning}, "The node '%s' attempts to join the next round of the rendezvous '%s'.")
	case JoinFailed:
		class := rdzvErrorClass(m.Err)
		if m.Interrupted {
			class = "SignalException"
		}
		text := class + ": " + m.Err.Error() // as torch does
		r.record(rdzvEvent{Name: nextRendezvous, NodeState: nodeFailed, Message: text, ErrorTrace: text}, "")
	case Joined:
		r.joined(s.Place)
	case Leaving:
		r.record(rdzvEvent{Name: "num_nodes_waiting", NodeState: nodeRunning, Rank: &s.Place.Rank},
			"The node '%s' is to leave its round of the rendezvous '%s': %s.", m.Reason)
	case ShutDown:
		r.shutDown(m)
	}
}

// record completes a rendezvous event and passes it to the sink. The name is the one that torch's
// handler uses for the step. An event without a message gets one from a format, whose first
// arguments are the node's name and the run id.
//
// The handler in Python says the same of its own steps (python/rallypoint/handler.py).
func (r *rdzvEvents) record(event rdzvEvent, format string, args ...any) {
	node := fmt.Sprintf("%s_%d_%d", host.FullNameOf(r.run.Host), os.Getpid(), r.run.Serial)
	if event.Message == "" {
		event.Message = fmt.Sprintf(format, append([]any{node, r.run.ID}, args...)...)
	}
	event.Name = "rallypoint:" + event.Name
	event.RunID, event.Hostname, event.Pid, event.LocalID = r.run.ID, host.FullNameOf(r.run.Host), os.Getpid(), &r.run.Serial
	writeLine(r.run.RdzvEvents, event)
}

// joined records this node's place in a round, and on its first node that the
// round is complete.
func (r *rdzvEvents) joined(o *Place) {
	event := rdzvEvent{
		Name: "mark_rendezvous_complete", NodeState: nodeSucceeded,
		Rank: &o.Rank, MasterEndpoint: net.JoinHostPort(cmp.Or(o.AdvertisedAddr, o.StoreAddr), strconv.Itoa(o.StorePort)),
	}
	if o.Rank == 0 {
		without := ""
		if len(o.Dropped) > 0 {
			without = ", without " + strings.Join(o.Dropped, ", ")
		}
		r.record(event, "The node '%[1]s' is the first of round %[3]d of the rendezvous '%[2]s', which is complete in a world of size %[4]d%[5]s.",
			o.Round, o.World, without)
	}
	event.Name, event.NodeState = nextRendezvous, nodeRunning
	r.record(event, "The node '%[1]s' has joined round %[3]d of the rendezvous '%[2]s' as rank %[4]d in a world of size %[5]d.", o.Round, o.Rank, o.World)
}

func (r *rdzvEvents) shutDown(m ShutDown) {
	event := rdzvEvent{Name: "shutdown", NodeState: nodeSucceeded}
	switch {
	case m.Err != nil:
		event.NodeState, event.ErrorTrace = nodeFailed, m.Err.Error()
		r.record(event, "The node '%s' has failed to shutdown the rendezvous '%s' due to an error of type %s.", rdzvErrorClass(m.Err))
	case m.Ending == rendezvous.EndLeave:
		r.record(event, "The node '%s' has left the rendezvous '%s'.")
	default:
		r.record(event, "The node '%s' has closed the rendezvous '%s'.")
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
	return "RendezvousError"
}
