package agent

import (
	"context"
	"errors"
	"sync"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
)

// badResults is how many bad results in a row take a node out that has passed its checks before.
const badResults = 2

// checkWatch examines the node every Spec.CheckEvery, while its workers run and while it waits for
// a place.
type checkWatch struct {
	a *Agent

	mu      sync.Mutex
	waiting context.CancelFunc // ends the wait for a place; nil: the node does not wait
	member  bool               // it waits for the next round as a member of the last one
	unfit   *UnfitError        // the node leaves for it; nil: it stays
}

// watchChecks begins to examine the node, until stop is called, which waits for that.
func (a *Agent) watchChecks() (stop func()) {
	if a.spec.CheckEvery == 0 || len(a.spec.Checks) == 0 {
		return func() {}
	}
	return background.Run(context.Background(), a.checks.follow)
}

func (w *checkWatch) follow(ctx context.Context) {
	a, bad := w.a, 0
	for backoff.Sleep(ctx, a.spec.CheckEvery) {
		when := w.when()
		if when == "" {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, a.spec.CheckTimeout)
		verdicts, err := a.runChecks(limited, when)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if w.when() != when { // a stop of the workers may have ended the checks, too
			continue
		}
		if err != nil {
			a.log.Warn("the checks of this node do not run: " + err.Error())
			continue
		}
		unfit := a.judge(verdicts)
		if unfit == nil {
			bad = 0
			a.progress.SetSuspect("")
			continue
		}
		if bad++; bad < badResults {
			a.log.Warn("a check found this node unfit; it leaves if the next one finds the same: " + unfit.Verdict.String())
			continue
		}
		if when == checkWaiting && w.giveUp(unfit) {
			continue
		}
		if w.leaving() == nil && a.asksToDrain(ctx, unfit, a.spec.DrainTimeout) {
			a.log.Warn("this node is not fit, and leaves the run once its workers have saved: " + unfit.Verdict.String())
			w.mu.Lock()
			w.unfit = unfit
			w.mu.Unlock()
		}
	}
}

// when returns the value of RALLYPOINT_CHECK for checks that start now, "" if they would disturb
// the node.
func (w *checkWatch) when() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.waiting != nil:
		return checkWaiting
	case w.a.running.Load():
		return checkRunning
	}
	return ""
}

// giveUp ends the wait for a place. A member of the last round does not give up on its own: the
// others count on it, and a check may fail on all nodes while they regroup.
func (w *checkWatch) giveUp(unfit *UnfitError) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.member {
		return false
	}
	if w.waiting != nil {
		w.unfit = unfit
		w.waiting()
	}
	return true
}

// wait notes that the node waits for a place. end takes the error with which the wait ended, and
// returns the one with which the node ends.
func (w *checkWatch) wait(cancel context.CancelFunc, member bool) (end func(err error) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting, w.member = cancel, member
	return func(err error) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waiting = nil
		switch {
		case err == nil && !member:
			w.unfit = nil // the place was there first
		case w.unfit != nil && (errors.Is(err, rendezvous.ErrUnfit) || errors.Is(err, rendezvous.ErrCanceled)):
			return w.unfit
		}
		return err
	}
}

// leaving returns why the node leaves, nil if it stays.
func (w *checkWatch) leaving() *UnfitError {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unfit
}
