package member

import (
	"slices"
	"strings"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/wording"
)

// hostLiveness ends calls of the exit barrier, and the join of a spare, that no control
// plane will answer: it was on a node of this job and has been out of reach for a whole
// lease, so that its node counts as lost, with all that it knew (docs/decisions/0027).
// It is guarded by Member.mu.
type hostLiveness struct {
	gone  chan struct{} // closed while the node is an orphan
	timer *time.Timer   // runs while the control plane is out of reach
}

func (m *Member) hostDownLocked() {
	o := &m.host
	if o.timer != nil {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(m.params.LeaseTimeout, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.lost != nil && o.timer == timer && !isClosed(o.gone) { // it may have fired before it was stopped
			close(o.gone)
		}
	})
	o.timer = timer
}

func (m *Member) hostFoundLocked() {
	o := &m.host
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if isClosed(o.gone) {
		o.gone = make(chan struct{})
	}
}

// hostLost reports whether the node that hosted this member's control plane counts
// as lost; gone is closed when it does. The node need not be a member of the round: it
// may have been evicted, or have left. A control plane that is no node of the job may
// come back at any time.
func (m *Member) hostLost() (gone <-chan struct{}, is bool) {
	byNode := m.control.HostedByNode()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !byNode && (m.last.HostRank < 0 || m.last.Round == 0) {
		return nil, false
	}
	return m.host.gone, isClosed(m.host.gone)
}

func ofExitBarrier(r rendezvous.KeyRequest) bool {
	return len(r.Keys) > 0 && !slices.ContainsFunc(r.Keys, func(key string) bool { return !strings.HasPrefix(key, rendezvous.ExitBarrierPrefix) })
}

// leaveBarrier is the answer to a call of the exit barrier of a node that is an
// orphan: it is not the last one, and no other node comes.
func (m *Member) leaveBarrier(r rendezvous.KeyRequest) rendezvous.KeyResult {
	m.mu.Lock()
	told := m.barrierLeft
	m.barrierLeft = true
	m.mu.Unlock()
	if !told {
		m.log.Warn("the exit barrier ends without the other nodes: the control plane at " + m.endpoint() +
			" was on a node of this job and has been out of reach for " + wording.Seconds(m.params.LeaseTimeout))
	}
	return rendezvous.KeyResult{Ready: true, Values: slices.Repeat([][]byte{{}}, len(r.Keys))}
}
