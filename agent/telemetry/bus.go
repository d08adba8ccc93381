// Package telemetry reports what an agent does. The agent publishes each message once, and sinks
// turn it into the status and metrics of the health port, torch's events, rendezvous events and
// metrics, and lines of the log.
package telemetry

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/agent/process"
	"rallypoint/agent/watchdog"
	"rallypoint/core/rendezvous"
)

// Run has the constants of a run.
type Run struct {
	ID, Role    string
	Host        string // name of the machine; "": the kernel's
	Backend     string // of the rendezvous
	Argv        []string
	MaxRestarts int
	Serial      int32 // of the agent among those of this process

	// Torch's events and metrics, a line of JSON a call. A write must not wait: the agent would.
	Events     io.Writer // of the agent and its workers; nil: none
	RdzvEvents io.Writer // of the rendezvous; nil: none
	Metrics    io.Writer // nil: none

	Spans Spans // of its traces; nil: none
	Log   *slog.Logger
}

// writeLine writes an event or a metric.
func writeLine(to io.Writer, v any) {
	text, _ := json.Marshal(v) // these types cannot fail
	_, _ = to.Write(append(text, '\n'))
}

// remaining is the number of restarts left in the budget.
func (r *Run) remaining(s State) int { return r.MaxRestarts - s.Restarts + s.Expired }

// State is the state of the run when a message is published.
type State struct {
	Place    *Place        // nil before the first round
	Restarts int           // charged to the job's budget, as agreed in the last round
	Used     int           // Restarts, with a failure of this node that is still to be charged
	Expired  int           // of Restarts, those that do not count against the budget any more
	Ran      time.Duration // 0 until the workers have ended for good
}

// Place is this node's place in a round.
type Place struct {
	rendezvous.Outcome
	Group, Groups       int                                  // rank of this node, and how many there are
	FirstRank, Workers  int                                  // rank of local rank 0, and how many workers there are
	RoleRank, RoleWorld int                                  // the same among those of this node's role
	Members             func(context.Context) []MemberStatus // asks the round's store; nil if it does not answer
}

// The messages, in the order in which a run publishes them.
type (
	// Created begins a run.
	Created struct{}
	// Checking says that checks examine the node while no worker runs.
	Checking struct{}
	// Joining says that the node waits for its place in the next round.
	Joining struct{}
	// JoinFailed says that it gets none; Interrupted: because of a signal.
	JoinFailed struct {
		Err         error
		Interrupted bool
	}
	// Joined says that it has its place, after Took.
	Joined struct{ Took time.Duration }
	// RanksAssigned says that the workers have their ranks.
	RanksAssigned struct{}
	// WorkersStarted has the workers of an attempt, and a line for the log.
	WorkersStarted struct {
		Workers []*process.Process
		Summary string
	}
	// WatchdogActed has the name of torch's event, and the timer that it is about, or nil.
	WatchdogActed struct {
		Name  string
		Timer *watchdog.Timer
	}
	// Monitored has the state in which a look at the workers found them.
	Monitored struct{ State string }
	// WorkerExited says that a worker has ended.
	WorkerExited struct{ Worker *process.Process }
	// Stalled says that the job makes no step any more and where its workers are, in one sentence,
	// and which ranks are suspects; without Text that it steps again.
	Stalled struct {
		Text     string
		Suspects []int
	}
	// FirstStep says when a worker made the first training step of a round.
	FirstStep struct{ At time.Time }
	// Leaving says why the node leaves its round.
	Leaving struct{ Reason string }
	// Stopping says that the agent stops the rest of an attempt, and why, "" after a success.
	// Warning is for the log, "" for none.
	Stopping struct{ Why, Warning string }
	// AttemptFailed has the failure that caused the others; Overdue: it is by the watchdog.
	AttemptFailed struct {
		Root    *failure.Failure
		Overdue bool
	}
	// PeerFailed has the failure of another node's worker by which the round ended.
	PeerFailed struct{ Root *failure.Failure }
	// Stays says that the node asked to leave as unfit, and was refused.
	Stays struct{}
	// Restarting says how often the workers have been started again.
	Restarting struct{ Text string }
	// WorkersEnded has the workers of the last attempt, once no other follows.
	WorkersEnded struct {
		Workers   []*process.Process
		Succeeded bool // all of them
		Failures  []failure.Failure
	}
	// Finishing says that the workers succeeded and the node waits for the others.
	Finishing struct{}
	// RunDone says how the rounds ended; Failure: workers failed for good.
	RunDone struct {
		Err     error
		Failure bool
	}
	// Ending says that the node ends its part in the rendezvous.
	Ending struct{}
	// ShutDown says how that went.
	ShutDown struct {
		Ending rendezvous.Ending
		Err    error
	}
	// Measured has the result of a run whose workers have exited on their own. Failed says that
	// they failed.
	Measured struct{ Failed bool }
	// StepDone says how long a step took, and whether it failed.
	StepDone struct {
		Step Step
		Took time.Duration
		Err  error
	}
	// Ended says how Run returns.
	Ended struct{ Err error }
)

// Message is one of the above.
type Message any

// Consumer takes messages, one at a time, and leaves out those that are not for it.
type Consumer interface {
	Take(s State, message Message)
}

// Bus hands messages to consumers, in order. It is for one goroutine.
type Bus struct{ consumers []Consumer }

// NewBus returns a bus for the sinks of a run, its status, and other consumers.
func NewBus(run *Run, status *StatusTracker, others ...Consumer) *Bus {
	b := &Bus{consumers: []Consumer{&logLines{run}, status}}
	if run.RdzvEvents != nil {
		b.consumers = append(b.consumers, &rdzvEvents{run})
	}
	if run.Events != nil {
		b.consumers = append(b.consumers, &torchEvents{run})
	}
	if run.Metrics != nil {
		b.consumers = append(b.consumers, &metrics{run})
	}
	if run.Spans != nil {
		b.consumers = append(b.consumers, &traces{run: run})
	}
	b.consumers = append(b.consumers, others...)
	return b
}

// Publish hands a message to all consumers.
func (b *Bus) Publish(s State, message Message) {
	for _, c := range b.consumers {
		c.Take(s, message)
	}
}
