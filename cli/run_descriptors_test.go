package cli

import (
	"os"
	"os/exec"
	"testing"

	"rallypoint/internal/testkit"
)

// TestOtherDescriptors that the launcher was started with are not the workers', as
// with torchrun: a lock or the end of a pipe would be held for as long as they run.
func TestOtherDescriptors(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := &nodeProcess{Cmd: exec.Command(os.Args[0], "run", "--standalone", "--no-python", "--no-macros", "sh", "-c",
		"[ -e /proc/$PPID/fd/3 ] && [ ! -e /proc/$$/fd/3 ]; echo $? > $SAY")}
	p.Dir = h.dir
	p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "SAY=" + h.dir + "/say", "TMPDIR=" + h.dir}
	lock, err := os.Create(h.dir + "/lock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	p.ExtraFiles = []*os.File{lock}
	p.Stderr = &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if got := h.readLine(); got != "0" {
		t.Error("a worker has the launcher's descriptor 3")
	}
	if code := p.end(); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, p.stderr.String())
	}
}
