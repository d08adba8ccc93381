package run

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
)

// EnvLogLevel sets the log level where --log-level does not.
const EnvLogLevel = "RALLYPOINT_LOG"

// LevelOff is above the level of every record.
const LevelOff slog.Level = math.MaxInt

// agentLog writes log lines in torch's layout: <L><MMDD> <time> <pid>
// <file>:<line>] <text>, the prefix before each line of a text (A18).
type agentLog struct {
	level slog.Level
	mu    *sync.Mutex
	w     io.Writer
	attrs []slog.Attr
}

// newAgentLog makes the log of a run. LOGLEVEL or RALLYPOINT_LOG gives the threshold; without
// them a job of several nodes shows what it waits for and why it changes, a job of one
// node only warnings.
func newAgentLog(w io.Writer, level string, several bool) *slog.Logger {
	l := &agentLog{level: slog.LevelWarn, mu: new(sync.Mutex), w: w}
	if several {
		l.level = slog.LevelInfo
	}
	switch strings.ToUpper(strings.TrimSpace(level)) {
	case "DEBUG", "NOTSET":
		l.level = slog.LevelDebug
	case "INFO":
		l.level = slog.LevelInfo
	case "WARNING", "WARN":
		l.level = slog.LevelWarn
	case "ERROR":
		l.level = slog.LevelError
	case "CRITICAL", "FATAL":
		l.level = slog.LevelError + 4
	case "OFF":
		l.level = LevelOff
	}
	return slog.New(l)
}

// Enabled implements slog.Handler.
func (l *agentLog) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }

// Handle implements slog.Handler.
func (l *agentLog) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	for _, a := range l.attrs {
		text += " " + a.String()
	}
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	frame, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
	place := path.Join(path.Base(path.Dir(frame.File)), path.Base(frame.File))
	prefix := fmt.Sprintf("%s%s %d %s:%d] ", levelLetter(r.Level), r.Time.Format("0102 15:04:05.000000"), os.Getpid(), place, frame.Line)
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString(prefix + line + "\n")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := io.WriteString(l.w, b.String())
	return err
}

func levelLetter(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "E"
	case level >= slog.LevelWarn:
		return "W"
	case level >= slog.LevelInfo:
		return "I"
	}
	return "D"
}

// WithAttrs implements slog.Handler.
func (l *agentLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *l
	with.attrs = append(with.attrs[:len(with.attrs):len(with.attrs)], attrs...)
	return &with
}

// WithGroup implements slog.Handler; groups are not shown.
func (l *agentLog) WithGroup(string) slog.Handler { return l }
