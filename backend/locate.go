package backend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"rallypoint/core/params"
)

// Locate returns where programs outside a job can see the runs of an endpoint: the address of
// their control plane (or a comma-separated list of its servers) or, without a control plane, the
// endpoint of their shared log with defaults filled in. It opens nothing. The errors call the
// endpoint ENDPOINT, as the commands do.
func Locate(endpoint string) (addr, sharedLog string, err error) {
	p, err := placeOf(endpoint)
	switch {
	case err != nil:
	case p.address == nil:
		sharedLog, err = p.check(endpoint)
	default:
		addr, err = p.address(endpoint)
	}
	return addr, sharedLog, err
}

// serversOf returns the HOST:PORT of a control plane, or of each server that may host it,
// separated by commas.
func serversOf(endpoint string) (string, error) {
	if !strings.Contains(endpoint, ",") {
		return Address(endpoint, params.DefaultPort)
	}
	list, err := params.ParseServers(endpoint, params.DefaultPort)
	return list.String(), err
}

// Address returns the HOST:PORT of a server to connect to, with the default port where
// the endpoint names none. A number alone is a port of this machine, as --listen has it.
func Address(endpoint string, defaultPort int) (string, error) {
	if port, err := strconv.ParseUint(strings.TrimSpace(endpoint), 10, 16); err == nil {
		endpoint = fmt.Sprintf("127.0.0.1:%d", port)
	}
	at, err := params.ParseEndpoint(endpoint, defaultPort)
	switch {
	case strings.TrimSpace(endpoint) == "":
		return "", errors.New("ENDPOINT is empty, expected HOST:PORT")
	case err != nil:
		return "", err
	case at.Port == 0:
		return "", fmt.Errorf("ENDPOINT is %q, but nothing listens on port 0", endpoint)
	}
	return at.String(), nil
}
