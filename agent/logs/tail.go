package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"rallypoint/internal/background"
	"rallypoint/internal/changewatch"
	"rallypoint/internal/linequeue"
)

// partialPatience is how long an unfinished line is held back.
const partialPatience = time.Second

// pollPeriod is how often a file is looked at if the system does not tell of
// changes: its number of watches is limited for each user.
const pollPeriod = 100 * time.Millisecond

// tails copies log files to the console while the workers write them, each line
// with its prefix. While the console is not read it waits. add and stop are for one goroutine.
type tails struct {
	log     *slog.Logger
	watcher *changewatch.Files // nil: the files are polled
	done    chan struct{}
	wg      sync.WaitGroup
}

func newTails(log *slog.Logger) *tails {
	return &tails{log: log, watcher: changewatch.NewFiles(), done: make(chan struct{})}
}

// tail is where the lines of one file go.
type tail struct {
	file    *os.File
	console *linequeue.Queue // where out prints
	out     sink
	filter  *printer // nil: no filter
	needles [][]byte // a line that holds any of them goes to filter, too
}

type sink interface{ print(text []byte) }

// add begins to copy a file, and closes it at the end.
func (t *tails) add(job tail) {
	changed := t.watcher.Watch(job.file.Name())
	t.wg.Go(func() {
		defer func() { _ = job.file.Close() }()
		if err := t.follow(changed, &job); err != nil {
			t.log.Error(fmt.Sprintf("can no longer follow %s: %v", job.file.Name(), err))
		}
	})
}

// stop copies the rest of the workers' output and ends. The workers must have ended. If the console
// is not read, or a file system does not answer, it stops waiting, and says so.
func (t *tails) stop() {
	close(t.done)
	if !background.Within(linequeue.FlushLimit, func() {
		t.wg.Wait()
		t.watcher.Close()
	}) {
		t.log.Warn("the workers' log files are not copied to the end yet: the console, or a file system, is slow; the next output may come first")
	}
}

func (t *tails) follow(changed <-chan struct{}, job *tail) error {
	var cut lines
	buf := make([]byte, 64<<10)
	var patience <-chan time.Time
	for {
		last := false // read from done before the file, so that it sees everything
		select {
		case <-t.done:
			last = true
		default:
		}
		if !t.awaitRoom(job) {
			return errors.New("the console is not read; the file has the rest")
		}
		n, err := job.file.Read(buf)
		if n > 0 {
			job.emit(cut.add(buf[:n]))
			patience = nil
			continue
		}
		if err != nil && err != io.EOF {
			return err
		}
		if last {
			job.emit(cut.rest())
			return nil
		}
		if patience == nil && len(cut.partial) > 0 {
			patience = time.After(partialPatience)
		}
		select {
		case _, watched := <-changed:
			if !watched {
				changed = nil
			}
		case <-poll(changed):
		case <-t.done:
		case <-patience:
			patience = nil
			job.emit(cut.rest())
		}
	}
}

// awaitRoom waits until the console takes more output; once the workers have ended, not longer than
// the console may be stuck.
func (t *tails) awaitRoom(job *tail) bool {
	if job.console.Wait(t.done) {
		return true
	}
	stalled := make(chan struct{})
	timer := time.AfterFunc(linequeue.StallLimit, func() { close(stalled) })
	defer timer.Stop()
	return job.console.Wait(stalled)
}

// poll replaces the watch of a file that cannot be watched.
func poll(changed <-chan struct{}) <-chan time.Time {
	if changed != nil {
		return nil
	}
	return time.After(pollPeriod)
}

func (t *tail) emit(text []byte) {
	t.out.print(text)
	if t.filter == nil {
		return
	}
	for line := range bytes.Lines(text) {
		if slices.ContainsFunc(t.needles, func(needle []byte) bool { return bytes.Contains(line, needle) }) {
			t.filter.print(line)
		}
	}
}
