package sharedlog

import (
	"context"
	"testing"
	"time"

	"rallypoint/core/trace"
	"rallypoint/internal/testkit"
)

// lateRun is a Watcher of a run that is found when its first look is over.
type lateRun struct{ looked func() }

func (l *lateRun) Poll(context.Context) (Record, error) {
	if looked := l.looked; looked != nil {
		l.looked = nil
		looked()
		return Record{}, nil
	}
	return Record{RunID: "run", Generation: "g"}, nil
}

func (*lateRun) Close() {}

// TestWatchLooksAtTheEnd: all entries written until a Watch is told to end are recorded.
func TestWatchLooksAtTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	log, _ := testkit.NewLog(t)
	var found []trace.Record
	testkit.Check(t, Watch(ctx, &lateRun{cancel}, time.Hour, func(r trace.Record) { found = append(found, r) }, log))
	testkit.Equal(t, len(found), 1)
	testkit.Equal(t, found[0].Run, "run")
}
