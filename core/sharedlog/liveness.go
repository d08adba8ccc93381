package sharedlog

import (
	"cmp"
	"slices"
	"time"

	"rallypoint/core/rendezvous"
)

// Each node watches the heartbeats of the nodes after it in a ring of all sessions: of a fixed
// number that seem healthy, and of all between that do not. So several others watch each node,
// whatever the size of the run.
const (
	watched  = 3
	watchAll = 8 // a run of up to so many nodes: each looks at all
)

// beatsPerLease is how many beats a node shows in the length of its lease.
const beatsPerLease = 4

// ring is all connected sessions in one order that is the same for all nodes.
type ring struct {
	stale    bool // to be read from the machine again
	sessions []rendezvous.SessionID
	peers    map[rendezvous.SessionID]*peer
	looked   time.Time // when the last look began
	late     time.Time // when nothing could be said of the others for the last time; zero: never
}

// peer is this node's knowledge of another node's liveness.
type peer struct {
	beats   uint64
	words   uint64    // its hellos and requests: each is a sign of life as good as a heartbeat
	heard   time.Time // when beats or words last changed, or began to be watched
	spoke   time.Time // when words last changed; zero: not since it is watched
	looked  time.Time
	suspect bool // was silent for a lease already at the last look
	gone    bool // said so in the log
}

// refreshRing brings the ring up to date.
func (ap *applier) refreshRing() {
	r := &ap.ring
	if !r.stale {
		return
	}
	r.stale = false
	r.sessions = ap.machine.AppendSessions(r.sessions[:0])
	slices.Sort(r.sessions)
	for session := range r.peers {
		if _, ok := slices.BinarySearch(r.sessions, session); !ok {
			delete(r.peers, session)
		}
	}
}

// place is this node's place in the ring, 0 for the first.
func (ap *applier) place() int {
	ap.refreshRing()
	i, _ := slices.BinarySearch(ap.ring.sessions, ap.p.session)
	return i
}

// toWatch are the nodes to look at now.
func (ap *applier) toWatch() []rendezvous.SessionID {
	r := &ap.ring
	start := ap.place()
	n := len(r.sessions)
	now := time.Now()
	var list []rendezvous.SessionID
	healthy := 0
	for i := 1; i <= n && (healthy < watched || n <= watchAll+1); i++ {
		session := r.sessions[(start+i)%n]
		if session == ap.p.session {
			continue
		}
		list = append(list, session)
		p := r.peers[session]
		if p == nil || !p.gone && now.Sub(p.heard) < ap.lease()*2/beatsPerLease {
			healthy++
		}
	}
	return list
}

func (ap *applier) lease() time.Duration {
	return cmp.Or(ap.machine.Policy().LeaseTimeout, ap.p.params.LeaseTimeout)
}

// greet begins to watch a node that has said hello, or has said it again.
func (ap *applier) greet(session rendezvous.SessionID) {
	ap.ring.stale = true
	now := time.Now()
	ap.ring.peers[session] = &peer{words: ap.machine.Heard(session), heard: now, spoke: now, looked: now}
}

// heartbeats is the result of one read.
type heartbeats struct {
	sessions []rendezvous.SessionID
	list     []Liveness
	began    time.Time // when the look began
	shown    time.Time // when this node's own last heartbeat that got through was sent
}

