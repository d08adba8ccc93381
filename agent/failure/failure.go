// Package failure describes failed workers: their error files, which failure caused the others,
// the report, and the failures that the nodes of a round publish to each other.
package failure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/internal/wording"
)

// noTraceback is the message of a failure of which only the exit code is known.
const noTraceback = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"

// Failure is one failed worker. The nodes of a round publish the fields that have a name in JSON.
type Failure struct {
	Rank      int    `json:"rank"`       // global
	LocalRank int    `json:"local_rank"` // on its node
	Pid       int    `json:"pid"`        // on its node
	ExitCode  int    `json:"exit_code"`  // negative: minus the signal
	Host      string `json:"host"`       // of the worker

	// Time is when it failed: by its error file (whole seconds) or, without one,
	// when the agent saw its end.
	Time time.Time `json:"time"`

	ErrorFile string `json:"error_file"` // "<N/A>" if it wrote none
	Data      []byte `json:"-"`          // the error file; nil if there is none
	Message   string `json:"message"`    // for the report; the traceback if the error file has one

	// Terminated tells that the worker ended by the agent's own signal, so that
	// it is not the cause of anything.
	Terminated bool `json:"-"`

	// OOM tells that the worker was killed by the kernel because memory ran out: by
	// SIGKILL, when the kernel counted such a kill.
	OOM bool `json:"oom,omitempty"`

	// Asleep tells that the agent gave the worker up, since no signal could end it.
	Asleep bool `json:"-"`

	// Stderr is the end of the worker's stderr, at most 64 KiB; nil if it is not known.
	Stderr []byte `json:"-"`

	// SharedOutput tells that Stderr is the end of a file that also has the stdout of the
	// worker and the output of the node's other workers.
	SharedOutput bool `json:"shared_output,omitempty"`

	// Stack is where the worker was when it was killed, or when the job hung, in lines; "" if
	// that is not known.
	Stack string `json:"stack,omitempty"`

	// Hang says that the job had made no step before the failure, and where its workers were;
	// "" if it had. The worker that failed then is the first to give up, not the cause.
	Hang string `json:"hang,omitempty"`

	// Still is for how long the job had made no step before the failure, where that was long and
	// nobody had said yet that it hung; else 0. The worker may have waited for another then.
	Still time.Duration `json:"still,omitempty"` // nanoseconds

	// Stood says with Still where the workers of the job were meanwhile; "" if that is not known.
	Stood string `json:"stood,omitempty"`

	order time.Time // Time as it sorts, to less than a second
	group int       // of a failure that was read from the store: the node's rank
}

// signalName is the name of the signal that ended the worker, "<N/A>" if none did
// or it has no name.
func (f *Failure) signalName() string {
	if f.ExitCode >= 0 {
		return process.NotAvailable
	}
	return process.SignalName(unix.Signal(-f.ExitCode))
}

// Complete fills in the fields that follow from the worker's exit, seen at f.Time, and from its
// error file. An error file that cannot be parsed is an error, and f is then as if there were
// none.
func (f *Failure) Complete(errorFile string) error {
	f.order = f.Time
	f.ErrorFile = process.NotAvailable
	err := f.readErrorFile(errorFile)
	switch {
	case f.Message != "":
	case f.ExitCode < 0:
		f.Message = fmt.Sprintf("Signal %d (%s) received by PID %d", -f.ExitCode, f.signalName(), f.Pid)
	default:
		f.Message = noTraceback
	}
	if f.Terminated {
		f.Message += " (terminated by agent)"
	}
	return err
}

func (f *Failure) readErrorFile(path string) error {
	if path == "" {
		return nil
	}
	text, err := logs.ReadRegular(path, maxErrorFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("error file: %w", err)
	}
	message, seconds, err := parseErrorFile(text)
	if err != nil {
		return fmt.Errorf("error file %s: %w", path, err)
	}
	f.ErrorFile, f.Data, f.Message = path, text, message
	f.Time = time.Unix(seconds, 0)
	// The file holds whole seconds. Within a second, the order in which the agent saw
	// them decides.
	if end := f.Time.Add(time.Second - 1); end.Before(f.order) {
		f.order = end
	}
	return nil
}

