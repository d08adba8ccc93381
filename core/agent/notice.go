package agent

import (
	"rallypoint/core/agent/process"
)

import "time"

// EventKind says what an Event is about. Numbers are append-only: they are those of
// the C ABI.
type EventKind int

// The kinds of notices.
const (
	EventJoining    EventKind = iota + 1 // the node waits for its place in the next round
	EventJoined                          // the node has its place, and its workers have their ranks
	EventStarted                         // a worker was started
	EventExited                          // a worker has ended
	EventStopping                        // the workers are being stopped; Text says why
	EventRestarting                      // the workers failed and will be started again; Text says how often
	EventEnded                           // the run has ended; Text is its error, "" for a success
)

// Event is one step of a run, for programs. The workers' fields are those of one
// worker in NoticeStarted and NoticeExited, and -1 else.
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
}

// notify hands an event to the spec's Notify, if there is one.
func (a *Agent) notify(kind EventKind, text string) { a.notifyWorker(kind, text, nil) }

func (a *Agent) notifyWorker(kind EventKind, text string, p *process.Process) {
	if a.spec.Notify == nil {
		return
	}
	n := Event{
		Kind: kind, Time: time.Now(), Text: text, Restarts: a.restarts,
		LocalRank: -1, Rank: -1, Pid: -1, ExitCode: -1,
	}
	if s := a.assignment; s != nil {
		n.Round, n.StoreAddr, n.StorePort = s.Round, s.StoreAddr, s.StorePort
		n.GroupRank, n.Groups, n.World = s.group, s.groups, s.ranks.world
	}
	if p != nil {
		n.LocalRank, n.Rank, n.Pid = p.Local, a.assignment.ranks.base+p.Local, p.Pid
		if p.HasExited() {
			n.ExitCode = p.Code
		}
	}
	a.spec.Notify(n)
}
