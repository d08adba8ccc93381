package backend

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/etcdclient"
)

// The schemes of endpoints.
const (
	SchemeFile   = "file"
	SchemeStatic = "static"
	SchemeEtcd   = etcdclient.Scheme
	SchemeEtcds  = etcdclient.SchemeTLS
)

// place is where the nodes of runs meet: an endpoint that has been parsed. It is also a hostedPlace
// or a logPlace, where other programs can see the runs.
type place interface {
	// complete sets the parameters that the endpoint contains, and p.Endpoint with defaults filled
	// in.
	complete(p *params.Params) error
	// open makes a node.
	open(p params.Params, log *slog.Logger) (Node, error)
}

// hostedPlace is a place with a control plane.
type hostedPlace interface {
	place
	// address returns the control plane's HOST:PORT, or those of its servers, separated by commas.
	address() (string, error)
}

// logPlace is a place where the nodes share a log.
type logPlace interface {
	place
	// endpoint returns the endpoint with defaults filled in, secrets included.
	endpoint() string
	// log returns the log of a run, or of all runs if runID is "". Calls to an etcd are retried
	// until the timeout. It opens nothing.
	log(runID string, timeout time.Duration) (runLog, error)
}

// runLog is a log that nodes share, which programs outside the job read and append to.
type runLog interface {
	inspect(ctx context.Context) ([]sharedlog.Record, error)
	// watch makes a watcher, and says how often to ask it.
	watch() (w sharedlog.Watcher, pause time.Duration, err error)
	// append appends an entry to the run if that is as inspect has returned it.
	append(ctx context.Context, run sharedlog.Record, entry []byte) error
	// shown is the endpoint without secrets.
	shown() string
}

// parsers parse an endpoint of their scheme. A wrong one is ErrInvalid.
var parsers = map[string]func(endpoint string) (place, error){
	"":           parseHosted,
	SchemeStatic: parseStatic,
	SchemeFile:   parseDirectory,
	SchemeEtcd:   parseEtcd,
	SchemeEtcds:  parseEtcd,
}

// Scheme returns the scheme of an endpoint, the part before "://", in lower case; "" for
// host[:port].
func Scheme(endpoint string) string {
	scheme, _, ok := strings.Cut(strings.TrimSpace(endpoint), "://")
	if !ok {
		return ""
	}
	return strings.ToLower(scheme)
}

// placeOf parses an endpoint. The error for a wrong one is ErrInvalid, which quotes it and says how
// to write it.
func placeOf(endpoint string) (place, error) {
	scheme := Scheme(endpoint)
	parse, ok := parsers[scheme]
	if !ok {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q is not valid: there is no scheme %q; write HOST, HOST:PORT, [IPV6]:PORT, file:///DIRECTORY or etcd://HOST", params.QuotableEndpoint(endpoint), scheme)
	}
	return parse(endpoint)
}

// logOf returns the log that nodes share at an endpoint.
func logOf(endpoint, runID string, timeout time.Duration) (runLog, error) {
	at, err := placeOf(endpoint)
	if err != nil {
		return nil, err
	}
	shared, ok := at.(logPlace)
	if !ok {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the nodes at %s have a control plane, so they share no log", params.QuotableEndpoint(endpoint))
	}
	return shared.log(runID, timeout)
}
