package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/agent/progress"
	"rallypoint/agent/stacks"
	"rallypoint/agent/telemetry"
	"rallypoint/core/store"
	"rallypoint/core/training"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
	"rallypoint/internal/wake"
)

// OnHang is what follows when the job has made no step for too long.
type OnHang int

// The conclusions.
const (
	HangReport  OnHang = iota // it is said, with where the workers are
	HangStacks                // and all their stacks are logged
	HangRestart               // and the first suspect is ended, as if it had failed
)

// OnHangNames are the names of options.
var OnHangNames = []string{"report", "stacks", "restart"}

// HangOff as Spec.HangTimeout: the job is never said to hang.
const HangOff = -time.Second

// Times of a job that is suspected.
const (
	hangPatience = 5 * time.Second // for all nodes' answers

	stoodPatience = 200 * time.Millisecond // by which the report of a failure after a standstill is delayed
	stoodAnswers  = 150 * time.Millisecond // of these, for the answers
)

// hangs is what an agent knows of its job's hangs, over all rounds.
type hangs struct {
	training.HangDetector
	limit atomic.Int64                // of the detector, in nanoseconds, for other goroutines; 0: the job is not judged
	stood atomic.Pointer[stacks.Node] // where the workers stood, as it was seen last; nil: they make steps

	shownAt int64 // the largest step of this node's workers when they left a round last to show which of them hangs
}

// hangWatch watches whether the job makes steps while the workers of an attempt run. The first
// node of a round that suspects a hang asks all agents where their workers are and tells them its
// verdict (docs/decisions/0111). Only supervise calls look and take.
type hangWatch struct {
	t *attempt

	made      int64 // steps, as they were seen last
	ended     int   // workers that have succeeded, and nodes, as they were seen last
	activity  stacks.Activity
	suspected wake.Signal // set while the job is suspected
	resumed   wake.Signal // set when it steps again after it was told to hang
	heard     chan stacks.Hang
	judge     atomic.Bool    // this node tells the others
	inquiry   stacks.Inquiry // of follow, but for Auto

	standing wake.Signal   // set when follow should sample the workers
	seeAt    time.Duration // the silence from which on it is; of look

	// Findings of look, for the other goroutines. alive: a worker of this node has given a sign
	// of life in this round.
	silent atomic.Int64 // nanoseconds
	alive  atomic.Bool
	idle   atomic.Bool // no step was ever reported, and some workers have ended

	peerEnded atomic.Bool // the workers of another node have succeeded

	excused atomic.Bool // so that the silence until now does not count; of inquire, for look
}

func watchHang(t *attempt) (w *hangWatch, stop func()) {
	w = &hangWatch{
		t: t, suspected: wake.New(), resumed: wake.New(), heard: make(chan stacks.Hang),
		activity: make(stacks.Activity), standing: wake.New(), seeAt: progress.LeastStandstill,
	}
	t.hangs.Begin(time.Now())
	t.hangs.stood.Store(nil)
	unfollow, unanswer := background.Run(context.Background(), w.follow), w.answerQuestions()
	return w, func() {
		unfollow()
		unanswer()
	}
}

// farLook is the time until the next call of look if nothing is suspected.
const farLook = time.Hour

// look takes how far the workers are, and says when to look again at the latest.
func (w *hangWatch) look() (again time.Duration) {
	t, d := w.t, w.t.hangs
	if t.spec.HangTimeout < 0 {
		return farLook
	}
	changed, made, announced := t.progress.Pulse()
	moved, worked := made > w.made, w.worked()
	d.Look(time.Now(), made-w.made, announced || w.excused.Swap(false) || worked)
	w.made = made
	w.silent.Store(int64(d.Silent()))
	d.limit.Store(int64(d.Limit()))
	if announced || !changed.IsZero() {
		w.alive.Store(true)
	}
	switch {
	case moved:
		w.seeAt = progress.LeastStandstill
		d.stood.Store(nil)
	case d.Silent() >= w.seeAt && t.progress.Standstill() > 0:
		w.seeAt = 2 * d.Silent()
		w.standing.Set()
	}
	w.idle.Store(!d.Stepped() && d.Ended)
	switch {
	case (moved || worked) && t.hang != "":
		w.take(stacks.Resumed())
		w.resumed.Set()
	case stacks.Due(w.auto(), d.Silent(), d.Limit()) && t.hang == "":
		w.suspected.Set()
	}
	return cmp.Or(d.LookAgain(), farLook)
}

// auto says whether what the workers do decides, and not a timeout alone.
func (w *hangWatch) auto() bool { return w.t.spec.HangTimeout == 0 || w.idle.Load() }

