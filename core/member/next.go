package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"rallypoint/core/rendezvous"
)

const (
	// withdrawPatience bounds how long a control plane that does not answer can
	// hold up a caller that withdrew; an answer takes one round trip.
	withdrawPatience = 2 * time.Second

	// rejoinPause is the pause before a node repeats a join during which it was dropped, so that
	// a node that is dropped each time asks seldom.
	rejoinPause = time.Second
)

// Next is next_rendezvous: it leaves the round this node is in, waits until this
// node has a place in the next one and returns it. From then on workers can
// connect to the round store of the outcome.
//
// It blocks up to JoinTimeout, connecting included. A node that waits for a place beside a running
// round (a spare) has no limit; its time begins again when it becomes a candidate. When ctx ends
// the node withdraws; if the round was complete before that, Next returns the outcome all the
// same.
//
// Errors: ErrTimeout, ErrConnection (the control plane was never reached in that
// time), ErrCanceled (ctx, Shutdown or Close), ErrClosed (the run is closed, or
// this member was shut down), ErrGraceful, ErrInvalid (also for a second Next at
// the same time), ErrMismatch, ErrTenant, ErrNodeInUse, ErrState. Each says who
// is missing and what was tried how long.
func (m *Member) Next(ctx context.Context) (rendezvous.Outcome, error) {
	select {
	case m.joining <- struct{}{}:
		defer func() { <-m.joining }()
	default:
		if m.isStopped() {
			return rendezvous.Outcome{}, m.stoppedError()
		}
		return rendezvous.Outcome{}, rendezvous.Errorf(rendezvous.CodeInvalid, "%s: it waits for its next round already", m.subject())
	}
	if m.isStopped() {
		return rendezvous.Outcome{}, m.stoppedError()
	}
	m.mu.Lock()
	m.progress = rendezvous.Progress{}
	m.mu.Unlock()
	w := newJoinWait(m)
	defer w.stop()
	if err := m.reach(ctx, w); err != nil {
		return rendezvous.Outcome{}, err
	}
	announce, listen := storeHost(&m.params, m.control.SeenAddr())
	rs, err := m.openStore(ctx, listen)
	if err != nil {
		return rendezvous.Outcome{}, err
	}
	o, err := m.joinUntil(ctx, w, announce, rs)
	if err != nil {
		m.closeStore(rs)
	}
	return o, err
}

// errSpare ends a join whose time ran out before the node learned that it is a spare, for which
// there is no limit.
var errSpare = errors.New("a spare")

// joinUntil joins, and again if the node was dropped while it waited (its
// connection was broken for too long, or the control plane was started again), or
// if it withdrew as it did not know yet that it is a spare.
func (m *Member) joinUntil(ctx context.Context, w *joinWait, announce string, rs RoundStore) (rendezvous.Outcome, error) {
	var known rendezvous.Progress
	for {
		o, err := m.join(ctx, w, announce, rs, known)
		if errors.Is(err, errSpare) {
			known, w.endless = m.lastProgress(), true // its time is over, and begins again when it is none any more
			continue
		}
		if rendezvous.CodeOf(err) != rendezvous.CodeEvicted {
			return o, err
		}
		known = rendezvous.Progress{}
		m.log.Info("joining again: " + err.Error())
		pause, cancel := context.WithTimeout(context.Background(), rejoinPause)
		end := w.await(ctx, pause.Done())
		cancel()
		if end != waitDone {
			return rendezvous.Outcome{}, w.failure(ctx, end)
		}
	}
}

// reach connects to the control plane and meanwhile logs that the node waits
// for it.
func (m *Member) reach(ctx context.Context, w *joinWait) error {
	limit, cancel := context.WithDeadline(ctx, w.counted.Add(m.params.JoinTimeout))
	defer cancel()
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = m.connect(limit)
	}()
	end := w.await(ctx, done)
	if end == waitCanceled || end == waitStopped {
		cancel()
	}
	<-done // at a timeout, too: the control plane ends by the same time and says what it tried
	switch {
	case end == waitDone && err == nil:
		w.joining = true
		return nil
	case end == waitDone && ctx.Err() != nil:
		end = waitCanceled
	case end == waitDone && limit.Err() == nil:
		return m.ownError(err)
	case end == waitDone:
		end = waitTimeout
	}
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		w.cause = err
	}
	return w.failure(ctx, end)
}

func (m *Member) openStore(ctx context.Context, host string) (RoundStore, error) {
	ctx, cancel := m.withTimeout(ctx, m.params.ReadTimeout)
	defer cancel()
	rs, err := m.stores.Open(ctx, host, m.params.StorePort)
	if err != nil {
		return nil, m.waitError(ctx, err, "open a store for the round's workers", m.params.ReadTimeout)
	}
	return rs, nil
}

