package sharedlog

import (
	"slices"
	"time"

	"rallypoint/core/rendezvous"
)

// Each node looks for heartbeats of the nodes behind it in a ring of all
// sessions: of so many that seem healthy, and of those between that do not. So
// each node is looked at by several others, whatever the size of the run.
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

// peer is what this node knows of another one's life.
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
func (f *applier) refreshRing() {
	r := &f.ring
	if !r.stale {
		return
	}
	r.stale = false
	r.sessions = f.machine.AppendSessions(r.sessions[:0])
	slices.Sort(r.sessions)
	for session := range r.peers {
		if _, ok := slices.BinarySearch(r.sessions, session); !ok {
			delete(r.peers, session)
		}
	}
}

// place is this node's place in the ring, 0 for the first.
func (f *applier) place() int {
	f.refreshRing()
	i, _ := slices.BinarySearch(f.ring.sessions, f.p.session)
	return i
}

// toWatch is whom to look at now.
func (f *applier) toWatch() []rendezvous.SessionID {
	r := &f.ring
	start := f.place()
	n := len(r.sessions)
	now := time.Now()
	var list []rendezvous.SessionID
	healthy := 0
	for i := 1; i <= n && (healthy < watched || n <= watchAll+1); i++ {
		session := r.sessions[(start+i)%n]
		if session == f.p.session {
			continue
		}
		list = append(list, session)
		p := r.peers[session]
		if p == nil || !p.gone && now.Sub(p.heard) < f.lease()*2/beatsPerLease {
			healthy++
		}
	}
	return list
}

func (f *applier) lease() time.Duration {
	if lease := f.machine.Policy().LeaseTimeout; lease > 0 {
		return lease
	}
	return f.p.params.LeaseTimeout
}

// greet begins to watch a node that has said hello, or has said it again.
func (f *applier) greet(session rendezvous.SessionID) {
	f.ring.stale = true
	now := time.Now()
	f.ring.peers[session] = &peer{words: f.machine.Heard(session), heard: now, spoke: now, looked: now}
}

// heartbeats is what one look has shown.
type heartbeats struct {
	sessions []rendezvous.SessionID
	list     []Liveness
	began    time.Time // when the look began
	shown    time.Time // when this node's own last heartbeat that got through was sent
}

// evaluate compares heartbeats with the last ones, and appends whose connection is broken and whose
// lease has run out. If the last look was long ago, this node was stopped or is
// overloaded, and so may the others have been; and where its own heartbeats do not get
// through, neither may theirs: all get a new lease. A node is
// judged only after it was found silent twice, and what is found of it is appended at
// once or not at all.
func (f *applier) evaluate(s heartbeats) {
	f.refreshRing()
	r, now, lease := &f.ring, time.Now(), f.lease()
	late := !r.looked.IsZero() && now.Sub(r.looked) > lease/2 || now.Sub(s.shown) > lease/2
	if late {
		if r.late.IsZero() || now.Sub(r.late) > lease {
			f.p.log.Debug("this process was stopped, is overloaded or cut off: all nodes get a new lease")
		}
		r.late = now
		f.p.withdraw()
	}
	r.looked = s.began
	for i, session := range s.sessions {
		if _, ok := slices.BinarySearch(r.sessions, session); !ok || i >= len(s.list) {
			continue
		}
		p, sign, words := r.peers[session], s.list[i], f.machine.Heard(session)
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
		if late || unwatched || spoke || sign.State == LivenessHeartbeats && sign.Heartbeats != p.beats {
			p.beats, p.heard, p.suspect, p.gone = sign.Heartbeats, now, false, false
		}
		f.evaluatePeer(session, p, sign, s.began.Sub(p.heard) > lease)
	}
}

func (f *applier) evaluatePeer(session rendezvous.SessionID, p *peer, sign Liveness, silent bool) {
	// A lease that the log keeps does not know of the node's entries, nor of an outage for all.
	expired := sign.State == LivenessExpired && time.Since(p.spoke) > f.lease()/2 && time.Since(f.ring.late) > f.lease()
	switch {
	case p.gone:
	case expired, sign.State == LivenessHeartbeats && silent && p.suspect:
		f.declareFailed(p, rendezvous.LeaseExpired{Session: session, Heard: p.words}, session)
	case sign.State == LivenessDisconnected:
		f.declareFailed(p, rendezvous.Disconnect{Session: session}, session)
	default:
		p.suspect = silent
	}
}

// declareFailed appends what was found of a silent node.
func (f *applier) declareFailed(p *peer, ev rendezvous.Event, session rendezvous.SessionID) {
	p.gone = true
	f.p.propose(proposal{event: ev, accused: session, until: f.ring.looked.Add(f.lease() / beatsPerLease)})
}

// live shows this node's heartbeat and looks for those of others, until the
// replica ends.
func (p *Replica) live() {
	p.mu.Lock()
	every, lease := p.info.HeartbeatReadInterval, p.applier.lease()
	p.mu.Unlock()
	every = min(every, lease/beatsPerLease)
	tick := time.NewTicker(every)
	defer tick.Stop()
	shown := time.Now() // when the last heartbeat that got through was sent
	for {
		p.mu.Lock()
		session, known, list, report := p.session, p.shown, p.applier.toWatch(), p.training
		lease = p.applier.lease()
		p.mu.Unlock()
		if now := time.Now(); session != known || now.Sub(shown) >= lease/beatsPerLease {
			if carrier, ok := p.shared.(ReportCarrier); ok && report != nil {
				carrier.CarryReport(report())
			}
			err := p.shared.Heartbeat(p.life, session, lease)
			if err == nil {
				p.showHeartbeat(session, session == known && time.Since(shown) > lease/2)
				shown = now
			}
			if !p.report(asTrouble("beat", err)) {
				return
			}
		}
		if len(list) > 0 {
			began := time.Now()
			got, err := p.shared.ReadHeartbeats(p.life, list)
			if err == nil && !p.report(heartbeats{list, got, began, shown}) || !p.report(asTrouble("look", err)) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-p.greeted:
		case <-p.life.Done():
			return
		}
	}
}

// showHeartbeat records that a session has shown a heartbeat: it may be spoken for. One that is
// back from a silence says so, which makes void what others are about to say of that. That is
// no hello: the node may have been dropped, and would begin the old session again.
func (p *Replica) showHeartbeat(session rendezvous.SessionID, back bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown = session
	if back && session == p.session && !p.closing {
		p.propose(proposal{event: rendezvous.Alive(session)})
	}
	p.more.Set()
}
