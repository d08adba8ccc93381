package agent

import (
	"rallypoint/agent/failure"
)

// FailedError ends a run because workers failed for good; torch's name for it is
// ChildFailedError.
type FailedError struct {
	Name     string            // of the entry point
	Failures []failure.Failure // of this and of other nodes, in the order in which they were seen; at least one
	Next     string            // what is done about it
	Unfit    bool              // this node has left the run, which keeps it out for a time (Spec.Leave)
	left     bool              // it ends this node's part alone
}

// Root is the failure that caused the others.
func (e *FailedError) Root() *failure.Failure { return &e.Failures[failure.RootCause(e.Failures)] }

// Error is the report of all failures, beginning with a line feed.
func (e *FailedError) Error() string { return failure.Report(e.Name, e.Failures, e.Next) }

// PeerError ends a run on a node whose own workers did not fail: the run was
// closed by another node.
type PeerError struct {
	Err      error             // of the rendezvous: who closed the run, and why
	Name     string            // of the entry point
	Failures []failure.Failure // of other nodes, the first is the cause; may be empty
	Next     string            // what is done about them; "": the rendezvous' error says it
}

func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the rendezvous.
func (e *PeerError) Unwrap() error { return e.Err }

// Report is the report of the other nodes' failures; "" if none is known.
func (e *PeerError) Report() string { return failure.Report(e.Name, e.Failures, e.Next) }

// RequeueError ends a run that a directive has ended: it has neither succeeded nor failed, and
// wants to be queued again.
type RequeueError struct {
	Err    error  // of the rendezvous
	Reason string // who asked for it, and why
}

func (e *RequeueError) Error() string { return "the job has ended: " + e.Reason }

// Unwrap returns the error of the rendezvous.
func (e *RequeueError) Unwrap() error { return e.Err }
