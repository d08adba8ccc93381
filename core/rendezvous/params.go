package rendezvous

import (
	"math"
	"time"

	"rallypoint/internal/printable"
)

// Defaults of the durations (docs/spec/rendezvous.md 3.1 and docs/decisions/0012).
const (
	DefaultJoinTimeout     = 600 * time.Second
	DefaultLastCallTimeout = 30 * time.Second
	DefaultCloseTimeout    = 30 * time.Second
	DefaultReadTimeout     = 60 * time.Second
	DefaultLeaseTimeout    = 10 * time.Second
	DefaultReconnectGrace  = time.Second
	DefaultRegroupTimeout  = 90 * time.Second
	DefaultAdmitDelay      = time.Second
)

// Policy is what all nodes of a run must agree on, or take from the run's first
// node: how many nodes make a round and how long to wait for which.
type Policy struct {
	Min      int // fewest nodes of a round, >= 1
	Max      int // most nodes of a round, >= Min
	NodeUnit int // a round's size is a multiple of it, >= 1
	Target   int // the first round completes at once with so many; 0: only with Max

	LastCallTimeout time.Duration // longest wait for more nodes once Min is met
	QuietPeriod     time.Duration // 0: off; else the first round completes after so long without an arrival
	RegroupTimeout  time.Duration // longest wait for a live member that does not rejoin
	AdmitDelay      time.Duration // quiet time before waiting newcomers are announced
	LeaseTimeout    time.Duration // a node unheard of for so long is lost
	ReconnectGrace  time.Duration // a node whose connection broke is lost after so long
}

// Params is everything one node brings to a rendezvous.
type Params struct {
	Policy
	RunID    string
	Endpoint string

	JoinTimeout  time.Duration // one next rendezvous
	CloseTimeout time.Duration // closing, and awaiting the others at the end
	ReadTimeout  time.Duration // one request, and connecting outside a join

	NodeID        string // stable name of this node; "" draws one at random
	Incarnation   uint64 // grows with each start of a named node; 0: taken from the clock
	NodeRank      int    // preferred rank; -1: none
	RankHint      int    // a scheduler's hint; -1: none
	LocalAddr     string // address announced for this node when AdvertiseAddr is empty
	AdvertiseAddr string // address under which workers reach this node's round store
	StorePort     int    // fixed port of the round store; 0: any
	IsHost        *bool  // nil: decide by the endpoint
	TokenFile     string // of the token that the control plane and its nodes share; "": none
	Record        string // begins the name of the file that gets the history of a control plane in this process; "": none

	PlainStore   bool  // round stores stay plain although there is a token
	ForwardPorts []int // further ports of the rank-0 node that the workers of the others reach

	LoopbackUsers LoopbackUsers // whose processes may connect to this job's loopback listeners
	Security      string        // value of EnvSecurity; "": warn

	// BackendOptions are options that only one kind of endpoint knows, by name, as
	// they were given: how to reach an etcd. The backend checks them when it opens.
	BackendOptions map[string]string
}

// DefaultParams returns parameters with every default set and nothing required
// filled in.
func DefaultParams() Params {
	return Params{
		Policy: Policy{
			NodeUnit:        1,
			LastCallTimeout: DefaultLastCallTimeout,
			RegroupTimeout:  DefaultRegroupTimeout,
			AdmitDelay:      DefaultAdmitDelay,
			LeaseTimeout:    DefaultLeaseTimeout,
			ReconnectGrace:  DefaultReconnectGrace,
		},
		JoinTimeout:  DefaultJoinTimeout,
		CloseTimeout: DefaultCloseTimeout,
		ReadTimeout:  DefaultReadTimeout,
		NodeRank:     -1,
		RankHint:     -1,
	}
}

// Limits on what a node may ask for; they keep arithmetic and memory bounded.
const (
	MaxNodes   = 1 << 20
	maxTimeout = 10 * 365 * 24 * time.Hour
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
	case p.Target != 0 && (p.Target < p.Min || p.Target > p.Max || p.Target%p.NodeUnit != 0):
		return Errorf(CodeInvalid, "target is %d, it must lie between the minimum (%d) and the maximum (%d) and be a multiple of node_unit (%d)",
			p.Target, p.Min, p.Max, p.NodeUnit)
	}
	return firstError(
		positive("last_call_timeout", p.LastCallTimeout),
		notNegative("quiet_period", p.QuietPeriod),
		positive("regroup_timeout", p.RegroupTimeout),
		notNegative("admit_delay", p.AdmitDelay),
		positive("lease_timeout", p.LeaseTimeout),
		notNegative("reconnect_grace", p.ReconnectGrace),
	)
}

// Validate reports the first thing that is wrong with the parameters, as
// ErrInvalid. It resolves no names.
func (p *Params) Validate() error {
	if p.RunID == "" {
		return Errorf(CodeInvalid, "the run id is empty; give one with --rdzv-id")
	}
	if len(p.RunID) > MaxNameLen {
		return Errorf(CodeInvalid, "the run id has %d bytes, at most %d are allowed", len(p.RunID), MaxNameLen)
	}
	if len(p.NodeID) > MaxNameLen {
		return Errorf(CodeInvalid, "node_id has %d bytes, at most %d are allowed", len(p.NodeID), MaxNameLen)
	}
	if printable.Text(p.NodeID) != p.NodeID {
		return Errorf(CodeInvalid, "node_id is %q, which holds characters that cannot be shown", p.NodeID)
	}
	if err := p.Policy.Validate(); err != nil {
		return err
	}
	if p.NodeRank < -1 || p.NodeRank >= p.Max {
		return Errorf(CodeInvalid, "node_rank is %d, it must be below the maximum number of nodes (%d)", p.NodeRank, p.Max)
	}
	if p.StorePort < 0 || p.StorePort > math.MaxUint16 {
		return Errorf(CodeInvalid, "store_port is %d, it must be between 0 and 65535", p.StorePort)
	}
	return firstError(
		positive("join_timeout", p.JoinTimeout),
		positive("close_timeout", p.CloseTimeout),
		positive("read_timeout", p.ReadTimeout),
	)
}

// RefuseToken reports a token that is given where none is asked for, as ErrInvalid: its
// owner would think the job protected. place says where that is. Whether there is such a
// file does not matter.
func (p *Params) RefuseToken(place string) error {
	if p.TokenFile == "" {
		return nil
	}
	return Errorf(CodeInvalid, "the token file %s would protect nothing: no other process asks for a token, and %s has none; "+
		"leave it out (token_file, --token-file, %s)", p.TokenFile, place, EnvTokenFile)
}

// seats returns how many of n nodes a round may have: at most Max, a multiple of
// NodeUnit.
func (p *Policy) seats(n int) int {
	n = min(n, p.Max)
	return n - n%p.NodeUnit
}

// enough returns the number of nodes at which the first round completes at once.
func (p *Policy) enough() int {
	if p.Target > 0 {
		return p.Target
	}
	return p.Max
}

func positive(name string, d time.Duration) error {
	if d <= 0 || d > maxTimeout {
		return Errorf(CodeInvalid, "%s is %v, it must be greater than 0", name, d)
	}
	return nil
}

func notNegative(name string, d time.Duration) error {
	if d < 0 || d > maxTimeout {
		return Errorf(CodeInvalid, "%s is %v, it must not be negative", name, d)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
