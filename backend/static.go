package backend

import (
	"log/slog"
	"math"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/roundstore"
)

// staticScheme begins the endpoint of a static job: static://HOST:PORT of node 0.
const staticScheme = SchemeStatic + "://"

var errNoStaticEndpoint = rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint is missing: a static job needs host:port of its node 0")

// openStatic makes a member of a job whose nodes are known beforehand, torch's static backend
// (docs/decisions/0123): the node of rank 0 hosts the control plane at the endpoint, and serves
// the stores of all rounds on the same port. This is node NodeRank of Max, or RankHint if there is
// none. The endpoint is host and port of node 0; a job of one node may have port 0, which is any.
func openStatic(p params.Params, log *slog.Logger) (Node, error) {
	if p.NodeRank < 0 {
		p.NodeRank = p.RankHint
	}
	if p.NodeRank < 0 && p.Max == 1 {
		p.NodeRank = 0
	}
	at, err := params.ParseEndpoint(afterScheme(p.Endpoint), -1)
	switch {
	case err != nil:
		return nil, err
	case p.Min != p.Max:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "a static job has a fixed number of nodes, not %d to %d", p.Min, p.Max)
	case p.NodeRank < 0:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"a static job needs the rank of each node, 0 to %d (0 is the node at the endpoint): give the option node_rank (--rdzv-conf=node_rank=N) or the variable %s=N. "+
				"rallypoint run also takes --node-rank=N, which torchrun keeps from this backend", p.Max-1, params.EnvNodeRank)
	case at.Port == 0 && p.Max > 1:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the port of node 0 is 0, it must be between 1 and %d", math.MaxUint16)
	}
	hosts := p.NodeRank == 0
	p.RankFixed, p.IsHost, p.Endpoint = true, &hosts, at.String()
	if hosts { // elsewhere MASTER_PORT may be another program's
		p.AdvertiseAddr, p.StorePort = at.Host, at.Port
	}
	return node(roundstore.OpenAt(p, params.Servers{at}, log))
}
