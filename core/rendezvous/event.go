package rendezvous

import (
	"time"

	"rallypoint/core/store"
)

// Event is one input of the machine. The concrete types below are all there are;
// an entry of a log holds one of them.
type Event interface{ op() Op }

// Op numbers the events in logs, and of these the requests on the wire, too;
// append-only.
type Op uint64

// The operations.
const (
	OpJoin Op = iota + 1
	OpWithdraw
	OpLeave
	OpClose
	OpFinish
	OpAwaitPeers
	OpKey // the last of those that a node may ask for, but for OpAnnounceStop

	opHello
	opDisconnect
	opLeaseExpired
	opEvict
	opTimerFired
	opRecovered

	OpAnnounceStop Op = 23 // a request, too
	opDirect       Op = 24
	opCancel       Op = 25
	opUndrain      Op = 26

	OpReportDirective Op = 27 // a request, too
	OpGiveDirective   Op = 28 // a request, too

	opForget Op = 29
	opEnded  Op = 30
	opCordon Op = 31
)

// Hello announces a node, or a known session on a new connection.
type Hello struct {
	Session     SessionID
	Node        string
	Incarnation uint64
	Named       bool    // the node id was given by the user
	Label       string  // for display: "hostname pid 123"
	HostName    string  `json:",omitempty"` // of the node's machine; it stands for all nodes that have it. "": not known
	Topology    string  `json:",omitempty"` // domain of the node: its rack or NVLink domain; "": none
	Command     Command `json:",omitzero"`  // what the node runs
	Policy      Policy
	LastRound   LastRound `json:"Claim"` // the tag is its name in histories
	InHost      bool      // the node runs in the process that hosts the control plane
	SeenAddr    string    // the node's address as the control plane sees it
	ServerAddr  string    // the control plane's address on the same connection
	// BeginAgain has a closed run without live nodes begin again at once.
	BeginAgain bool `json:",omitempty"`
}

// Disconnect tells that a session's connection broke without a goodbye, or, with Dead, that the
// process whose connection broke is proven dead: there is nothing to wait for.
type Disconnect struct {
	Session SessionID
	Dead    bool `json:",omitzero"`
}

// LeaseExpired tells that a session was silent for longer than its lease.
type LeaseExpired struct {
	Session SessionID
}

// Request is the part common to all events that a node numbers. A number is
// applied exactly once; Acked tells that all answers up to it have arrived.
type Request struct {
	Session SessionID
	Number  uint64
	Acked   uint64
}

// part is promoted to all that embed a Request.
func (r Request) part() Request { return r }

// RequestOf returns the common part of a request; false for another event.
func RequestOf(ev Event) (Request, bool) {
	if ev, ok := ev.(interface{ part() Request }); ok {
		return ev.part(), true
	}
	return Request{}, false
}

// OpOf returns the number of an event, 0 for nil.
func OpOf(ev Event) Op {
	if ev == nil {
		return 0
	}
	return ev.op()
}

// IsRequest reports whether nodes number the operation and ask for it.
func (o Op) IsRequest() bool {
	return o >= OpJoin && o <= OpKey || o == OpAnnounceStop || o == OpReportDirective || o == OpGiveDirective
}

// Stamp returns the request ev with its common part set to r; nil if ev is no
// request. It is for those who carry requests to a machine.
func Stamp(ev Event, r Request) Event {
	if ev, ok := ev.(interface{ stamped(Request) Event }); ok {
		return ev.stamped(r)
	}
	return nil
}

// Join asks for a place in the next round. The answer is an Outcome or an error,
// and may take as long as it takes.
type Join struct {
	Request
	NodeRank  int    // preferred rank; -1: none
	RankHint  int    // scheduler's hint; -1: none
	StoreAddr string // announced host of the node's empty round store; "" lets the control plane choose
	StorePort int
}

// Withdraw takes the join with number Join back. If that join was answered
// before, its answer stands, as the reply then tells.
type Withdraw struct {
	Request
	Join uint64
}

// Ending says how a node's part in the run ended.
type Ending int

// How a node ends.
const (
	EndLeave   Ending = iota // it goes; the run stays open
	EndSuccess               // its agent ended normally
	EndFailed                // its workers failed for good
)

// Leave ends a node's part. A member of the last completed round that ends with
// EndSuccess or EndFailed closes the run; every other node merely leaves.
type Leave struct {
	Request
	Ending Ending
	Reason string
	At     time.Time // wall clock, for display only
}

// CloseRun ends admission for good and leaves the running round alone; with Stop
// it is a failed close: all nodes stop at once. Session may be empty (admin).
type CloseRun struct {
	Request
	By     string
	Reason string
	Stop   bool
	At     time.Time // wall clock, for display only
}

// Evict drops a node at an administrator's request.
type Evict struct {
	Node   string
	By     string
	Reason string
}

// Finish tells that all workers of the node succeeded.
type Finish struct{ Request }

// AwaitPeers asks for an answer once every other member of the last round has finished,
// left or is lost.
type AwaitPeers struct{ Request }

// TimerFired tells that a timer set by SetTimer has run out. One that was
// stopped or set again since is ignored.
type TimerFired struct{ Timer Timer }

