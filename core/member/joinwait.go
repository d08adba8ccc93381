package member

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/wording"
)

const (
	// firstLine is how long a join is silent: most are done by then.
	firstLine = time.Second
	// linePause is the least time between two lines of a join.
	linePause = time.Second
	// lineInterval is the longest.
	lineInterval = 10 * time.Second
)

// waitEnd is why joinWait.await returned.
type waitEnd int

const (
	waitDone     waitEnd = iota // what was waited for is there
	waitTimeout                 // JoinTimeout has passed
	waitCanceled                // the caller's context has ended
	waitStopped                 // the member is being shut down
	waitOrphaned                // this node is a spare, and the node that hosts the control plane is lost
)

// joinWait is the waiting of one Next: its limit, and the lines that people see
// of it. It belongs to the goroutine that runs Next.
type joinWait struct {
	m       *Member
	began   time.Time
	counted time.Time // the limit counts from here
	endless bool      // this node is a spare: the limit does not count
	joining bool      // the control plane was reached
	cause   error     // why it was not, as the control plane said in the end
	limit   *time.Timer
	lines   *time.Timer
	shown   string // last line without its times
	shownAt time.Time
}

func newJoinWait(m *Member) *joinWait {
	now := time.Now()
	return &joinWait{
		m: m, began: now, counted: now,
		limit: time.NewTimer(m.params.JoinTimeout), lines: time.NewTimer(firstLine),
	}
}

func (w *joinWait) stop() {
	w.limit.Stop()
	w.lines.Stop()
}

// await waits until done is closed, the time is over, ctx ends or the member is
// shut down, and writes lines meanwhile. If several have happened, done counts.
func (w *joinWait) await(ctx context.Context, done <-chan struct{}) waitEnd {
	for {
		select {
		case <-done:
			return waitDone
		default:
		}
		w.updateDeadline()
		select {
		case <-done:
			return waitDone
		case <-w.orphaned():
			return waitOrphaned
		case <-ctx.Done():
			return waitCanceled
		case <-w.m.work.Done():
			return waitStopped
		case <-w.limit.C:
			return waitTimeout
		case <-w.lines.C:
			w.logProgress()
		case <-w.m.changed:
		}
	}
}

// orphaned is closed when no control plane can give this node a place any more: the node
// is a spare, and its control plane died with the node that hosted it. A node that waits
// for a round that is being formed goes on, since the host may be started again; a spare
// is not needed then.
func (w *joinWait) orphaned() <-chan struct{} {
	gone, _ := w.m.hostLost()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if !w.joining || !w.m.progress.Spare {
		return nil
	}
	return gone
}

// updateDeadline applies what has changed: whether the limit counts, and when the next
// line is due.
func (w *joinWait) updateDeadline() {
	m := w.m
	m.mu.Lock()
	spare := w.joining && m.lost == nil && m.progress.Spare
	m.mu.Unlock()
	switch {
	case spare && !w.endless:
		w.limit.Stop()
	case !spare && w.endless:
		w.counted = time.Now()
		w.limit.Reset(m.params.JoinTimeout)
	}
	w.endless = spare

	due := w.began.Add(firstLine)
	if w.shown != "" {
		due = w.shownAt.Add(lineInterval)
		if head, tail := w.describe(); head+tail != w.shown {
			due = w.shownAt.Add(linePause)
		}
	}
	w.lines.Reset(max(time.Until(due), 0))
}

// logProgress writes a line.
func (w *joinWait) logProgress() {
	head, tail := w.describe()
	w.shown, w.shownAt = head+tail, time.Now()
	w.m.log.Info(w.line(head, tail))
}

// describe returns the two halves of a line; the times go between them.
func (w *joinWait) describe() (head, tail string) {
	m := w.m
	m.mu.Lock()
	lost, p := m.lost, m.progress
	m.mu.Unlock()
	switch {
	case lost != nil:
		p = rendezvous.Progress{Detail: m.brief(lost)}
	case w.joining && p.Headline != "":
		if p.Detail == "" {
			return p.Headline, ""
		}
		return p.Headline, "; " + p.Detail
	case w.joining:
		return "waiting for a place in a round at " + m.endpoint(), ""
	}
	if p.Detail != "" { // why the control plane is not there
		p.Detail = ": " + p.Detail
	}
	return "waiting for the control plane at " + m.endpoint(), p.Detail
}

func (w *joinWait) line(head, tail string) string { return head + ", " + w.times() + tail }

// times says how long the waiting has lasted, and how long it may.
func (w *joinWait) times() string {
	if w.endless {
		return wording.Seconds(time.Since(w.began)) + ", no limit"
	}
	return wording.Seconds(time.Since(w.counted)) + " of " + wording.Seconds(w.m.params.JoinTimeout)
}

// failure is the error of a Next that ended without an answer.
func (w *joinWait) failure(ctx context.Context, end waitEnd) error {
	m := w.m
	what := fmt.Sprintf("%s, waiting for the round after round %d at %s", m.subject(), m.lastRound(), m.endpoint())
	if m.lastRound() == 0 {
		what = fmt.Sprintf("%s, waiting for its first round at %s", m.subject(), m.endpoint())
	}
	status := w.line(w.describe())
	switch {
	case end == waitStopped:
		return rendezvous.Errorf(rendezvous.CodeCanceled, "%s: the member was shut down: %s", what, status)
	case end == waitOrphaned:
		why := "this node was a spare, and the control plane was on a node of this job and has been out of reach for " + wording.Seconds(m.params.LeaseTimeout) +
			" (lease_timeout), so that no control plane can give it a place; the others go on without it. Start it again should the host be started again"
		m.log.Warn("ending: " + why)
		return rendezvous.Errorf(rendezvous.CodeGraceful, "%s: %s", what, why)
	case end == waitCanceled && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return rendezvous.Errorf(rendezvous.CodeCanceled, "%s: withdrawn: %s", what, status)
	case !w.joining && w.cause != nil:
		return rendezvous.Errorf(rendezvous.CodeConnection, "%s: never reached the control plane, %s (join_timeout): %s", what, w.times(), m.brief(w.cause))
	case !w.joining:
		return rendezvous.Errorf(rendezvous.CodeConnection, "%s: never reached the control plane: %s. "+
			"See that the node of that address is up and its port can be reached from here; join_timeout is the time allowed", what, status)
	}
	return rendezvous.Errorf(rendezvous.CodeTimeout, "%s: timed out: %s. "+
		"See that the missing nodes were started with this run id and endpoint, or allow more time with join_timeout", what, status)
}

// brief is an error's text without the name of the run, which is said already.
func (m *Member) brief(err error) string {
	return strings.TrimPrefix(err.Error(), fmt.Sprintf("run %q: ", m.params.RunID))
}

func (m *Member) lastRound() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last.Round
}
