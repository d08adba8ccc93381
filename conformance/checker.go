package conformance

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"

	r "rallypoint/core/rendezvous"
)

// Violation is one guarantee that the history does not keep.
type Violation struct {
	Guarantee int    // 1 to 12
	Event     int    // which one of the history, from 1
	Text      string // the guarantee and the observation
}

func (v Violation) String() string {
	return fmt.Sprintf("guarantee %d, event %d: %s", v.Guarantee, v.Event, v.Text)
}

// Checker watches one run. It is not safe for concurrent use.
type Checker struct {
	runID      string // "" until it is known
	events     int
	violations []Violation
	account
	past
	places map[place]bool // every round ever completed
	twin   *r.Machine     // nil: nothing is replayed
}

type place struct {
	generation string
	round      uint64
}

// New returns a checker of a run from its first event on. An empty runID is not
// looked for in errors.
func New(runID string) *Checker {
	return &Checker{runID: runID, account: newAccount(), past: newPast(), places: map[place]bool{}}
}

// Restarted tells that the run continues with a control plane that knows nothing of its past. The
// checker still knows the rounds.
func (c *Checker) Restarted() {
	c.account, c.twin = newAccount(), nil
}

// Replay applies the following events to a machine in the state before them, and compares its
// effects with the recorded ones.
func (c *Checker) Replay(twin *r.Machine) {
	c.twin, c.generation = twin, twin.Generation()
	if c.generations[c.generation] {
		c.violated(1, "a control plane begins with the generation %s of an earlier one", c.generation)
	}
	c.generations[c.generation] = true
}

// Violations returns the findings so far.
func (c *Checker) Violations() []Violation { return c.violations }

// Rounds returns how many rounds were completed.
func (c *Checker) Rounds() int { return len(c.places) }

func (c *Checker) violated(guarantee int, format string, args ...any) {
	c.violations = append(c.violations, Violation{guarantee, c.events, fmt.Sprintf(format, args...)})
}

// Apply takes the next event and its effects, in order.
func (c *Checker) Apply(ev r.Event, effects []r.Effect) {
	c.events++
	if c.twin != nil {
		if again := c.twin.Apply(ev); !same(effects, again) {
			c.violated(10, "the same events have other effects:\n%+v\n%+v", effects, again)
			c.twin = nil
		}
	}
	defer c.hear(ev)
	if c.repeated(ev, effects) {
		return
	}
	c.errs, c.held = c.errs[:0], c.timers[r.Timer{Kind: r.TimerHold}].running
	clear(c.leaving)
	c.apply(ev, effects)
	c.settleSaved()
	told := c.outcomes(effects)
	completed := len(told) > 0
	for _, e := range effects {
		c.follow(ev, e, told)
	}
	if completed && !c.ended() {
		c.checkSpares()
	}
	c.vanished()
	c.settle()
	c.checkErrors()
	c.checkState()
	c.checkClosed(ev)
}

// Answered takes a request that was answered after the last event without a change, and its
// answer: the one that was given before, or one that reads keys.
func (c *Checker) Answered(ev r.Event, effects []r.Effect) {
	if c.twin != nil {
		if again, ok := c.twin.TryRead(ev); !ok || !same(effects, again) {
			c.violated(10, "the same events have other effects:\n%+v\n%+v", effects, again)
			c.twin = nil
		}
	}
	q, ok := requestOf(ev)
	s := c.sessions[q.Session]
	if !ok || s == nil {
		c.violated(11, "%+v was answered, which no node of the run had asked: %+v", ev, effects)
		return
	}
	_, asked := s.asked[q.Number]
	switch answer, answered := s.answers[q.Number]; {
	case q.Number <= max(q.Acked, s.acked), asked && !answered:
		if len(effects) > 0 {
			c.violated(11, "request %d of %s was repeated and had effects: %+v", q.Number, s.node, effects)
		}
	case asked:
		c.answeredAgain(s, answer, effects)
	default:
		k, ok := ev.(r.KeyRequest)
		reply, told := answerOf(effects)
		if !ok || !k.Op.Reads() || !told || reply.Session != q.Session || reply.Number != q.Number {
			c.violated(11, "request %d of %s changes something, or nothing was said to it: %+v, %+v", q.Number, s.node, ev, effects)
			return
		}
		member, over := c.participantOf(s) != nil && k.Round == c.round && !c.disowned(), r.CodeOf(asError(reply.Err)) == r.CodeRoundOver
		if member == over {
			c.violated(4, "node %s, member of round %d: %v, asked for keys of it and got %+v", s.node, k.Round, member, effects)
		}
	}
}

// answerOf returns the reply that effects are, if they are nothing else.
func answerOf(effects []r.Effect) (reply r.Reply, ok bool) {
	if len(effects) == 1 {
		reply, ok = effects[0].(r.Reply)
	}
	return reply, ok
}

