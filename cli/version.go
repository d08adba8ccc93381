package cli

import (
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
	return printTo(w, "the version", "rallypoint "+rallypoint.Version()+"\n")
}
