package cli

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rallypoint/cli/run"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/printable"
)

type logging struct {
	out    io.Writer
	name   string
	level  slog.Level // valid after check
	format string     // of --log-format
	flush  func()     // nil: out needs none
}

// serve has all that a command that serves says from here on written by queues: a reader that has
// stopped, or is gone, must not stop those who are served. A command whose output is its result
// waits for its reader.
func (l *logging) serve(cmd *cobra.Command) {
	restore := run.SurviveBrokenPipes()
	streams := linequeue.NewStreams(cmd.OutOrStdout(), l.out)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.Err)
	l.out = streams.Err
	l.flush = func() { streams.Flush(); restore() }
	log := l.logger()
	streams.Report(func(text string) { log.Warn(text) })
}

// ready tells on stdout, in the format of the log, that a command serves.
func (l *logging) ready(cmd *cobra.Command, text string) {
	if l.json() {
		run.NewLog(cmd.OutOrStdout(), slog.LevelInfo, true).Info(text)
		return
	}
	fmt.Fprintln(cmd.OutOrStdout(), text)
}

func (l *logging) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&l.name, "log-level", "", "least `LEVEL` to log: debug, info, warn, error or off (default $"+run.EnvLogLevel+", else info)")
	flags.StringVar(&l.format, "log-format", "", "`FORMAT` of log and errors: text or json (default $"+run.EnvLogFormat+", else text)")
}

// check sets level and format; an unknown one is wrong usage.
func (l *logging) check() error {
	source, format := l.chosenFormat()
	if !slices.Contains(run.LogFormats, format) {
		return fmt.Errorf("%s is %q, expected %s", source, format, strings.Join(run.LogFormats, " or "))
	}
	from, name := "--log-level", l.name
	if name == "" {
		from, name = run.EnvLogLevel, os.Getenv(run.EnvLogLevel)
	}
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "debug":
		l.level = slog.LevelDebug
	case "", "info":
		l.level = slog.LevelInfo
	case "warn", "warning":
		l.level = slog.LevelWarn
	case "error":
		l.level = slog.LevelError
	case "off":
		l.level = run.LevelOff
	default:
		return fmt.Errorf("%s is %q, expected debug, info, warn, error or off", from, name)
	}
	return nil
}

// chosenFormat is the format of the log, and the option that has chosen it. It is known before
// the flags are checked, since errors about them are written in it.
func (l *logging) chosenFormat() (source, format string) {
	source, format = "--log-format", l.format
	if format == "" {
		source, format = run.EnvLogFormat, cmp.Or(os.Getenv(run.EnvLogFormat), "text")
	}
	return source, format
}

func (l *logging) json() bool {
	_, format := l.chosenFormat()
	return format == "json"
}

func (l *logging) complain(command, text string) {
	if l.json() {
		run.NewLog(l.out, slog.LevelError, true).Error(text, "command", command)
		return
	}
	fmt.Fprintf(l.out, "%s: %s\n", command, printable.Text(text)) // a server's words may be in it
}

func (l *logging) logger() *slog.Logger { return run.NewLog(l.out, l.level, l.json()) }
