package agent

import (
	"errors"

	"rallypoint/core/rendezvous"
)

// RequeueError ends a run that a directive has ended: it has neither succeeded nor failed, and
// wants to be queued again.
type RequeueError struct {
	Err    error  // of the rendezvous
	Reason string // who asked for it, and why
}

func (e *RequeueError) Error() string { return "the job has ended: " + e.Reason }

// Unwrap returns the error of the rendezvous.
func (e *RequeueError) Unwrap() error { return e.Err }

// asRunEnded returns how this node ends after err has ended its rounds. If a directive has ended
// the run, every node ends that way, whatever has failed on it meanwhile (docs/decisions/0081).
func (a *Agent) asRunEnded(err error) error {
	requeued := a.requeued(nil)
	if requeued == nil || errors.As(err, new(*RequeueError)) || errors.Is(err, rendezvous.ErrGraceful) || errors.Is(err, rendezvous.ErrUnfit) {
		return err
	}
	a.log.Warn("this node's own result does not count, because the run had already ended: " + briefly(err))
	return requeued
}

// briefly is how a node ends, in one line.
func briefly(err error) string {
	var failed *FailedError
	switch {
	case err == nil:
		return "its workers succeeded, and not all of the others' had"
	case errors.As(err, &failed):
		return failed.Root().Summary()
	}
	return err.Error()
}
