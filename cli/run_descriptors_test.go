package cli

import (
	"os"
	"os/exec"
	"testing"
)

// TestOtherDescriptors that the launcher was started with are not the workers', as
// with torchrun: a lock or the end of a pipe would be held for as long as they run.
func TestOtherDescriptors(t *testing.T) {
	t.Parallel()
	th := newTheatre(t)
	p := &player{Cmd: exec.Command(os.Args[0], "run", "--standalone", "--no-python", "--no-macros", "sh", "-c",
		"[ -e /proc/$PPID/fd/3 ] && [ ! -e /proc/$$/fd/3 ]; echo $? > $SAY")}
	p.Dir = th.dir
	p.Env = []string{asCommand + "=1", "PATH=" + os.Getenv("PATH"), "SAY=" + th.dir + "/say", "TMPDIR=" + th.dir}
	lock, err := os.Create(th.dir + "/lock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	p.ExtraFiles = []*os.File{lock}
	p.Stderr = &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if got := th.hear(); got != "0" {
		t.Error("a worker has the launcher's descriptor 3")
	}
	if code := p.end(); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, p.stderr.String())
	}
}
