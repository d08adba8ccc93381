package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/agent/process"
	"rallypoint/agent/stacks"
	"rallypoint/agent/telemetry"
	"rallypoint/internal/background"
	"rallypoint/internal/host"
	"rallypoint/internal/wording"
)

// findings is what is known of why the workers of an attempt make no steps.
type findings struct {
	hang       string         // says that the job makes no step any more; "": it does, as far as is known
	still      time.Duration  // without a step when it ended; 0: the job made steps
	stood      string         // where the workers of the job were then; "": that is not known
	lastStacks []stacks.Group // of workers that were killed after their grace, or of that hang
}

// lastStack is where a worker was before it was killed; "" if that is not known.
func (t *attempt) lastStack(p *process.Process) string {
	for _, g := range t.lastStacks {
		if slices.Contains(g.Ranks, t.assignment.ranks.base+p.Local) {
			return g.Text()
		}
	}
	return ""
}

// describe is firstFailure of one worker.
func (t *attempt) describe(p *process.Process) *failure.Failure {
	f := &failure.Failure{
		Rank: t.assignment.ranks.base + p.Local, LocalRank: p.Local, Pid: p.Pid, ExitCode: -int(unix.SIGKILL),
		Host: host.NameOf(t.spec.Host), Time: time.Now(), ErrorFile: process.NotAvailable, Message: p.Fault, Asleep: p.Stuck && strings.Contains(p.Fault, "(state D)"),
	}
	if p.HasExited() { // else its watch may be writing these
		f.ExitCode, f.Time = p.Code, p.At
		f.OOM = p.Memory != "" && p.Code == -int(unix.SIGKILL)
	}
	return f
}

// firstFailure describes the worker whose failure ends an attempt, as far as that is known
// without asking a name server or reading what it wrote.
func (t *attempt) firstFailure() *failure.Failure {
	failed := t.failures
	if len(failed) == 0 { // the one that cannot be killed
		failed = slices.DeleteFunc(slices.Clone(t.workers.Procs), func(p *process.Process) bool { return p.Fault == "" })
	}
	if len(failed) == 0 {
		return &failure.Failure{Host: host.NameOf(t.spec.Host), Hang: t.hang}
	}
	f := t.describe(failed[0])
	f.Hang, f.Still, f.Stood = t.hang, t.still, t.stood
	return f
}

// readPatience bounds how long the other nodes are not told of a failure because the
// worker's log is being read: the file system may be a remote one that has failed.
const readPatience = 100 * time.Millisecond

// announcedFailure is the first failure of an attempt with the last output of its worker.
func (t *attempt) announcedFailure() *failure.Failure {
	f := t.firstFailure()
	if len(t.failures) == 0 {
		return f
	}
	type output struct {
		text   []byte
		shared bool
	}
	read, of := make(chan output, 1), t.outputs[f.LocalRank]
	t.reading.Go(func() {
		text, shared := of.LastStderr()
		read <- output{text, shared}
	})
	select {
	case o := <-read:
		f.Stderr, f.SharedOutput = o.text, o.shared
	case <-time.After(readPatience):
	}
	return f
}

// reports makes the records of the workers that ended badly.
func (t *attempt) reports() []failure.Failure {
	failures := make([]failure.Failure, 0, len(t.failures))
	read := inTime
	for _, p := range t.failures {
		f, err := t.report(p, t.lastStack(p), read)
		if errors.Is(err, errNotRead) { // nor are the others' files
			read = func(func()) bool { return false }
		}
		if err != nil {
			t.log.Warn(err.Error())
		}
		failures = append(failures, f)
	}
	return failures
}

// inTime calls a function that reads a worker's files, and returns false if it gave up waiting.
func inTime(read func()) bool { return background.Within(filePatience, read) }

var errNotRead = fmt.Errorf("what the worker wrote to files is missing in the report: its files could not be read within %v", filePatience)

// report makes the record of a worker that ended badly; with an error it is
// complete but for its files. stack is its lastStack; read is inTime unless that has failed before.
func (t *attempt) report(p *process.Process, stack string, read func(func()) bool) (failure.Failure, error) {
	f := *t.describe(p)
	f.Host, f.ExitCode, f.Time, f.Terminated, f.Message = host.FullNameOf(t.spec.Host), p.Code, p.At, p.Stopped.Load() && p.Fault == "", ""
	f.Stack, f.Hang, f.Still, f.Stood = stack, t.hang, t.still, t.stood
	of, complete := t.outputs[p.Local], f // the goroutine's, if it is late
	var completing error
	err := errNotRead
	if read(func() {
		complete.Stderr, complete.SharedOutput = of.LastStderr()
		completing = complete.Complete(of.ErrorFile)
	}) {
		f, err = complete, completing
	} else {
		_ = f.Complete("")
	}
	f.Message = p.Fault + f.Message
	if note := p.Memory; note != "" {
		f.Message += " (" + note + ")"
	}
	return f, err
}

// kept returns the failures in spite of which this node has succeeded.
func (t *attempt) kept() []failure.Failure {
	if len(t.failures) == 0 {
		return nil
	}
	failures := t.reports()
	t.log.Warn(fmt.Sprintf("%s of this node failed; the node succeeded because the others did:\n%s", wording.Count(len(failures), "worker", "workers"), failure.Report(t.name, failures, "")))
	return failures
}

// keepsWithout records a worker that has failed while the others of the node run on.
func (t *attempt) keepsWithout(p *process.Process) {
	t.progress.Gone(p.Local)
	text := t.describe(p).Summary()
	if left := len(t.workers.Procs) - len(t.ended); left > 0 {
		text += fmt.Sprintf("; %d of %s of this node continue without it", left, wording.Count(len(t.workers.Procs), "worker", "workers"))
	}
	t.log.Warn(text + " (--on-failure keep)")
}

func (t *attempt) publishEnds(failures []failure.Failure) {
	t.ran = time.Since(t.began)
	t.publish(telemetry.WorkersEnded{Workers: t.workers.Procs, Succeeded: t.allSucceeded(), Failures: failures})
}

// logLastStacks logs where the workers are that did not end within their grace, before they are
// killed, and keeps it for their failures.
func (t *attempt) logLastStacks(left []*process.Process) {
	fold := stacks.NewFold(stacks.Collect(context.Background(), t.stackTargets(left), stacks.AllThreads, lastStacksPatience))
	if len(fold.Groups) == 0 {
		return
	}
	t.log.Warn(fmt.Sprintf("where the workers are that have not ended within %v:\n%s", t.spec.ShutdownTimeout, fold.Text()))
	t.lastStacks = append(t.lastStacks, fold.Groups...)
}

// logFlightRecords names the files in which torch's Flight Recorder has kept what the workers did last.
func (t *attempt) logFlightRecords() {
	var paths []string
	for _, p := range t.workers.Procs {
		if path := stacks.FlightRecord(process.Getenv(t.spec.Environ), t.assignment.ranks.base+p.Local, t.started); path != "" {
			paths = append(paths, path)
		}
	}
	if len(paths) > 0 {
		t.log.Warn("torch's Flight Recorder has kept the last collectives of " + wording.Count(len(paths), "rank", "ranks") + " of this node: " + strings.Join(paths, ", "))
	}
}
