package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/cli/prove"
	"rallypoint/cli/run"
	"rallypoint/core/control/statustext"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

const proveLong = `Run your own script as small jobs on this machine, inject faults, and measure how long the
job stands still after each: under "rallypoint run" and, if torch is installed, torchrun.

Each scenario is a job of its own, with one to three nodes at 127.0.0.1; the nodes of
lost-network have network namespaces of their own instead. The script runs in an empty
folder, which is removed afterwards. The fault comes once the workers have run for --settle.
The time lost ends when all nodes that are left have new workers, which must then run for
--settle. Imports and the loading of a checkpoint come on top.

It kills and stops only processes that it has started. Ctrl-C ends them all.

The exit code is 0 if the script survives every scenario, 1 if it does not, and 75 if some
could not be tried: the script ended before the fault, or the budget was spent. torchrun's
results do not count.

The scenarios:

`

func newProve() *cobra.Command {
	c := prove.Config{Torch: true}
	var only []string
	var asJSON, noTorch, apart bool
	long := proveLong
	for _, s := range prove.Scenarios {
		long += fmt.Sprintf("  %-13s %s\n", s.Name, s.What)
	}
	cmd := &cobra.Command{
		Use: "prove [OPTIONS] SCRIPT [ARGS...]", Short: "Try on your own script what happens when nodes misbehave", Long: long,
		Example: `  rallypoint prove train.py --epochs 100
  rallypoint prove --only agent-kill,hang train.py
  rallypoint prove --budget 2m --no-torchrun --json train.py`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && !apart {
				return errors.New("SCRIPT is missing")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows the script is the script's
	f.StringSliceVar(&only, "only", nil, "only the scenario `NAME`; may be repeated, or have commas")
	f.DurationVar(&c.Budget, "budget", 5*time.Minute, "`TIME` for all scenarios; those of torchrun come last")
	f.DurationVar(&c.Limit, "limit", 20*time.Second, "`TIME` after a fault in which the job has to run again")
	f.DurationVar(&c.Settle, "settle", 5*time.Second, "`TIME` for which workers run before a fault, and after it")
	f.IntVar(&c.Procs, "nproc-per-node", 1, "`WORKERS` of each node")
	f.BoolVarP(&c.Module, "module", "m", false, "SCRIPT is a Python module")
	f.BoolVar(&c.NoPython, "no-python", false, "SCRIPT is a program")
	f.BoolVar(&noTorch, "no-torchrun", false, "do not compare with torchrun")
	f.BoolVar(&c.Keep, "keep", false, "keep the folder with the output of all nodes, and name it")
	f.BoolVar(&asJSON, "json", false, "print one JSON document at the end; what happens meanwhile goes to stderr")
	f.BoolVar(&apart, prove.ApartFlag, false, "try what stdin says in a network of its own")
	_ = f.MarkHidden(prove.ApartFlag)
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(prove.Names(), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if apart {
			return prove.Apart(cmd.Context(), os.Stdin, cmd.OutOrStdout())
		}
		for name, d := range map[string]time.Duration{"--budget": c.Budget, "--limit": c.Limit, "--settle": c.Settle} {
			if err := positive(name, d); err != nil {
				return err
			}
		}
		if err := positive("--nproc-per-node", c.Procs); err != nil {
			return err
		}
		if c.Scenarios, err = prove.Find(only); err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		c.Script, c.Environ, c.Torch = args, os.Environ(), !noTorch && !c.NoPython
		if !c.NoPython {
			c.Python = run.Interpreter(c.Environ)
		}
		if c.Self, err = run.Command(c.Environ); err != nil {
			return failure{err}
		}
		return runProve(cmd, &c, asJSON)
	}
	return cmd
}

// runProve tells what happens while it does, and everything once more at the end.
func runProve(cmd *cobra.Command, c *prove.Config, asJSON bool) error {
	said := cmd.OutOrStdout()
	if asJSON {
		said = cmd.ErrOrStderr()
	}
	r, err := prove.Run(cmd.Context(), c, func(r *prove.Report) { planProve(said, c, r) }, func(x prove.Result) {
		fmt.Fprintf(said, "%-10s  %-13s  %s%s (%.0f s)\n", x.Launcher, x.Scenario, map[prove.Outcome]string{prove.Failed: "FAILED: ", prove.Unknown: "cannot tell: "}[x.Outcome], printable.Text(x.Text), x.TookS)
		for _, line := range x.Output {
			fmt.Fprintf(said, "    | %s\n", printable.Text(line))
		}
	})
	if r == nil {
		return failure{err}
	}
	if unsaid := printAnswer(cmd, "the results", r, "\n"+proveTable(r), asJSON); unsaid != nil {
		return unsaid
	}
	if c.Keep {
		fmt.Fprintf(said, "The output of all nodes is in %s\n", r.Folder)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return failed("interrupted; all that it started has ended")
	case err != nil:
		return failure{err}
	case r.Worst() == prove.Failed:
		return run.ExitStatus(run.ExitFailure)
	case r.Worst() == prove.Unknown:
		return run.ExitStatus(exitCannotTell)
	}
	return nil
}

func planProve(w io.Writer, c *prove.Config, r *prove.Report) {
	beside := ", and then by torchrun " + printable.Text(r.Torch)
	if r.Torch == "" {
		beside = ""
	}
	leftOut := ""
	if r.LeftOut != "" {
		leftOut = " Not tried here: " + printable.Text(r.LeftOut) + "."
	}
	text := fmt.Sprintf("%s of %s by rallypoint run%s: jobs of up to three nodes on this machine, each in a folder under %s. It kills and stops only what it has started, and ends after %v at the latest.%s",
		wording.Count(len(c.Scenarios), "scenario", "scenarios"), printable.Text(strings.Join(c.Script, " ")), beside, r.Folder, c.Budget, leftOut)
	fmt.Fprintf(w, "%s\n\n", wording.Wrap(text, wording.HelpWidth, 0))
}

func proveTable(r *prove.Report) string {
	t := statustext.Table{Columns: []statustext.Column{{Head: "SCENARIO"}, {Head: "RALLYPOINT"}, {Head: "TORCHRUN"}}}
	rows := map[string][]string{}
	var names []string
	for _, x := range r.Results {
		if rows[x.Scenario] == nil {
			rows[x.Scenario] = make([]string, 2)
			names = append(names, x.Scenario)
		}
		at := 0
		if x.Launcher == "torchrun" {
			at = 1
		}
		rows[x.Scenario][at] = proveCell(x)
	}
	for _, name := range names {
		t.Add(statustext.Plain, append([]string{name}, rows[name]...)...)
	}
	var b strings.Builder
	t.Write(&b, statustext.Terminal{Width: statustext.Unlimited})
	if r.FirstStepS != nil {
		fmt.Fprintf(&b, "\nThe script makes its first step %.1f s after its start, which comes on top of each time.\n", *r.FirstStepS)
	}
	return b.String()
}

func proveCell(x prove.Result) string {
	switch {
	case x.Outcome == prove.Survived && x.LostS != nil:
		return fmt.Sprintf("%.1f s", *x.LostS)
	case x.Outcome == prove.Survived:
		return "survived"
	case x.Outcome == prove.Failed:
		return "failed"
	}
	return "-"
}
