package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rallypoint/backend"
	"rallypoint/core/rendezvous"
)

// adminVerb is a command that requests something of a run: a directive of a kind, or another event.
type adminVerb struct {
	cmd    *cobra.Command
	kind   rendezvous.DirectiveKind
	within string // what the deadline of a directive is for
	event  func(a *adminArgs) rendezvous.Event
	flags  func(f *pflag.FlagSet, a *adminArgs) // its own; nil: none
}

type adminArgs struct {
	reason, node, directive string
	nodes                   []string
	within, away            time.Duration
	target                  int
	failed                  bool
}

func (v *adminVerb) request(a *adminArgs) (rendezvous.Event, error) {
	switch {
	case v.cmd.Flags().Lookup("node") != nil && a.node == "" && len(a.nodes) == 0:
		return nil, errors.New("--node is missing: whom?")
	case a.within < 0:
		return nil, errors.New("--within is negative: the deadline is in the past")
	case a.away < 0:
		return nil, errors.New("--for is negative")
	case a.failed && v.cmd.Flags().Changed("within"):
		return nil, errors.New("--failed and --within exclude each other: a job fails at once")
	case a.failed:
		return rendezvous.CloseRun{Reason: a.reason, Stop: true}, nil
	case v.event != nil:
		return v.event(a), nil
	case a.within == 0 && !v.kind.EndsRound():
		return nil, fmt.Errorf("--within is 0: a %v needs time", v.kind)
	case a.target <= 0 && v.kind.HasTarget():
		return nil, errors.New("--target is missing, or not above 0: how many nodes?")
	}
	return rendezvous.Direct{Kind: v.kind, Nodes: a.nodes, Within: a.within, For: a.away, Target: a.target, Reason: a.reason}, nil
}

func (v *adminVerb) command(log *logging) *cobra.Command {
	var o adminRequest
	flags := v.cmd.Flags()
	if v.within != "" {
		flags.DurationVar(&o.within, "within", 120*time.Second, v.within)
	}
	if v.flags != nil {
		v.flags(flags, &o.adminArgs)
	}
	flags.StringVar(&o.reason, "reason", "", "`TEXT` that the job's nodes receive, beside who asked (default \""+backend.NoReason+"\")")
	o.addFlags(v.cmd, onlyRunID, "longest `TIME` to wait for the answer")
	v.cmd.Args = wantArgs("ENDPOINT")
	v.cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.reach(args[0], log); err != nil {
			return err
		}
		ev, err := v.request(&o.adminArgs)
		if err != nil {
			return err
		}
		return o.ask(cmd, ev)
	}
	return v.cmd
}

const whatNode = `NODE is a node's id: its node_id option, else as "rallypoint status" shows it; or the name
of its host, which stands for all nodes there. A node without a node_id has another id when it
is started again: name its host then.`

const howTold = `Ranks that report their steps (rallypoint.progress) get it at the same training
step and save; other ranks get it immediately.`

