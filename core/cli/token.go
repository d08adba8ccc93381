package cli

import (
	"os"

	"github.com/spf13/cobra"

	"rallypoint/core/rendezvous"
	"rallypoint/tcpstore/control"
)

// tokenFlag is the option --token-file of commands that serve or ask a control
// plane.
type tokenFlag struct{ path string }

func (f *tokenFlag) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.path, "token-file", "",
		"`FILE` with the token that the control plane and its nodes share (default $"+rendezvous.EnvTokenFile+", else none)")
}

// open reads the file; nil is no token.
func (f *tokenFlag) open(log *logging) (*control.Token, error) {
	path := f.path
	if path == "" {
		path = os.Getenv(rendezvous.EnvTokenFile)
	}
	if path == "" {
		return nil, nil
	}
	token, err := control.OpenToken(path, log.logger())
	if err != nil {
		return nil, failure{err}
	}
	return token, nil
}
