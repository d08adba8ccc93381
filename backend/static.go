package backend

import (
	"log/slog"
	"math"
	"strings"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/roundstore"
)

// staticScheme begins the endpoint of a static job: static://HOST:PORT of node 0.
const staticScheme = SchemeStatic + "://"

var errNoStaticEndpoint = rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint is missing: a static job needs host:port of its node 0")

// static is the endpoint of a job whose nodes are known beforehand, torch's static backend
// (docs/decisions/0123): the node of rank 0 hosts the control plane there, and serves the stores of
// all rounds on the same port. A job of one node may have port 0, which is any.
type static struct{ node0 params.HostPort }

func parseStatic(endpoint string) (place, error) {
	_, address, _ := strings.Cut(strings.TrimSpace(endpoint), "://")
	node0, err := params.ParseEndpoint(address, -1)
	return static{node0}, err
}

func (s static) complete(p *params.Params) error {
	p.Endpoint = staticScheme + s.node0.String()
	return nil
}

func (s static) servers() params.Servers { return params.Servers{s.node0} }

// open makes node NodeRank of Max, or RankHint if there is none.
func (s static) open(p params.Params, log *slog.Logger) (Node, error) {
	if p.NodeRank < 0 {
		p.NodeRank = p.RankHint
	}
	if p.NodeRank < 0 && p.Max == 1 {
		p.NodeRank = 0
	}
	switch {
	case p.Min != p.Max:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "a static job has a fixed number of nodes, not %d to %d", p.Min, p.Max)
	case p.NodeRank < 0:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"a static job needs the rank of each node, 0 to %d (0 is the node at the endpoint): give the option node_rank (--rdzv-conf=node_rank=N) or the variable %s=N. "+
				"rallypoint run also takes --node-rank=N, which torchrun keeps from this backend", p.Max-1, params.EnvNodeRank)
	case s.node0.Port == 0 && p.Max > 1:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the port of node 0 is 0, it must be between 1 and %d", math.MaxUint16)
	}
	hosts := p.NodeRank == 0
	p.RankFixed, p.IsHost = true, &hosts
	p.Endpoint, p.Servers = s.node0.String(), s.servers()
	if hosts { // elsewhere MASTER_PORT may be another program's
		p.AdvertiseAddr, p.StorePort = s.node0.Host, s.node0.Port
	}
	return node(roundstore.Open(p, log))
}
