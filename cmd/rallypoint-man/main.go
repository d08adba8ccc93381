// Command rallypoint-man writes the manual pages of the command rallypoint, one
// for each of its commands, into a folder. It is run by `make install`, and not
// installed.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra/doc"

	"rallypoint"
	"rallypoint/core/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: rallypoint-man FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "rallypoint-man:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	undated := time.Unix(0, 0)
	header := &doc.GenManHeader{
		Section: "1",
		Source:  "rallypoint " + rallypoint.Version(),
		Manual:  "Rallypoint",
		Date:    &undated,
	}
	if err := doc.GenManTree(cli.Command(), header, folder); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(folder, "*.1"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		if err := removeDate(page); err != nil {
			return err
		}
	}
	return nil
}

// removeDate takes the month out of a page's header: the same sources give the
// same pages.
func removeDate(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	return os.WriteFile(page, bytes.Replace(text, []byte(`"Jan 1970"`), []byte(`""`), 1), 0o644)
}
