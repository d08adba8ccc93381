// Package watchdog serves torch's file timers: workers write them to a FIFO.
package watchdog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/internal/uuid"
	"rallypoint/internal/wake"
)

// Variables of the watchdog.
const (
	envEnabled = "TORCHELASTIC_ENABLE_FILE_TIMER"
	EnvFile    = "TORCHELASTIC_TIMER_FILE"
)

// FIFOPath is the path of the FIFO that workers write their timers to; "" if the
// watchdog is off.
func FIFOPath(env []string) string {
	if enabled, _ := process.LookupEnv(env, envEnabled); enabled != "1" {
		return ""
	}
	if path, given := process.LookupEnv(env, EnvFile); given {
		return path
	}
	return strings.TrimSuffix(process.TempDir(process.Getenv(env)), "/") + "/watchdog_timer_" + uuid.New()
}

// Overdue is a process with an expired timer.
type Overdue struct {
	Timers []Timer // in the order of their expiry; at least one
	Fatal  int     // index of the first with a signal; -1: there is none
}

// Watchdog serves torch's file timers while the workers of one attempt run: it
// reads requests from a FIFO and tells of timers that expire. A nil watchdog does
// nothing.
type Watchdog struct {
	path string
	fifo *os.File
	log  *slog.Logger
	now  func() time.Time
	done chan struct{}

	wake wake.Signal // holds a token while there are processes to take

	mu      sync.Mutex
	expired []Overdue
}

// Serve makes the FIFO, replacing any file at its path, and serves it until Stop.
func Serve(path string, log *slog.Logger) (*Watchdog, error) {
	fifo, err := newFIFO(path)
	if err != nil {
		return nil, fmt.Errorf("cannot serve the workers' timers: %w", err)
	}
	w := &Watchdog{path: path, fifo: fifo, log: log, now: time.Now, done: make(chan struct{}), wake: wake.New()}
	go w.run()
	return w, nil
}

func newFIFO(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	// Opened for writing, too: it has no end, and clients always find a reader.
	fifo, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		_ = os.Remove(path)
		return nil, err
	}
	return fifo, nil
}

// Expiries has a token whenever Take has something; nil for a nil watchdog.
func (w *Watchdog) Expiries() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.wake
}

// Take returns the processes whose timers have expired since the last call.
func (w *Watchdog) Take() []Overdue {
	w.mu.Lock()
	defer w.mu.Unlock()
	expired := w.expired
	w.expired = nil
	return expired
}

// Stop ends the watchdog and removes the FIFO.
func (w *Watchdog) Stop() {
	if w == nil {
		return
	}
	_ = w.fifo.Close() // ends the read
	<-w.done
	if err := os.Remove(w.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.log.Warn("cannot remove the file of the workers' timers: " + err.Error())
	}
}

// clockCheck bounds how long the watchdog sleeps while a timer runs: timers are in
// wall-clock time, which may be set.
const clockCheck = time.Second

// maxFIFO limits how much is read before timers are evaluated, to the largest capacity of a FIFO.
const maxFIFO = 1 << 20

func (w *Watchdog) run() {
	defer close(w.done)
	running := make(timers)
	var input requests
	for {
		var deadline time.Time
		if next := running.next(); !next.IsZero() {
			deadline = time.Now().Add(max(min(next.Sub(w.now()), clockCheck), 0))
		}
		_ = w.fifo.SetReadDeadline(deadline)
		err := input.read(w.fifo)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // closed
		}
		// A timer is evaluated only after everything was read that was written before it
		// expired: this process may have been stopped meanwhile.
		now := w.now()
		_ = w.fifo.SetReadDeadline(time.Time{})
		for taken := 0; taken < maxFIFO; {
			w.accept(running, &input)
			n := input.readNow(w.fifo)
			if n <= 0 {
				break
			}
			taken += n
		}
		w.report(running.expire(now))
	}
}

func (w *Watchdog) accept(running timers, input *requests) {
	for line := range input.lines() {
		if t, err := parseTimer(line); err != nil {
			w.log.Warn(fmt.Sprintf("ignoring the timer request %.200q: %v", line, err))
		} else if !running.take(t) {
			w.log.Warn(fmt.Sprintf("process %d has too many timers: ignoring one", t.Pid))
		}
	}
}

func (w *Watchdog) report(expired [][]Timer) {
	if len(expired) == 0 {
		return
	}
	w.mu.Lock()
	for _, list := range expired {
		fatal := slices.IndexFunc(list, func(t Timer) bool { return t.Signal > 0 })
		w.expired = append(w.expired, Overdue{Timers: list, Fatal: fatal})
	}
	w.mu.Unlock()
	w.wake.Set()
}

// requests splits the input from the FIFO into lines. A line has at most PIPE_BUF bytes, since
// longer writes are not atomic. Longer lines are dropped.
type requests struct {
	buf  [16 << 10]byte
	n    int
	skip bool // until the next line feed: the line is too long
}

func (r *requests) read(file *os.File) error {
	n, err := file.Read(r.buf[r.n:])
	r.n += n
	return err
}

// readNow reads the input that has already arrived, and returns its length.
func (r *requests) readNow(file *os.File) (n int) {
	conn, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	_ = conn.Read(func(fd uintptr) bool {
		n, _ = unix.Read(int(fd), r.buf[r.n:])
		return true
	})
	r.n += max(n, 0)
	return n
}

func (r *requests) lines() func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		text := r.buf[:r.n]
		for {
			line, rest, found := bytes.Cut(text, []byte{'\n'})
			if !found {
				break
			}
			if !r.skip && len(bytes.TrimSpace(line)) > 0 {
				yield(line)
			}
			text, r.skip = rest, false
		}
		r.n = copy(r.buf[:], text)
		if r.n == len(r.buf) {
			r.n, r.skip = 0, true
		}
	}
}
