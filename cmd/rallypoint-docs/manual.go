package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"rallypoint"
	"rallypoint/cli"
)

func writeManual(folder string) error {
	undated := time.Unix(0, 0)
	header := &doc.GenManHeader{
		Section: "1",
		Source:  "rallypoint " + rallypoint.Version(),
		Manual:  "Rallypoint",
		Date:    &undated,
	}
	root := cli.Command()
	escape(root)
	if err := doc.GenManTree(root, header, folder); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(folder, "*.1"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		if err := tidy(page); err != nil {
			return err
		}
	}
	return nil
}

// escape keeps what is Markdown by accident from being taken for it.
func escape(c *cobra.Command) {
	markdown := strings.NewReplacer("[", `\[`, "]", `\]`, "<", `\<`, "*", `\*`)
	c.Long, c.Short = markdown.Replace(c.Long), markdown.Replace(c.Short)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = markdown.Replace(f.Usage) })
	for _, sub := range c.Commands() {
		escape(sub)
	}
}

// tidy takes the month out of a page's header, since the same sources give the same
// pages, and the sign that cobra puts after a flag without a value.
func tidy(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text = bytes.Replace(text, []byte(`"Jan 1970"`), []byte(`""`), 1)
	return os.WriteFile(page, bytes.ReplaceAll(text, []byte("\\fP=\n"), []byte("\\fP\n")), 0o644)
}
