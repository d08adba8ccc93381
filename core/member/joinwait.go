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
	waitDone     waitEnd = iota // the event has come
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
	warned  bool      // that it is one, in a job of a fixed number of nodes
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

func (j *joinWait) stop() {
	j.limit.Stop()
	j.lines.Stop()
}

// await waits until done is closed, the time is over, ctx ends or the member is
// shut down, and writes lines meanwhile. If several have happened, done counts.
func (j *joinWait) await(ctx context.Context, done <-chan struct{}) waitEnd {
	for {
		if isClosed(done) {
			return waitDone
		}
		j.updateDeadline()
		select {
		case <-done:
			return waitDone
		case <-j.orphaned():
			return waitOrphaned
		case <-ctx.Done():
			return waitCanceled
		case <-j.m.work.Done():
			return waitStopped
		case <-j.limit.C:
			return waitTimeout
		case <-j.lines.C:
			j.logProgress()
		case <-j.m.changed:
		}
	}
}

// orphaned is closed when no control plane can give this node a place any more: the node is a
// spare, and its control plane died with the node that hosted it. A node that waits for a round
// that is being formed keeps waiting, since the host may be started again; a spare is not needed
// then.
func (j *joinWait) orphaned() <-chan struct{} {
	gone, _ := j.m.hostLost()
	j.m.mu.Lock()
	defer j.m.mu.Unlock()
	if !j.joining || !j.m.progress.Spare {
		return nil
	}
	return gone
}

// updateDeadline updates whether the limit counts, and when the next line is due.
func (j *joinWait) updateDeadline() {
	m := j.m
	m.mu.Lock()
	p := m.progress
	spare := j.joining && m.lost == nil && p.Spare
	m.mu.Unlock()
	if spare && !j.warned && m.params.Min == m.params.Max {
		j.warned = true
		m.log.Warn("this node runs nothing, since it is a spare: " + p.Headline + "; " + p.Detail +
			". A job of its own needs its own run id (--rdzv-id), and a free endpoint if a node of a job hosts this one")
	}
	switch {
	case spare && !j.endless:
		j.limit.Stop()
	case !spare && j.endless:
		j.counted = time.Now()
		j.limit.Reset(m.params.JoinTimeout)
	}
	j.endless = spare

	due := j.began.Add(firstLine)
	if j.shown != "" {
		due = j.shownAt.Add(lineInterval)
		if head, tail := j.describe(); wording.WithoutDurations(head+tail) != j.shown {
			due = j.shownAt.Add(linePause)
		}
	}
	j.lines.Reset(max(time.Until(due), 0))
}

func (j *joinWait) logProgress() {
	head, tail := j.describe()
	j.shown, j.shownAt = wording.WithoutDurations(head+tail), time.Now()
	j.m.log.Info(j.line(head, tail))
}

// describe returns the two halves of a line; the times go between them.
func (j *joinWait) describe() (head, tail string) {
	m := j.m
	m.mu.Lock()
	lost, p := m.lost, m.progress
	m.mu.Unlock()
	switch {
	case lost != nil:
		p = rendezvous.Progress{Detail: m.brief(lost)}
	case j.joining && p.Headline != "":
		if p.Detail == "" {
			return p.Headline, ""
		}
		return p.Headline, "; " + p.Detail
	case j.joining:
		return "waiting for a place in a round at " + m.endpoint(), ""
	}
	if p.Detail != "" { // why the control plane is not there
		p.Detail = ": " + p.Detail
	}
	return "waiting for the control plane at " + m.endpoint(), p.Detail
}

func (j *joinWait) line(head, tail string) string { return head + ", " + j.times() + tail }

// times says how long the waiting has lasted, and how long it may.
func (j *joinWait) times() string {
	if j.endless {
		return wording.Seconds(time.Since(j.began)) + ", no limit"
	}
	return wording.Seconds(time.Since(j.counted)) + " of " + wording.Seconds(j.m.params.JoinTimeout)
}

// failure is the error of a Next that ended without an answer.
func (j *joinWait) failure(ctx context.Context, end waitEnd) error {
	m := j.m
	waits := fmt.Sprintf("%s, waiting for the round after round %d", m.subject(), m.lastRound())
	if m.lastRound() == 0 {
		waits = m.subject() + ", waiting for its first round"
	}
	what := waits + " at " + m.endpoint()
	status := j.line(j.describe())
	switch {
	case end == waitStopped:
		return rendezvous.Errorf(rendezvous.CodeCanceled, "%s: the member was shut down: %s", what, status)
	case end == waitOrphaned:
		why := "this node was a spare, and the control plane was on a node of this job and has been out of reach for " + wording.Seconds(m.params.LeaseTimeout) +
			" (lease_timeout), so no control plane can give it a place; the others continue without it. Start it again if the host is started again"
		return rendezvous.Errorf(rendezvous.CodeConnection, "%s: %s", what, why)
	case end == waitCanceled && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return rendezvous.Errorf(rendezvous.CodeCanceled, "%s: withdrawn: %s", what, status)
	case !j.joining && j.cause != nil: // which names the endpoint
		return rendezvous.Errorf(rendezvous.CodeConnection, "%s, %s (join_timeout): %s", waits, j.times(), m.brief(j.cause))
	case !j.joining:
		return rendezvous.Errorf(rendezvous.CodeConnection, "%s: never reached the control plane: %s. "+
			"Check that the node of that address is up and that this node can reach its port; join_timeout is the time allowed", what, status)
	}
	return rendezvous.Errorf(rendezvous.CodeTimeout, "%s: timed out: %s. "+
		"Check that the missing nodes were started with this run id and endpoint, or allow more time with join_timeout", what, status)
}

// brief is an error's text without the name of the run, which the line has already.
func (m *Member) brief(err error) string {
	return strings.TrimPrefix(err.Error(), fmt.Sprintf("run %q: ", m.params.RunID))
}

func (m *Member) lastRound() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last.Round
}