// join asks once for a place and waits for the answer. known is what it is known to wait for
// beforehand.
func (m *Member) join(ctx context.Context, w *joinWait, announce string, rs RoundStore, known rendezvous.Progress) (rendezvous.Outcome, error) {
	m.beginJoin(known)
	defer m.endJoin()
	call := m.control.Start(rendezvous.Join{
		NodeRank: m.params.NodeRank, RankHint: m.params.RankHint, StoreAddr: announce, StorePort: rs.Port(),
	})
	m.setPending(call)
	if end := w.await(ctx, call.Done); end != waitDone {
		switch answered, spare := m.withdraw(call, end); {
		case answered:
		case spare && end == waitTimeout:
			return rendezvous.Outcome{}, errSpare
		default:
			return rendezvous.Outcome{}, w.failure(ctx, end)
		}
	}
	if call.Err != nil {
		return rendezvous.Outcome{}, m.ownError(call.Err)
	}
	o, ok := call.Result.(rendezvous.Outcome)
	if !ok {
		return rendezvous.Outcome{}, rendezvous.Errorf(rendezvous.CodeState, "%s: the control plane at %s answered a join with %T", m.subject(), m.endpoint(), call.Result)
	}
	if p := &m.params; p.RankFixed && o.Rank != p.NodeRank {
		return rendezvous.Outcome{}, rendezvous.Errorf(rendezvous.CodeNodeInUse, "%s at %s: another node has node rank %d, too; give each node a node_rank of its own, 0 to %d",
			m.subject(), m.endpoint(), p.NodeRank, p.Max-1)
	}
	return m.enter(ctx, o, rs)
}

// withdraw takes the join back and reports whether it had been answered before,
// and if not, whether it is known that it was a spare's. Without an answer to
// that, the control plane continues to take it back by itself.
func (m *Member) withdraw(call *Call, end waitEnd) (answered, spare bool) {
	if end != waitStopped { // else the node is about to leave altogether
		back := m.control.Start(rendezvous.Withdraw{Join: call.Number})
		patience, cancel := m.withTimeout(context.Background(), withdrawPatience)
		defer cancel()
		if m.outage() == nil {
			result, err := back.Wait(patience)
			switch r, ok := result.(rendezvous.Withdrawn); {
			case err != nil || !ok:
			case r.Completed:
				_, _ = call.Wait(patience)
			case r.Progress.Headline != "":
				m.mu.Lock()
				m.progress = r.Progress // a quick timeout has not been told any yet
				m.mu.Unlock()
				spare = r.Progress.Spare
			}
		}
	}
	answered = isClosed(call.Done) && rendezvous.CodeOf(call.Err) != rendezvous.CodeCanceled // else the answer is that it was taken back
	return answered, spare
}

// enter makes this node a member of the round, with a way to its store for this node's
// workers.
func (m *Member) enter(ctx context.Context, o rendezvous.Outcome, rs RoundStore) (rendezvous.Outcome, error) {
	o.AdvertisedAddr = o.StoreAddr
	last := o.LastRound()
	m.reporting.Lock()
	m.control.SetLastRound(last)
	var held io.Closer = rs
	var here rendezvous.Outcome
	var err error
	if o.Rank == 0 {
		here, err = rs.Begin(o)
	} else {
		m.closeStore(rs)
		here, held, err = m.stores.Reach(ctx, o)
	}
	m.mu.Lock()
	before := m.held
	m.last, m.held = last, held
	m.mu.Unlock()
	m.reporting.Unlock()
	m.closeStore(before)
	if err != nil {
		return here, m.ownError(err)
	}
	at := o.StoreEndpoint()
	line := fmt.Sprintf("round %d: rank %d of %d, store at %s", o.Round, o.Rank, o.World, at)
	if local := here.StoreEndpoint(); local != at {
		line += ", for the workers of this node at " + local
	}
	if len(o.Dropped) > 0 {
		line += "; continues without: " + strings.Join(o.Dropped, ", ")
	}
	m.log.Info(line)
	m.mu.Lock()
	told := m.commands == o.Commands
	m.commands = o.Commands
	m.mu.Unlock()
	if !told && o.Commands != "" {
		m.log.Warn(fmt.Sprintf("round %d: %s", o.Round, o.Commands))
	}
	return here, nil
}

func (m *Member) closeStore(rs io.Closer) {
	if rs == nil {
		return
	}
	if err := rs.Close(); err != nil {
		m.log.Warn("closing a round store: " + err.Error())
	}
}

func (m *Member) lastProgress() rendezvous.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.progress
}

func (m *Member) beginJoin(known rendezvous.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inJoin, m.pending, m.early = true, nil, nil
	m.progress = known
	m.setUpdateLocked(whileJoiningView(m.update))
}

// setPending notes the join that was sent. An update that came between its answer
// and now belongs to the new round.
func (m *Member) setPending(call *Call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = call
	if m.early != nil && !m.joinPendingLocked() {
		m.setUpdateLocked(*m.early)
	}
	m.early = nil
}

func (m *Member) endJoin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inJoin, m.pending = false, nil
}

func (m *Member) joinPendingLocked() bool {
	return m.inJoin && (m.pending == nil || !isClosed(m.pending.Done))
}

// ownError gives an error of the control plane a code if it has none.
func (m *Member) ownError(err error) error { return m.withCode(rendezvous.CodeOf(err), err) }

// withCode is err, with a code if it has none.
func (m *Member) withCode(code rendezvous.Code, err error) error {
	if _, ok := errors.AsType[*rendezvous.Error](err); ok {
		return err
	}
	return rendezvous.Errorf(code, "%s at %s: %v", m.subject(), m.endpoint(), err)
}
