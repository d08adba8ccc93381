package rendezvous

import "time"

// LeaseLook is what one look at a node's lease shows. Drivers look; what follows is the same for
// all of them.
type LeaseLook struct {
	// Renew is that the node has given a sign of life, or that none could have been seen: the one
	// who looks was stopped, overloaded or cut off, and so may the signs of others have been.
	Renew   bool
	Silence time.Duration // since the node was heard last, or began to be watched
	Unread  bool          // bytes of the node have arrived and are not read yet
	Suspect bool          // the last look found it silent
}

// LeaseVerdict is what follows from a look.
type LeaseVerdict int

// The verdicts.
const (
	LeaseRenewed   LeaseVerdict = iota // the node has a full lease from now on
	LeaseHolds                         // it was heard within its lease
	LeaseUndecided                     // it is silent, but unread input may hold its sign of life
	LeaseSuspected                     // this look is the first to find it silent
	LeaseOver                          // it is lost
)

// Judge decides whether a node has lost its lease: only if two looks in a row found it silent for
// longer than that, since one may have come between a sign of life and its reading.
func (l LeaseLook) Judge(lease time.Duration) LeaseVerdict {
	switch {
	case l.Renew:
		return LeaseRenewed
	case l.Silence <= lease:
		return LeaseHolds
	case l.Unread:
		return LeaseUndecided
	case !l.Suspect:
		return LeaseSuspected
	}
	return LeaseOver
}