// worked reports a sign of life of a job that has never reported a step while some of its workers have
// ended: another one has, or one that runs has worked.
func (w *hangWatch) worked() bool {
	d, before := w.t.hangs, w.ended
	if w.ended = w.t.succeeded; w.peerEnded.Load() {
		w.ended++
	}
	d.Ended = w.ended > 0
	if d.Stepped() || !d.Ended {
		return false
	}
	return w.activity.Worked(stacks.Works(w.t.stackTargets(w.t.workers.Procs))) || w.ended > before
}

// take takes that the job hangs, or that it steps again.
func (w *hangWatch) take(h stacks.Hang) {
	t := w.t
	if h.Text == "" {
		h = stacks.Resumed() // whatever else it says
	}
	if t.hang == h.Text { // by the store, too
		return
	}
	t.hang, t.lastStacks = h.Text, slices.Clone(h.Groups)
	t.progress.SetStalled(h.Text)
	t.publish(telemetry.Stalled{Text: h.Text, Suspects: h.Suspects})
	local := h.Restart - t.assignment.ranks.base
	if t.spec.OnHang != HangRestart || local < 0 || local >= len(t.workers.Procs) || t.workers.Procs[local].HasExited() {
		return
	}
	if len(h.Suspects) == 0 && t.showsWhoHangs() {
		t.asks = "no rank stands out among those that hang, so all regroup, and who does not is replaced: " + h.Text
		return
	}
	p := t.workers.Procs[local]
	p.Fault = failure.Hung
	p.SignalGroup(unix.SIGKILL)
}

// showsWhoHangs reports whether the workers can leave the round, so that one which hangs shows by not
// leaving. It does so once for a step: if all have come back and hang again, that shows nothing.
func (t *attempt) showsWhoHangs() bool {
	step := int64(noStep)
	if r := t.progress.Report(); r != nil && r.Reporting > 0 { // of this round or, where workers have continued, an earlier one
		step = r.Largest
	}
	again := t.hangs.shownAt == step
	t.hangs.shownAt = step
	return !again && t.canCarry() && t.rdzv.NodesWaiting() == 0
}

func (w *hangWatch) follow(ctx context.Context) {
	s := roundStores{node: w.t.node}
	defer s.close()
	defer w.resign(&s)
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.resumed:
			if w.judge.Load() {
				w.tell(ctx, &s, stacks.Resumed())
			}
		case <-w.standing:
			own := w.stackNode(ctx)
			w.t.hangs.stood.Store(&own)
		case <-w.suspected:
			if !w.inquire(ctx, &s) {
				backoff.Sleep(ctx, w.inquiry.Pause(w.silence()))
				continue
			}
			select { // suspected again while it was found out
			case <-w.suspected:
			default:
			}
		}
	}
}

// lookBack finds out where the workers of all nodes stood, once one has failed after a standstill
// that nobody has called a hang: the first that gives up is mostly a victim. Only supervise calls it.
func (w *hangWatch) lookBack() {
	t := w.t
	still := t.progress.Standstill()
	if still == 0 || t.hang != "" || t.spec.HangTimeout < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stoodPatience)
	defer cancel()
	s := roundStores{node: t.node}
	defer s.close()
	nodes, group := make([]*stacks.Node, t.assignment.groups), t.assignment.group
	nodes[group] = t.hangs.stood.Load()
	h := stacks.NewStood(still, nodes)
	if conn, err := s.dial(ctx); err == nil {
		told, err := stacks.Stood(ctx, conn, t.assignment.Round, group, func() stacks.Hang {
			limited, cancel := context.WithTimeout(ctx, stoodAnswers)
			defer cancel()
			answers, err := stacks.Ask(limited, conn, len(nodes), stacks.Before, stoodPatience-stoodAnswers)
			if err != nil {
				return h
			}
			if nodes[group] != nil {
				answers[group] = nodes[group]
			}
			return stacks.NewStood(still, answers)
		})
		if err == nil {
			h = told
		}
	}
	t.stood, t.lastStacks = h.Text, slices.Clone(h.Groups)
}

// resignPatience limits how long a judge whose workers have ended tries to give up its role.
const resignPatience = time.Second

// resign lets another node judge: its workers may hang after those of this node have succeeded.
func (w *hangWatch) resign(s *roundStores) {
	if s.conn == nil || !w.judge.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), resignPatience)
	defer cancel()
	_ = stacks.Resign(ctx, s.conn, w.t.assignment.Round)
}

// silence is for how long there was no sign of life, and from when on that is a hang; 0: never.
func (w *hangWatch) silence() (silent, limit time.Duration) {
	return time.Duration(w.silent.Load()), time.Duration(w.t.hangs.limit.Load())
}

