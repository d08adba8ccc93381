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
	"strconv"
	"strings"
	"sync"

	"rallypoint/internal/printable"
)

// EnvLogLevel sets the log level where --log-level does not.
const EnvLogLevel = "RALLYPOINT_LOG"

// LevelOff is above the level of every record.
const LevelOff slog.Level = math.MaxInt

// agentLog writes log lines in torch's layout, <L><MMDD> <time> <pid> rallypoint] <text>, with
// the prefix before each line of a text. At level debug the name is <file>:<line>. Text from
// peers is in attributes and cannot start a line.
type agentLog struct {
	level slog.Level
	mu    *sync.Mutex
	w     io.Writer
	attrs []slog.Attr
}

// EnvLogFormat sets the format of the log where --log-format does not.
const EnvLogFormat = "RALLYPOINT_LOG_FORMAT"

// LogFormats are the values of --log-format.
var LogFormats = []string{"text", "json"}

// NewLog makes the log of a process that runs or serves, of which each record is a line of JSON
// if asJSON.
func NewLog(w io.Writer, level slog.Level, asJSON bool) *slog.Logger {
	if !asJSON {
		return slog.New(&agentLog{level: level, mu: new(sync.Mutex), w: w})
	}
	return slog.New(slog.NewJSONHandler(printable.Log(w), &slog.HandlerOptions{Level: level, AddSource: true, ReplaceAttr: shortSource})).With("pid", os.Getpid())
}

// shortSource writes where a record comes from as the text does.
func shortSource(groups []string, a slog.Attr) slog.Attr {
	if source, ok := a.Value.Any().(*slog.Source); ok && a.Key == slog.SourceKey && len(groups) == 0 && source != nil {
		a.Value = slog.StringValue(fmt.Sprintf("%s:%d", shortPath(source.File), source.Line))
	}
	return a
}

func shortPath(file string) string { return path.Join(path.Base(path.Dir(file)), path.Base(file)) }

// records logs each text that is written to it as an error, in the format of the log.
type records struct{ log *slog.Logger }

func (r records) Write(text []byte) (int, error) {
	r.log.Error(strings.TrimPrefix(strings.TrimSpace(string(text)), complaint))
	return len(text), nil
}

// agentLevel is the level that LOGLEVEL or RALLYPOINT_LOG sets. The default for a job of several
// nodes shows what it waits for and why it changes, that for a job of one node only warnings.
func agentLevel(level string, several bool) slog.Level {
	switch strings.ToUpper(strings.TrimSpace(level)) {
	case "DEBUG", "NOTSET":
		return slog.LevelDebug
	case "INFO":
		return slog.LevelInfo
	case "WARNING", "WARN":
		return slog.LevelWarn
	case "ERROR":
		return slog.LevelError
	case "CRITICAL", "FATAL":
		return slog.LevelError + 4
	case "OFF":
		return LevelOff
	}
	if several {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// Enabled implements slog.Handler.
func (al *agentLog) Enabled(_ context.Context, level slog.Level) bool { return level >= al.level }

// Handle implements slog.Handler.
func (al *agentLog) Handle(_ context.Context, r slog.Record) error {
	text := printable.Lines(r.Message)
	for _, a := range al.attrs {
		text += " " + attrText(a)
	}
	r.Attrs(func(a slog.Attr) bool {
		text += " " + attrText(a)
		return true
	})
	place := "rallypoint"
	if al.level <= slog.LevelDebug {
		frame, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
		place = fmt.Sprintf("%s:%d", shortPath(frame.File), frame.Line)
	}
	prefix := fmt.Sprintf("%s%s %d %s] ", levelLetter(r.Level), r.Time.Format("0102 15:04:05.000000"), os.Getpid(), place)
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString(prefix + line + "\n")
	}
	al.mu.Lock()
	defer al.mu.Unlock()
	_, err := io.WriteString(al.w, b.String())
	return err
}

// attrText is key=value, with quotes where the value would run into what follows.
func attrText(a slog.Attr) string {
	value := a.Value.String()
	if value == "" || strings.ContainsAny(value, " =\"") {
		value = strconv.Quote(value)
	}
	return printable.Text(a.Key + "=" + value)
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
func (al *agentLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *al
	with.attrs = append(with.attrs[:len(with.attrs):len(with.attrs)], attrs...)
	return &with
}

// WithGroup implements slog.Handler; groups are not shown.
func (al *agentLog) WithGroup(string) slog.Handler { return al }
