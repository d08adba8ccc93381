// Package acceptloop accepts connections again and again.
package acceptloop

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"rallypoint/internal/backoff"
)

// Pauses after a failed accept, which is nearly always a lack of descriptors.
const (
	FirstPause = 5 * time.Millisecond
	LastPause  = time.Second
)

// settled is how long accepting must succeed before a failure is news again: at the limit of
// descriptors it fails after each connection.
const settled = 10 * time.Second

// Run calls accept, which accepts one connection and hands it on, until ctx ends. It logs failures
// once and tries again. what are the connections in the log, such as "connections to the store". It
// returns an error only if the listener was closed before ctx ended.
func Run(ctx context.Context, log *slog.Logger, what string, accept func() error) error {
	var failed time.Time // the last time, while that is news; else zero
	pause := backoff.New(FirstPause, LastPause)
	for {
		err := accept()
		switch {
		case err == nil:
			pause.Reset()
			if !failed.IsZero() && time.Since(failed) > settled {
				failed = time.Time{}
				log.Info(what + " are accepted again")
			}
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			if failed.IsZero() {
				log.Warn("cannot accept "+what+"; they wait, and those that are open are served", "error", err)
			}
			failed = time.Now()
			if !pause.Wait(ctx) {
				return nil
			}
		}
	}
}
