package control

import (
	"runtime/debug"

	"rallypoint/core/rendezvous"
)

// failure is a panic of a run's machine, to be logged.
type failure struct {
	what  any
	stack []byte
}

// recoverRun is deferred where a run's machine is used: a panic of it ends the run and
// nothing else; mu is held.
func (r *run) recoverRun() {
	if v := recover(); v != nil {
		r.fail(v, debug.Stack())
	}
}

// fail ends the service of a run whose machine has panicked: its state cannot be
// trusted any more. The other runs are not affected; mu is held.
func (r *run) fail(what any, stack []byte) {
	r.failure = &failure{what, stack}
	err, known := what.(*rendezvous.Error)
	if !known {
		err = brokenRun(r.id, what)
	}
	r.broken = err
	r.stopClocks()
	for _, p := range r.conns {
		r.disconnect(p, err)
	}
	if r.greeted != nil {
		r.greeted.refusedBy = err
	}
	r.stats.census = rendezvous.Census{Phase: rendezvous.PhaseClosed, Round: r.stats.census.Round, Ended: "failed"}
	clear(r.stats.joins)
	r.noteChange(err.Text)
}