// Recovered tells that the control plane was started again on what it had stored:
// all connections are gone. Each node has one lease, or Grace, to come back; no round
// completes without those that have joined while it runs.
type Recovered struct {
	// Generation is drawn at random by each start. The next round belongs to it, since what was
	// stored may be older than rounds of which no node can tell.
	Generation string
	Grace      time.Duration `json:",omitzero"` // instead of the lease; 0: the lease
	Alone      bool          `json:",omitzero"` // as a Succession's: the number of the next round leaves a gap
}

func (Forget) op() Op          { return opForget }
func (Ended) op() Op           { return opEnded }
func (Hello) op() Op           { return opHello }
func (Recovered) op() Op       { return opRecovered }
func (Disconnect) op() Op      { return opDisconnect }
func (LeaseExpired) op() Op    { return opLeaseExpired }
func (Join) op() Op            { return OpJoin }
func (Withdraw) op() Op        { return OpWithdraw }
func (Leave) op() Op           { return OpLeave }
func (CloseRun) op() Op        { return OpClose }
func (Evict) op() Op           { return opEvict }
func (Finish) op() Op          { return OpFinish }
func (AwaitPeers) op() Op      { return OpAwaitPeers }
func (KeyRequest) op() Op      { return OpKey }
func (TimerFired) op() Op      { return opTimerFired }
func (Cordon) op() Op          { return opCordon }
func (Direct) op() Op          { return opDirect }
func (CancelDirective) op() Op { return opCancel }
func (Undrain) op() Op         { return opUndrain }

func (j Join) stamped(r Request) Event       { j.Request = r; return j }
func (w Withdraw) stamped(r Request) Event   { w.Request = r; return w }
func (l Leave) stamped(r Request) Event      { l.Request = r; return l }
func (c CloseRun) stamped(r Request) Event   { c.Request = r; return c }
func (f Finish) stamped(r Request) Event     { f.Request = r; return f }
func (a AwaitPeers) stamped(r Request) Event { a.Request = r; return a }
func (k KeyRequest) stamped(r Request) Event { k.Request = r; return k }

// GiveDirective is a Direct by a node of the run: it says who it is by (By), and drains that
// node itself if it names none. The answer is an error that says why the directive cannot
// stand; one that is known already, or adds nothing to a stronger one that stands, is answered
// as if it were given.
type GiveDirective struct {
	Request
	Directive Direct

	// Unfit says of a drain that a check has found this node unfit (docs/decisions/0131): it is kept
	// out at its own request, from now on, if the others can continue without it. Within 0: its workers
	// have ended, and it leaves by itself.
	Unfit bool `json:",omitzero"`
}

func (GiveDirective) op() Op                    { return OpGiveDirective }
func (g GiveDirective) stamped(r Request) Event { g.Request = r; return g }

// ReportDirective reports the progress of a directive at a member of its round. First, that the
// node's workers are held, and at which step; then that they have saved. A repeated report, one of
// a directive that is over, and one of another round change nothing.
type ReportDirective struct {
	Request
	ID         string
	Generation string // of the round
	Round      uint64
	// Step is the largest over the node's workers of the step at which each is held, or one
	// past its last report; -1 if none reports steps.
	Step  int64
	Saved bool // they have saved, or have nothing to save
}

func (ReportDirective) op() Op                     { return OpReportDirective }
func (rd ReportDirective) stamped(r Request) Event { rd.Request = r; return rd }

// AnnounceStop tells that a node is about to stop the workers of its round, before it
// does: every other member of the round begins to stop its own at once, instead of when
// this node has finished (docs/decisions/0045). The first announcement of a round counts
// and stands until the next round is complete. One that comes again, or for another round
// than the running one, changes nothing.
type AnnounceStop struct {
	Request
	Generation string // of the round
	Round      uint64
	Leaving    bool   // the node was asked to end and will not rejoin; else its workers failed
	Reason     string // human-readable: who failed, or who asked

	// Away asks for the node to leave the run as unfit and to be kept out for so long
	// (docs/decisions/0121); 0: it does not ask. It is answered by an error that says why the
	// node stays; the stop then stands as that of a failure.
	Away time.Duration `json:",omitzero"`
}

func (AnnounceStop) op() Op                    { return OpAnnounceStop }
func (a AnnounceStop) stamped(r Request) Event { a.Request = r; return a }

// Forget has a closed run begin again, as an administrator asks: the next node finds it open.
type Forget struct {
	By     string
	Reason string
}

// Ended is the first event of a log that takes the place of another one, whose run had ended:
// the run is closed like that, and stays so for the rest of its time.
type Ended struct {
	Closing Closing
	For     time.Duration
	// Machine and Uptime are whose clock said when, for the log: a clock that nobody can set.
	Machine string        `json:",omitempty"`
	Uptime  time.Duration `json:",omitempty"`
}

// After returns what is left of the time at a later reading of the clock by which the event was
// written.
func (e Ended) After(uptime time.Duration) *Ended {
	e.For -= max(0, uptime-e.Uptime)
	e.Uptime = uptime
	return &e
}

// KeyRequest is one operation on the agents' keys of a round. It means what
// docs/spec/tcpstore-wire.md section 4 says, on keys that belong to (run, round).
type KeyRequest struct {
	Request
	Round  uint64
	Op     store.Op
	Keys   []string
	Values [][]byte
	Amount int64 // delta of OpAdd, world size of OpBarrier; OpCancelWait: number of the request whose wait ends
}
