package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rallypoint/core/params"
	"rallypoint/core/secret"
	"rallypoint/internal/printable"
)

// tokenFlag is the option --token-file of commands that serve or ask a control
// plane.
type tokenFlag struct{ path string }

func (t *tokenFlag) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.path, "token-file", "",
		"`FILE` with the token that the control plane and its nodes share (default $"+params.EnvTokenFile+", else none)")
}

// file is the path of the token; "": there is none.
func (t *tokenFlag) file() string { return cmp.Or(t.path, os.Getenv(params.EnvTokenFile)) }

// open reads the file; nil is no token.
func (t *tokenFlag) open(log *logging) (*secret.Token, error) {
	path := t.file()
	if path == "" {
		return nil, nil
	}
	token, err := secret.OpenToken(path, log.logger())
	if err != nil {
		return nil, failure{err}
	}
	return token, nil
}

func newToken(log *logging) *cobra.Command {
	token := &cobra.Command{
		Use:   "token",
		Short: "Make and show the token that a control plane and its nodes share",
		Args:  noCommand,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("a command is missing: new, show or derive")
		},
	}
	token.AddCommand(&cobra.Command{
		Use:   "new FILE",
		Short: "Make a token file",
		Long: `Make FILE with a random token, readable by its owner only. An existing FILE is not
replaced, and the token is not printed. Copy FILE to every node, and name it with
--token-file, the option token_file or $` + params.EnvTokenFile + `.

A token file has one token per line, at most two: the new and the old one during a
change. A token has 32 to 512 bytes. A file is refused if it belongs neither to the user
of the process nor to root, if its group or others can write it, or if others can read
it and it is not root's.`,
		Example: `  rallypoint token new token
  rallypoint serve --listen 0.0.0.0:29400 --token-file token`,
		Args: wantArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			err := secret.NewToken(args[0])
			if errors.Is(err, fs.ErrExist) {
				return failed("cannot make a token file: %w; it stays as it is: give another name, or remove it if no control plane uses it", err)
			}
			if err != nil {
				return failed("cannot make a token file: %w", err)
			}
			return nil
		},
	})
	token.AddCommand(&cobra.Command{
		Use:   "show FILE",
		Short: "Print the fingerprints of a token file",
		Long: `Print the fingerprint of each token in FILE, one per line. Logs, errors and "rallypoint
status --json" identify a token by these 8 hexadecimal digits; the token itself is never
printed. A file that a control plane would refuse is an error that says why.`,
		Example: "  rallypoint token show token",
		Args:    wantArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := secret.OpenToken(args[0], log.logger())
			if err != nil {
				return failure{err}
			}
			return printTo(cmd.OutOrStdout(), "the fingerprints", strings.Join(token.Fingerprints(), "\n")+"\n")
		},
	})
	token.AddCommand(newTokenDerive(log))
	return token
}

// newTokenDerive makes the command that gives a job of a shared control plane a token of its
// own.
func newTokenDerive(log *logging) *cobra.Command {
	var run, output string
	cmd := &cobra.Command{
		Use:   "derive FILE --rdzv-id ID",
		Short: "Print the token that admits to one run only",
		Long: `Print the token of one run, derived from the first token in FILE, the file of a "rallypoint
serve" that many jobs share. Write it to a file for the nodes of that job. With it they can
use the control plane, which has FILE, but cannot join, close or read another run. All nodes
of a run use the same token. The control plane needs no change.`,
		Example: "  rallypoint token derive token --rdzv-id my-job --output my-job.token",
		Args:    wantArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			token, err := secret.OpenToken(args[0], log.logger())
			if err != nil {
				return failure{err}
			}
			if only := token.Run(); only != "" {
				return failed("the token in %s opens run %q only: derive from the control plane's own", args[0], printable.Text(only))
			}
			line, err := secret.RunKey(token.Keys()[0], run)
			if err != nil {
				return failed("%w", err)
			}
			if output == "" {
				return printTo(cmd.OutOrStdout(), "the token", fmt.Sprintf("%s\n", line))
			}
			if err := secret.WriteToken(output, line); err != nil {
				return failed("cannot make a token file: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&run, "rdzv-id", "", "`ID` of the run")
	cmd.Flags().StringVarP(&output, "output", "o", "", "write to a new `FILE` that only this user can read")
	_ = cmd.MarkFlagRequired("rdzv-id")
	return cmd
}