// answeredAgain checks the effects of a request that was already answered.
func (c *Checker) answeredAgain(s *session, answer r.Reply, effects []r.Effect) {
	guarantee := 11
	if _, joined := answer.Result.(r.Outcome); joined {
		guarantee = 1
		if s.update.Waiting > 0 {
			effects = c.toldAgain(s, effects)
		}
	}
	if len(effects) != 1 || !equalReply(effects[0], answer) {
		c.violated(guarantee, "request %d of %s was repeated and got %+v, its answer was %+v", answer.Number, s.node, effects, answer)
	}
}

// repeated checks a request with a known number. Its only effect may be its answer, if that is
// not acknowledged.
func (c *Checker) repeated(ev r.Event, effects []r.Effect) bool {
	q, ok := requestOf(ev)
	if !ok {
		return false
	}
	s := c.sessions[q.Session]
	if s == nil {
		if len(effects) > 0 {
			c.violated(11, "request %d of session %s, which is not there, had effects: %+v", q.Number, q.Session, effects)
		}
		return true
	}
	if q.Acked > s.acked {
		s.acked = q.Acked
		for number := range s.answers {
			if number <= q.Acked {
				delete(s.answers, number)
				delete(s.asked, number)
			}
		}
	}
	_, asked := s.asked[q.Number]
	switch answer, answered := s.answers[q.Number]; {
	case q.Number <= s.acked, asked && !answered:
		if len(effects) > 0 && !drops(effects, q.Session) {
			c.violated(11, "request %d of %s was applied twice: %+v", q.Number, s.node, effects)
		}
		return !drops(effects, q.Session)
	case asked:
		if drops(effects, q.Session) {
			return false
		}
		c.answeredAgain(s, answer, effects)
		return true
	}
	s.asked[q.Number] = struct{}{}
	return false
}

// toldAgain checks that a node has to regroup also after the outcome that is delivered again, and
// returns the other effects.
func (c *Checker) toldAgain(s *session, effects []r.Effect) []r.Effect {
	last := len(effects) - 1
	if last < 0 || text(effects[last]) != text(r.Notify{Session: s.id, Update: s.update}) {
		c.violated(7, "node %s got its outcome again, and not behind it that it has to regroup (%s)", s.node, s.update.Reason)
		return effects
	}
	return effects[:last]
}

// outcomes returns the outcomes that an event has, by the session that got them, and
// checks that they answer joins.
func (c *Checker) outcomes(effects []r.Effect) map[*session]r.Outcome {
	told := map[*session]r.Outcome{}
	for _, e := range effects {
		reply, ok := e.(r.Reply)
		if !ok {
			continue
		}
		o, ok := reply.Result.(r.Outcome)
		if !ok {
			continue
		}
		s := c.sessions[reply.Session]
		switch {
		case s == nil || s.ended:
			c.violated(4, "session %s, which is not a live node's, got rank %d of round %d", reply.Session, o.Rank, o.Round)
		case s.join == nil || s.join.Number != reply.Number:
			c.violated(4, "node %s got rank %d of round %d without a pending join %d", s.node, o.Rank, o.Round, reply.Number)
		default:
			told[s] = o
		}
	}
	return told
}

func (c *Checker) follow(ev r.Event, e r.Effect, told map[*session]r.Outcome) {
	switch e := e.(type) {
	case r.Welcome:
		c.welcome(ev, e)
	case r.Refuse:
		c.errs = append(c.errs, failure{err: e.Err, ev: ev})
	case r.Drop:
		c.dropped(ev, e)
	case r.Reply:
		c.reply(ev, e, told)
	case r.Notify:
		if s := c.sessions[e.Session]; s != nil {
			s.update = e.Update
			c.tell(e.Update)
			c.tellDirective(e.Update.Directive)
		}
	case r.SetTimer:
		c.setTimer(e)
	case r.StopTimer:
		delete(c.timers, nameOf(e.Timer))
	}
}

// checkSpares checks that a completed round has left no spares of another job.
func (c *Checker) checkSpares() {
	for _, s := range c.joiners() {
		if c.strange(s) {
			c.violated(4, "node %s runs another command than the members of round %d, and waits as their spare", s.node, c.round)
		}
	}
}

func (c *Checker) tell(u r.MembershipUpdate) {
	if u.Facts.Generation != "" {
		c.tellsFacts = true
		c.tellers[u.Facts.Generation] = c.host
		c.told[fmt.Sprint(u.Facts)] = true
		c.toldChange = max(c.toldChange, u.Facts.Directives.Seq)
	}
}