// handle compares the heartbeats with the last ones, and appends which nodes have a broken
// connection or an expired lease. If the last look was long ago, this node was stopped or is
// overloaded, and so may the others have been; and where its own heartbeats do not get through,
// neither may theirs: all get a new lease. A finding is appended at once or not at all.
func (h heartbeats) handle(ap *applier) *rendezvous.Error {
	ap.refreshRing()
	r, now, lease := &ap.ring, time.Now(), ap.lease()
	late := !r.looked.IsZero() && now.Sub(r.looked) > lease/2 || now.Sub(h.shown) > lease/2
	if late {
		if r.late.IsZero() || now.Sub(r.late) > lease {
			ap.p.log.Debug("this process was stopped, is overloaded or cut off: all nodes get a new lease")
		}
		r.late = now
		ap.p.withdrawLocked()
	}
	r.looked = h.began
	for i, session := range h.sessions {
		if _, ok := slices.BinarySearch(r.sessions, session); !ok || i >= len(h.list) {
			continue
		}
		p, sign, words := r.peers[session], h.list[i], ap.machine.Heard(session)
		if p == nil {
			p = &peer{beats: sign.Heartbeats, words: words, heard: now, looked: now}
			r.peers[session] = p
		}
		unwatched := now.Sub(p.looked) > lease/2
		p.looked = now
		spoke := words != p.words
		if spoke {
			p.words, p.spoke = words, now
		}
		beat := sign.State == LivenessHeartbeats && sign.Heartbeats != p.beats
		look := rendezvous.LeaseLook{Renew: late || unwatched || spoke || beat, Silence: h.began.Sub(p.heard), Suspect: p.suspect}
		verdict := look.Judge(lease)
		if verdict == rendezvous.LeaseRenewed {
			p.beats, p.heard, p.suspect, p.gone = sign.Heartbeats, now, false, false
		}
		ap.evaluatePeer(session, p, sign, verdict)
	}
	return nil
}

func (ap *applier) evaluatePeer(session rendezvous.SessionID, p *peer, sign Liveness, verdict rendezvous.LeaseVerdict) {
	// A lease that the log keeps does not know of the node's entries, nor of an outage for all.
	expired := sign.State == LivenessExpired && time.Since(p.spoke) > ap.lease()/2 && time.Since(ap.ring.late) > ap.lease()
	switch {
	case p.gone:
	case expired, sign.State == LivenessHeartbeats && verdict == rendezvous.LeaseOver:
		ap.declareFailed(p, rendezvous.LeaseExpired{Session: session, Heard: p.words}, session)
	case sign.State == LivenessDisconnected:
		ap.declareFailed(p, rendezvous.Disconnect{Session: session}, session)
	default:
		p.suspect = verdict == rendezvous.LeaseSuspected || verdict == rendezvous.LeaseOver
	}
}

// declareFailed appends the finding about a silent node.
func (ap *applier) declareFailed(p *peer, ev rendezvous.Event, session rendezvous.SessionID) {
	p.gone = true
	ap.p.proposeLocked(proposal{event: ev, accused: session, until: ap.ring.looked.Add(ap.lease() / beatsPerLease)})
}

// live shows this node's heartbeat and looks for those of others, until the
// replica ends.
func (r *Replica) live() {
	r.mu.Lock()
	every, lease := r.info.HeartbeatReadInterval, r.applier.lease()
	r.mu.Unlock()
	every = min(every, lease/beatsPerLease)
	tick := time.Tick(every)
	shown := time.Now() // when the last heartbeat that got through was sent
	for {
		r.mu.Lock()
		session, known, list, report := r.session, r.shown, r.applier.toWatch(), r.training
		lease = r.applier.lease()
		r.mu.Unlock()
		if now := time.Now(); session != known || now.Sub(shown) >= lease/beatsPerLease {
			if carrier, ok := r.shared.(ReportCarrier); ok && report != nil {
				carrier.CarryReport(report())
			}
			err := r.shared.Heartbeat(r.life, session, lease)
			if err == nil {
				r.showHeartbeat(session, session == known && time.Since(shown) > lease/2)
				shown = now
			}
			if !r.report(broken{"beat", err}) {
				return
			}
		}
		if len(list) > 0 {
			began := time.Now()
			got, err := r.shared.ReadHeartbeats(r.life, list)
			if err == nil && !r.report(heartbeats{list, got, began, shown}) || !r.report(broken{"look", err}) {
				return
			}
		}
		select {
		case <-tick:
		case <-r.greeted:
		case <-r.life.Done():
			return
		}
	}
}

// showHeartbeat records that a session has shown a heartbeat: it may be spoken for. A session that
// is back from a silence announces it, which voids reports of the silence that others are about to
// append. That is no hello: the node may have been dropped, and would begin the old session again.
func (r *Replica) showHeartbeat(session rendezvous.SessionID, back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shown = session
	if back && session == r.session && !r.closing {
		r.proposeLocked(proposal{event: rendezvous.Alive(session)})
	}
	r.more.Set()
}
