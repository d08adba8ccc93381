package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"rallypoint/cli/run"
)

// logging is what the flags say about the log.
type logging struct {
	out   io.Writer
	name  string
	level slog.Level // valid after check
}

func (l *logging) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&l.name, "log-level", "", "least `LEVEL` to log to stderr: debug, info, warn, error or off (default $"+run.EnvLogLevel+", else info)")
}

// check sets the level; an unknown one is wrong usage.
func (l *logging) check() error {
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

func (l *logging) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l.out, &slog.HandlerOptions{Level: l.level}))
}
