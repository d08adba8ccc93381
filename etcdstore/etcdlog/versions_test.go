package etcdlog

import (
	"testing"

	"rallypoint/internal/etcdtest"
)

func TestOlderEtcd(t *testing.T) {
	t.Parallel()
	etcdtest.RunWithOlderEtcd(t, "TestLogHasOneOrder", "TestLogSurvivesCompaction", "TestLogOfAnotherProgram", "TestRuns", "TestUsers")
}
