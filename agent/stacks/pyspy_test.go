package stacks

import (
	"bufio"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// pySpySays is what py-spy 0.4 writes.
const pySpySays = `[{"pid":7,"thread_id":1,"thread_name":"other","os_thread_id":8,"active":false,"frames":[{"name":"f","filename":"/a.py","line":1}]},
{"pid":7,"thread_id":2,"thread_name":"MainThread","os_thread_id":7,"active":false,"owns_gil":false,"frames":[
{"name":"data_wait","filename":"/home/a/hang.py","module":null,"short_filename":"hang.py","line":4,"locals":null},
{"name":"<module>\u001b","filename":"/home/a/hang.py","line":-8}],"process_info":null}]`

func TestTrace(t *testing.T) {
	targets := []Target{{Rank: 0, Pid: 6}, {Rank: 1, Pid: 7}, {Rank: 2, Pid: 8}, {Rank: 3, Pid: 9}}
	workers := []Group{
		at(0, "asked"),
		{Ranks: []int{1}, Source: SourceKernel, State: "sleeping", Why: "x"},
		{Ranks: []int{2}, Source: SourceKernel, State: "stopped", Why: "it is stopped"},
		{Ranks: []int{3}, Source: SourceKernel, State: "sleeping", Why: "x"},
	}
	var asked []string
	Trace(t.Context(), targets, workers, func(_ context.Context, argv []string) ([]byte, error) {
		asked = append(asked, argv[len(argv)-1])
		if argv[len(argv)-1] == "9" {
			return nil, errors.New("permission denied")
		}
		return []byte(pySpySays), nil
	})
	if got := strings.Join(asked, " "); got != "7 9" {
		t.Errorf("asked of %s", got)
	}
	w := workers[1]
	if w.Source != SourcePySpy || w.State != "" || len(w.Threads) != 1 || w.Threads[0].Frames[0] != (Frame{"/home/a/hang.py", 4, "data_wait"}) ||
		w.Threads[0].Frames[1] != (Frame{"/home/a/hang.py", 0, "<module>\uFFFD"}) {
		t.Errorf("%+v", w)
	}
	if workers[2].State != "stopped" || workers[3].Why != "x" || workers[0].Source != SourceFaulthandler {
		t.Errorf("%+v", workers)
	}
	for _, text := range []string{"", "{}", `[{"os_thread_id":7}]`, `[{"os_thread_id":"7"}]`} {
		if got := parsePySpy([]byte(text), 7); len(got) > 0 && len(got[0].Frames) > 0 {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// TestPySpy: the py-spy of this machine, or of .venv, reads the stack of a worker without our code.
func TestPySpy(t *testing.T) {
	pySpy, err := exec.LookPath("py-spy")
	if err != nil {
		pySpy, err = exec.LookPath(filepath.Join("..", "..", ".venv", "bin", "py-spy"))
	}
	if err != nil {
		t.Skip(err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	script := filepath.Join(t.TempDir(), "hang.py")
	testkit.WriteFile(t, script, []byte("import sys\ndef data_wait():\n    print('up', flush=True)\n    sys.stdin.read()\ndata_wait()\n"))
	cmd := exec.Command(python, script)
	in := testkit.Must(cmd.StdinPipe())(t)
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.Check(t, cmd.Start())
	testkit.Equal(t, testkit.Must(bufio.NewReader(out).ReadString('\n'))(t), "up\n")
	targets := []Target{{Rank: 1, Pid: cmd.Process.Pid}}
	if out, _ := exec.Command(pySpy, "dump", "--pid", strconv.Itoa(cmd.Process.Pid)).CombinedOutput(); strings.Contains(string(out), "Permission denied") {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Skipf("py-spy may read no other process: %s", out)
	}
	var workers []Group
	testkit.Eventually(t, "py-spy reads the stack", func() bool { // on a busy machine it may need longer than Trace gives it
		workers = Collect(t.Context(), targets, MainThread, testkit.Patience)
		Trace(t.Context(), targets, workers, func(ctx context.Context, argv []string) ([]byte, error) {
			return exec.CommandContext(ctx, pySpy, argv[1:]...).Output()
		})
		return workers[0].Source == SourcePySpy
	})
	if w := workers[0]; len(w.Threads) != 1 || len(w.Threads[0].Frames) < 2 || w.Threads[0].Frames[0] != (Frame{script, 4, "data_wait"}) {
		t.Errorf("%+v", w)
	}
	testkit.Check(t, in.Close())
	testkit.Check(t, cmd.Wait())
}
