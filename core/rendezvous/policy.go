package rendezvous

import (
	"cmp"
	"time"
)

// Defaults of the policy's durations (docs/spec/rendezvous.md 3.1 and docs/decisions/0012).
const (
	DefaultLastCallTimeout = 30 * time.Second
	DefaultLeaseTimeout    = 10 * time.Second
	DefaultReconnectGrace  = time.Second
	DefaultRegroupTimeout  = 90 * time.Second
	DefaultAdmitDelay      = time.Second
	DefaultClosedFor       = 10 * time.Minute
)

// Policy is what all nodes of a run must agree on, or take from the run's first
// node: how many nodes make a round and how long to wait for which.
type Policy struct {
	Min      int // fewest nodes of a round, >= 1
	Max      int // most nodes of a round, >= Min
	NodeUnit int // a round's size is a multiple of it, >= 1
	Segment  int `json:",omitzero"` // so many consecutive ranks are on nodes of one topology domain; 0 and 1: each by itself
	Target   int // the first round completes at once with so many; 0: only with Max

	LastCallTimeout time.Duration // longest wait for more nodes once Min is met
	QuietPeriod     time.Duration // 0: off; else the first round completes after so long without an arrival
	RegroupTimeout  time.Duration // longest wait for a live member that does not rejoin
	AdmitDelay      time.Duration // quiet time before waiting newcomers are announced
	LeaseTimeout    time.Duration // a node unheard of for so long is lost
	ReconnectGrace  time.Duration // a node whose connection broke is lost after so long
	ClosedFor       time.Duration // a run that succeeded or was closed by hand does not begin again for so long; 0: off
	NoQuorum        bool          `json:",omitzero"` // no majority of voters elects a host in the place of one that is silent
}

// DefaultPolicy returns a policy with every default set; how many nodes make a round is
// left open.
func DefaultPolicy() Policy {
	return Policy{
		NodeUnit:        1,
		Segment:         1,
		LastCallTimeout: DefaultLastCallTimeout,
		RegroupTimeout:  DefaultRegroupTimeout,
		AdmitDelay:      DefaultAdmitDelay,
		LeaseTimeout:    DefaultLeaseTimeout,
		ReconnectGrace:  DefaultReconnectGrace,
		ClosedFor:       DefaultClosedFor,
	}
}

// Limits on what a node may ask for; they keep arithmetic and memory bounded.
const (
	MaxNodes   = 1 << 20
	MaxTimeout = 10 * 365 * 24 * time.Hour
)

// Validate reports the first thing that is wrong with the policy, as ErrInvalid.
func (p *Policy) Validate() error {
	switch {
	case p.Min < 1:
		return Errorf(CodeInvalid, "the minimum number of nodes is %d, it must be at least 1", p.Min)
	case p.Max < p.Min:
		return Errorf(CodeInvalid, "the maximum number of nodes (%d) is below the minimum (%d)", p.Max, p.Min)
	case p.Max > MaxNodes:
		return Errorf(CodeInvalid, "the maximum number of nodes is %d, this version takes at most %d", p.Max, MaxNodes)
	case p.NodeUnit < 1:
		return Errorf(CodeInvalid, "node_unit is %d, it must be at least 1", p.NodeUnit)
	case p.Min%p.NodeUnit != 0 || p.Max%p.NodeUnit != 0:
		return Errorf(CodeInvalid, "the minimum (%d) and maximum (%d) number of nodes must be multiples of node_unit (%d)",
			p.Min, p.Max, p.NodeUnit)
	case p.Segment < 0 || p.Segment > MaxNodes:
		return Errorf(CodeInvalid, "segment is %d, it must be at least 1", p.Segment)
	case p.Min%p.segment() != 0 || p.Max%p.segment() != 0:
		return Errorf(CodeInvalid, "the minimum (%d) and maximum (%d) number of nodes must be multiples of segment (%d), "+
			"since a round consists of whole segments: change --nnodes or --segment", p.Min, p.Max, p.Segment)
	case p.NodeUnit != 1 && p.NodeUnit%p.segment() != 0:
		return Errorf(CodeInvalid, "node_unit (%d) must be a multiple of segment (%d): leave node_unit out, or change it", p.NodeUnit, p.Segment)
	case p.Target%p.segment() != 0:
		return Errorf(CodeInvalid, "target (%d) must be a multiple of segment (%d): change target or --segment", p.Target, p.Segment)
	case p.Target != 0 && (p.Target < p.Min || p.Target > p.Max || p.Target%p.NodeUnit != 0):
		return Errorf(CodeInvalid, "target is %d, it must lie between the minimum (%d) and the maximum (%d) and be a multiple of node_unit (%d)",
			p.Target, p.Min, p.Max, p.NodeUnit)
	}
	return cmp.Or(
		CheckPositive("last_call_timeout", p.LastCallTimeout),
		notNegative("quiet_period", p.QuietPeriod),
		CheckPositive("regroup_timeout", p.RegroupTimeout),
		notNegative("admit_delay", p.AdmitDelay),
		CheckPositive("lease_timeout", p.LeaseTimeout),
		notNegative("reconnect_grace", p.ReconnectGrace),
		notNegative("closed_for", p.ClosedFor),
	)
}

func (p *Policy) segment() int { return max(1, p.Segment) }

// fits reports whether a round may be scaled to so many nodes.
func (p *Policy) fits(target int) bool {
	return target >= p.Min && target <= p.Max && target%p.NodeUnit == 0 && target%p.segment() == 0
}

// Agrees reports whether nodes of the two policies may be in one run: their rounds may have the
// same sizes, and they take the same for a majority.
func (p *Policy) Agrees(q *Policy) bool {
	return p.Min == q.Min && p.Max == q.Max && p.NodeUnit == q.NodeUnit && p.segment() == q.segment() && p.Target == q.Target && p.NoQuorum == q.NoQuorum
}

// CheckPositive reports a duration that is not greater than 0, or too long, as ErrInvalid.
func CheckPositive(name string, d time.Duration) error {
	if d <= 0 || d > MaxTimeout {
		return Errorf(CodeInvalid, "%s is %v, it must be greater than 0", name, d)
	}
	return nil
}

func notNegative(name string, d time.Duration) error {
	if d < 0 || d > MaxTimeout {
		return Errorf(CodeInvalid, "%s is %v, it must not be negative", name, d)
	}
	return nil
}
