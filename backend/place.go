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
	// open makes a node.
	open(p params.Params, log *slog.Logger) (Node, error)
}

type hostedPlace interface {
	place
	// address returns the control plane's HOST:PORT, or those of its servers, separated by commas.
	address() (string, error)
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

// placeOf parses an endpoint. The error for a wrong one is ErrInvalid, which quotes it and says how
// to write it.
func placeOf(endpoint string) (place, error) {
	scheme := scheme(endpoint)
	parse, ok := parsers[scheme]
	if !ok {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q is not valid: there is no scheme %q; write HOST, HOST:PORT, [IPV6]:PORT, file:///DIRECTORY or etcd://HOST", params.QuotableEndpoint(endpoint), scheme)
	}
	return parse(endpoint)
}
