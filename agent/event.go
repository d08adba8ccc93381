package agent

import (
	"cmp"
	"time"

	"rallypoint/agent/process"
	"rallypoint/agent/telemetry"
)

// EventKind is the kind of an Event. The C ABI has the same numbers, so new ones are only
// appended.
type EventKind int

// The kinds of events.
const (
	EventJoining    EventKind = iota + 1 // the node waits for its place in the next round
	EventJoined                          // the node has its place, and its workers have their ranks
	EventStarted                         // a worker was started
	EventExited                          // a worker has ended
	EventStopping                        // the workers are being stopped; Text says why
	EventRestarting                      // the workers failed and will be started again; Text says how often
	EventEnded                           // the run has ended; Text is its error, "" for a success
	EventStalled                         // the job makes no step any more; Text says where its workers are, "": it makes steps again
)

// Event is one step of a run, for programs. The workers' fields are those of one
// worker in EventStarted and EventExited, and -1 else.
type Event struct {
	Kind EventKind
	Time time.Time
	Text string

	Round     uint64 // 0 before the first
	StoreAddr string // MASTER_ADDR of the workers
	StorePort int
	GroupRank int // of this node in the round
	Groups    int // nodes in the round
	World     int // workers in the round
	Restarts  int // charged to the job's budget so far

	LocalRank, Rank int
	Pid             int
	ExitCode        int // of an exited worker; negative: minus the signal

	AdvertisedAddr string // of the store, as its node advertises it
}

// listener makes Events of the messages that are for programs.
type listener func(Event)

// Take implements telemetry.Consumer.
func (l listener) Take(s telemetry.State, message telemetry.Message) {
	switch m := message.(type) {
	case telemetry.Joining:
		l.report(s, EventJoining, "", nil)
	case telemetry.RanksAssigned:
		l.report(s, EventJoined, "", nil)
	case telemetry.WorkersStarted:
		for _, p := range m.Workers {
			l.report(s, EventStarted, "", p)
		}
	case telemetry.WorkerExited:
		l.report(s, EventExited, "", m.Worker)
	case telemetry.Stalled:
		l.report(s, EventStalled, m.Text, nil)
	case telemetry.Stopping:
		if m.Why != "" {
			l.report(s, EventStopping, m.Why, nil)
		}
	case telemetry.Restarting:
		l.report(s, EventRestarting, m.Text, nil)
	case telemetry.Ended:
		text := ""
		if m.Err != nil {
			text = m.Err.Error()
		}
		l.report(s, EventEnded, text, nil)
	}
}

// report reports an event, of one worker if p is not nil.
func (l listener) report(s telemetry.State, kind EventKind, text string, p *process.Process) {
	e := Event{
		Kind: kind, Time: time.Now(), Text: text, Restarts: s.Restarts,
		LocalRank: -1, Rank: -1, Pid: -1, ExitCode: -1,
	}
	if at := s.Place; at != nil {
		e.Round, e.StoreAddr, e.StorePort = at.Round, at.StoreAddr, at.StorePort
		e.AdvertisedAddr = cmp.Or(at.AdvertisedAddr, at.StoreAddr)
		e.GroupRank, e.Groups, e.World = at.Group, at.Groups, at.Workers
	}
	if p != nil {
		e.LocalRank, e.Rank, e.Pid = p.Local, s.Place.FirstRank+p.Local, p.Pid
		if p.HasExited() {
			e.ExitCode = p.Code
		}
	}
	l(e)
}
