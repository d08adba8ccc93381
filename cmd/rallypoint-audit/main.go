// Command rallypoint-audit checks recorded histories of jobs against the guarantees of the design.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"rallypoint"
	"rallypoint/conformance"
)

const usage = `Check recorded histories of jobs against the guarantees of the design.

Usage:
  rallypoint-audit FILE...

A FILE is written by "rallypoint serve --record FILE", or by the option record of a job. If
several nodes hosted a job's control plane one after the other, name the files of all of
them, in any order: they are checked as one. Each event, and how the control plane or the
nodes reacted to it, is compared with the guarantees: each rank given once, the same outcome
for all members, no node left out, waited for or lost without a reason, and so on. The
command prints a line for each job and for each violation. It exits with 1 if there is a
violation, or if a job could not be checked to its end.

Attach the files to a report of a defect. Look through them first: they contain the messages
between the jobs' agents, and names of nodes.
`

func main() { os.Exit(audit(os.Args[1:], os.Stdout, os.Stderr)) }

// audit returns the exit code: 0, 1 for a failure or a violation, 2 for wrong usage.
func audit(args []string, stdout, stderr io.Writer) int {
	switch {
	case len(args) == 1 && (args[0] == "--help" || args[0] == "-h"):
		fmt.Fprint(stdout, usage)
		return 0
	case len(args) == 1 && args[0] == "--version":
		fmt.Fprintln(stdout, "rallypoint-audit", rallypoint.Version())
		return 0
	case len(args) == 0 || strings.HasPrefix(args[0], "-"):
		fmt.Fprintln(stderr, "rallypoint-audit: FILE is missing; see `rallypoint-audit --help`")
		return 2
	}
	if err := conformance.CheckFiles(stdout, args...); err != nil {
		fmt.Fprintln(stderr, "rallypoint-audit:", err)
		return 1
	}
	return 0
}
