package backend

import (
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/filestore/filelog"
	"rallypoint/roundstore"
)

// Check returns the endpoint with defaults filled in. It opens nothing. The error for a wrong
// endpoint is ErrInvalid, which quotes it and says how to write it.
func Check(endpoint string) (string, error) {
	p, err := placeOf(endpoint)
	if err != nil {
		return "", err
	}
	return p.check(endpoint)
}

// directory returns the path that a file:// endpoint names.
func directory(endpoint string) (string, error) {
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
		return filepath.Clean(u.Path), nil
	}
	return "", rendezvous.Errorf(rendezvous.CodeInvalid,
		"the endpoint %q is not valid: %s; write file:///DIRECTORY, a directory that all nodes share, with %%XX for special characters", endpoint, wrong)
}

// fileEndpoint is the endpoint of a directory.
func fileEndpoint(dir string) string { return (&url.URL{Scheme: SchemeFile, Path: dir}).String() }

// Open makes the node that p describes. It touches nothing yet: that is for the
// node's first Next. A wrong parameter, endpoint or local address is ErrInvalid.
// log gets the node's messages; nil is none.
//
// The caller ends the node by Shutdown or Close.
func Open(p params.Params, log *slog.Logger) (Node, error) {
	at, err := placeOf(p.Endpoint)
	if err != nil {
		return nil, err
	}
	return at.open(p, log)
}

// openFile makes a member whose run's log is in a directory.
func openFile(p params.Params, log *slog.Logger) (Node, error) {
	dir, err := directory(p.Endpoint)
	if err != nil {
		return nil, err
	}
	p.Endpoint = fileEndpoint(dir)
	if log != nil && p.TokenFile != "" {
		log.Info("the token protects the round stores; what nodes write into " + dir + " is protected by its permissions, and sent in plain by a network file system without encryption")
	}
	return node(openLog(p, log, func() sharedlog.Log { return filelog.New(dir, p.RunID, nil) }))
}

// node hands out no typed nil with an error.
func node[T Node](n T, err error) (Node, error) {
	if err != nil {
		return nil, err
	}
	return n, nil
}

// OpenRegister makes the member that p describes, whose run uses a register; see
// sharedlog.NewRegisterLog. p.Endpoint is a name for display.
func OpenRegister(p params.Params, r sharedlog.CASRegister, log *slog.Logger) (*member.Member, error) {
	p.ClosedFor = 0 // no clock of the register tells when that is over
	return openLog(p, log, func() sharedlog.Log { return sharedlog.NewRegisterLog(r, p.RunID) })
}

// openLog makes a member over a log that sees no node's address.
func openLog(p params.Params, log *slog.Logger, open func() sharedlog.Log) (*member.Member, error) {
	if p.AdvertiseAddr == "" && p.LocalAddr == "" {
		p.LocalAddr = ownAddress(p.Max)
	}
	return openSeen(p, log, open)
}

// openSeen makes a member over a log that sees the nodes' addresses.
func openSeen(p params.Params, log *slog.Logger, open func() sharedlog.Log) (*member.Member, error) {
	return roundstore.NewMember(p, log, false, func(o member.Observer, _ *roundstore.RoundStores, log *slog.Logger) member.ControlPlane {
		return sharedlog.New(p, o, open(), log)
	})
}

// OpenStandalone makes the member of a job of one node, which no other can reach: its control
// plane ends with this process. Of p, LocalAddr is announced to the workers; "" is the loopback
// address. A wrong parameter is ErrInvalid.
func OpenStandalone(p params.Params, log *slog.Logger) (Node, error) {
	p.Min, p.Max, p.Endpoint, p.TokenFile = 1, 1, "", ""
	return node(openLog(p, log, sharedlog.NewLocalLog))
}
