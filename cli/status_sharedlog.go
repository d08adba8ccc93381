package cli

import (
	"context"
	"encoding/json"
	"slices"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/control/statustext"
)

// fetchFromLog is fetch where there is no control plane.
func (s statusQuery) fetchFromLog(ctx context.Context) ([]byte, control.Status, error) {
	var st control.Status
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if backend.HasLeader(s.sharedLog) {
		raw, st, err := backend.Query{Place: s.sharedLog, RunID: s.run, Token: s.token, Timeout: s.timeout}.Status(limited)
		if err != nil && ctx.Err() == nil {
			err = failure{err}
		}
		return raw, st, err
	}
	shown, runs, err := backend.Statuses(limited, s.sharedLog, s.run, s.timeout)
	switch {
	case ctx.Err() != nil:
		return nil, st, ctx.Err()
	case err != nil:
		return nil, st, failure{err}
	}
	st = control.Status{Schema: control.StatusSchema, Place: shown, Runs: append([]control.RunStatus{}, runs...), RunsTotal: len(runs)}
	slices.SortStableFunc(st.Runs, func(a, b control.RunStatus) int { // those with nodes first
		return min(1, statustext.Present(&b)) - min(1, statustext.Present(&a))
	})
	st.Runs = st.Runs[:min(len(st.Runs), control.MaxStatusRuns)]
	raw, err := json.Marshal(st)
	return raw, st, err
}
