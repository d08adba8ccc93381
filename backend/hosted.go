package backend

import (
	"log/slog"

	"rallypoint/core/params"
	"rallypoint/roundstore"
)

// hosted is the endpoint of a control plane that a node or a server hosts.
type hosted params.Servers

func parseHosted(endpoint string) (place, error) {
	servers, err := params.ParseServers(endpoint, params.DefaultPort)
	return hosted(servers), err
}

func (h hosted) complete(p *params.Params) error {
	p.Endpoint, p.Servers = h.servers().String(), h.servers()
	return nil
}

func (h hosted) open(p params.Params, log *slog.Logger) (Node, error) {
	return node(roundstore.Open(p, log))
}

func (h hosted) servers() params.Servers { return params.Servers(h) }
