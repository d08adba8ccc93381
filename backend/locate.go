package backend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"rallypoint/core/params"
)

// Locate parses an endpoint for programs outside a job, which can see its runs there, by Admin. A number
// alone is a port of this machine, as --listen has it. It opens nothing. The errors call the endpoint
// ENDPOINT, as the commands do.
func Locate(endpoint string) (Place, error) {
	endpoint, err := ofServer(endpoint)
	if err != nil {
		return Place{}, err
	}
	at, err := At(endpoint)
	if hosted, ok := at.at.(hostedPlace); ok && err == nil {
		err = checkPorts(hosted.servers()...)
	}
	return at, err
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
	return at.String(), checkPorts(at)
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

// checkPorts refuses a server without a port.
func checkPorts(servers ...params.HostPort) error {
	for _, at := range servers {
		if at.Port == 0 {
			return fmt.Errorf("ENDPOINT is %q, but nothing listens on port 0", at)
		}
	}
	return nil
}
