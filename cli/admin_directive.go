package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/core/rendezvous"
)

func newAdminDrain(log *logging) *cobra.Command {
	var nodes []string
	var within, away time.Duration
	cmd := newAdminRequest(log, &cobra.Command{
		Use:   "drain ENDPOINT --node NODE",
		Short: "Have nodes save and leave a job, and keep them out",
		Long: `Have nodes leave a job before their machines are taken away. ` + howTold + `
When all workers have saved, or at the deadline, the named nodes leave. Their agents end
with exit code 0. The others regroup at once, which costs no restart, and spares take the
places. If there is no other node, the run ends instead, and all agents end with exit code 95:
queue the job again. The job refuses a drained node until --for has passed since it left, or
until "admin undrain".

` + whatNode,
		Example: `  rallypoint admin drain host0:29400 --rdzv-id job7 --node gpu17 --within 120s --for 2h --reason "maintenance"
  rallypoint admin undrain host0:29400 --rdzv-id job7 --node gpu17 --reason "it is back"`,
	}, func(reason string) (rendezvous.Event, error) {
		switch {
		case len(nodes) == 0:
			return nil, errors.New("--node is missing: whom?")
		case within < 0:
			return nil, errors.New("--within is negative: the deadline is in the past")
		case away < 0:
			return nil, errors.New("--for is negative")
		}
		return rendezvous.Direct{Kind: rendezvous.DirectiveDrain, Nodes: nodes, Within: within, For: away, Reason: reason}, nil
	})
	cmd.Flags().StringArrayVar(&nodes, "node", nil, "id or host of a `NODE`, may be given more than once (required)")
	cmd.Flags().DurationVar(&within, "within", defaultWithin, "longest `TIME` until the nodes leave; 0: now")
	cmd.Flags().DurationVar(&away, "for", 0, "`TIME` for which they are refused after they have left; 0: until undrained")
	return cmd
}

const whatNode = `NODE is a node's id: its node_id option, else as "rallypoint status" shows it; or the name
of its host, which stands for all nodes there. A node without a node_id has another id when it
is started again: name its host then.`

func newAdminCordon(log *logging) *cobra.Command {
	var node string
	var away time.Duration
	cmd := newAdminRequest(log, &cobra.Command{
		Use:   "cordon ENDPOINT --node NODE",
		Short: "Keep a node out of a job, even before it joins",
		Long: `Keep a node out of a job: it is refused until --for has passed, or until "admin undrain". It
need not have joined yet. A spare leaves at once. A node whose workers run stays until its round ends; to
have it leave earlier, after its workers have saved, use "admin drain".

` + whatNode,
		Example: `  rallypoint admin cordon host0:29400 --rdzv-id job7 --node gpu17 --for 2h --reason "its disk"`,
	}, func(reason string) (rendezvous.Event, error) {
		switch {
		case node == "":
			return nil, errors.New("--node is missing: whom?")
		case away < 0:
			return nil, errors.New("--for is negative")
		}
		return rendezvous.Cordon{Node: node, For: away, Reason: reason}, nil
	})
	cmd.Flags().StringVar(&node, "node", "", "id or host of the `NODE` (required)")
	cmd.Flags().DurationVar(&away, "for", 0, "`TIME` for which it is refused; 0: until undrained")
	return cmd
}

// defaultWithin is the time that a directive leaves the workers to save.
const defaultWithin = 120 * time.Second

// newAdminDirective completes the command that gives a job a directive for all nodes. deadline
// says what its deadline is for.
func newAdminDirective(log *logging, kind rendezvous.DirectiveKind, deadline string, cmd *cobra.Command) *cobra.Command {
	var within time.Duration
	var target int
	newAdminRequest(log, cmd, func(reason string) (rendezvous.Event, error) {
		switch {
		case within < 0:
			return nil, errors.New("--within is negative: the deadline is in the past")
		case within == 0 && !kind.EndsRound():
			return nil, fmt.Errorf("--within is 0: a %v needs time", kind)
		case target <= 0 && kind.HasTarget():
			return nil, errors.New("--target is missing, or not above 0: how many nodes?")
		}
		return rendezvous.Direct{Kind: kind, Within: within, Target: target, Reason: reason}, nil
	})
	cmd.Flags().DurationVar(&within, "within", defaultWithin, deadline)
	if kind.HasTarget() {
		cmd.Flags().IntVar(&target, "target", 0, "the `NUMBER` of nodes, between min and max and a multiple of node_unit (required)")
	}
	return cmd
}

