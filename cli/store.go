package cli

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

// defaultStorePort is torch's default MASTER_PORT.
const defaultStorePort = 29500

func newStore(log *logging) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Read, write or serve a TCPStore",
		Long: `Read, write or serve a key-value store that speaks PyTorch's TCPStore protocol:
one of torch's own (MASTER_ADDR:MASTER_PORT of a job), a round's store of
Rallypoint ("rallypoint status" names it), or "rallypoint store serve".

ENDPOINT is HOST or HOST:PORT. Keys are as torch.distributed.TCPStore has them;
torch's process groups put prefixes such as "default_pg/0//" before theirs, which
"list" shows. Anyone who can reach a store can read and write it: a wrong write can
end the job.`,
		Args: noCommand,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("a command is missing: add, delete, get, list, serve, set or wait")
		},
	}
	cmd.AddCommand(newStoreServe(log), newStoreGet(log), newStoreSet(log), newStoreAdd(log), newStoreWait(log), newStoreList(log), newStoreDelete(log))
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
kept in memory. Anyone who can reach the port can read and write it.`,
		Example: `  rallypoint store serve --listen 0.0.0.0:29500

  # in Python, on any machine
  torch.distributed.TCPStore("host0", 29500, is_master=False)`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := parseListen(listen, defaultStorePort)
			if err != nil {
				return err
			}
			l, err := addr.open(cmd.Context(), net.ListenConfig{})
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
	cmd.Flags().StringVar(&listen, "listen", fmt.Sprintf("127.0.0.1:%d", defaultStorePort), "`HOST:PORT` to listen on; a port alone is one of 127.0.0.1; port 0 is any free one")
	return cmd
}
