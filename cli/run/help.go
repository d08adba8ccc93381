package run

import (
	"fmt"
	"strings"
)

// helpColumn is where the explanations of options begin.
const helpColumn = 34

// helpIntro and helpOutro stand around the options.
const (
	helpIntro = `usage: rallypoint %s [options] SCRIPT [ARGS...]

Run SCRIPT in one or more workers on this node, as a part of a job of one or
more nodes. The options are torchrun's; each may also be written with
underscores, or get its default from PET_<NAME>. What stands behind a semicolon
below is the default.

  rallypoint run --nproc-per-node=8 train.py --lr 0.1
  rallypoint run --rdzv-endpoint=host0:29400 --nnodes=2:4 --nproc-per-node=8 \
    --max-restarts=3 train.py
`
	helpOutro = `
Environment:
  PYTHON_EXEC                     interpreter of the workers; else that of $VIRTUAL_ENV, the one that has this
                                  command installed (not by uv tool or pipx), or the first python3 in PATH
  LOGLEVEL                        least level to log: DEBUG, INFO, WARNING or ERROR;
                                  INFO for a job of several nodes, else WARNING
  TORCHELASTIC_HEALTH_CHECK_PORT  PORT (of 127.0.0.1) or HOST:PORT for /healthz, /readyz, /status and /metrics
  TORCHELASTIC_ENABLE_FILE_TIMER  1: serve the timers of torch.distributed.elastic.timer at TORCHELASTIC_TIMER_FILE
  TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT
                                  give up on a worker that has been in uninterruptible sleep for so many seconds
  TORCHELASTIC_ERROR_FILE         where the error file of the root cause is copied to

Exit codes: 0 the workers succeeded, 1 they or the agent failed, 2 wrong usage, 93 the job makes no
progress (--max-no-progress); 94 and 95 are kept for a node that is unfit and a job to be queued again.
`
)

// helpText is the text of --help; legacy is that of torch.distributed.launch.
func helpText(legacy bool) string {
	var b strings.Builder
	name := "run"
	if legacy {
		name = "launch"
	}
	fmt.Fprintf(&b, helpIntro, name)
	for _, group := range optionGroups {
		fmt.Fprintf(&b, "\n%s:\n", group)
		for _, f := range optionTable {
			if f.group != group || f.legacy && !legacy {
				continue
			}
			name := "      --" + f.name
			if f.short != 0 {
				name = fmt.Sprintf("  -%c, --%s", f.short, f.name)
			}
			switch {
			case f.choices != nil:
				name += " " + strings.Join(f.choices, "|")
			case f.meta != "":
				name += " " + f.meta
			}
			if len(name) >= helpColumn {
				b.WriteString(name + "\n")
				name = ""
			}
			fmt.Fprintf(&b, "%-*s%s\n", helpColumn, name, f.help)
		}
	}
	b.WriteString(helpOutro)
	return b.String()
}
