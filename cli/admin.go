package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/backend"
	"rallypoint/core/control/statustext"
	"rallypoint/core/rendezvous"
)

func newAdmin(log *logging) *cobra.Command {
	var names []string // of its commands
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Close, save, scale or stop a job, evict or drain a node, or copy a data directory",
		Long: `Close, save, scale or stop a job, evict a node or drain it. ENDPOINT is the job's
--rdzv-endpoint: the control plane, or a server that knows which node hosts it; or
file:///DIR or etcd://HOST, whose log gets the request. The job's nodes, its history
and the logs record who did it and why.

Anyone who can reach the control plane's port can do this, unless it has a token:
then name its file with --token-file. "backup" copies the data directory of a server
on this machine.`,
		Args: noCommand,
		RunE: func(*cobra.Command, []string) error {
			last := len(names) - 1
			return fmt.Errorf("a command is missing: %s or %s", strings.Join(names[:last], ", "), names[last])
		},
	}
	commands := []*cobra.Command{newAdminClose(log), newAdminEvict(log), newAdminSave(log), newAdminDrain(log), newAdminScale(log), newAdminStop(log)}
	commands = append(commands, newAdminCancel(log), newAdminCordon(log), newAdminUndrain(log), newAdminForget(log), newAdminBackup())
	for _, command := range commands {
		names = append(names, command.Name())
	}
	cmd.AddCommand(commands...)
	return cmd
}

type adminRequest struct {
	statusQuery
	reason string
	file   tokenFlag
}

func (ar *adminRequest) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&ar.run, "rdzv-id", "", "the run `ID`; optional if there is only one run")
	flags.StringVar(&ar.reason, "reason", "", "`TEXT` that the job's nodes receive, beside who asked (default \""+backend.NoReason+"\")")
	flags.DurationVar(&ar.timeout, "timeout", 5*time.Second, "longest `TIME` to wait for the answer")
	ar.file.addTo(cmd)
}

func (ar *adminRequest) prepare(endpoint string, log *logging) (err error) {
	if err = ar.locate(endpoint); err == nil {
		ar.token, err = ar.file.open(log)
	}
	return err
}

func (ar *adminRequest) ask(cmd *cobra.Command, ev rendezvous.Event) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(cmd.Context(), ar.timeout)
	defer cancel()
	ev, err := ar.complete(ctx, ev)
	if err != nil {
		return err
	}
	a := backend.Admin{Addr: ar.addr, Place: ar.place, RunID: ar.run, Token: ar.token, Timeout: ar.timeout}
	answer, err := a.Ask(ctx, ev)
	var refusal *rendezvous.Error
	switch {
	case err == nil:
	case ar.place != "":
		return failure{err}
	case errors.As(err, &refusal) && refusal.Code != rendezvous.CodeConnection:
		return failure{refusal}
	case isTCPStore(cmd.Context(), ar.addr):
		return failed("what listens at %s is a TCPStore, not a control plane; the control plane's port is that of the job's --rdzv-endpoint", ar.addr)
	default:
		return unreachable(ar.addr, "a control plane", time.Since(start), checkControl, err)
	}
	return printTo(cmd.OutOrStdout(), "what was done", statustext.Clean(answer.Text)+"\n")
}

// complete finds the run that was not named, and the directive to cancel.
func (ar *adminRequest) complete(ctx context.Context, ev rendezvous.Event) (rendezvous.Event, error) {
	cancel, canceling := ev.(rendezvous.CancelDirective)
	canceling = canceling && cancel.ID == ""
	if ar.run != "" && !canceling {
		return ev, nil
	}
	run, err := ar.fetchRun(ctx)
	if err != nil {
		return nil, err
	}
	ar.run = run.RunID
	if !canceling {
		return ev, nil
	}
	switch len(run.Directives) {
	case 0:
		return nil, failed("no directive of run %q stands", statustext.Clean(run.RunID))
	case 1:
		cancel.ID = run.Directives[0].ID
		return cancel, nil
	}
	return nil, failed("%d directives of run %q stand: --directive names one", len(run.Directives), statustext.Clean(run.RunID)) // an older server's
}

// newAdminRequest completes the command of a request, whose event is made of the command's own
// flags and the reason.
func newAdminRequest(log *logging, cmd *cobra.Command, event func(reason string) (rendezvous.Event, error)) *cobra.Command {
	var o adminRequest
	cmd.Args = wantArgs("ENDPOINT")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.prepare(args[0], log); err != nil {
			return err
		}
		ev, err := event(o.reason)
		if err != nil {
			return err
		}
		return o.ask(cmd, ev)
	}
	o.addFlags(cmd)
	return cmd
}

func newAdminClose(log *logging) *cobra.Command {
	var stop bool
	cmd := newAdminRequest(log, &cobra.Command{
		Use:   "close ENDPOINT",
		Short: "Let no more nodes join a job, or stop it",
		Long: `Close a job: no more nodes can join, waiting nodes are refused with the reason, and a
running round continues to its end. With --stop the job fails: its agents stop their
workers immediately.

Closing a closed run changes nothing, except with --stop. A run cannot be reopened; its
id is free once none of its nodes is left.`,
		Example: `  rallypoint admin close host0:29400 --rdzv-id job7 --reason "maintenance at noon"
  rallypoint admin close host0:29400 --rdzv-id job7 --reason "wrong data" --stop`,
	}, func(reason string) (rendezvous.Event, error) {
		return rendezvous.CloseRun{Reason: reason, Stop: stop}, nil
	})
	cmd.Flags().BoolVar(&stop, "stop", false, "end the job as failed: its agents stop their workers immediately")
	return cmd
}

func newAdminEvict(log *logging) *cobra.Command {
	var node string
	cmd := newAdminRequest(log, &cobra.Command{
		Use:   "evict ENDPOINT --node NODE",
		Short: "Remove a node from a job",
		Long: `Remove a live node from a job. The others regroup without it, or wait for a
replacement if they are too few. The node's agent receives the reason; nothing
prevents it from joining again, so stop it if it should not.

NODE is the node's id: its node_id option, else as "rallypoint status" shows it.`,
		Example: `  rallypoint admin evict host0:29400 --rdzv-id job7 --node gpu17-3PT6S2QA --reason "its GPU is broken"`,
	}, func(reason string) (rendezvous.Event, error) {
		if node == "" {
			return nil, errors.New("--node is missing: whom?")
		}
		return rendezvous.Evict{Node: node, Reason: reason}, nil
	})
	cmd.Flags().StringVar(&node, "node", "", "id of the `NODE` (required)")
	return cmd
}

func newAdminForget(log *logging) *cobra.Command {
	return newAdminRequest(log, &cobra.Command{
		Use:   "forget ENDPOINT",
		Short: "Let a job that has ended begin again",
		Long: `Let a job that succeeded or was closed begin again before its closed_for (10 min by default)
is over. None of its nodes may be alive.`,
		Example: `  rallypoint admin forget host0:29400 --rdzv-id job7 --reason "one more epoch"`,
	}, func(reason string) (rendezvous.Event, error) {
		return rendezvous.Forget{Reason: reason}, nil
	})
}
