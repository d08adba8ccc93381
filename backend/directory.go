package backend

import (
	"context"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"rallypoint/core/election/register"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/filestore/fileregister"
	"rallypoint/roundstore"
)

// directory is the path of a directory that nodes share, where the records of their runs' leaders are.
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

func (d directory) shown() string {
	return (&url.URL{Scheme: schemeFile, Path: string(d)}).String()
}

func (d directory) complete(p *params.Params) error {
	p.Endpoint = d.shown()
	return nil
}

func (d directory) open(p params.Params, log *slog.Logger) (Node, error) {
	r := fileregister.New(string(d), p.RunID, fileregister.Options{})
	return node(roundstore.OpenRegister(p, r, func() string { return ownAddress(p.Max) }, nil, log))
}

func (d directory) only() string { return "" }

func (d directory) runs(ctx context.Context, _ time.Duration) ([]string, error) {
	return fileregister.Runs(ctx, string(d))
}

func (d directory) register(runID string, _ time.Duration) (register.Register, func(), error) {
	return fileregister.New(string(d), runID, fileregister.Options{}), func() {}, nil
}
