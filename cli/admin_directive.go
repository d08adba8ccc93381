package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/core/control/client"
	"rallypoint/core/rendezvous"
)

func newAdminDrain(log *logging) *cobra.Command {
	var o adminRequest
	var nodes []string
	var within, away time.Duration
	cmd := &cobra.Command{
		Use:   "drain ENDPOINT --rdzv-id ID --node NODE --within TIME --reason TEXT",
		Short: "Have nodes leave a job in time, and keep them away",
		Long: `Give a job the directive that nodes leave it, because their machines are going to be
taken away. Every node of the job and "rallypoint status" say so at once. At the deadline
the named nodes leave, and their agents end with exit code 0; the others regroup at
once, which costs no restart, and a spare takes the place. A drained node that comes back
under its id is refused until --for has passed, from the deadline on, or "admin undrain".

NODE is the node's id: its node_id option, else as "rallypoint status" shows it. A node
without an id of its own has another one when it is started again.`,
		Example: `  rallypoint admin drain host0:29400 --rdzv-id job7 --node gpu17 --within 120s --for 2h --reason "maintenance"
  rallypoint admin undrain host0:29400 --rdzv-id job7 --node gpu17 --reason "it is back"`,
		Args: wantArgs("ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(args[0], log); err != nil {
				return err
			}
			switch {
			case len(nodes) == 0:
				return errors.New("--node is missing: whom?")
			case within < 0:
				return errors.New("--within is negative: the deadline is in the past")
			case away < 0:
				return errors.New("--for is negative")
			}
			id := client.NewDirectiveID()
			return o.deliver(cmd, rendezvous.Direct{
				ID: id, Kind: rendezvous.DirectiveDrain, Nodes: nodes, Within: within, For: away, By: admin(), Reason: o.reason, At: now(),
			}, func(ctx context.Context) (string, error) {
				return client.AdminDrain(ctx, o.addr, o.token, o.run, id, nodes, within, away, whoAmI(), o.reason)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "id of a `NODE`, may be given more than once (required)")
	cmd.Flags().DurationVar(&within, "within", 0, "`TIME` until the nodes leave; 0: now")
	cmd.Flags().DurationVar(&away, "for", 0, "`TIME` for which they are refused, from when they leave; 0: until they are undrained")
	return cmd
}

func newAdminCancel(log *logging) *cobra.Command {
	var o adminRequest
	var id string
	cmd := &cobra.Command{
		Use:     "cancel ENDPOINT --rdzv-id ID --directive ID --reason TEXT",
		Short:   "Take a directive back",
		Long:    `Take back a directive of a job whose deadline has not come. "rallypoint status" shows which stand.`,
		Example: `  rallypoint admin cancel host0:29400 --rdzv-id job7 --directive 3PT6S2LS --reason "the maintenance is off"`,
		Args:    wantArgs("ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(args[0], log); err != nil {
				return err
			}
			if id == "" {
				return errors.New("--directive is missing: which one?")
			}
			return o.deliver(cmd, rendezvous.CancelDirective{ID: id, By: admin(), Reason: o.reason}, func(ctx context.Context) (string, error) {
				return client.AdminCancel(ctx, o.addr, o.token, o.run, id, whoAmI(), o.reason)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&id, "directive", "", "its `ID` (required)")
	return cmd
}

func newAdminUndrain(log *logging) *cobra.Command {
	var o adminRequest
	var node string
	cmd := &cobra.Command{
		Use:     "undrain ENDPOINT --rdzv-id ID --node NODE --reason TEXT",
		Short:   "Let a drained node join again",
		Long:    `Let a node that was drained join its job again before its time is over. Start it then.`,
		Example: `  rallypoint admin undrain host0:29400 --rdzv-id job7 --node gpu17 --reason "it is back"`,
		Args:    wantArgs("ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(args[0], log); err != nil {
				return err
			}
			if node == "" {
				return errors.New("--node is missing: whom?")
			}
			return o.deliver(cmd, rendezvous.Undrain{Node: node, By: admin(), Reason: o.reason}, func(ctx context.Context) (string, error) {
				return client.AdminUndrain(ctx, o.addr, o.token, o.run, node, whoAmI(), o.reason)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&node, "node", "", "id of the `NODE` (required)")
	return cmd
}
