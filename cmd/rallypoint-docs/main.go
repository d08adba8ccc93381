// Command rallypoint-docs writes what is said of the command rallypoint and of its options
// from the tables that these are read by: `make install` its manual pages, `make reference` the
// pages docs/commands/*.md and the table of docs/options.md. It is not installed.
package main

import (
	"fmt"
	"os"
)

func main() {
	write := map[string]func(folder string) error{"man": writeManual, "pages": writePages}
	if len(os.Args) != 3 || write[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: rallypoint-docs man FOLDER | pages docs")
		os.Exit(2)
	}
	if err := write[os.Args[1]](os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "rallypoint-docs:", err)
		os.Exit(1)
	}
}
