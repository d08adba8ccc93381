package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// fatalXids are errors after which a GPU needs a reset, or the machine a restart, by NVIDIA's
// catalog: memory that is beyond repair, a GPU that fell off the bus, its processor that does
// not answer.
var fatalXids = []int{48, 64, 79, 95, 119, 120}

// recoveryXid is the Xid with which the driver, since R570, says what a GPU needs. It takes
// precedence over any list.
const recoveryXid = 154

// xidLine is a line of NVIDIA's driver: the GPU, the number, and the text.
var xidLine = regexp.MustCompile(`NVRM: Xid \(PCI:([0-9A-Fa-f:.]{1,32})\): (\d{1,6})(?:, ?(.*))?`)

// recovery is the action that a GPU needs from now on.
var recovery = regexp.MustCompile(`recovery action changed from .* to 0x[0-9A-Fa-f]+ \(([^)]*)\)`)

// xids reads the kernel's log since the machine was started for errors after which a GPU cannot
// be used.
func (m Machine) xids(list string) Verdict {
	fatal := fatalXids
	if list != "" {
		fatal = nil
		for word := range strings.SplitSeq(list, ",") {
			n, _ := strconv.Atoi(word)
			fatal = append(fatal, n)
		}
	}
	log, err := kernelLog(m.Kmsg)
	if err != nil {
		return unknown("the kernel's log cannot be read: %v", err)
	}
	return judgeXids(log, fatal)
}

// xidList matches numbers with commas between them. It is compiled when it is first needed, since
// what a package compiles costs each command's start.
var xidList = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[1-9]\d{0,5}(,[1-9]\d{0,5}){0,31}$`) })

// maxKernelLog is the most that is read from the kernel's log, whose buffer is smaller.
const maxKernelLog = 64 << 20

func kernelLog(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var log []byte
	for record := make([]byte, 16<<10); len(log) < maxKernelLog; { // the device gives one record at a time
		n, err := unix.Read(fd, record)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EPIPE): // overwritten meanwhile: the next one is read
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return log, nil
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		default:
			log = append(log, record[:n]...)
		}
	}
	return log, io.ErrShortBuffer
}

// judgeXids says which GPU needs a reset or a restart, by its last word in a log.
func judgeXids(log []byte, fatal []int) Verdict {
	bad := map[string]string{}
	var order []string
	for line := range bytes.Lines(log) {
		m := xidLine.FindSubmatch(line)
		if m == nil {
			continue
		}
		gpu := string(m[1])
		number, _ := strconv.Atoi(string(m[2]))
		needs := recovery.FindSubmatch(m[3])
		switch {
		case number == recoveryXid && needs != nil && string(needs[1]) == "None":
			delete(bad, gpu)
		case number == recoveryXid && needs != nil:
			bad[gpu] = strings.TrimPrefix(bad[gpu]+", then ", ", then ") + fmt.Sprintf("Xid %d: %s", number, needs[1])
		case slices.Contains(fatal, number):
			bad[gpu] = fmt.Sprintf("Xid %d", number)
		default:
			continue
		}
		if !slices.Contains(order, gpu) {
			order = append(order, gpu)
		}
	}
	for _, gpu := range order {
		if text := bad[gpu]; text != "" {
			return unfit("gpu_xid", "%s on %s since the machine was started", text, gpu)
		}
	}
	return Verdict{State: Fit}
}
