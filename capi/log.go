package main

// #include "glue.h"
import "C"

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"rallypoint/internal/printable"
)

// maxRecords is how many log records are kept for C: more than a node writes
// between two calls of its agent, and bounded for a program that never asks.
const maxRecords = 1024

type record struct {
	level slog.Level
	time  time.Time
	text  string
}

var logs = struct {
	sync.Mutex
	level   slog.LevelVar
	ring    [maxRecords]record
	first   int
	n       int
	dropped uint32

	listener *listener // the program that gets the records; nil: none
}{}

var logger = slog.New(newRingHandler())

// ringHandler formats a record as "message key=value ..." and puts it into the
// ring.
type ringHandler struct{ text slog.Handler }

// line is where a ringHandler's text handler writes to; logs guards it.
var line bytes.Buffer

func newRingHandler() ringHandler {
	return ringHandler{slog.NewTextHandler(printable.Log(&line), &slog.HandlerOptions{
		Level: slog.LevelDebug - 1, // Enabled has decided
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
				return slog.Attr{}
			}
			return a
		},
	})}
}

func (rh ringHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= logs.level.Level()
}

func (rh ringHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return ringHandler{rh.text.WithAttrs(attrs)}
}

func (rh ringHandler) WithGroup(name string) slog.Handler {
	return ringHandler{rh.text.WithGroup(name)}
}

func (rh ringHandler) Handle(ctx context.Context, r slog.Record) error {
	logs.Lock()
	defer logs.Unlock()
	line.Reset()
	if err := rh.text.Handle(ctx, r); err != nil {
		return err
	}
	text := printable.Lines(r.Message)
	if attrs := bytes.TrimSpace(line.Bytes()); len(attrs) > 0 {
		text += " " + string(attrs)
	}
	if logs.n == maxRecords {
		logs.first = (logs.first + 1) % maxRecords
		logs.n--
		logs.dropped++
	}
	logs.ring[(logs.first+logs.n)%maxRecords] = record{r.Level, r.Time, text}
	logs.n++
	if logs.listener != nil {
		logs.listener.wake.Set()
	}
	return nil
}

// takeRecord takes the oldest record out, and how many were lost before it.
func takeRecord() (r record, dropped uint32, ok bool) {
	logs.Lock()
	defer logs.Unlock()
	if logs.n == 0 {
		return record{}, 0, false
	}
	r, dropped = logs.ring[logs.first], logs.dropped
	logs.ring[logs.first] = record{}
	logs.first = (logs.first + 1) % maxRecords
	logs.n--
	logs.dropped = 0
	return r, dropped, true
}

//export rpgo_log_next
func rpgo_log_next(out *C.rp_log_record, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		r, dropped, ok := takeRecord()
		if !ok {
			return errPending
		}
		out.level = C.int32_t(levelNumber(r.level))
		out.dropped = C.uint32_t(dropped)
		out.time_ms = C.int64_t(r.time.UnixMilli())
		fillText(out.text[:], r.text)
		return nil
	})
}

//export rpgo_log_set_level
func rpgo_log_set_level(level C.int32_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		logs.level.Set(slogLevel(int(level)))
		return nil
	})
}

// The header counts in tens from 10, slog in fours from -4.

func levelNumber(l slog.Level) int {
	switch {
	case l < slog.LevelInfo:
		return C.RP_LOG_DEBUG
	case l < slog.LevelWarn:
		return C.RP_LOG_INFO
	case l < slog.LevelError:
		return C.RP_LOG_WARNING
	default:
		return C.RP_LOG_ERROR
	}
}

func slogLevel(n int) slog.Level {
	switch {
	case n <= C.RP_LOG_DEBUG:
		return slog.LevelDebug
	case n <= C.RP_LOG_INFO:
		return slog.LevelInfo
	case n <= C.RP_LOG_WARNING:
		return slog.LevelWarn
	case n <= C.RP_LOG_ERROR:
		return slog.LevelError
	default:
		return slog.LevelError + 100
	}
}
