package agent

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/progress"
	"rallypoint/agent/stacks"
	"rallypoint/internal/testkit"
)

// TestWaitsOfWorkers: of the workers that a job has, the report names the one that does not wait
// for the others.
func TestWaitsOfWorkers(t *testing.T) {
	t.Parallel()
	if !stacks.KernelTellsWaits() {
		t.Skip("the kernel does not say where threads wait")
	}
	s := pythonWorkers(t, 3, false, `
import struct, threading
record = open(os.environ["RALLYPOINT_PROGRESS_FILE"], "r+b", buffering=0)
open(os.environ["SAY"], "w").write("up\n")
if os.environ["RANK"] != "1":
    threading.Event().wait()
step = 0
while True:
    record.seek(16)
    record.write(struct.pack("<q", step))
    step += 1
    time.sleep(0.001)
`)
	s.spec.Environ = append(s.spec.Environ, progress.EnvDir+"="+t.TempDir())
	s.prepare()
	s.agent.waitWindow = 10 * time.Millisecond
	s.start()
	s.hear()
	testkit.Eventually(t, "the report names the worker", func() bool {
		r := s.rdzv.report()
		return r != nil && r.Waits.Known && r.Waits.Rank == 1 && r.Waits.Second-r.Waits.Least > 0.9
	})
	s.agent.Signal(unix.SIGTERM)
	if err := s.wait(); err == nil {
		t.Error("a signal ended it without an error")
	}
}
