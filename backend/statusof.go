package backend

import (
	"context"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/core/training"
)

// Statuses describes the runs that have written at a file:// or etcd:// endpoint, or the one of the
// id runID unless it is "". shown is the endpoint without secrets, for display.
func Statuses(ctx context.Context, endpoint, runID string, timeout time.Duration) (shown string, runs []control.RunStatus, err error) {
	l, records, err := inspect(ctx, endpoint, runID, timeout)
	if err != nil {
		return "", nil, err
	}
	for _, r := range records {
		run, err := statusOf(r)
		if err != nil {
			return "", nil, err
		}
		runs = append(runs, run)
	}
	return l.shown(), runs, nil
}

// statusOf describes a run as its record shows it. A node without a sign of life may still come
// back, as far as can be told from outside.
func statusOf(r sharedlog.Record) (control.RunStatus, error) {
	m, err := r.Machine()
	if err != nil {
		return control.RunStatus{}, err
	}
	st := control.Describe(m.Status())
	for node := range st.AllNodes() {
		node.Reconnecting = node.Reconnecting || node.Session != "" && !r.Living[node.Session]
	}
	for i := range st.Members {
		st.Members[i].Alive = r.Living[st.Members[i].Session]
	}
	control.DescribeProgress(&st, time.Now(), func(session rendezvous.SessionID) (*training.Report, time.Duration) {
		return r.Reports[session], 0
	})
	return st, nil
}
