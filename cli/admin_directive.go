package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/core/rendezvous"
)

func newAdminDrain(log *logging) *cobra.Command {
	var o adminRequest
	var nodes []string
	var within, away time.Duration
	cmd := &cobra.Command{
		Use:   "drain ENDPOINT --rdzv-id ID --node NODE --reason TEXT",
		Short: "Have nodes leave a job in time, and keep them away",
		Long: `Give a job the directive that nodes leave it, because their machines are going to be
taken away. ` + howTold + `
When all have said that they have saved, and at the deadline at the latest, the named nodes
leave, and their agents end with exit code 0; the others regroup at once, which costs no
restart, and a spare takes the place. If no other node is there the run ends instead, and all
agents with exit code 95: it is to be queued again. A drained node that comes back under its
id is refused until --for has passed, from when it left on, or "admin undrain".

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
			return o.ask(cmd, rendezvous.Direct{Kind: rendezvous.DirectiveDrain, Nodes: nodes, Within: within, For: away, Reason: o.reason})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "id of a `NODE`, may be given more than once (required)")
	cmd.Flags().DurationVar(&within, "within", defaultWithin, "`TIME` until the nodes leave at the latest; 0: now")
	cmd.Flags().DurationVar(&away, "for", 0, "`TIME` for which they are refused, from when they leave; 0: until they are undrained")
	return cmd
}

// defaultWithin is the time that a directive leaves the workers to save.
const defaultWithin = 120 * time.Second

// directiveCommand is what the commands have in common that ask all nodes of a job.
type directiveCommand struct {
	kind    rendezvous.DirectiveKind
	use     string
	short   string
	long    string
	example string
	within  string // what the deadline is for
}

func newAdminDirective(log *logging, c directiveCommand) *cobra.Command {
	var o adminRequest
	var within time.Duration
	var target int
	cmd := &cobra.Command{
		Use: c.use, Short: c.short, Long: c.long, Example: c.example, Args: wantArgs("ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(args[0], log); err != nil {
				return err
			}
			switch {
			case within < 0:
				return errors.New("--within is negative: the deadline is in the past")
			case within == 0 && c.kind == rendezvous.DirectiveSave:
				return errors.New("--within is 0: a save needs time")
			case target <= 0 && c.kind == rendezvous.DirectiveScale:
				return errors.New("--target is missing, or not above 0: how many nodes?")
			}
			return o.ask(cmd, rendezvous.Direct{Kind: c.kind, Within: within, Target: target, Reason: o.reason})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().DurationVar(&within, "within", defaultWithin, c.within)
	if c.kind == rendezvous.DirectiveScale {
		cmd.Flags().IntVar(&target, "target", 0, "the `NUMBER` of nodes, between min and max and a multiple of node_unit (required)")
	}
	return cmd
}

// howTold explains what all directives do first.
const howTold = `All ranks learn of it at the same training step, if they report their steps
(rallypoint.progress), and save; those that report none learn of it at once.`

func newAdminSave(log *logging) *cobra.Command {
	return newAdminDirective(log, directiveCommand{
		kind: rendezvous.DirectiveSave, use: "save ENDPOINT --rdzv-id ID --reason TEXT",
		short: "Have all workers of a job save",
		long: `Ask all workers of a job to save a checkpoint; the job goes on. ` + howTold + `
It is over when all have said that they have saved, or at the deadline.`,
		example: `  rallypoint admin save host0:29400 --rdzv-id job7 --within 120s --reason "before the upgrade"`,
		within:  "`TIME` that the workers have",
	})
}

func newAdminScale(log *logging) *cobra.Command {
	return newAdminDirective(log, directiveCommand{
		kind: rendezvous.DirectiveScale, use: "scale ENDPOINT --rdzv-id ID --target NUMBER --reason TEXT",
		short: "Have a job go on with another number of nodes",
		long: `Have a job go on with another number of nodes, when all workers have saved, or at the
deadline. ` + howTold + ` Nodes above
the target become spares, spares below it join, which costs no restart. The target holds until
the next one; min, max and node_unit stay the bounds.`,
		example: `  rallypoint admin scale host0:29400 --rdzv-id job7 --target 6 --within 120s --reason "two nodes for another job"`,
		within:  "`TIME` until it is done at the latest; 0: now",
	})
}

func newAdminStop(log *logging) *cobra.Command {
	return newAdminDirective(log, directiveCommand{
		kind: rendezvous.DirectiveStop, use: "stop ENDPOINT --rdzv-id ID --reason TEXT",
		short: "Have all workers of a job save, and end it, to be queued again",
		long: `End a job when all its workers have saved, or at the deadline. ` + howTold + `
Its agents end with exit code 95: it is to be queued again. "admin close --stop" ends a job
as failed, at once.`,
		example: `  rallypoint admin stop host0:29400 --rdzv-id job7 --within 120s --reason "the maintenance begins"`,
		within:  "`TIME` until it ends at the latest; 0: now",
	})
}

func newAdminCancel(log *logging) *cobra.Command {
	var o adminRequest
	var id string
	cmd := &cobra.Command{
		Use:   "cancel ENDPOINT --rdzv-id ID --directive ID --reason TEXT",
		Short: "Take a directive back",
		Long: `Take back a directive of a job that has not been carried out: workers that are held for it
go on. "rallypoint status" shows which stand.`,
		Example: `  rallypoint admin cancel host0:29400 --rdzv-id job7 --directive 3PT6S2LS --reason "the maintenance is off"`,
		Args:    wantArgs("ENDPOINT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.prepare(args[0], log); err != nil {
				return err
			}
			if id == "" {
				return errors.New("--directive is missing: which one?")
			}
			return o.ask(cmd, rendezvous.CancelDirective{ID: id, Reason: o.reason})
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
			return o.ask(cmd, rendezvous.Undrain{Node: node, Reason: o.reason})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&node, "node", "", "id of the `NODE` (required)")
	return cmd
}
