package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/check"
	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
	"rallypoint/internal/host"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// DefaultCheckTimeout bounds a check of the node.
const DefaultCheckTimeout = 30 * time.Second

// UnfitError ends a node that its own check has found unfit to run workers. The node leaves its
// run, which continues without it.
type UnfitError struct {
	Host    string
	Verdict check.Verdict
	Away    time.Duration // for which its job keeps it out; 0: it does not
}

func (e *UnfitError) Error() string {
	text := fmt.Sprintf("this node (%s) is not fit to run workers: %s", e.Host, e.Verdict)
	if e.Away > 0 {
		return fmt.Sprintf("%s; it is kept out of the job for %v", text, e.Away)
	}
	return text + "; it stays out of the job until it is started again"
}

// Values of RALLYPOINT_CHECK: when a check runs.
const (
	checkJoin    = "join"
	checkRejoin  = "rejoin"
	checkRunning = "running"
	checkWaiting = "waiting" // for a place
)

// badResults is how many bad results in a row take a node out that has passed its checks before.
const badResults = 2

// checks examine the node every Spec.CheckEvery, while its workers run and while it waits for
// a place.
type checks struct {
	*launcher

	mu      sync.Mutex
	waiting context.CancelFunc // ends the wait for a place; nil: the node does not wait
	member  bool               // it waits for the next round as a member of the last one
	unfit   *UnfitError        // the node leaves for it; nil: it stays
}

// watch begins to examine the node, until stop is called, which waits for that.
func (w *checks) watch() (stop func()) {
	if w.spec.CheckEvery == 0 || len(w.spec.Checks) == 0 {
		return func() {}
	}
	return background.Run(context.Background(), w.follow)
}

func (w *checks) follow(ctx context.Context) {
	bad := 0
	for backoff.Sleep(ctx, w.spec.CheckEvery) {
		when, round := w.when()
		if when == "" {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, w.spec.CheckTimeout)
		verdicts, err := w.runChecks(limited, when)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if now, later := w.when(); now != when || later != round { // a stop of the workers may have ended the checks, too
			continue
		}
		if err != nil {
			w.log.Warn("the checks of this node do not run: " + err.Error())
			continue
		}
		unfit := w.judge(verdicts)
		if unfit == nil {
			bad = 0
			w.progress.SetSuspect("")
			continue
		}
		if bad++; bad < badResults {
			w.log.Warn("a check found this node unfit; it leaves if the next one finds the same: " + unfit.Verdict.String())
			continue
		}
		if when == checkWaiting && w.giveUp(unfit) {
			continue
		}
		if w.leaving() == nil && w.asksToDrain(ctx, unfit, w.spec.DrainTimeout) {
			w.log.Warn("this node is not fit, and leaves the run once its workers have saved: " + unfit.Verdict.String())
			w.mu.Lock()
			w.unfit = unfit
			w.mu.Unlock()
		}
	}
}

// when returns the value of RALLYPOINT_CHECK for checks that start now, "" if they would disturb
// the node, and the last round in which workers were started.
func (w *checks) when() (when string, round uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	round, _ = w.progress.FirstStep()
	switch {
	case w.waiting != nil:
		return checkWaiting, round
	case w.running.Load():
		return checkRunning, round
	}
	return "", round
}

// giveUp ends the wait for a place. A member of the last round does not give up on its own: the
// others count on it, and a check may fail on all nodes while they regroup.
func (w *checks) giveUp(unfit *UnfitError) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.member {
		return false
	}
	if w.waiting != nil {
		w.unfit = unfit
		w.waiting()
	}
	return true
}

// wait notes that the node waits for a place. end takes the error with which the wait ended, and
// returns the one with which the node ends.
func (w *checks) wait(cancel context.CancelFunc, member bool) (end func(err error) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting, w.member = cancel, member
	return func(err error) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waiting = nil
		switch {
		case err == nil && !member:
			w.unfit = nil // the place was there first
		case w.unfit != nil && (errors.Is(err, rendezvous.ErrUnfit) || errors.Is(err, rendezvous.ErrCanceled)):
			return w.unfit
		}
		return err
	}
}

// leaving returns why the node leaves, nil if it stays.
func (w *checks) leaving() *UnfitError {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unfit
}

// checkNode has the checks examine this node, all at once, while no worker runs. What they have
// started has ended when it returns. One that cannot tell, or has not ended in time, takes no
// node out: the log has a warning. One that the shell cannot run before the node joins is a mistake
// of the command line. Errors: *UnfitError, *SignalError, rendezvous.ErrInvalid.
func (w *checks) checkNode(before string) error {
	if len(w.spec.Checks) == 0 {
		return nil
	}
	w.publish(telemetry.Checking{})
	began := time.Now()
	ctx, cancel := w.untilInterrupt(w.spec.CheckTimeout)
	verdicts, err := w.runChecks(ctx, before)
	cancel()
	if stop := w.interrupted(); stop != nil {
		return stop
	}
	if err != nil {
		w.log.Warn("the checks of this node do not run: " + err.Error())
		return nil
	}
	for i, v := range verdicts {
		if v.NotRun && before == checkJoin {
			return rendezvous.Errorf(rendezvous.CodeInvalid, "the check %s cannot be run (%s): give the path of a program that is on this node, or leave it out",
				printable.Text(strconv.Quote(w.spec.Checks[i])), v.Text)
		}
	}
	if unfit := w.judge(verdicts); unfit != nil {
		return unfit
	}
	w.log.Info(fmt.Sprintf("%s of this node took %v", wording.Count(len(verdicts), "check", "checks"), time.Since(began).Round(time.Millisecond)))
	return nil
}

