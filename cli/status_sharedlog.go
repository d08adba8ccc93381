package cli

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/core/training"
)

// fetchFromLog is fetch where there is no control plane.
func (s statusQuery) fetchFromLog(ctx context.Context) ([]byte, control.Status, error) {
	var st control.Status
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	shown, records, err := backend.Inspect(limited, s.sharedLog, s.run, s.timeout)
	switch {
	case ctx.Err() != nil:
		return nil, st, ctx.Err()
	case err != nil:
		return nil, st, failure{err}
	case s.run != "" && len(records) == 0:
		return nil, st, failure{backend.NoSuchRun(limited, s.sharedLog, s.run, shown, s.timeout)}
	}
	st = control.Status{Schema: control.StatusSchema, Place: shown, Runs: []control.RunStatus{}, RunsTotal: len(records)}
	for _, r := range records {
		run, err := statusOf(r)
		if err != nil {
			return nil, st, failure{err}
		}
		st.Runs = append(st.Runs, run)
	}
	slices.SortStableFunc(st.Runs, func(a, b control.RunStatus) int { // those with nodes first
		return min(1, present(&b)) - min(1, present(&a))
	})
	st.Runs = st.Runs[:min(len(st.Runs), control.MaxStatusRuns)]
	raw, err := json.Marshal(st)
	return raw, st, err
}

// statusOf describes a run as its record shows it. Who shows no sign of life may
// still come back, as far as can be told from outside.
func statusOf(r sharedlog.Record) (control.RunStatus, error) {
	m, err := r.Machine()
	if err != nil {
		return control.RunStatus{}, err
	}
	s := m.Status()
	broken := func(session rendezvous.SessionID, reconnecting bool) bool {
		return reconnecting || session != "" && !r.Living[session]
	}
	for i := range s.Waiting {
		s.Waiting[i].Reconnect = broken(s.Waiting[i].Session, s.Waiting[i].Reconnect)
	}
	for i := range s.Idle {
		s.Idle[i].Reconnect = broken(s.Idle[i].Session, s.Idle[i].Reconnect)
	}
	for i := range s.Members {
		s.Members[i].Reconnect = broken(s.Members[i].Session, s.Members[i].Reconnect)
	}
	st := control.Describe(s, func(rendezvous.SessionID) *float64 { return nil })
	for i := range st.Members {
		st.Members[i].Alive = st.Members[i].Alive && r.Living[s.Members[i].Session]
	}
	control.DescribeProgress(&st, s, func(session rendezvous.SessionID) (*training.Report, time.Duration) {
		return r.Reports[session], 0
	})
	return st, nil
}
