package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/backend"
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

ENDPOINT is HOST or HOST:PORT. Keys are the same as in torch.distributed.TCPStore;
torch's process groups add prefixes such as "default_pg/0//", which "list" shows. Anyone who can reach a store can read and write it: a wrong write can
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
newer can use (is_master=False). A job run by Rallypoint does not need such a server:
each of its rounds has its own store.

It prints one line when it is ready, and ends on SIGTERM or SIGINT. The store is
kept in memory. Anyone who can reach the port can read and write it.`,
		Example: `  rallypoint store serve --listen 0.0.0.0:29500

  # in Python, on any machine:
  #   torch.distributed.TCPStore("host0", 29500, is_master=False)`,
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
			log.serve(cmd)
			s := tcpstore.Serve(l, store.NewEngine(store.Limits{}), tcpstore.Options{Logger: log.logger()})
			log.ready(cmd, fmt.Sprintf("store listening on %s", l.Addr()))
			<-cmd.Context().Done()
			if err := s.Close(); err != nil {
				return failed("stopping: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&listen, "listen", fmt.Sprintf("127.0.0.1:%d", defaultStorePort), "`HOST:PORT` to listen on; a port alone means 127.0.0.1; port 0 means any free one")
	return cmd
}

// defaultStoreTimeout bounds a command on a store: longer than a store takes to
// answer, shorter than a person waits.
const defaultStoreTimeout = 10 * time.Second

const checkStore = `check that the job runs, and that this is its MASTER_ADDR:MASTER_PORT, or the store that "rallypoint status" names`

type storeSession struct {
	log     *logging
	addr    string
	timeout time.Duration
}

// storeCommand completes a command on a store, which run carries out.
func storeCommand(log *logging, cmd *cobra.Command, run func(s *storeSession, cmd *cobra.Command, args []string) error) *cobra.Command {
	s := &storeSession{log: log}
	cmd.Flags().DurationVar(&s.timeout, "timeout", defaultStoreTimeout, "longest `TIME` in all, including the connection")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return run(s, cmd, args) }
	return cmd
}

// run connects and calls do. awaited are the keys that do waits for: if it ends by a timeout, the
// error names those that do not exist.
func (s *storeSession) run(cmd *cobra.Command, endpoint string, awaited []string, do func(ctx context.Context, c *tcpstore.Client) error) error {
	var err error
	if s.addr, err = backend.Address(endpoint, defaultStorePort); err != nil {
		return err
	}
	if err := positive("--timeout", s.timeout); err != nil {
		return err
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	defer cancel()
	c, err := tcpstore.Dial(ctx, s.addr, tcpstore.ClientOptions{Logger: s.log.logger()})
	if err != nil {
		if isControlPlane(cmd.Context(), s.addr) {
			return failed("what listens at %s is a control plane of Rallypoint, not a TCPStore; "+
				`"rallypoint status %s" names the store of a job's round`, s.addr, s.addr)
		}
		return unreachable(s.addr, "a TCPStore", time.Since(start), checkStore, err)
	}
	defer c.Close()
	err = do(ctx, c)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrTimeout) && awaited != nil:
		ctx, cancel := context.WithTimeout(cmd.Context(), probeTimeout)
		defer cancel()
		return failed("%s; waited for %v at %s (--timeout allows more)", missingKeys(ctx, c, awaited), s.timeout, s.addr)
	}
	return failure{err}
}

// missingKeys names the keys that are not there, the first few.
func missingKeys(ctx context.Context, c *tcpstore.Client, keys []string) string {
	const shown = 5
	var missing []string
	for _, key := range keys {
		if there, err := c.Check(ctx, []string{key}); err == nil && !there {
			missing = append(missing, key)
		}
	}
	switch n := len(missing); {
	case n == 0: // written meanwhile, or the store does not answer any more
		return fmt.Sprintf("some keys were not set in time: %q", keys[:min(len(keys), shown)])
	case n == 1:
		return fmt.Sprintf("the key %q does not exist", missing[0])
	case n > shown:
		return fmt.Sprintf("%d of %d keys do not exist: %q and %d more", n, len(keys), missing[:shown], n-shown)
	}
	return fmt.Sprintf("%d of %d keys do not exist: %q", len(missing), len(keys), missing)
}
