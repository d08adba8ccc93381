package control

import (
	"slices"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// stats is what a run knows of its past and of times, for status and metrics: its machine
// knows neither. It belongs to the run and is guarded by its lock.
type stats struct {
	changelog changelog
	joins     map[rendezvous.SessionID]pendingJoin
	forming   time.Time // since when a round is being formed; zero: none is
	round     uint64    // last round that was completed here
	roundAt   time.Time
	census    rendezvous.Census
	reportsOf uint64        // the round whose steps are reported
	size      int           // nodes of that round
	lostSince bool          // that round has lost a node
	failure   *StatusChange // see RunStatus.LastFailure
	stalled   time.Time     // since when nodes say that the round makes no step; zero: none does
}

// pendingJoin is a join that waits for its answer.
type pendingJoin struct {
	number uint64
	since  time.Time
}

// noteChange keeps a change for status, and for the log when mu is free.
func (r *run) noteChange(text string) {
	r.stats.changelog.add(r.server.clock.Now(), r.lastRound(), text)
	r.changes = append(r.changes, text)
}

// lastRound returns the run's last completed round; a broken machine is not asked.
func (r *run) lastRound() uint64 {
	if r.broken != nil {
		return r.stats.census.Round
	}
	return r.machine.Round()
}

// observe draws from an event that was applied what status and metrics tell.
func (r *run) observe(ev rendezvous.Event, effects []rendezvous.Effect) {
	c, metrics := &r.stats, &r.server.metrics
	was := c.census
	c.census = r.machine.Census()
	stop, _ := ev.(rendezvous.AnnounceStop)
	for _, e := range effects {
		switch e := e.(type) {
		case rendezvous.HistoryEntry:
			if stop.Round > 0 && !stop.Leaving { // the first to announce it
				c.failure = new(newChange(r.server.clock.Now(), stop.Round, e.Text))
			}
		case rendezvous.Reply:
			if j, ok := c.joins[e.Session]; ok && j.number == e.Number {
				delete(c.joins, e.Session)
			}
			if o, ok := e.Result.(rendezvous.Outcome); ok && o.Round > c.round {
				r.completed(o)
				if len(o.Dropped) > 0 {
					metrics.lost[lostLate].Add(uint64(was.Running + was.Unknown))
				}
			}
		case rendezvous.Drop:
			delete(c.joins, e.Session)
			metrics.lost[causeOf(ev, e.Err)].Add(1)
		}
	}
	switch ev := ev.(type) {
	case rendezvous.Join:
		r.trackJoin(ev.Session, ev.Number)
	case rendezvous.Withdraw:
		r.trackJoin(ev.Session, 0)
		if c.census.Lost > was.Lost {
			metrics.lost[lostGaveUp].Add(1)
		}
	case rendezvous.Leave:
		r.trackJoin(ev.Session, 0)
		if c.census.Live < was.Live {
			metrics.left[known(int(ev.Ending), leftNames[:])].Add(1)
		}
	case rendezvous.Hello:
		if c.census.Round > was.Round { // the round was rebuilt from a node's report
			metrics.lost[lostRestart].Add(uint64(c.census.Lost))
		}
	case rendezvous.TimerFired:
		if ev.Timer.Kind == rendezvous.TimerHold && was.Unknown > 0 && c.census.Unknown == 0 {
			metrics.lost[lostRestart].Add(uint64(was.Unknown))
		}
	}
	r.observeRoundLocked(was, ev, effects)
	if i := slices.Index(closedNames[:], c.census.Ended); i >= 0 && c.census.Ended != was.Ended {
		metrics.closed[i].Add(1)
	}
	switch forming := c.census.Phase.Forming(); {
	case !forming:
		c.forming = time.Time{}
	case c.forming.IsZero():
		c.forming = r.server.clock.Now()
	}
}

// completed notes a new round.
func (r *run) completed(o rendezvous.Outcome) {
	c, now := &r.stats, r.server.clock.Now()
	took := time.Duration(0) // the event that began to form the round completed it
	if !c.forming.IsZero() {
		took = now.Sub(c.forming)
	}
	r.server.metrics.rounds.observe(took, &roundBuckets)
	c.forming = time.Time{}
	c.round, c.roundAt, r.refused = o.Round, now, nil
}

// trackJoin remembers since when the session's pending join waits. A join that is
// repeated after a reconnect keeps its time.
func (r *run) trackJoin(session rendezvous.SessionID, number uint64) {
	c := &r.stats
	_, pending := r.machine.Forming(session)
	switch j, known := c.joins[session]; {
	case !pending:
		delete(c.joins, session)
	case number != 0 && (!known || j.number != number):
		c.joins[session] = pendingJoin{number, r.server.clock.Now()}
	}
}

// formingFor returns for how long a round has been formed; 0 if none is.
func (r *run) formingFor() time.Duration {
	if r.stats.forming.IsZero() {
		return 0
	}
	return r.server.clock.Now().Sub(r.stats.forming)
}

// silence returns for how long nothing was heard of a session, which may be
// inside its grace; false if it is not known.
func (r *run) silence(session rendezvous.SessionID) (time.Duration, bool) {
	if p := r.conns[session]; p != nil {
		return p.silence(), true
	}
	if t, ok := r.timers[rendezvous.Timer{Kind: rendezvous.TimerGrace, Session: session}]; ok {
		return r.server.clock.Now().Sub(t.set), true
	}
	return 0, false
}

// runCensus is one run in a scrape.
type runCensus struct {
	rendezvous.Census
	id         string
	seq        uint64 // order of creation
	connected  int
	formingFor time.Duration
	training   training.Census
	stalled    bool
	kept       int64
}

func (r *run) takeCensus() runCensus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return runCensus{r.stats.census, r.id, r.seq, len(r.conns), r.formingFor(), r.training.Census(r.server.clock.Now()), !r.stats.stalled.IsZero(), r.keptBytesLocked()}
}
