package run

import (
	"fmt"
	"strings"

	"rallypoint/internal/wording"
)

const helpColumn = 34

// helpIntro comes before the options, the others after them.
const (
	helpIntro = `Usage: rallypoint %s [options] SCRIPT [ARGS...]

Run SCRIPT in one or more workers on this node, as part of a job of one or
more nodes. The options are torchrun's; each may also be written with
underscores, or get its default from PET_<NAME>, such as PET_NNODES.
`
	helpCodes = `
Exit codes:
   0  the workers succeeded
   1  they or the agent failed
   2  wrong usage; nothing was started
  93  the job makes no progress (--max-no-progress)
  94  this node is not fit to run workers (--check, --on-failure leave)
  95  the job was stopped or drained in order: queue it again
`
	helpExamples = `  # two workers on this machine
  rallypoint run --standalone --nproc-per-node=2 train.py --lr 0.1

  # two to four nodes: the same command on each of them
  rallypoint run --rdzv-endpoint=host0:29400 --rdzv-id=job7 --nnodes=2:4 \
    --nproc-per-node=8 --max-restarts=3 train.py

  # a program that is not Python
  rallypoint run --nproc-per-node=4 --no-python ./worker --threads 2

  # on every node of a Slurm allocation
  srun rallypoint run --slurm --max-restarts=3 train.py
`
)

var variables = []struct{ name, help string }{
	{"PYTHON_EXEC", "interpreter of the workers; default: the one named with `python -m rallypoint`, else that of $VIRTUAL_ENV, else the one in which this command is installed (except by uv tool or pipx), else the first python3 in PATH"},
	{envWarm, "1: --warm"},
	{envAutoProgress, "0: do not count the steps of torch's optimizers, and load nothing into the workers"},
	{envHangTimeout, "--hang-timeout"},
	{envOnHang, "--on-hang"},
	{"LOGLEVEL", "lowest level to log: DEBUG, INFO, WARNING or ERROR; INFO for a job of several nodes, else WARNING"},
	{"OMP_NUM_THREADS", "threads of a worker's CPU operations; 1 if there are several workers"},
	{"TORCHELASTIC_HEALTH_CHECK_PORT", "PORT (of 127.0.0.1) or HOST:PORT for /healthz, /readyz, /status and /metrics"},
	{"TORCHELASTIC_ENABLE_FILE_TIMER", "1: serve the timers of torch.distributed.elastic.timer at TORCHELASTIC_TIMER_FILE"},
	{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "give up on a worker after this many seconds in uninterruptible sleep"},
	{"TORCHELASTIC_ERROR_FILE", "copy the root cause's error file to this path"},
}

func helpText(legacy bool) string {
	var b strings.Builder
	name := "run"
	if legacy {
		name = "launch"
	}
	fmt.Fprintf(&b, helpIntro, name)
	for _, group := range OptionGroups {
		fmt.Fprintf(&b, "\n%s:\n", group)
		for _, f := range offeredOptions(legacy) {
			if f.group == group {
				writeEntry(&b, f.heading(), f.help)
			}
		}
	}
	b.WriteString(variablesText() + helpCodes + "\nExamples:\n" + helpExamples)
	return b.String()
}

func (op *option) heading() string {
	name := "      --" + op.name
	if op.short != 0 {
		name = fmt.Sprintf("  -%c, --%s", op.short, op.name)
	}
	switch {
	case op.choices != nil:
		name += " " + strings.Join(op.choices, "|")
	case op.meta != "":
		name += " " + op.meta
	}
	return name
}

func variablesText() string {
	var b strings.Builder
	b.WriteString("\nEnvironment:\n")
	for _, v := range variables {
		writeEntry(&b, "  "+v.name, v.help)
	}
	return b.String()
}

// writeEntry writes an explanation next to its name, or below it if the name is too long.
func writeEntry(b *strings.Builder, name, help string) {
	if len(name) >= helpColumn {
		b.WriteString(name + "\n")
		name = ""
	}
	fmt.Fprintf(b, "%-*s%s\n", helpColumn, name, wording.Wrap(help, wording.HelpWidth, helpColumn))
}
