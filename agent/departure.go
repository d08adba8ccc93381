package agent

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/progress"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/wake"
)

// departure is how the workers of an attempt leave a round and enter one (Spec.Regroup). If every
// member of the round runs, since the job grows or shrinks, the workers leave at a step on which the
// agents agree, as for a directive that nobody gave. Only supervise calls due and endOverdue, and
// only directives the rest.
type departure struct {
	t *attempt

	look  <-chan time.Time  // when to look at the workers' records; nil: there is nothing to see
	late  map[int]time.Time // since when a worker should have left or entered a round, by local rank
	asked time.Time         // since when a worker waits for another round; zero: none does
	news  wake.Signal       // of mu
	tasks sync.WaitGroup

	mu     sync.Mutex
	begun  bool
	agreed bool
	step   int64 // agreed on; -1: at once
}

const departureID = "departure"

// How often workers' records are looked at while they leave a round, and while they enter one.
const (
	departureTick = 5 * time.Millisecond
	entryTick     = 50 * time.Millisecond
)

// askedPatience is how long a worker waits for another round, while nobody has a reason for one,
// until its agent gives it one: mostly it has seen before the agents that another one is gone.
const askedPatience = 3 * time.Second

// leastHangGrace is for how long a worker may do nothing, at least, until it is taken for one that hangs.
const leastHangGrace = 5 * time.Second

// regroupGrace is how long a worker has to call regroup. One that hangs does nothing for HangTimeout.
func (s *Spec) regroupGrace() time.Duration {
	if s.OnHang != HangRestart || s.HangTimeout <= 0 {
		return s.RegroupGrace
	}
	return min(s.RegroupGrace, max(s.HangTimeout, leastHangGrace))
}

// Keys of a round by which its agents agree on the step at which their workers leave it: each sets
// the first with its group rank, and agent 0 the second.
const (
	departurePrefix = "rallypoint/departure/"
	departureKey    = "rallypoint/departure"
)

func newDeparture(t *attempt) *departure {
	d := &departure{t: t, news: wake.New(), late: make(map[int]time.Time), step: -1}
	if len(t.entering) > 0 {
		d.look = time.Tick(entryTick)
	}
	return d
}

// due reports whether the round is over for this node: it must form another one, and the workers
// have left this one, or have no time for it.
func (d *departure) due(must bool) bool {
	d.mu.Lock()
	begun, agreed := d.begun, d.agreed
	d.mu.Unlock()
	rdzv := d.t.rdzv
	switch {
	case !begun && (!must || !d.t.spec.Regroup):
		return must
	case rdzv.Closed() || rdzv.OnlyLost() || d.t.announcedStop().Round != 0 || !agreed && !rdzv.Planned():
		return true
	case begun:
		return d.allLeft()
	case !d.t.canCarry():
		return true
	}
	d.mu.Lock()
	d.begun = true
	d.mu.Unlock()
	d.look = time.Tick(departureTick)
	d.news.Set()
	return false
}

// allLeft reports whether the workers that have said that they can regroup wait for the next round.
// One whose end is still to be noted may have been the last to succeed.
func (d *departure) allLeft() bool {
	round := d.t.assignment.Round
	for _, p := range d.t.workers.Procs {
		said, err := d.t.worlds[p.Local].Read()
		waits := err != nil || !said.Can || said.Waits == round
		if d.t.ended[p.Local] == nil && (p.HasExited() || !waits) {
			return false
		}
	}
	return true
}

// isAsked reports whether a worker has waited too long for another round, while this one stands and
// no node has a reason for another.
func (d *departure) isAsked() bool {
	if d.t.worlds == nil || d.t.rdzv.NodesWaiting() > 0 {
		return false
	}
	for _, p := range d.t.workers.Procs {
		if said, err := d.t.worlds[p.Local].Read(); err != nil || said.Waits != d.t.assignment.Round || p.HasExited() {
			continue
		}
		if d.asked.IsZero() {
			d.asked = time.Now()
		}
		if time.Since(d.asked) < askedPatience {
			return false
		}
		d.t.asks = fmt.Sprintf("the worker of rank %d asks for another world: it has called regroup, and no node has a reason for that", d.t.assignment.ranks.base+p.Local)
		return true
	}
	d.asked = time.Time{}
	return false
}

// endOverdue kills the workers that have neither left a round nor entered one in time; they are
// replaced like others that fail.
func (d *departure) endOverdue() {
	if d.t.worlds == nil { // they were lost
		d.look = nil
		return
	}
	round, grace, now := d.t.assignment.Round, d.t.spec.regroupGrace(), time.Now()
	for _, p := range d.t.workers.Procs {
		said, err := d.t.worlds[p.Local].Read()
		if err == nil && said.Can && said.Entered == round {
			delete(d.t.entering, p.Local)
		}
		due := d.t.entering[p.Local] || said.Over >= round && said.Waits != round
		since, known := d.late[p.Local]
		switch {
		case err != nil || !said.Can || !due || p.HasExited():
			delete(d.late, p.Local)
		case !known:
			d.late[p.Local] = now
		case now.Sub(since) >= grace && p.Fault == "":
			p.Fault = fmt.Sprintf("The worker did not call regroup() within %v. ", grace)
			d.t.log.Error(fmt.Sprintf("the worker of local rank %d (pid %d) was told %v ago that its world changes, and has not called regroup(): it is killed and replaced", p.Local, p.Pid, grace))
			p.SignalGroup(unix.SIGKILL)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.t.entering) == 0 && !d.begun {
		d.look = nil
	}
}

// notice is the departure as a directive; begun is false before it begins.
func (d *departure) notice() (n rendezvous.DirectiveNotice, begun bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return rendezvous.DirectiveNotice{
		ID: departureID, Kind: progress.KindDeparture, Round: d.t.assignment.Round, Within: rendezvous.MaxWithin, Agreed: d.agreed, Step: d.step,
	}, d.begun
}

// agree begins to agree with the other agents of the round; step is the first one at which the
// workers of this node can leave.
func (d *departure) agree(ctx context.Context, step int64) {
	d.tasks.Go(func() {
		if step, err := d.t.assignment.agreeDeparture(ctx, step); err == nil {
			d.setAgreed(step)
		} else if ctx.Err() == nil {
			d.t.log.Debug("the nodes have not agreed on a step at which their workers leave the round: " + err.Error())
		}
	})
}

func (d *departure) setAgreed(step int64) {
	d.mu.Lock()
	if !d.agreed {
		d.agreed, d.step = true, step
	}
	d.mu.Unlock()
	d.news.Set()
}

// agreeDeparture blocks until the agents of the round have agreed on a step: the highest of theirs.
func (a *assignment) agreeDeparture(ctx context.Context, step int64) (int64, error) {
	if err := a.keys.Set(ctx, departurePrefix+strconv.Itoa(a.group), strconv.AppendInt(nil, step, 10)); err != nil {
		return -1, err
	}
	if a.group == 0 {
		texts, err := ofEach(ctx, a.keys, departurePrefix, a.groups)
		if err != nil {
			return -1, err
		}
		for _, text := range texts {
			other, err := strconv.ParseInt(string(text), 10, 64)
			if err != nil {
				return -1, err
			}
			step = max(step, other)
		}
		if err := a.keys.Set(ctx, departureKey, strconv.AppendInt(nil, step, 10)); err != nil {
			return -1, err
		}
	}
	text, err := a.keys.Get(ctx, departureKey)
	if err != nil {
		return -1, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}
