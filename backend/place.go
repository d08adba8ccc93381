package backend

import (
	"log/slog"
	"strings"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/etcdclient"
)

// The schemes of endpoints.
const (
	schemeFile   = "file"
	SchemeStatic = "static"
	schemeEtcd   = etcdclient.Scheme
	schemeEtcds  = etcdclient.SchemeTLS
)

// place is where the nodes of runs meet: an endpoint that has been parsed. It is also a hostedPlace
// or a registerPlace, where other programs can see the runs.
type place interface {
	// complete sets the parameters that the endpoint contains, and p.Endpoint with defaults filled
	// in.
	complete(p *params.Params) error
	// open makes a node of parameters that are complete.
	open(p params.Params, log *slog.Logger) (Node, error)
}

type hostedPlace interface {
	place
	// servers are those of the control plane.
	servers() params.Servers
}

// parsers parse an endpoint of their scheme. A wrong one is ErrInvalid.
var parsers = map[string]func(endpoint string) (place, error){
	"":           parseHosted,
	SchemeStatic: parseStatic,
	schemeFile:   parseDirectory,
	schemeEtcd:   parseEtcd,
	schemeEtcds:  parseEtcd,
	schemeRecord: parseRecord,
}

// scheme returns the scheme of an endpoint, the part before "://", in lower case; "" for
// host[:port].
func scheme(endpoint string) string {
	scheme, _, ok := strings.Cut(strings.TrimSpace(endpoint), "://")
	if !ok {
		return ""
	}
	return strings.ToLower(scheme)
}

// Place is an endpoint that has been parsed. The zero value is none.
type Place struct{ at place }

// At parses an endpoint. It opens nothing. The error for a wrong one is ErrInvalid, which quotes it
// and says how to write it.
func At(endpoint string) (Place, error) {
	scheme := scheme(endpoint)
	parse, ok := parsers[scheme]
	if !ok {
		return Place{}, rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q is not valid: there is no scheme %q; write HOST, HOST:PORT, [IPV6]:PORT, file:///DIRECTORY or etcd://HOST", params.QuotableEndpoint(endpoint), scheme)
	}
	at, err := parse(endpoint)
	return Place{at}, err
}

// Complete sets the parameters that the endpoint itself contains: its default port, and the run id,
// the options and the user in an etcd's URL (docs/spec/rendezvous.md R103). Parameters that p has
// already must agree. p.Endpoint is then complete, and without secrets.
func (at Place) Complete(p *params.Params) error { return at.at.complete(p) }

// Open makes the node that p describes at the place. It touches nothing yet: that is for the
// node's first Next. A wrong parameter, endpoint or local address is ErrInvalid.
// log gets the node's messages; nil is none.
//
// The caller ends the node by Shutdown or Close.
func (at Place) Open(p params.Params, log *slog.Logger) (Node, error) {
	if err := at.at.complete(&p); err != nil {
		return nil, err
	}
	return at.at.open(p, log)
}

// Servers returns the HOST:PORT of the control plane there, or those of its servers, separated by
// commas; "" if a register names each run's.
func (at Place) Servers() string {
	if hosted, ok := at.at.(hostedPlace); ok {
		return hosted.servers().String()
	}
	return ""
}
