package backend

import (
	"context"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/filestore/filelog"
)

// directory is the path of a directory that nodes share, where the logs of their runs are.
type directory string

func parseDirectory(endpoint string) (place, error) { return directoryOf(endpoint) }

// directoryOf parses a file:// endpoint.
func directoryOf(endpoint string) (directory, error) {
	u, err := url.Parse(strings.TrimSpace(endpoint))
	wrong := ""
	switch {
	case err != nil:
		wrong = err.Error()
	case u.Host != "" && u.Host != "localhost":
		wrong = "it names the host " + u.Host + ", but a directory is one of this machine's: mind the three slashes"
	case u.RawQuery != "" || u.Fragment != "":
		wrong = "a directory's name needs no ? or #: write them %3F and %23"
	case !strings.HasPrefix(u.Path, "/"):
		wrong = "it names no directory"
	case strings.ContainsRune(u.Path, 0):
		wrong = "it holds a NUL"
	default:
		return directory(filepath.Clean(u.Path)), nil
	}
	return "", rendezvous.Errorf(rendezvous.CodeInvalid,
		"the endpoint %q is not valid: %s; write file:///DIRECTORY, a directory that all nodes share, with %%XX for special characters", endpoint, wrong)
}

func (d directory) endpoint() string {
	return (&url.URL{Scheme: SchemeFile, Path: string(d)}).String()
}

func (d directory) complete(p *params.Params) error {
	p.Endpoint = d.endpoint()
	return nil
}

func (d directory) open(p params.Params, log *slog.Logger) (Node, error) {
	p.Endpoint = d.endpoint()
	if log != nil && p.TokenFile != "" {
		log.Info("the token protects the round stores; what nodes write into " + string(d) + " is protected by its permissions, and sent in plain by a network file system without encryption")
	}
	return node(openLog(p, log, func() sharedlog.Log { return filelog.New(string(d), p.RunID, nil) }))
}

func (d directory) log(runID string, _ time.Duration) (runLog, error) {
	return directoryLog{d, runID}, nil
}

// directoryLog is the log of a run in a directory, or of all runs.
type directoryLog struct {
	dir   directory
	runID string
}

func (l directoryLog) inspect(context.Context) ([]sharedlog.Record, error) {
	return filelog.Inspect(string(l.dir), l.runID)
}

// watchDirectoryEvery is short, because a look at a directory costs next to nothing.
const watchDirectoryEvery = 50 * time.Millisecond

func (l directoryLog) watch() (sharedlog.Watcher, time.Duration, error) {
	return filelog.Watch(string(l.dir), l.runID), watchDirectoryEvery, nil
}

func (l directoryLog) append(ctx context.Context, run sharedlog.Record, entry []byte) error {
	return filelog.Append(ctx, string(l.dir), run.RunID, run.Generation, run.Last(), entry)
}

func (l directoryLog) shown() string { return l.dir.endpoint() }
