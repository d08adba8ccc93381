// Package params has the parameters of one node in a rendezvous, the options and variables that
// set them, and the syntax of endpoints.
package params

import (
	"cmp"
	"crypto/rand"
	"log/slog"
	"math"
	"strings"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/host"
	"rallypoint/internal/printable"
)

// Defaults of the times that a node alone keeps (docs/spec/rendezvous.md 3.1).
const (
	DefaultJoinTimeout  = 600 * time.Second
	DefaultCloseTimeout = 30 * time.Second
	DefaultReadTimeout  = 60 * time.Second
)

// maxHostName bounds the machine's name in an id that is drawn: Linux allows no longer one.
const maxHostName = 64

// Params is everything one node brings to a rendezvous.
type Params struct {
	rendezvous.Policy
	RunID    string
	Endpoint string // as written; in a node that was opened, for display

	// What the endpoint stands for. The place where it was parsed sets these when it opens the node.
	Servers          Servers // of the control plane; nil: a register tells
	LoopbackRegister bool    // that register has only loopback addresses

	JoinTimeout  time.Duration // one next rendezvous
	CloseTimeout time.Duration // closing, and awaiting the others at the end
	ReadTimeout  time.Duration // one request, and connecting outside a join

	NodeID        string // stable name of this node; "" draws one at random
	HostName      string // of this machine, which stands for all nodes that have it; "": the kernel's
	Topology      string // domain of this node: its rack or NVLink domain; "": none
	Incarnation   uint64 // grows with each start of a named node; 0: taken from the clock
	NodeRank      int    // preferred rank; -1: none
	RankFixed     bool   // this node has no other rank
	RankHint      int    // a scheduler's hint; -1: none
	LocalAddr     string // address announced for this node when AdvertiseAddr is empty
	AdvertiseAddr string // address under which workers reach this node's round store
	StorePort     int    // fixed port of the round store; 0: any
	StoreWithHost bool   // StorePort is the endpoint's: a node takes any port while its process does not listen there
	IsHost        *bool  // nil: decide by the endpoint
	AnyCommand    bool   // this node may wait as a spare of a job that runs another command
	BeginAgain    bool   // a closed run without live nodes begins again at once
	TokenFile     string // of the token that the control plane and its nodes share; "": none
	Record        string // begins the name of the file that gets the history of a control plane in this process; "": none

	Supervised bool // an agent of ours runs the workers, and logs itself why it stops them

	PlainStore   bool  // round stores stay plain although there is a token
	ForwardPorts []int // further ports of the rank-0 node that the workers of the others reach

	LoopbackUsers LoopbackUsers // whose processes may connect to this job's loopback listeners
	Security      string        // value of EnvSecurity; "": warn

	// BackendOptions are options that only one kind of endpoint knows, by name, as
	// they were given: how to reach an etcd. The backend checks them when it opens.
	BackendOptions map[string]string
}

// Default returns parameters with every default set and nothing required
// filled in.
func Default() Params {
	return Params{
		Policy:       rendezvous.DefaultPolicy(),
		JoinTimeout:  DefaultJoinTimeout,
		CloseTimeout: DefaultCloseTimeout,
		ReadTimeout:  DefaultReadTimeout,
		NodeRank:     -1,
		RankHint:     -1,
	}
}

// EventLevel is the level at which this process logs events of its run's control plane. It is
// lower in an agent of ours, which logs what they mean for its workers. The receiver may be nil.
func (p *Params) EventLevel() slog.Level {
	if p != nil && p.Supervised {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// Identity returns the id and the incarnation of the node's hello: those given, else an id
// drawn for this machine and the present time.
func (p *Params) Identity() (node string, incarnation uint64) {
	return cmp.Or(p.NodeID, drawNodeID(p.Machine())), cmp.Or(p.Incarnation, uint64(time.Now().UnixNano()))
}

// Machine returns the name of this node's machine: the given one, else the kernel's without a domain.
func (p *Params) Machine() string {
	name, _, _ := strings.Cut(host.Name(), ".")
	return cmp.Or(p.HostName, name)
}

// drawNodeID returns an id of the machine's name, by which texts and tables call the node.
func drawNodeID(machine string) string {
	if machine == "" || printable.Text(machine) != machine || len(machine) > maxHostName {
		machine = "node"
	}
	return rendezvous.NodeID(machine, rand.Text())
}

// Validate reports the first thing that is wrong with the parameters, as
// ErrInvalid. It resolves no names.
func (p *Params) Validate() error {
	if p.RunID == "" {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the run id is empty; give one with --rdzv-id")
	}
	if len(p.RunID) > rendezvous.MaxNameLen {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the run id has %d bytes, at most %d are allowed", len(p.RunID), rendezvous.MaxNameLen)
	}
	for option, name := range map[string]string{"node_id": p.NodeID, "host_name": p.HostName, "topology": p.Topology} {
		if len(name) > rendezvous.MaxNameLen {
			return rendezvous.Errorf(rendezvous.CodeInvalid, "%s has %d bytes, at most %d are allowed", option, len(name), rendezvous.MaxNameLen)
		}
		if printable.Text(name) != name {
			return rendezvous.Errorf(rendezvous.CodeInvalid, "%s is %q, which holds characters that cannot be shown", option, name)
		}
	}
	if err := p.Policy.Validate(); err != nil {
		return err
	}
	switch {
	case p.Segment > 1 && p.Topology == "":
		return rendezvous.Errorf(rendezvous.CodeInvalid, "segments of %d nodes need to know where each node is: give this one its topology domain by --topology, "+
			"such as --topology=rack7, or leave --segment out", p.Segment)
	case p.Segment > 1 && p.NodeRank >= 0:
		return rendezvous.Errorf(rendezvous.CodeInvalid, "node_rank is %d, but with segments of %d nodes the topology decides the ranks: leave out either --node-rank (node_rank, PET_NODE_RANK) or --segment",
			p.NodeRank, p.Segment)
	}
	if p.NodeRank < -1 || p.NodeRank >= p.Max {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "node_rank is %d, it must be below the maximum number of nodes (%d)", p.NodeRank, p.Max)
	}
	if p.StorePort < 0 || p.StorePort > math.MaxUint16 {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "store_port is %d, it must be between 0 and 65535", p.StorePort)
	}
	for _, timeout := range []struct {
		name string
		is   time.Duration
	}{
		{"join_timeout", p.JoinTimeout}, {"close_timeout", p.CloseTimeout}, {"read_timeout", p.ReadTimeout},
	} {
		if err := rendezvous.CheckPositive(timeout.name, timeout.is); err != nil {
			return err
		}
	}
	return nil
}

// RefuseToken reports a token that is given where none is asked for, as ErrInvalid: its
// owner would think the job protected. place says where that is. Whether there is such a
// file does not matter.
func (p *Params) RefuseToken(place string) error {
	if p.TokenFile == "" {
		return nil
	}
	return rendezvous.Errorf(rendezvous.CodeInvalid, "the token file %s would protect nothing: no other process asks for a token, and %s has none; "+
		"leave it out (token_file, --token-file, %s)", p.TokenFile, place, EnvTokenFile)
}
