package run

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2

	ExitNoProgress = 93
	ExitUnfit      = 94
	ExitRequeue    = 95
)

// ExitStatus is the error of a command that has already reported everything; it only carries the
// exit code.
type ExitStatus int

func (e ExitStatus) Error() string { return "exit code " + strconv.Itoa(int(e)) }

// New is `rallypoint run`.
func New() *cobra.Command {
	return newLauncher("run", "Run the workers of a job on this node, with torchrun's options", false)
}

// NameLaunch is the command with torch.distributed.launch's options.
const NameLaunch = "launch"

// NewLaunch is `rallypoint launch`.
func NewLaunch() *cobra.Command {
	return newLauncher(NameLaunch, "The same with the options of torch.distributed.launch, which is deprecated", true)
}

// newLauncher makes a command that reads its command line itself, by torchrun's
// rules (see optionTable).
func newLauncher(name, short string, legacy bool) *cobra.Command {
	run := &cobra.Command{
		Use:                name + " [options] SCRIPT [ARGS...]",
		Short:              short,
		DisableFlagParsing: true,
		// The manual page has [options] in it already.
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return complete(args, word, legacy)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			// The signals are the run's: which it takes is an option, and a worker
			// gets the one that came. Those of Process must not end it besides.
			signal.Reset(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			if cmd.Context().Err() != nil { // one came before
				return ExitStatus(ExitFailure)
			}
			ctx := context.WithoutCancel(cmd.Context())
			if code := execute(ctx, cmd.Root(), args, os.Environ(), legacy, cmd.OutOrStdout(), cmd.ErrOrStderr()); code != ExitOK {
				return ExitStatus(code)
			}
			return nil
		},
	}
	run.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_, _ = io.WriteString(cmd.OutOrStdout(), helpText(legacy))
	})
	run.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "usage: rallypoint "+name+" [options] SCRIPT [ARGS...]")
		return err
	})
	return run
}
