package rendezvous

import (
	"net"
	"strconv"
	"time"
)

// Effect is one thing that the driver must do after an event, in order.
type Effect interface{ effect() }

// Welcome answers a Hello. Resumed tells that the session was known: the node sends requests that
// were not answered yet again, with their numbers.
type Welcome struct {
	Session SessionID
	Resumed bool
	Update  MembershipUpdate `json:"Notice"` // the tag is its name in histories
}

// Refuse answers a Hello that cannot be accepted; the connection is closed.
type Refuse struct {
	Session SessionID
	Err     *Error
}

// Reply answers a request. Exactly one of Err and Result is set; a Result of nil
// with a nil Err is a plain acknowledgement.
type Reply struct {
	Session SessionID
	Number  uint64
	Result  Result
	Err     *Error
}

// Result is the body of a Reply.
type Result interface{ result() }

// Outcome is a node's place in a completed round, the same record for all its
// members but for Rank.
type Outcome struct {
	Generation string
	Round      uint64
	Rank       int
	World      int
	HostRank   int    // rank of the member that hosts the control plane; -1: none does
	StoreAddr  string // host of the round store
	StorePort  int
	Dropped    []string // members of the last round that this one continues without, with the reason

	// AdvertisedAddr is the host that the rank-0 node advertises for its round store, the
	// same on all nodes, once a node has entered the round: StoreAddr and StorePort are then
	// where this node's workers connect. The machine leaves it empty.
	AdvertisedAddr string `json:",omitempty"`

	// ByDirective tells that a drain or a scale has ended the round before.
	ByDirective bool   `json:",omitempty"`
	Domains     string `json:",omitzero"` // of the round's segments, for a successor of the control plane; "": they are not told
	Commands    string `json:",omitzero"` // that the members run different commands, human-readable; "": they do not, as far as is known
}

// KeyResult is the answer to a KeyRequest.
type KeyResult struct {
	Values [][]byte
	Keys   []string
	Number int64
	Ready  bool
}

// Withdrawn answers a Withdraw. Completed tells that the join had been answered
// before: its Outcome (or error) stands and is delivered as usual.
type Withdrawn struct {
	Completed bool
	Progress  Progress // what the join waited for when it was taken back
}

// LastRound is what the node of an outcome says of its round from then on.
func (o Outcome) LastRound() LastRound {
	return LastRound{Generation: o.Generation, Round: o.Round, Rank: o.Rank, World: o.World, HostRank: o.HostRank, Store: o.store()}
}

// StoreEndpoint is the round's store as HOST:PORT.
func (o Outcome) StoreEndpoint() string {
	return net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort))
}

// store is StoreEndpoint; "" for one whose host no report can name.
func (o Outcome) store() string {
	if store := o.StoreEndpoint(); o.StoreAddr != "" && len(store) <= MaxNameLen {
		return store
	}
	return ""
}

func (Outcome) result()   {}
func (KeyResult) result() {}
func (Withdrawn) result() {}

// MembershipUpdate is a node's view of what it should know while its workers run. It is
// level-triggered: the last one holds until the next.
type MembershipUpdate struct {
	Waiting int    // num_nodes_waiting
	Closed  bool   // is_closed
	Reason  string // why Waiting or Closed changed, human-readable; in the Welcome of a node that begins a closed run again: how it had ended
	Facts   Facts  `json:",omitzero"` // for a successor of the control plane

	// Stop is the announced stop of the node's round; its round counts in Waiting.
	Stop RoundStop `json:",omitzero"`

	// Directive is the standing one in the node's view.
	Directive DirectiveNotice `json:",omitzero"`

	// Requeue says of a closed run that it was ended by a directive, to be queued again: it
	// has neither succeeded nor failed.
	Requeue bool `json:",omitzero"`

	// OnlyLost says that Waiting is above 0 because of lost members alone: no other member has
	// stopped its workers for another round. A node that can continue without them may do so.
	OnlyLost bool `json:",omitzero"`

	// Planned says that Waiting is above 0 because the job grows or shrinks, and for nothing else:
	// every member of the round still runs, so that they can leave it at one step.
	Planned bool `json:",omitzero"`
}

// Equal reports whether two updates say the same.
func (m *MembershipUpdate) Equal(v *MembershipUpdate) bool {
	return m.Waiting == v.Waiting && m.Closed == v.Closed && m.Requeue == v.Requeue && m.OnlyLost == v.OnlyLost && m.Planned == v.Planned && m.Reason == v.Reason &&
		m.Stop == v.Stop && m.Directive == v.Directive && m.Facts.Equal(v.Facts)
}

// Notify carries a membership update to a node.
type Notify struct {
	Session SessionID
	Update  MembershipUpdate `json:"Notice"` // the tag is its name in histories
}

// Drop ends a session's connection; Err tells its node why.
type Drop struct {
	Session SessionID
	Err     *Error
}

// SetTimer asks for a TimerFired after a delay, replacing a timer of that name.
type SetTimer struct {
	Timer Timer
	After time.Duration
}

// StopTimer takes a timer back.
type StopTimer struct{ Timer Timer }

// HistoryEntry is one line of the run's history, for logs and status.
type HistoryEntry struct{ Text string }

func (Welcome) effect()      {}
func (Refuse) effect()       {}
func (Reply) effect()        {}
func (Notify) effect()       {}
func (Drop) effect()         {}
func (SetTimer) effect()     {}
func (StopTimer) effect()    {}
func (HistoryEntry) effect() {}

// Timer names one timer of a run. Seq tells a timer from an earlier one of the
// same name, so that a late TimerFired does nothing.
type Timer struct {
	Kind    TimerKind
	Session SessionID // of TimerGrace, and what a timer of directives is about
	Seq     uint64
}

// TimerKind is what a timer is for; the numbers are append-only.
type TimerKind int

// The timers.
const (
	TimerLastCall TimerKind = iota + 1
	TimerQuiet
	TimerRegroup
	TimerAdmit
	TimerGrace
	TimerHold
)

// The timers of directives; their names have the directive's id, or the node's, as session.
const (
	TimerDirective TimerKind = 23 + iota // the deadline
	TimerDrained                         // the node may come back
	TimerAgree                           // its members have had their time to answer
	timerTurn                            // of states before version 5
)

// TimerClosed ends the time for which a closed run stays closed; it runs for as long.
const TimerClosed TimerKind = 33

// Facts are what the node of an outcome knows of its round before the first update.
func (o Outcome) Facts() Facts {
	return Facts{Generation: o.Generation, Origin: o.Generation, Round: o.Round, World: o.World, HostRank: o.HostRank, Domains: o.Domains}
}

// Progress says what a pending join waits for, human-readable.
type Progress struct {
	Headline string // "2 of 4 nodes here"
	Detail   string // "here: …; missing: …"
	Spare    bool   // the round runs without this node and has no place for it: its join has no deadline
}

// RoundStop says that the members of a round stop their workers, because one of them
// announced it. It belongs to that round alone.
type RoundStop struct {
	Round   uint64 // 0: no stop is announced
	Rank    int    // of the node that announced it first
	Leaving bool   // that node ends its part; else its workers failed
	Reason  string // why it stops
	Lost    bool   // a member of the round is lost: a failure may follow from that
}

// Answer tells an administrator what became of a request: an Evict, Direct, CancelDirective,
// Cordon, Undrain, Forget, or CloseRun of no session. Apply returns exactly one for each, made from the state
// to which the request was applied.
type Answer struct {
	Text    string // what was done, in one sentence; "" with an error
	Err     *Error // why nothing was done
	Changed bool   // the state is another one now
}

func (Answer) effect() {}