// inquire finds out whether the job hangs, and tells all nodes if it does; false if it does not,
// or if another node of the round judges that.
func (w *hangWatch) inquire(ctx context.Context, s *roundStores) bool {
	w.inquiry.Auto, w.inquiry.Idle = w.auto(), w.idle.Load()
	if silent, limit := w.silence(); !stacks.Due(w.inquiry.Auto, silent, limit) {
		return false
	}
	if !w.judge.Load() {
		judge, err := w.claim(ctx, s)
		if err != nil {
			w.t.log.Debug("the other nodes cannot be asked whether the job hangs: " + err.Error())
		}
		w.judge.Store(judge)
		if !judge && err == nil {
			return false
		}
	}
	for look := range w.inquiry.Looks() {
		if look > 0 && !backoff.Sleep(ctx, stacks.BetweenLooks) {
			return false
		}
		nodes := w.ask(ctx, s)
		silent, _ := w.silence()
		w.inquiry.Look(silent, nodes)
	}
	if w.inquiry.Mute() {
		w.inquiry.Hosts = w.hosts(ctx)
	}
	verdict, h := w.inquiry.Verdict(w.silence())
	if verdict == stacks.Excused {
		w.excused.Store(true)
	}
	if verdict != stacks.Hangs || ctx.Err() != nil {
		return false
	}
	if w.t.spec.OnHang == HangRestart {
		h.Restart = w.t.assignment.ranks.base
		if len(h.Suspects) > 0 {
			h.Restart = h.Suspects[0]
		}
	}
	if w.t.spec.OnHang >= HangStacks {
		w.t.log.Warn("where the workers are:\n" + h.Fold.Text())
	}
	return w.tell(ctx, s, h)
}

// namesPatience bounds how long the names of nodes that do not answer are waited for.
const namesPatience = time.Second

// hosts are the machines of the round's nodes, as far as they can be known now: of rank 0's node that
// is at least the address of its store.
func (w *hangWatch) hosts(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, namesPatience)
	defer cancel()
	s := w.t.assignment
	names := make([]string, s.groups)
	for i, m := range s.members(ctx) {
		names[i] = m.Host
	}
	names[0] = cmp.Or(names[0], s.AdvertisedAddr, s.StoreAddr)
	return names
}

// errAlone is why a node judges for itself.
var errAlone = errors.New("the job has no store through which its nodes could ask each other")

// claim makes this node the one that judges, unless another node of the round does.
func (w *hangWatch) claim(ctx context.Context, s *roundStores) (bool, error) {
	conn, err := s.dial(ctx)
	if errors.Is(err, errAlone) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return stacks.Judge(ctx, conn, w.t.assignment.Round, w.t.assignment.group)
}

// ask asks all nodes of the round where their workers are. Where not even this node's agent was asked
// in time, it looks at this node's workers itself.
func (w *hangWatch) ask(ctx context.Context, s *roundStores) (nodes []*stacks.Node) {
	conn, err := s.dial(ctx)
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, hangPatience)
		defer cancel()
		if nodes, err = stacks.Ask(limited, conn, w.t.assignment.groups, stacks.Now, hangPatience); err == nil {
			limited, cancel := context.WithTimeout(ctx, hangPatience)
			defer cancel()
			stacks.FillEnded(limited, conn, w.t.assignment.Round, nodes)
		}
	}
	if err != nil {
		nodes = make([]*stacks.Node, w.t.assignment.groups)
	}
	own := &nodes[w.t.assignment.group]
	if w.inquiry.Unasked = *own == nil; w.inquiry.Unasked {
		n := w.stackNode(ctx)
		*own = &n
	}
	return nodes
}

// tell tells all nodes of the round, this one, too, whether or not the others can be told.
func (w *hangWatch) tell(ctx context.Context, s *roundStores, h stacks.Hang) bool {
	h.Round = w.t.assignment.Round
	conn, err := s.dial(ctx)
	if err == nil {
		err = stacks.Tell(ctx, conn, h)
	}
	if err != nil && !errors.Is(err, errAlone) {
		w.t.log.Debug("the other nodes cannot be told that the job hangs: " + err.Error())
	}
	w.hear(ctx, h)
	return true
}

func (w *hangWatch) hear(ctx context.Context, h stacks.Hang) {
	if h.Round != w.t.assignment.Round {
		return
	}
	select {
	case w.heard <- h:
	case <-ctx.Done():
	}
}

// roundStores is a connection to the store of the round, opened when it is needed first.
type roundStores struct {
	*node
	conn store.Store
}

func (r *roundStores) dial(ctx context.Context) (store.Store, error) {
	if r.conn != nil {
		return r.conn, nil
	}
	if r.spec.DialStore == nil {
		return nil, errAlone
	}
	limited, cancel := context.WithTimeout(ctx, hangPatience)
	defer cancel()
	conn, err := r.spec.DialStore(limited, r.assignment.StoreEndpoint())
	if err != nil {
		return nil, fmt.Errorf("the store of round %d: %w", r.assignment.Round, err)
	}
	r.conn = conn
	return conn, nil
}

func (r *roundStores) close() {
	if r.conn != nil {
		_ = r.conn.Close()
	}
}
