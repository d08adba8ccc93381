// Command rallypoint brings the processes of a distributed job together; see
// `rallypoint --help`. It is the command of the Python package without Python.
package main

import (
	"io"
	"os"

	"rallypoint/cli"
	"rallypoint/conformance"
	"rallypoint/internal/yamlfile"
)

func main() {
	os.Exit(cli.Process(os.Args, os.Stdout, os.Stderr, cli.Extras{Check: check, ReadConfig: yamlfile.Read}))
}

func check(histories ...io.Reader) (cli.Audit, error) { return conformance.ReadAll(histories...) }
