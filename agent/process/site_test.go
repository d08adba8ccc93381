package process

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeOptimizer has the hooks of torch's optimizers, as far as they are used.
const fakeOptimizer = `
hooks = []
class Handle:
    def __init__(self, hook): self.hook = hook
    def remove(self): self.hook in hooks and hooks.remove(self.hook)
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
    return Handle(hook)
def step():
    for hook in hooks: hook(None, (), {})
`

// countingScript makes three steps and tells what a worker sees; a child of it makes more.
const countingScript = `
import os, sys
import torch.optim.optimizer as o
for _ in range(3): o.step()
if os.fork() == 0:
    o.step()
    os._exit(0)
os.wait()
import multiprocessing, sitecustomize
seen = [os.environ.get("PYTHONPATH"), [k for k in os.environ if k.startswith("RALLYPOINT_TEMPLATE")], [p for p in sys.path if "rallypoint" in p], sitecustomize.OWN]
open(os.environ["OUT"], "w").write(repr(seen))
`

// TestStepsOfOptimizers runs a script that reports nothing, cold and forked: the steps are in its
// record, and the site that counts them cannot be seen. Another record counts nothing.
func TestStepsOfOptimizers(t *testing.T) {
	for name, c := range map[string]struct {
		warm  bool
		flags []string
		step  int64 // that the script has reported
		want  uint64
	}{
		"cold": {step: -1, want: 3}, "warm": {warm: true, step: -1, want: 3},
		"isolated": {flags: []string{"-s", "-E"}, step: -1}, "reported": {step: 7},
	} {
		t.Run(name, func(t *testing.T) {
			rig := newTemplateRig(t, countingScript, map[string]string{"torch/__init__": "", "torch/optim/__init__": "", "torch/optim/optimizer": fakeOptimizer, "sitecustomize": "OWN = 1"})
			rig.config.Argv = slices.Insert(rig.config.Argv, 1, c.flags...)
			dir := t.TempDir()
			site, err := NewSite(dir)
			if err != nil {
				t.Fatal(err)
			}
			record := filepath.Join(dir, "record")
			blank := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32([]byte("rp-steps"), 1), 64)
			blank = binary.LittleEndian.AppendUint64(blank, uint64(c.step))
			writeFile(t, record, string(append(blank, make([]byte, 40)...)))
			var template *Template
			if c.warm {
				template = rig.start()
			}
			path := rig.config.Environ[2]
			if len(c.flags) > 0 { // which keep PYTHONPATH away
				rig.config.Argv = []string{rig.config.Argv[0], "-s", "-E", "-c", "import sys; sys.path.insert(0, '" + strings.TrimPrefix(path, "PYTHONPATH=") + "'); import runpy; runpy.run_path('" + rig.config.Argv[len(rig.config.Argv)-1] + "')"}
			}
			_, out := rig.launch(template, site, "RALLYPOINT_PROGRESS_FILE="+record)
			if want := "['" + strings.TrimPrefix(path, "PYTHONPATH=") + "', [], [], 1]"; out != want {
				t.Errorf("the worker sees %s, want %s\n%s", out, want, rig.log.String())
			}
			b, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			if got := binary.LittleEndian.Uint64(b[56:]); got != c.want {
				t.Errorf("%d steps, want %d", got, c.want)
			}
		})
	}
}
