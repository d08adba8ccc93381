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
	file tokenFlag
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
