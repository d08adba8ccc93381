package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/background"
)

// Machine is the part of a machine that the built-in checks read.
type Machine struct {
	Sys  string // where the kernel shows devices: "/sys"
	SMI  string // the command nvidia-smi, with or without a folder
	Kmsg string // the kernel's log: "/dev/kmsg"
	GPUs int    // how many the node should have, where a check names no number
}

// smiPatience bounds a question to the GPUs' driver, which can hang where one is broken. Only tests
// change it.
var smiPatience = 20 * time.Second

// Look runs a built-in check: gpu[:N], xid[:N,N], disk:PATH[:FREE] or nic:NAME. An error says
// what is wrong with the text of the check. It blocks as long as a file system does, or up to 20
// s for the GPUs' driver.
func (m Machine) Look(ctx context.Context, text string) (Verdict, error) {
	kind, rest, given := strings.Cut(text, ":")
	switch {
	case kind == "gpu":
		n := m.GPUs
		if given {
			var err error
			if n, err = strconv.Atoi(rest); err != nil || n < 1 {
				return Verdict{}, fmt.Errorf("%q: the number of GPUs must be 1 or more", text)
			}
		}
		return m.gpus(ctx, n), nil
	case kind == "xid" && (!given || xidList().MatchString(rest)):
		return m.xids(rest), nil
	case kind == "disk" && rest != "":
		path, least := rest, uint64(0)
		if i := strings.LastIndexByte(rest, ':'); i > 0 {
			var err error
			if least, err = parseSize(rest[i+1:]); err != nil {
				return Verdict{}, fmt.Errorf("%q: %w", text, err)
			}
			path = rest[:i]
		}
		return disk(path, least), nil
	case kind == "nic" && rest != "" && !strings.ContainsAny(rest, "/\x00") && rest != "." && rest != "..":
		return m.nic(rest), nil
	}
	return Verdict{}, fmt.Errorf("%q is not one of gpu[:N], xid[:N,N], disk:PATH[:FREE], nic:NAME and net", text)
}

func unfit(reason, format string, args ...any) Verdict {
	return Verdict{State: Unfit, Reason: reason, Text: bounded(fmt.Sprintf(format, args...))}
}

func unknown(format string, args ...any) Verdict {
	return Verdict{Text: bounded(fmt.Sprintf(format, args...))}
}

// parseSize reads bytes, with K, M, G or T for powers of 1024.
func parseSize(text string) (uint64, error) {
	shift := 0
	if i := strings.IndexAny(text, "KMGT"); i > 0 && i == len(text)-1 {
		shift = 10 * (1 + strings.IndexByte("KMGT", text[i]))
		text = text[:i]
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > 1<<63>>shift {
		return 0, errors.New("the free space must be a number of bytes, such as 10G")
	}
	return n << shift, nil
}

// disk writes a small file, and reads how much space is left.
func disk(path string, least uint64) Verdict {
	f, err := os.CreateTemp(path, ".rallypoint-check-*")
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
		err = errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		return unknown("%v", err)
	case err != nil:
		return unfit("disk", "%v", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return unknown("%s: %v", path, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < least {
		return unfit("disk_full", "%s has %d MiB left, and %d MiB are needed", path, free>>20, least>>20)
	}
	return Verdict{State: Fit}
}

// nic looks at the carrier of a network interface, or the ports of an InfiniBand device.
func (m Machine) nic(name string) Verdict {
	folder := filepath.Join(m.Sys, "class/net", name)
	if _, err := os.Stat(folder); err == nil {
		carrier, err := os.ReadFile(filepath.Join(folder, "carrier"))
		switch {
		case errors.Is(err, unix.EINVAL):
			return unfit("nic_down", "%s is switched off", name)
		case err != nil:
			return unknown("%v", err)
		case strings.TrimSpace(string(carrier)) != "1":
			return unfit("nic_down", "%s has no carrier", name)
		}
		return Verdict{State: Fit}
	}
	ports, _ := filepath.Glob(filepath.Join(m.Sys, "class/infiniband", name, "ports/*/state"))
	if len(ports) == 0 {
		return unfit("nic_missing", "there is no network interface and no InfiniBand device %s", name)
	}
	for _, port := range ports {
		if state, err := os.ReadFile(port); err == nil && strings.Contains(string(state), "ACTIVE") {
			return Verdict{State: Fit}
		}
	}
	return unfit("nic_down", "no port of %s is active", name)
}

// smiLost is nvidia-smi's exit code for a GPU that has fallen off the bus.
const smiLost = 15

// gpus asks NVIDIA's driver for the GPUs and their memory errors.
func (m Machine) gpus(ctx context.Context, least int) Verdict {
	limited, cancel := context.WithTimeout(ctx, smiPatience)
	defer cancel()
	cmd := exec.CommandContext(limited, m.SMI, "--query-gpu=index,ecc.errors.uncorrected.volatile.total,remapped_rows.pending", "--format=csv,noheader,nounits")
	cmd.WaitDelay = time.Second
	var output []byte
	var err error
	answered := background.Within(smiPatience+2*cmd.WaitDelay, func() { output, err = cmd.Output() }) // no signal ends one that waits for the driver
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil: // by a signal, which says nothing of the GPUs
		return unknown("it was ended before nvidia-smi had answered")
	case !answered || limited.Err() != nil:
		return unfit("gpu_hang", "nvidia-smi has not answered within %v", smiPatience)
	case errors.As(err, &ended) && ended.ExitCode() == smiLost:
		return unfit("gpu_lost", "%s", lastLine(output))
	case err != nil:
		return unknown("%s", strings.TrimSuffix(fmt.Sprintf("nvidia-smi: %v: %s", err, lastLine(output)), ": "))
	}
	return judgeGPUs(string(output), least)
}

// judgeGPUs parses the answer of nvidia-smi: a line per GPU with its index, its errors, and "Yes"
// or "1" if memory waits for a reset. A value that a GPU does not know is in brackets.
func judgeGPUs(answer string, least int) Verdict {
	found := 0
	for line := range strings.Lines(answer) {
		fields := strings.Split(strings.TrimSpace(line), ",")
		if len(fields) != 3 {
			continue
		}
		found++
		index, count, pending := strings.TrimSpace(fields[0]), strings.TrimSpace(fields[1]), strings.TrimSpace(fields[2])
		if n, err := strconv.ParseUint(count, 10, 64); err == nil && n > 0 {
			return unfit("gpu_ecc", "GPU %s has %d uncorrected memory errors", index, n)
		}
		if pending == "Yes" || pending == "1" {
			return unfit("gpu_row_remap", "GPU %s waits for a reset to remap memory", index)
		}
	}
	if found < least {
		return unfit("gpu_missing", "found %d of %d GPUs", found, least)
	}
	return Verdict{State: Fit}
}
