package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

// defaultStorePort is torch's default MASTER_PORT.
const defaultStorePort = 29500

func newStore(log *logging) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Serve a key-value store",
		Long:  "Serve a key-value store that PyTorch's TCPStore clients can use.",
		Args:  noCommand,
		RunE:  func(*cobra.Command, []string) error { return errors.New("a command is missing: serve") },
	}
	cmd.AddCommand(newStoreServe(log))
	return cmd
}

func newStoreServe(log *logging) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a store to PyTorch's TCPStore clients",
		Long: `Serve a key-value store that torch.distributed.TCPStore clients of torch 2.2 and
newer can use (is_master=False). A job that Rallypoint brings together needs no
such server: each of its rounds has a store of its own.

It prints one line when it listens, and ends on SIGTERM or SIGINT. The store is
kept in memory. Whoever can reach the port can read and write it.`,
		Example: `  rallypoint store serve --listen 0.0.0.0:29500

  # in Python, on any machine
  torch.distributed.TCPStore("host0", 29500, is_master=False)`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := parseListen(listen, defaultStorePort)
			if err != nil {
				return err
			}
			l, err := addr.open(cmd.Context())
			if err != nil {
				return err
			}
			s := tcpstore.Serve(l, store.NewEngine(store.Limits{}), tcpstore.Options{Logger: log.logger()})
			fmt.Fprintf(cmd.OutOrStdout(), "store listening on %s\n", l.Addr())
			<-cmd.Context().Done()
			if err := s.Close(); err != nil {
				return failed("stopping: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&listen, "listen", fmt.Sprintf("127.0.0.1:%d", defaultStorePort), "`HOST:PORT` to listen on; port 0 is any free one")
	return cmd
}
