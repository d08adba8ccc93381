package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
)

// appendToLog is send where there is no control plane: the event goes into the log of
// the run's nodes.
func (o *adminRequest) appendToLog(cmd *cobra.Command, ev rendezvous.Event) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	done, err := o.append(ctx, ev)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), clean(done)); err != nil {
		return failed("printing what was done: %w", err)
	}
	return nil
}

// append appends the event, if it changes anything, and returns what that does.
func (o *adminRequest) append(ctx context.Context, ev rendezvous.Event) (done string, err error) {
	shown, records, err := backend.Inspect(ctx, o.sharedLog, o.run, o.timeout)
	if err != nil {
		return "", failure{err}
	}
	if len(records) == 0 {
		return "", noSuchRun(ctx, statusQuery{sharedLog: o.sharedLog, run: o.run, timeout: o.timeout}, shown)
	}
	run := records[0]
	if len(run.Living) == 0 {
		return "", failed("no node of run %q at %s is alive: there is no node left to tell", run.RunID, shown)
	}
	m, err := run.Machine()
	if err != nil {
		return "", failure{err}
	}
	was, before := m.Census(), m.Status()
	if ev, ok := ev.(rendezvous.Evict); ok {
		var refusal *rendezvous.Error
		if done, refusal = control.Evicted(&before, ev.Node); refusal != nil {
			return "", failure{refusal}
		}
	}
	switch ev.(type) {
	case rendezvous.Direct, rendezvous.CancelDirective, rendezvous.Undrain:
		var refusal *rendezvous.Error
		if done, refusal = control.Directed(m, &before, ev); refusal != nil {
			return "", failure{refusal}
		}
	}
	m.Apply(ev) // as each of its nodes is going to
	if ev, ok := ev.(rendezvous.CloseRun); ok {
		done = control.Closed(m, was, ev.Stop)
		if m.Census().Ended == was.Ended {
			return done, nil
		}
	}
	if err := backend.Append(ctx, o.sharedLog, run, ev, o.timeout); err != nil {
		return "", failure{err}
	}
	return done, nil
}

// admin names who asks, for those who read the reason.
func admin() string { return "admin " + whoAmI() }

// now is the time that a log entry shows.
func now() time.Time { return time.Now().UTC().Round(time.Millisecond) }
