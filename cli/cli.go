// Package cli is the command `rallypoint`. It is a package of its own so that
// both cmd/rallypoint and the library (rp_main) can run it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rallypoint/cli/run"
	"rallypoint/internal/printable"
)

// Main runs the command with args, of which the first is the program's name, and
// returns its exit code: 0, 1 for a failure, 2 for wrong usage. An error is one
// line on stderr. A command that serves does so until ctx ends, and then ends
// cleanly with 0.
//
// It installs no signal handlers; Process does.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	log := &logging{out: stderr}
	defer func() {
		if log.flush != nil {
			log.flush()
		}
	}()
	root := newRoot(log, stdout)
	root.SetErr(stderr)
	if len(args) > 0 {
		root.SetArgs(args[1:])
	} else {
		root.SetArgs([]string{})
	}
	var unknown error // the command whose help is wanted
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if unknown = noCommand(cmd, beside(cmd, args)); unknown == nil {
			helpOf(cmd, args)
		}
	})
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = unknown
	}
	if err == nil {
		return run.ExitOK
	}
	if status, ok := errors.AsType[run.ExitStatus](err); ok {
		return int(status)
	}
	if f, ok := errors.AsType[failure](err); ok {
		log.complain(cmd.CommandPath(), f.Error())
		return run.ExitFailure
	}
	log.complain(cmd.CommandPath(), fmt.Sprintf("%v; see `%s --help`", err, cmd.CommandPath()))
	return run.ExitUsage
}

// Process is Main for a process that does nothing else: SIGINT, SIGTERM and, unless it is ignored as
// under nohup, SIGHUP end the command cleanly, a second one at once.
func Process(args []string, stdout, stderr io.Writer) int {
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	return Main(ctx, args, stdout, stderr)
}

// failure is an error in carrying a command out, as opposed to wrong usage.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

func failed(format string, args ...any) error { return failure{fmt.Errorf(format, args...)} }

// Command returns the command for programs that describe it, such as the generator of the manual
// pages.
func Command() *cobra.Command {
	root := newRoot(&logging{out: io.Discard}, io.Discard)
	for _, c := range root.Commands() {
		if c.DisableFlagParsing {
			run.Describe(c, c.Name() == run.NameLaunch)
		}
	}
	return root
}

func newRoot(log *logging, stdout io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "rallypoint",
		Short: "Elastic rendezvous and launcher for distributed jobs",
		Long: `Rallypoint is an elastic rendezvous and launcher for PyTorch and other distributed
jobs: it decides which nodes take part, gives each worker a rank and a shared store,
and forms a new round when a node leaves or joins.

A job needs no server: its first node hosts the control plane. Start one with
"rallypoint serve" if jobs should survive the loss of any node.

Exit codes: 0 success, 1 failure, 2 wrong usage.`,
		Example: `  # a job of one machine
  rallypoint run --standalone --nproc-per-node=8 train.py

  # a job of two to four machines: the same on each of them
  rallypoint run --rdzv-endpoint=host0:29400 --rdzv-id=job7 \
    --nnodes=2:4 --nproc-per-node=8 --max-restarts=3 train.py

  # who takes part in it, who is missing, and why it does not start
  rallypoint status host0:29400

  # one control plane for many jobs, which name it as their endpoint
  rallypoint serve --listen 0.0.0.0:29400`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Args:              noCommand,
		PersistentPreRunE: func(*cobra.Command, []string) error { return log.check() },
	}
	root.SetOut(stdout) // the commands that cobra adds take it when they are made
	root.SetFlagErrorFunc(suggestFlag)
	// Not by cobra's Version: its template makes the linker keep every method of every type.
	version := root.Flags().BoolP("version", "v", false, "print the version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			return printVersion(cmd.OutOrStdout())
		}
		return cmd.Help()
	}
	log.addFlags(root.PersistentFlags())
	for _, launcher := range []*cobra.Command{run.New(), run.NewLaunch()} {
		run.HideInherited(launcher, root.PersistentFlags())
		root.AddCommand(launcher)
	}
	root.AddCommand(newServe(log), newStatus(log), newStacks(log), newLogs(log), newAdmin(log), newCheck(), newProve(), newToken(log), newStore(log), newVersion(), newOptionsTopic())
	refuseOthers(root)
	return root
}

// refuseOthers turns wrong usage of the commands that cobra adds into an error: "help" for an
// unknown command, "completion" for no or an unknown shell.
func refuseOthers(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Short = "Describe a command"
			c.Run = nil
			c.RunE = func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err == nil {
					err = noCommand(about, rest)
				}
				if err != nil {
					return err
				}
				return about.Help()
			}
		case "completion":
			c.Short = "Print a script that completes commands, for a shell"
			c.Args, c.Example = noCommand, "  source <(rallypoint completion bash)"
			c.RunE = func(*cobra.Command, []string) error {
				return errors.New("a command is missing: bash, fish, powershell or zsh")
			}
			for _, shell := range c.Commands() {
				write := shell.RunE
				shell.RunE = func(cmd *cobra.Command, args []string) error {
					if err := write(cmd, args); err != nil {
						return failed("printing the script: %w", err)
					}
					return nil
				}
			}
		}
	}
}

// valueKinds describe the values of flags, by pflag's name of their type.
var valueKinds = map[string]string{"int": "a whole number", "duration": "a time with its unit, such as 30s, 5m or 2h"}

// suggestFlag adds to the error of a wrong value what the flag takes, and to that of an unknown
// flag the one that was probably meant.
func suggestFlag(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if must := valueKinds[invalid.GetFlag().Value.Type()]; must != "" {
			return fmt.Errorf("--%s is %q, it must be %s", invalid.GetFlag().Name, invalid.GetValue(), must)
		}
	}
	if before := cmd.Flags().Args(); !cmd.HasParent() && len(before) > 0 {
		return noCommand(cmd, before) // whose flag this is
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return fmt.Errorf("%w%s", err, run.Suggestion(unknown.GetSpecifiedName(), names))
}

func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q", args[0])
	if args[0] == "audit" {
		return fmt.Errorf("%w; histories are checked by a command of its own: rallypoint-audit FILE", err)
	}
	for _, group := range cmd.Root().Commands() { // as a user writes who remembers the last word alone
		if slices.Contains(commandNames(group), args[0]) {
			return fmt.Errorf("%w; did you mean %q?", err, group.Name()+" "+args[0])
		}
	}
	if near := run.Nearest(args[0], commandNames(cmd)); near != "" {
		return fmt.Errorf("%w; did you mean %q?", err, near)
	}
	if file, missing := os.Stat(args[0]); missing == nil && !file.IsDir() || strings.HasSuffix(args[0], ".py") {
		return fmt.Errorf("%w; to run a script, write `rallypoint run %s`", err, printable.Text(args[0]))
	}
	return err
}

// beside returns the words next to the --help of a command that has commands of its own.
func beside(cmd *cobra.Command, args []string) []string {
	if !cmd.HasAvailableSubCommands() {
		return nil
	}
	words := cmd.Flags().Args() // before it
	for i, arg := range args {
		if arg == "-h" || arg == "--help" {
			return append(words, args[i+1:]...)
		}
	}
	return words
}

func commandNames(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			names = append(names, c.Name())
		}
	}
	return names
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}