// howTold explains the first part of every directive.
const howTold = `Ranks that report their steps (rallypoint.progress) get it at the same training
step and save; other ranks get it immediately.`

func newAdminSave(log *logging) *cobra.Command {
	return newAdminDirective(log, rendezvous.DirectiveSave, "`TIME` that the workers have", &cobra.Command{
		Use:   "save ENDPOINT",
		Short: "Have all workers of a job save",
		Long: `Ask all workers of a job to save a checkpoint; the job continues. ` + howTold + `
It ends when all workers have reported their save, or at the deadline.`,
		Example: `  rallypoint admin save host0:29400 --rdzv-id job7 --within 120s --reason "before the upgrade"`,
	})
}

func newAdminScale(log *logging) *cobra.Command {
	return newAdminDirective(log, rendezvous.DirectiveScale, "`TIME` until it is done at the latest; 0: now", &cobra.Command{
		Use:   "scale ENDPOINT --target NUMBER",
		Short: "Change the number of nodes of a job",
		Long: `Continue a job with another number of nodes after all workers have saved, or at the
deadline. ` + howTold + ` Nodes above
the target become spares; below it, spares join. This costs no restart. The target holds until
the next scale, within min, max and node_unit.`,
		Example: `  rallypoint admin scale host0:29400 --rdzv-id job7 --target 6 --within 120s --reason "two nodes for another job"`,
	})
}

func newAdminStop(log *logging) *cobra.Command {
	return newAdminDirective(log, rendezvous.DirectiveStop, "`TIME` until it ends at the latest; 0: now", &cobra.Command{
		Use:   "stop ENDPOINT",
		Short: "Save, and end a job so that it can be queued again",
		Long: `End a job when all its workers have saved, or at the deadline. ` + howTold + `
Its agents end with exit code 95: queue the job again. "admin close --stop" ends a job
as failed, at once.`,
		Example: `  rallypoint admin stop host0:29400 --rdzv-id job7 --within 120s --reason "the maintenance begins"`,
	})
}

func newAdminCancel(log *logging) *cobra.Command {
	var id string
	cmd := newAdminRequest(log, &cobra.Command{
		Use:   "cancel ENDPOINT",
		Short: "Cancel a directive",
		Long: `Cancel a directive that has not been carried out. Workers that wait for it continue.
"rallypoint status" lists the current directives.`,
		Example: `  rallypoint admin cancel host0:29400 --rdzv-id job7 --directive 3PT6S2LS --reason "the maintenance is off"`,
	}, func(reason string) (rendezvous.Event, error) {
		return rendezvous.CancelDirective{ID: id, Reason: reason}, nil
	})
	cmd.Flags().StringVar(&id, "directive", "", "its `ID`; optional if there is only one")
	return cmd
}

func newAdminUndrain(log *logging) *cobra.Command {
	var node string
	cmd := newAdminRequest(log, &cobra.Command{
		Use:     "undrain ENDPOINT --node NODE",
		Aliases: []string{"uncordon"},
		Short:   "Let a drained or cordoned node join again",
		Long: `Let a node that was drained, cordoned or found unfit join its job again before its time is over.
NODE is its name under "Drained" in "rallypoint status". Then start the node again.`,
		Example: `  rallypoint admin undrain host0:29400 --rdzv-id job7 --node gpu17 --reason "it is back"`,
	}, func(reason string) (rendezvous.Event, error) {
		if node == "" {
			return nil, errors.New("--node is missing: whom?")
		}
		return rendezvous.Undrain{Node: node, Reason: reason}, nil
	})
	cmd.Flags().StringVar(&node, "node", "", "id or host of the `NODE` (required)")
	return cmd
}