// parseErrorFile reads both formats of an error file: the message as it is shown, and the
// time in seconds.
func parseErrorFile(text []byte) (message string, seconds int64, err error) {
	var file struct {
		Message   json.RawMessage
		Timestamp json.RawMessage
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return "", 0, err
	}
	if file.Message == nil {
		return "", 0, errors.New("it has no message")
	}
	if json.Unmarshal(file.Message, &message) == nil {
		if file.Timestamp != nil {
			seconds, err = parseSeconds(file.Timestamp)
		}
		return message, seconds, err
	}
	var object struct {
		Message   *string
		ExtraInfo struct {
			Callstack *string `json:"py_callstack"`
			Timestamp json.RawMessage
		}
	}
	if err := json.Unmarshal(file.Message, &object); err != nil {
		return "", 0, err
	}
	if seconds, err = parseSeconds(object.ExtraInfo.Timestamp); err != nil {
		return "", 0, err
	}
	switch {
	case object.ExtraInfo.Callstack != nil:
		message = *object.ExtraInfo.Callstack
	case object.Message != nil:
		message = *object.Message
	default:
		message = process.NotAvailable
	}
	return strings.ReplaceAll(message, "\n", "\n  "), seconds, nil
}

// parseSeconds takes a number, or a number as a string.
func parseSeconds(text json.RawMessage) (int64, error) {
	seconds, err := strconv.ParseFloat(strings.TrimSpace(strings.Trim(string(text), `"`)), 64)
	if err != nil || seconds < 0 || seconds > 1<<40 {
		return 0, fmt.Errorf("its timestamp %.80q is not a number of seconds", text)
	}
	return int64(seconds), nil
}

// RootCause is the index of the failure that came first; those that the agent
// caused count only if there are no others. It is -1 for none.
func RootCause(failures []Failure) int {
	before := func(a, b *Failure) bool {
		if a.Terminated != b.Terminated {
			return b.Terminated
		}
		return a.order.Before(b.order)
	}
	root := -1
	for i := range failures {
		if root < 0 || before(&failures[i], &failures[root]) {
			root = i
		}
	}
	return root
}

// Worker names the failed worker without its host.
func (f *Failure) Worker() string {
	return fmt.Sprintf("worker of rank %d (local rank %d, pid %d", f.Rank, f.LocalRank, f.Pid)
}

// Hung begins the message of a worker that its agent has ended because the job hung.
const Hung = "The job hung; this worker was ended for it (--on-hang restart). "

// Summary is a failure in one line: the worker, how it ended, and its own word on why; before
// that the hang that it ended.
func (f *Failure) Summary() string {
	how := fmt.Sprintf("exited with code %d", f.ExitCode)
	switch {
	case f.OOM:
		how = "was killed because memory ran out"
	case f.Asleep:
		how = "was in uninterruptible sleep (state D) for too long"
	case f.Hang != "" && strings.HasPrefix(f.Message, Hung):
		how = "was ended for it (--on-hang restart)"
	case f.ExitCode < 0:
		how = fmt.Sprintf("was ended by signal %d (%s)", -f.ExitCode, f.signalName())
	}
	text := fmt.Sprintf("%s on %s) %s", f.Worker(), f.Host, how)
	if why := f.lastError(); why != "" {
		text += ": " + why
	}
	if f.Hang != "" {
		return "the job hung (" + f.Hang + "); then the " + text
	}
	if still := f.stillText(); still != "" {
		return text + "; " + still
	}
	return text
}

// stillText says for how long the job had made no step before; "" if it had.
func (f *Failure) stillText() string {
	switch {
	case f.Still <= 0:
		return ""
	case f.Stood != "":
		return "before that the job stood still (" + f.Stood + ")"
	}
	return "the job had made no step for " + wording.Seconds(f.Still) + " before"
}

// RawError is the content of the error file, or its replacement.
func (f *Failure) RawError() string {
	switch {
	case f.Data != nil:
		return string(f.Data)
	case f.ExitCode < 0:
		return `{"message": "<NONE>"}`
	}
	return `{"message": "<NONE>", "errorTraits": {"category": "system_terminated_error", "retryability": "False"}}`
}

const maxErrorFile = 64 << 20
