package backend

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/etcdstore/etcdlog"
	"rallypoint/filestore/filelog"
	"rallypoint/internal/etcdclient"
	"rallypoint/roundstore"
)

// The schemes of endpoints.
const (
	SchemeFile   = "file"
	SchemeStatic = "static"
	SchemeEtcd   = etcdclient.Scheme
	SchemeEtcds  = etcdclient.SchemeTLS
)

// place is the meaning of an endpoint's scheme: where the nodes of runs meet, and where other
// programs can see the runs. The functions take an endpoint of that scheme.
type place struct {
	// check returns the endpoint with defaults filled in. It opens nothing.
	check func(endpoint string) (string, error)
	// open makes a node. A wrong p.Endpoint is ErrInvalid.
	open func(p params.Params, log *slog.Logger) (Node, error)
	// address returns the address of the control plane; nil if there is none.
	address func(endpoint string) (string, error)
	// log returns the log that the nodes of a run share, or of all runs if runID is "", for
	// programs outside the job to read and append to. log is nil if there is a control plane.
	// Calls to an etcd are retried until the timeout. It opens nothing.
	log func(endpoint, runID string, timeout time.Duration) (runLog, error)
}

// runLog is a log that nodes share, seen from outside.
type runLog interface {
	inspect(ctx context.Context) ([]sharedlog.Record, error)
	// watch makes a watcher, and says how often to ask it.
	watch() (w sharedlog.Watcher, pause time.Duration, err error)
	// append appends an entry to the run if that is as inspect has returned it.
	append(ctx context.Context, run sharedlog.Record, entry []byte) error
	// shown is the endpoint without secrets.
	shown() string
}

var places = map[string]place{
	"": {
		check: func(endpoint string) (string, error) {
			list, err := params.ParseServers(endpoint, params.DefaultPort)
			return list.String(), err
		},
		open: func(p params.Params, log *slog.Logger) (Node, error) {
			return node(roundstore.Open(p, log))
		},
		address: serversOf,
	},
	SchemeStatic: {
		check: func(endpoint string) (string, error) {
			address, err := checkAddress(afterScheme(endpoint), -1)
			if err != nil {
				return "", err
			}
			return staticScheme + address, nil
		},
		open:    openStatic,
		address: func(endpoint string) (string, error) { return Address(afterScheme(endpoint), -1) },
	},
	SchemeFile: {
		check: func(endpoint string) (string, error) {
			dir, err := directory(endpoint)
			if err != nil {
				return "", err
			}
			return fileEndpoint(dir), nil
		},
		open: openFile,
		log: func(endpoint, runID string, _ time.Duration) (runLog, error) {
			dir, err := directory(endpoint)
			return fileLog{endpoint, dir, runID}, err
		},
	},
	SchemeEtcd:  inEtcd,
	SchemeEtcds: inEtcd,
}

var inEtcd = place{
	check: func(endpoint string) (string, error) {
		_, err := etcdclient.ParseEndpoint(endpoint)
		return endpoint, err
	},
	open: openEtcd,
	log: func(endpoint, runID string, timeout time.Duration) (runLog, error) {
		p := params.Default()
		p.Endpoint, p.RunID = endpoint, runID
		e, err := completeEtcd(&p)
		if err != nil {
			return nil, err
		}
		config, err := e.Config(p.BackendOptions)
		config.Timeout = timeout
		return etcdLog{e.String(), config, p.RunID}, err
	},
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

// afterScheme returns the part after "://".
func afterScheme(endpoint string) string {
	_, rest, _ := strings.Cut(strings.TrimSpace(endpoint), "://")
	return rest
}

// placeOf returns the place of an endpoint's scheme. The error for an unknown scheme is
// ErrInvalid, which quotes the endpoint and says how to write it.
func placeOf(endpoint string) (place, error) {
	scheme := Scheme(endpoint)
	p, ok := places[scheme]
	if !ok {
		return p, rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q is not valid: there is no scheme %q; write HOST, HOST:PORT, [IPV6]:PORT, file:///DIRECTORY or etcd://HOST", params.QuotableEndpoint(endpoint), scheme)
	}
	return p, nil
}

// logOf returns the log that nodes share at an endpoint.
func logOf(endpoint, runID string, timeout time.Duration) (runLog, error) {
	p, err := placeOf(endpoint)
	if err != nil {
		return nil, err
	}
	if p.log == nil {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the nodes at %s have a control plane, so they share no log", params.QuotableEndpoint(endpoint))
	}
	return p.log(endpoint, runID, timeout)
}

// checkAddress returns an endpoint's HOST:PORT.
func checkAddress(endpoint string, defaultPort int) (string, error) {
	at, err := params.ParseEndpoint(endpoint, defaultPort)
	if err != nil {
		return "", err
	}
	return at.String(), nil
}

// How often a run's watcher is asked: a look at a directory costs next to nothing, one at an etcd
// reads all of the run's log.
const (
	watchFileEvery = 50 * time.Millisecond
	watchEtcdEvery = 200 * time.Millisecond
)

type fileLog struct{ endpoint, dir, runID string }

func (l fileLog) inspect(context.Context) ([]sharedlog.Record, error) {
	return filelog.Inspect(l.dir, l.runID)
}

func (l fileLog) watch() (sharedlog.Watcher, time.Duration, error) {
	return filelog.Watch(l.dir, l.runID), watchFileEvery, nil
}

func (l fileLog) append(ctx context.Context, run sharedlog.Record, entry []byte) error {
	return filelog.Append(ctx, l.dir, run.RunID, run.Generation, run.Last(), entry)
}

func (l fileLog) shown() string { return l.endpoint }

type etcdLog struct {
	hosts  string
	config etcdclient.Config
	runID  string
}

func (l etcdLog) inspect(ctx context.Context) ([]sharedlog.Record, error) {
	return etcdlog.Inspect(ctx, l.config, l.runID)
}

func (l etcdLog) watch() (sharedlog.Watcher, time.Duration, error) {
	w, err := etcdlog.Watch(l.config, l.runID)
	return w, watchEtcdEvery, err
}

func (l etcdLog) append(ctx context.Context, run sharedlog.Record, entry []byte) error {
	return etcdlog.Append(ctx, l.config, run.RunID, run.Generation, run.Last(), entry)
}

func (l etcdLog) shown() string { return l.hosts }
