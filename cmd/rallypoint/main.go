// Command rallypoint brings the processes of a distributed job together; see
// `rallypoint --help`. It is the command of the Python package without Python.
package main

import (
	"os"

	"rallypoint/cli"
)

func main() {
	os.Exit(cli.Process(os.Args, os.Stdout, os.Stderr))
}
