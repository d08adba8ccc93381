package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

func newStoreGet(log *logging) *cobra.Command {
	var format valueFormat
	cmd := storeCommand(log, &cobra.Command{
		Use:   "get ENDPOINT KEY",
		Short: "Print the value of a key",
		Long: `Print the value of a key. It waits for the key until --timeout has passed.

Text is printed unchanged, other values quoted.`,
		Example: `  rallypoint store get host0:29500 step
  rallypoint store get host0:29500 default_pg/0//ncclUniqueId --hex --timeout 1s`,
		Args: wantArgs("ENDPOINT", "KEY"),
	}, func(s *storeSession, cmd *cobra.Command, args []string) error {
		return s.run(cmd, args[0], args[1:], func(ctx context.Context, c *tcpstore.Client) error {
			value, err := c.Get(ctx, args[1])
			if err != nil {
				return err
			}
			return format.print(cmd.OutOrStdout(), value)
		})
	})
	format.addFlags(cmd)
	return cmd
}

func newStoreSet(log *logging) *cobra.Command {
	return storeCommand(log, &cobra.Command{
		Use:   "set ENDPOINT KEY VALUE",
		Short: "Set the value of a key",
		Long:  `Set the value of a key. If VALUE is "-", it is read from stdin.`,
		Example: `  rallypoint store set host0:29500 go 1
  rallypoint store set host0:29500 config - < config.json`,
		Args: wantArgs("ENDPOINT", "KEY", "VALUE"),
	}, func(s *storeSession, cmd *cobra.Command, args []string) error {
		value, err := readValue(cmd, args[2])
		if err != nil {
			return err
		}
		return s.run(cmd, args[0], nil, func(ctx context.Context, c *tcpstore.Client) error {
			return c.Set(ctx, args[1], value)
		})
	})
}

func newStoreAdd(log *logging) *cobra.Command {
	return storeCommand(log, &cobra.Command{
		Use:   "add ENDPOINT KEY [AMOUNT]",
		Short: "Add to a number and print the sum",
		Long: `Add AMOUNT (default 1) to the number in a key, and print the sum. A missing key counts
as 0. AMOUNT 0 prints the number, and creates the key.`,
		Example: `  rallypoint store add host0:29500 arrived
  rallypoint store add host0:29500 arrived -- -1`,
		Args: wantArgs("ENDPOINT", "KEY", "[AMOUNT]"),
	}, func(s *storeSession, cmd *cobra.Command, args []string) error {
		amount := int64(1)
		if len(args) > 2 {
			var err error
			if amount, err = parseAmount(args[2]); err != nil {
				return err
			}
		}
		return s.run(cmd, args[0], nil, func(ctx context.Context, c *tcpstore.Client) error {
			sum, err := c.Add(ctx, args[1], amount)
			if err != nil {
				return err
			}
			return printTo(cmd.OutOrStdout(), "the answer", fmt.Sprintln(sum))
		})
	})
}

func newStoreWait(log *logging) *cobra.Command {
	return storeCommand(log, &cobra.Command{
		Use:     "wait ENDPOINT KEY...",
		Short:   "Wait until keys exist",
		Long:    `Wait until all keys exist, at most for --timeout. It prints nothing.`,
		Example: `  rallypoint store wait host0:29500 ready/0 ready/1 --timeout 5m && echo go`,
		Args:    wantArgs("ENDPOINT", "KEY..."),
	}, func(s *storeSession, cmd *cobra.Command, args []string) error {
		return s.run(cmd, args[0], args[1:], func(ctx context.Context, c *tcpstore.Client) error {
			return c.Wait(ctx, args[1:])
		})
	})
}

func newStoreList(log *logging) *cobra.Command {
	var prefix string
	cmd := storeCommand(log, &cobra.Command{
		Use:   "list ENDPOINT",
		Short: "Print the keys",
		Long: `Print the keys in order, one per line; keys that are not text are quoted. Queues are not
listed. torch's own stores support this since torch 2.10.`,
		Example: `  rallypoint store list host0:29500
  rallypoint store list host0:29500 --prefix default_pg/`,
		Args: wantArgs("ENDPOINT"),
	}, func(s *storeSession, cmd *cobra.Command, args []string) error {
		return s.run(cmd, args[0], nil, func(ctx context.Context, c *tcpstore.Client) error {
			keys, err := c.ListKeys(ctx)
			if errors.Is(err, store.ErrConnection) {
				return fmt.Errorf("%w; torch's own stores can list since torch 2.10", err)
			}
			if err != nil {
				return err
			}
			slices.Sort(keys)
			var text strings.Builder
			for _, key := range keys {
				if strings.HasPrefix(key, prefix) {
					text.WriteString(strings.ReplaceAll(quoted(key), "\n", `\n`) + "\n")
				}
			}
			return printTo(cmd.OutOrStdout(), "the answer", text.String())
		})
	})
	cmd.Flags().StringVar(&prefix, "prefix", "", "only keys that begin with `TEXT`")
	return cmd
}

func newStoreDelete(log *logging) *cobra.Command {
	return storeCommand(log, &cobra.Command{
		Use:     "delete ENDPOINT KEY",
		Short:   "Delete a key",
		Long:    `Delete a key. A missing key is an error.`,
		Example: `  rallypoint store delete host0:29500 go`,
		Args:    wantArgs("ENDPOINT", "KEY"),
	}, func(s *storeSession, cmd *cobra.Command, args []string) error {
		return s.run(cmd, args[0], nil, func(ctx context.Context, c *tcpstore.Client) error {
			existed, err := c.Delete(ctx, args[1])
			if err == nil && !existed {
				return failed("there is no key %q at %s", args[1], s.addr)
			}
			return err
		})
	})
}