func (c *Checker) reply(ev r.Event, e r.Reply, told map[*session]r.Outcome) {
	s := c.sessions[e.Session]
	if s == nil {
		return // outcomes has checked it, and nothing else matters to a node that has left
	}
	if _, asked := s.asked[e.Number]; !asked {
		c.violated(11, "node %s got an answer to request %d, which it did not make: %+v", s.node, e.Number, e)
	}
	if was, answered := s.answers[e.Number]; answered && !equalReply(e, was) {
		c.violated(1, "request %d of %s was answered twice: %+v, then %+v", e.Number, s.node, was, e)
	}
	s.answers[e.Number] = e
	delete(s.barrier, e.Number)
	if e.Err != nil {
		c.errs = append(c.errs, failure{err: e.Err, ev: ev, session: s, number: e.Number})
	}
	if s.join == nil || s.join.Number != e.Number {
		return
	}
	if _, outcome := e.Result.(r.Outcome); !outcome {
		c.unjoin(s)
		return
	}
	if len(told) > 0 { // the first outcome of a round
		c.completed(told)
		clear(told)
	}
}

// same compares effects without regard to the order among sessions.
func same(a, b []r.Effect) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	return slices.Equal(texts(a), texts(b))
}

// texts are effects in words, in an order of their own. Histories do not have the answers to
// administrators.
func texts(list []r.Effect) (out []string) {
	for _, e := range list {
		if _, ok := e.(r.Answer); !ok {
			out = append(out, text(e))
		}
	}
	slices.Sort(out)
	return out
}

func text(e r.Effect) string {
	switch e := e.(type) {
	case r.Reply:
		return replyText(e)
	case r.Drop:
		return fmt.Sprint("drop ", e.Session, " ", textOf(e.Err))
	case r.Refuse:
		return fmt.Sprint("refuse ", e.Session, " ", textOf(e.Err))
	}
	return fmt.Sprintf("%T %+v", e, e)
}

func replyText(e r.Reply) string {
	if e.Err != nil {
		return fmt.Sprint("reply ", e.Session, " ", e.Number, " ", textOf(e.Err))
	}
	return fmt.Sprintf("reply %s %d %+v", e.Session, e.Number, e.Result)
}

func textOf(err *r.Error) string {
	if err == nil {
		return "no error"
	}
	return fmt.Sprintf("%d %s", err.Code, err.Text)
}

func equalReply(e r.Effect, was r.Reply) bool {
	reply, ok := e.(r.Reply)
	if reflect.DeepEqual(reply, was) {
		return true
	}
	return ok && replyText(reply) == replyText(was)
}

func drops(effects []r.Effect, session r.SessionID) bool {
	return slices.ContainsFunc(effects, func(e r.Effect) bool {
		d, ok := e.(r.Drop)
		return ok && d.Session == session
	})
}

// requestOf returns the common part of a request; false for an event that is not a node's
// request.
func requestOf(ev r.Event) (r.Request, bool) {
	q, _ := r.RequestOf(ev)
	return q, q.Session != ""
}

// at checks, for histories with times, when a timer was set and when it ran out, and when a node
// was last heard of before its lease ended, all by one clock. It is called before the Apply of
// each event. The event came at now or up to slack earlier, and passes if it may have been in
// time.
func (c *Checker) at(now, slack time.Duration, ev r.Event) {
	c.now = now - slack
	switch ev := ev.(type) {
	case r.TimerFired:
		t := c.timers[nameOf(ev.Timer)]
		if early := t.set + t.after - now; t.running && t.seq == ev.Timer.Seq && early > tolerance {
			c.violated(cmp.Or(timerGuarantee[ev.Timer.Kind], 5), "timer %+v of %v ran out %v early", ev.Timer, t.after, early)
		}
	case r.LeaseExpired:
		s := c.sessions[ev.Session]
		if s == nil || s.heard == 0 || s.grace {
			return // it may have ended its lease itself when it broke the connection
		}
		lease := c.policy.LeaseTimeout
		if s.back > 0 && now-s.back < lease/shortestSilence {
			return // it came back when it was just checked
		}
		if silent := now - s.heard; silent+tolerance < lease/shortestSilence {
			c.violated(6, "the lease of %s, of %v, was ended %v after the node was heard of", s.node, lease, silent)
		}
	}
}

// shortestSilence is the least part of a lease between a node's last request and the end of its
// lease. It is not the whole lease if other nodes judge it by heartbeats, which a node sends four
// times per lease besides its requests. The event may come when the node has been back for as long
// as it takes to store the event.
const shortestSilence = 2

func (c *Checker) hear(ev r.Event) {
	session := r.SessionID("")
	if q, ok := requestOf(ev); ok {
		session = q.Session
	} else if h, ok := ev.(r.Hello); ok {
		session = h.Session
	}
	if s := c.sessions[session]; s != nil {
		if s.heard > 0 && c.now-s.heard >= c.policy.LeaseTimeout/shortestSilence {
			s.back = c.now
		}
		s.heard = c.now
	}
}

// tolerance is the error that a recorded time may have.
const tolerance = time.Millisecond

// timerGuarantee is the guarantee that a timer's duration belongs to.
var timerGuarantee = map[r.TimerKind]int{
	r.TimerLastCall: 5, r.TimerQuiet: 5, r.TimerHold: 5, r.TimerGrace: 5, r.TimerRegroup: 6, r.TimerAdmit: 7,
}