// adminVerbs are all verbs, in the order of the help.
func adminVerbs() []adminVerb {
	return []adminVerb{
		{cmd: &cobra.Command{
			Use:   "close ENDPOINT",
			Short: "Let no more nodes join a job",
			Long: `Close a job: no more nodes can join, waiting nodes are refused with the reason, and a
running round continues to its end. "admin stop" ends that, too.

Closing a closed run changes nothing. A run cannot be reopened; its id is free once none of
its nodes is left.`,
			Example: `  rallypoint admin close host0:29400 --rdzv-id job7 --reason "maintenance at noon"`,
		}, event: func(a *adminArgs) rendezvous.Event { return rendezvous.CloseRun{Reason: a.reason} }, flags: func(f *pflag.FlagSet, a *adminArgs) {
			f.BoolVar(&a.failed, "stop", false, "") // stop --failed, in versions before that
			_ = f.MarkHidden("stop")
		}},
		{cmd: &cobra.Command{
			Use:   "evict ENDPOINT --node NODE",
			Short: "Remove a node from a job",
			Long: `Remove a live node from a job. The others regroup without it, or wait for a
replacement if they are too few. The node's agent receives the reason; nothing
prevents it from joining again, so stop it if it should not.

NODE is the node's id: its node_id option, else as "rallypoint status" shows it.`,
			Example: `  rallypoint admin evict host0:29400 --rdzv-id job7 --node gpu17-3PT6S2QA --reason "its GPU is broken"`,
		}, event: func(a *adminArgs) rendezvous.Event { return rendezvous.Evict{Node: a.node, Reason: a.reason} }, flags: func(f *pflag.FlagSet, a *adminArgs) {
			f.StringVar(&a.node, "node", "", "id of the `NODE` (required)")
		}},
		{cmd: &cobra.Command{
			Use:   "save ENDPOINT",
			Short: "Have all workers of a job save",
			Long: `Ask all workers of a job to save a checkpoint; the job continues. ` + howTold + `
It ends when all workers have reported their save, or at the deadline.`,
			Example: `  rallypoint admin save host0:29400 --rdzv-id job7 --within 120s --reason "before the upgrade"`,
		}, kind: rendezvous.DirectiveSave, within: "`TIME` that the workers have"},
		{cmd: &cobra.Command{
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
		}, kind: rendezvous.DirectiveDrain, within: "longest `TIME` until the nodes leave; 0: now", flags: func(f *pflag.FlagSet, a *adminArgs) {
			f.StringArrayVar(&a.nodes, "node", nil, "id or host of a `NODE`, may be given more than once (required)")
			f.DurationVar(&a.away, "for", 0, "`TIME` for which they are refused after they have left; 0: until undrained")
		}},
		{cmd: &cobra.Command{
			Use:   "scale ENDPOINT --target NUMBER",
			Short: "Change the number of nodes of a job",
			Long: `Continue a job with another number of nodes after all workers have saved, or at the
deadline. ` + howTold + ` Nodes above
the target become spares; below it, spares join. This costs no restart. The target holds until
the next scale, within min, max and node_unit.`,
			Example: `  rallypoint admin scale host0:29400 --rdzv-id job7 --target 6 --within 120s --reason "two nodes for another job"`,
		}, kind: rendezvous.DirectiveScale, within: "`TIME` until it is done at the latest; 0: now", flags: func(f *pflag.FlagSet, a *adminArgs) {
			f.IntVar(&a.target, "target", 0, "the `NUMBER` of nodes, between min and max and a multiple of node_unit (required)")
		}},
		{cmd: &cobra.Command{
			Use:   "stop ENDPOINT",
			Short: "Save, and end a job so that it can be queued again; or as failed",
			Long: `End a job when all its workers have saved, or at the deadline. ` + howTold + `
Its agents end with exit code 95: queue the job again. With --failed nothing is saved: the
agents stop their workers at once, and end with 1, also if the job was closed before.`,
			Example: `  rallypoint admin stop host0:29400 --rdzv-id job7 --within 120s --reason "the maintenance begins"
  rallypoint admin stop host0:29400 --rdzv-id job7 --failed --reason "wrong data"`,
		}, kind: rendezvous.DirectiveStop, within: "`TIME` until it ends at the latest; 0: now", flags: func(f *pflag.FlagSet, a *adminArgs) {
			f.BoolVar(&a.failed, "failed", false, "end the job as failed, at once and without a save")
		}},
		{cmd: &cobra.Command{
			Use:   "cancel ENDPOINT",
			Short: "Cancel a directive",
			Long: `Cancel a directive that has not been carried out. Workers that wait for it continue.
"rallypoint status" lists the current directives.`,
			Example: `  rallypoint admin cancel host0:29400 --rdzv-id job7 --directive 3PT6S2LS --reason "the maintenance is off"`,
		}, event: func(a *adminArgs) rendezvous.Event {
			return rendezvous.CancelDirective{ID: a.directive, Reason: a.reason}
		}, flags: func(f *pflag.FlagSet, a *adminArgs) {
			f.StringVar(&a.directive, "directive", "", "its `ID`; optional if there is only one")
		}},
		{cmd: &cobra.Command{
			Use:   "cordon ENDPOINT --node NODE",
			Short: "Keep a node out of a job, even before it joins",
			Long: `Keep a node out of a job: it is refused until --for has passed, or until "admin undrain". It
need not have joined yet. A spare leaves at once. A node whose workers run stays until its round ends; to
have it leave earlier, after its workers have saved, use "admin drain".

` + whatNode,
			Example: `  rallypoint admin cordon host0:29400 --rdzv-id job7 --node gpu17 --for 2h --reason "its disk"`,
		}, event: func(a *adminArgs) rendezvous.Event {
			return rendezvous.Cordon{Node: a.node, For: a.away, Reason: a.reason}
		}, flags: func(f *pflag.FlagSet, a *adminArgs) {
			f.StringVar(&a.node, "node", "", "id or host of the `NODE` (required)")
			f.DurationVar(&a.away, "for", 0, "`TIME` for which it is refused; 0: until undrained")
		}},
		{cmd: &cobra.Command{
			Use:     "undrain ENDPOINT --node NODE",
			Aliases: []string{"uncordon"},
			Short:   "Let a drained or cordoned node join again",
			Long: `Let a node that was drained, cordoned or found unfit join its job again before its time is over.
NODE is its name under "Drained" in "rallypoint status". Then start the node again.`,
			Example: `  rallypoint admin undrain host0:29400 --rdzv-id job7 --node gpu17 --reason "it is back"`,
		}, event: func(a *adminArgs) rendezvous.Event { return rendezvous.Undrain{Node: a.node, Reason: a.reason} }, flags: func(f *pflag.FlagSet, a *adminArgs) {
			f.StringVar(&a.node, "node", "", "id or host of the `NODE` (required)")
		}},
		{cmd: &cobra.Command{
			Use:   "forget ENDPOINT",
			Short: "Let a job that has ended begin again",
			Long: `Let a job that succeeded or was closed begin again before its closed_for (10 min by default)
is over. None of its nodes may be alive.`,
			Example: `  rallypoint admin forget host0:29400 --rdzv-id job7 --reason "one more epoch"`,
		}, event: func(a *adminArgs) rendezvous.Event { return rendezvous.Forget{Reason: a.reason} }},
	}
}
