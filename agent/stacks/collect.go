package stacks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/backoff"
	"rallypoint/internal/ownfile"
)

// EnvFile is the variable of a worker with the path of its stack file.
const EnvFile = "RALLYPOINT_STACKS_FILE"

// Question is the signal by which a worker is asked, if code of ours has it answered.
type Question unix.Signal

// The questions. faulthandler reads the frames of other threads while these may run, which can
// end a worker; a thread's own it reads safely.
const (
	MainThread Question = 61
	AllThreads Question = 62 // for a worker that is about to be killed
)

// Patience bounds how long a worker is waited for.
const Patience = 2 * time.Second

// observed is how long a worker without a stack is observed, unless it is about to be killed.
const observed = time.Second

// How often files are looked at, and for how long one has not grown that is complete.
const (
	look    = 10 * time.Millisecond
	settled = 60 * time.Millisecond
)

const (
	maxHeader = 64      // of its first line
	maxText   = 1 << 18 // of the text after it
)

// NewFile makes the file of a folder into which the faulthandler of one worker writes in a round.
func NewFile(folder string, round uint64, local int) (*ownfile.File, error) {
	return ownfile.Create(filepath.Join(folder, fmt.Sprintf("%d.%d.stacks", round, local)), nil)
}

// header is the first line of a file: which process writes into it, and by which descriptor.
type header struct {
	pid, fd int
	length  int64 // of the line
}

var errNoHeader = errors.New("the process has not loaded Rallypoint")

// readHeader reads the first line. A worker may have written anything.
func readHeader(file *os.File) (h header, err error) {
	var b [maxHeader]byte
	n, err := file.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return h, err
	}
	if n == 0 {
		return h, errNoHeader
	}
	line, _, whole := strings.Cut(string(b[:n]), "\n")
	fields := strings.Split(line, " ")
	spoiled := errors.New("the worker has overwritten its stack file")
	if !whole || len(fields) != 3 || fields[0] != "rallypoint-stacks" {
		return h, spoiled
	}
	pid, err1 := strconv.Atoi(fields[1])
	fd, err2 := strconv.Atoi(fields[2])
	if err1 != nil || err2 != nil || pid <= 0 || fd < 0 {
		return h, spoiled
	}
	return header{pid, fd, int64(len(line)) + 1}, nil
}

// Target is a worker that is asked for its stacks. File may be nil.
type Target struct {
	Rank, Pid int
	File      *ownfile.File
}

// asked is a target and how far its answer is.
type asked struct {
	Target
	header
	file    *os.File // open while the worker is asked; nil: it has none
	state   kernelState
	cpu     time.Duration // of its process, with state
	at      time.Time     // when these were read
	watched bool          // it has no stack, and is observed
	why     string        // there are no stacks; "" while there may be
	size    int64         // of the file, when it was looked at last
	grown   time.Time
	answer  parsed
}

// Collect asks workers for their stacks and returns what is known of each alone after patience, or when
// ctx ends. Of a worker that does not answer it returns the kernel's state, and where that did not
// change for a while, this. No worker is harmed:
// it gets the signal only if it handles it, is neither stopped nor held by a debugger, and still
// has its stack file open where faulthandler writes.
func Collect(ctx context.Context, targets []Target, q Question, patience time.Duration) []Group {
	list := make([]*asked, len(targets))
	for i, t := range targets {
		list[i] = &asked{Target: t}
		list[i].ask(q)
		list[i].at, list[i].cpu = time.Now(), readCPU(t.Pid)
		list[i].watched = q == MainThread && list[i].why != "" && list[i].state.answers() == ""
	}
	until := time.Now().Add(patience)
	for open := true; open && ctx.Err() == nil && time.Now().Before(until); {
		backoff.Sleep(ctx, look)
		open = false
		for _, a := range list {
			open = a.read() || open
		}
	}
	workers := make([]Group, len(list))
	for i, a := range list {
		workers[i] = a.result()
		if a.file != nil {
			_ = a.file.Close()
		}
	}
	return workers
}