// judge warns of checks that cannot tell, and returns the first finding that the node is unfit.
func (w *checks) judge(verdicts []check.Verdict) (unfit *UnfitError) {
	for i, v := range verdicts {
		switch v.State {
		case check.Unknown:
			w.log.Warn(fmt.Sprintf("check %s cannot tell whether this node is fit: %s", printable.Text(strconv.Quote(w.spec.Checks[i])), v.Text))
		case check.Unfit:
			if unfit == nil {
				unfit = &UnfitError{Host: host.NameOf(w.spec.Host), Verdict: v}
			}
		}
	}
	return unfit
}

// checkAgain is checkNode before a rejoin: the other nodes decide whether an unfit node leaves, if
// enough of them remain to continue without it.
func (w *checks) checkAgain() error {
	err := w.checkNode(checkRejoin)
	var unfit *UnfitError
	if !errors.As(err, &unfit) || w.rdzv.MinNodes() == 0 {
		if err == nil {
			w.progress.SetSuspect("")
		}
		return err
	}
	ctx, cancel := w.untilInterrupt(directTimeout)
	defer cancel()
	if w.asksToDrain(ctx, unfit, 0) {
		return unfit
	}
	return w.interrupted()
}

// asksToDrain asks the job to continue without this node, whose workers get the given time to
// save. If the job refuses, the node stays, and the job's status shows what is wrong with it.
func (w *checks) asksToDrain(ctx context.Context, unfit *UnfitError, within time.Duration) bool {
	err := w.rdzv.DrainUnfit(ctx, rendezvous.Direct{Within: within, For: w.spec.CheckAway, Reason: unfit.Verdict.String(), At: time.Now().UTC().Round(time.Millisecond)})
	if err == nil {
		unfit.Away = w.spec.CheckAway
		return true
	}
	w.log.Warn(fmt.Sprintf("this node is not fit, but stays in the run: %s: %v", unfit.Verdict, err))
	if rendezvous.CodeOf(err) == rendezvous.CodeInvalid {
		w.progress.SetSuspect(fmt.Sprintf("%s (it stays: %v)", unfit.Verdict, err))
		w.status.Take(telemetry.State{}, telemetry.Stays{})
	}
	return false
}

// envCheckMark names the variable that marks all processes of a check that runs while workers do.
const envCheckMark = "RALLYPOINT_CHECK_MARK"

// runChecks runs the checks as a group of workers until ctx ends, so that all their processes end
// as those of workers do. It also works while an attempt's workers run.
func (w *checks) runChecks(ctx context.Context, before string) ([]check.Verdict, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	set := [][2]string{{"RALLYPOINT_CHECK", before}, {"RALLYPOINT_LOCAL_WORLD_SIZE", strconv.Itoa(w.spec.Workers)}}
	if marker := w.tree.Marker(); marker != "" {
		set = append(set, [2]string{logs.EnvMark, strings.TrimPrefix(marker, logs.EnvMark+"=")})
	}
	aside, mark := before == checkRunning || before == checkWaiting, rand.Text()
	if aside {
		set = append(set, [2]string{envCheckMark, mark})
	}
	mark = envCheckMark + "=" + mark
	env := merge(w.spec.Environ, set)
	var launches []process.Launch
	var reads, writes []*os.File
	closeAll := func(files []*os.File) {
		for _, f := range files {
			_ = f.Close()
		}
	}
	defer func() { closeAll(reads) }()
	for i, command := range w.spec.Checks {
		read, write, err := os.Pipe()
		if err != nil {
			closeAll(writes)
			return nil, err
		}
		reads, writes = append(reads, read), append(writes, write)
		launches = append(launches, process.Launch{Local: i, Argv: []string{"/bin/sh", "-c", command}, Env: env, Files: []uintptr{null.Fd(), write.Fd(), uintptr(unix.Stderr)}})
	}
	var group *process.WorkerGroup
	if aside {
		group, err = process.StartAside(w.forker, launches, mark, w.log)
	} else {
		group, err = process.StartWorkers(w.forker, w.reaper, nil, launches, w.log)
	}
	closeAll(writes)
	if err != nil {
		return nil, err
	}
	outputs := make([]tail, len(reads))
	var readers sync.WaitGroup
	for i, read := range reads {
		readers.Go(func() { _, _ = io.Copy(&outputs[i], read) }) // ends with the check and all that it has started
	}
	awaitChecks(ctx, group)
	if aside {
		group.EndAside(mark)
	} else {
		group.Stop(process.StopOptions{Signal: unix.SIGKILL})
	}
	for _, read := range reads {
		_ = read.SetReadDeadline(time.Now().Add(outputPatience)) // what could not be ended may hold it
	}
	readers.Wait()
	verdicts := make([]check.Verdict, len(launches))
	for i, p := range group.Procs {
		if p.Stopped.Load() || !p.HasExited() {
			verdicts[i].Text = fmt.Sprintf("it had not ended after %v", w.spec.CheckTimeout)
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSpace(w.spec.Checks[i]), " ")
		verdicts[i] = check.Judge(p.Code, outputs[i], filepath.Base(name))
	}
	return verdicts, nil
}

func awaitChecks(ctx context.Context, group *process.WorkerGroup) {
	for left := len(group.Procs); left > 0; {
		select {
		case <-group.Ended():
			left -= len(group.TakeEnded())
		case <-ctx.Done():
			return
		}
	}
}

// outputPatience bounds how long the output of checks is read that have ended.
const outputPatience = time.Second

// tail keeps the last bytes written to it.
type tail []byte

const tailSize = 4096

func (t *tail) Write(b []byte) (int, error) {
	*t = append(*t, b...)
	if more := len(*t) - tailSize; more > 0 {
		*t = append((*t)[:0], (*t)[more:]...)
	}
	return len(b), nil
}
