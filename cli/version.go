package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"rallypoint"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  rallypoint version",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return printVersion(cmd.OutOrStdout()) },
	}
}

func printVersion(w io.Writer) error {
	if _, err := fmt.Fprintln(w, "rallypoint", rallypoint.Version()); err != nil {
		return failed("printing the version: %w", err)
	}
	return nil
}
