package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

func newAdmin(log *logging) *cobra.Command {
	var names []string // of its commands
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Close, save, scale or stop a job, evict or drain a node, or copy a data directory",
		Long: `Close, save, scale or stop a job, evict a node or drain it. ENDPOINT is the job's
--rdzv-endpoint: the control plane, or a server that knows which node hosts it; or
file:///DIR or etcd://HOST, whose record names that node. The job's nodes, its history and
the logs record who did it and why.

Anyone who can reach the control plane's port can do this, unless it has a token:
then name its file with --token-file. "backup" copies the data directory of a server
on this machine.`,
		Args: noCommand,
		RunE: func(*cobra.Command, []string) error {
			last := len(names) - 1
			return fmt.Errorf("a command is missing: %s or %s", strings.Join(names[:last], ", "), names[last])
		},
	}
	for _, verb := range adminVerbs() {
		cmd.AddCommand(verb.command(log))
		names = append(names, verb.cmd.Name())
	}
	cmd.AddCommand(newAdminBackup())
	names = append(names, "backup")
	return cmd
}

type adminRequest struct {
	statusQuery
	adminArgs
}

func (ar *adminRequest) ask(cmd *cobra.Command, ev rendezvous.Event) error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(cmd.Context(), ar.Timeout)
	defer cancel()
	ev, err := ar.complete(ctx, ev)
	if err != nil {
		return err
	}
	answer, err := ar.Ask(ctx, ev)
	addr := ar.At.Servers()
	var refusal *rendezvous.Error
	switch {
	case err == nil:
	case addr == "":
		return failure{err}
	case errors.As(err, &refusal) && refusal.Code != rendezvous.CodeConnection:
		return failure{refusal}
	case isTCPStore(cmd.Context(), addr):
		return failed("what listens at %s is a TCPStore, not a control plane; the control plane's port is that of the job's --rdzv-endpoint", addr)
	default:
		return unreachable(addr, "a control plane", time.Since(start), checkControl, err)
	}
	return printTo(cmd.OutOrStdout(), "what was done", printable.Text(answer.Text)+"\n")
}

// complete finds the run that was not named, and the directive to cancel.
func (ar *adminRequest) complete(ctx context.Context, ev rendezvous.Event) (rendezvous.Event, error) {
	cancel, canceling := ev.(rendezvous.CancelDirective)
	canceling = canceling && cancel.ID == ""
	if ar.RunID != "" && !canceling {
		return ev, nil
	}
	run, err := ar.fetchRun(ctx)
	if err != nil {
		return nil, err
	}
	ar.RunID = run.RunID
	if !canceling {
		return ev, nil
	}
	switch len(run.Directives) {
	case 0:
		return nil, failed("no directive of run %q stands", printable.Text(run.RunID))
	case 1:
		cancel.ID = run.Directives[0].ID
		return cancel, nil
	}
	return nil, failed("%d directives of run %q stand: --directive names one", len(run.Directives), printable.Text(run.RunID)) // an older server's
}
