package agent

import (
	"os"
	"path/filepath"
	"testing"

	"rallypoint/internal/testkit"
)

// TestRoundOverBeforeTemplate: a node whose template still imports leaves a round that is over, and
// starts its workers in the next one. An agent that adopts descendants runs beside no other test.
func TestRoundOverBeforeTemplate(t *testing.T) {
	s := pythonWorkers(t, 1, true, `
open(os.environ["SAY"], "w").write("round " + os.environ["RALLYPOINT_ROUND"] + "\n")
`)
	dir := t.TempDir()
	testkit.WriteFile(t, filepath.Join(dir, "held.py"), []byte("import os\nopen(os.environ['SAY'], 'w').write('imports\\n')\nopen(os.environ['GO']).read()\n"))
	gate := s.goFile()
	s.spec.Environ = append(s.spec.Environ, "PYTHONPATH="+dir)
	s.spec.Preload = []string{"held"}
	joined := make(chan struct{}, 9)
	s.spec.Notify = func(e Event) {
		if e.Kind == EventJoined {
			joined <- struct{}{}
		}
	}
	s.start()
	if line := s.hear(); line != "imports" {
		t.Fatal(line)
	}
	<-joined
	s.rdzv.set(func() { s.rdzv.waiting = 1 })
	<-joined
	testkit.Check(t, testkit.Must(os.OpenFile(gate, os.O_WRONLY, 0))(t).Close())
	if line := s.hear(); line != "round 2" {
		t.Error(line)
	}
	testkit.Check(t, s.wait())
}
