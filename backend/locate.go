package backend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"rallypoint/core/params"
)

// Locate returns where programs outside a job can see the runs of an endpoint: the address of
// their control plane (or a comma-separated list of its servers) or, where a register names each run's,
// the endpoint with defaults filled in, for Query. A number alone is a port of this machine,
// as --listen has it. It opens nothing. The errors call the endpoint ENDPOINT, as the commands do.
func Locate(endpoint string) (addr, place string, err error) {
	if endpoint, err = ofServer(endpoint); err != nil {
		return "", "", err
	}
	at, err := placeOf(endpoint)
	if err != nil {
		return "", "", err
	}
	if at, ok := at.(registerPlace); ok {
		return "", at.endpoint(), nil
	}
	addr, err = at.(hostedPlace).address()
	return addr, "", err
}

// Address returns the HOST:PORT of a server to connect to, with the default port where
// the endpoint names none. A number alone is a port of this machine, as --listen has it.
func Address(endpoint string, defaultPort int) (string, error) {
	endpoint, err := ofServer(endpoint)
	if err != nil {
		return "", err
	}
	at, err := params.ParseEndpoint(endpoint, defaultPort)
	if err != nil {
		return "", err
	}
	return reachable(at)
}

// ofServer returns an endpoint as commands take it in the syntax of the parsers: a number alone is
// a port of this machine, and there is no default host.
func ofServer(endpoint string) (string, error) {
	text := strings.TrimSpace(endpoint)
	if text == "" {
		return "", errors.New("ENDPOINT is empty, expected HOST:PORT")
	}
	if port, err := strconv.ParseUint(text, 10, 16); err == nil {
		return fmt.Sprintf("127.0.0.1:%d", port), nil
	}
	return endpoint, nil
}

// reachable returns the addresses of servers, each of which needs a port.
func reachable(servers ...params.HostPort) (string, error) {
	for _, at := range servers {
		if at.Port == 0 {
			return "", fmt.Errorf("ENDPOINT is %q, but nothing listens on port 0", at)
		}
	}
	return params.Servers(servers).String(), nil
}
