package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	nodecheck "rallypoint/agent/check"
	"rallypoint/cli/run"
	"rallypoint/internal/printable"
)

// exitCannotTell is EX_TEMPFAIL.
const exitCannotTell = 75

func newCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check CHECK...",
		Short: "Examine this machine: GPUs, disks, network interfaces; the network between nodes",
		Long: `Examine this machine, for "run --check" or by hand. CHECK is one of

  gpu[:N]           NVIDIA's driver answers within 20 s, N GPUs exist
                    (default: the node's workers; by hand 1), none has
                    uncorrected memory errors or needs a reset
  xid[:N,N]         the kernel's log has no error since the machine was
                    started after which a GPU needs a reset (48, 64, 79,
                    95, 119 or 120, or those that you name), unless the
                    driver says later that it needs none
  disk:PATH[:FREE]  a file can be written in the folder PATH, and FREE
                    bytes (such as 10G) are left
  nic:NAME          the network interface has a carrier, or a port of
                    the InfiniBand device is active
  net               shows the network interfaces and routes. As the workers
                    of a job it also measures, between each two nodes, the
                    latency and bandwidth to each address, a fifth of a
                    second and 64 MB at most each, and is not fit if a node
                    advertises an address on a slow interface, or one that
                    others cannot reach

The exit code is 0 if the machine is fit, 1 if it is not, and 75 if that is unknown, for
instance without nvidia-smi. The last line says why.`,
		Example: `  rallypoint check gpu:8 xid disk:/scratch:10G nic:ib0
  rallypoint run --check 'rallypoint check gpu disk:/scratch' train.py
  rallypoint run --nnodes=4 --rdzv-endpoint=host0:29400 --no-python rallypoint check net`,
		Args: wantArgs("CHECK..."),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m := nodecheck.Machine{Sys: "/sys", SMI: "nvidia-smi", Kmsg: "/dev/kmsg", GPUs: 1}
		if n, err := strconv.Atoi(os.Getenv("RALLYPOINT_LOCAL_WORLD_SIZE")); err == nil && n > 0 {
			m.GPUs = n
		}
		worst, last := nodecheck.Fit, ""
		var wrong error
		for _, text := range args {
			v, err := nodecheck.Verdict{}, error(nil)
			if text == "net" {
				v = checkNet(cmd.Context(), os.Getenv, cmd.OutOrStdout())
			} else if v, err = m.Look(cmd.Context(), text); err != nil { // which hides nothing of the others
				wrong = err
				continue
			}
			line := [...]string{nodecheck.Unknown: "cannot tell: ", nodecheck.Fit: "fit", nodecheck.Unfit: "not fit: "}[v.State] + v.Text
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", printable.Text(text), line)
			switch {
			case v.State == nodecheck.Unfit && worst != nodecheck.Unfit:
				said, err := json.Marshal(map[string]string{"reason": v.Reason, "text": v.Text})
				if err != nil {
					return failure{err}
				}
				worst, last = nodecheck.Unfit, string(said)
			case v.State == nodecheck.Unknown && worst == nodecheck.Fit:
				worst, last = nodecheck.Unknown, v.Text
			}
		}
		if last != "" {
			fmt.Fprintln(cmd.OutOrStdout(), last)
		}
		switch {
		case worst == nodecheck.Unfit && wrong != nil:
			return failure{wrong}
		case worst == nodecheck.Unfit:
			return run.ExitStatus(1)
		case wrong != nil:
			return wrong
		case worst == nodecheck.Unknown:
			return run.ExitStatus(exitCannotTell)
		}
		return nil
	}
	return cmd
}