// ask sends the signal if that is harmless.
func (a *asked) ask(q Question) {
	a.state = readKernel(a.Pid)
	a.why = a.state.answers()
	if a.why != "" {
		return
	}
	if a.why = "there is no file for its stacks"; a.File == nil {
		return
	}
	var err error
	if a.file, err = a.File.Open(); err != nil {
		a.why = "its stack file cannot be opened: " + err.Error()
		return
	}
	if a.header, err = readHeader(a.file); err != nil {
		a.why = err.Error()
		return
	}
	// The file is open there: so it is the worker, or a process that it has started. A pid
	// that was given to another process meanwhile is not hit, since the kernel knows it by pidfd.
	pidfd, err := unix.PidfdOpen(a.pid, 0)
	if err != nil {
		a.why = "its process cannot be asked: " + err.Error()
		return
	}
	defer func() { _ = unix.Close(pidfd) }()
	state := a.state
	if a.pid != a.Pid {
		state = readKernel(a.pid)
	}
	switch {
	case state.answers() != "":
		a.why = state.answers()
	case !a.writesThere():
		a.why = "the worker has closed its stack file"
	case !has(state.caught, q):
		a.why = fmt.Sprintf("the worker does not handle signal %d: its Python is older than 3.11 or about to end, or it has taken the signal back", q)
	case has(state.blocked, q) && state.state != stateD: // which a program that is started blocks for a moment
		a.why = fmt.Sprintf("the worker has blocked signal %d", q)
	default:
		a.why = ""
		_ = a.file.Truncate(a.length) // what earlier answers left, and what the worker wrote
		a.size, a.grown = a.length, time.Now()
		if !has(state.pending, q) {
			if err := unix.PidfdSendSignal(pidfd, unix.Signal(q), nil, 0); err != nil {
				a.why = "it cannot be sent a signal: " + err.Error()
			}
		}
	}
}

// writesThere reports whether the descriptor of the header is that file: else the worker has
// closed it, and another file of its own may have the number.
func (a *asked) writesThere() bool {
	there, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%d", a.pid, a.fd))
	own, err2 := a.file.Stat()
	return err == nil && err2 == nil && os.SameFile(there, own)
}

// read looks at the file, and reports whether it has to be looked at again. An answer has no
// end that could be seen: it is whole if it has the thread that took the signal, which comes
// last as a rule, and does not grow any more.
func (a *asked) read() (again bool) {
	if a.why != "" {
		return a.watched && time.Since(a.at) < observed
	}
	if a.answer.whole && time.Since(a.grown) > settled {
		return false
	}
	info, err := a.file.Stat()
	if err != nil {
		a.why = err.Error()
		return false
	}
	if info.Size() == a.size {
		return !a.answer.whole || time.Since(a.grown) <= settled
	}
	a.size, a.grown = info.Size(), time.Now()
	b := make([]byte, min(max(a.size-a.length, 0), maxText))
	n, _ := a.file.ReadAt(b, a.length)
	a.answer = parse(string(b[:n]))
	return true
}

func (a *asked) result() Group {
	w := Group{Ranks: []int{a.Rank}, State: a.state.String(), Why: a.why}
	if a.why == "" && a.length > 0 {
		_ = a.file.Truncate(a.length)
	}
	switch {
	case len(a.answer.threads) > 0:
		w.Source, w.Threads = SourceFaulthandler, thatMatter(a.answer.threads)
		w.State, w.Why = "", ""
	case a.why == "":
		w.State = readKernel(a.Pid).String()
		w.Why = whyLate
		w.Source = SourceKernel
	case a.watched && time.Since(a.at) >= observed:
		share := (readCPU(a.Pid) - a.cpu).Seconds() / time.Since(a.at).Seconds()
		w.State = between(a.state, readKernel(a.Pid), share)
		w.Source = SourceKernel
	default:
		w.Source = SourceKernel
	}
	return w
}
