package logs

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// partialPatience is how long an unfinished line is held back (W12).
const partialPatience = time.Second

// pollPeriod is how often a file is looked at if the system does not tell of
// changes: its number of watches is limited for each user.
const pollPeriod = 100 * time.Millisecond

// tails copies log files to the console while the workers write them, each line
// with its prefix (A67, A69). add and stop are for one goroutine.
type tails struct {
	log     *slog.Logger
	watcher *watcher // nil: the files are polled
	done    chan struct{}
	wg      sync.WaitGroup
}

func newTails(log *slog.Logger) *tails {
	return &tails{log: log, watcher: newWatcher(), done: make(chan struct{})}
}

// tail is where the lines of one file go.
type tail struct {
	path    string
	out     *printer // nil: not to the console
	filter  *printer // nil: no filter
	needles [][]byte // a line that holds any of them goes to filter, too (A71)
}

// add begins to copy a file, which must exist.
func (t *tails) add(job tail) {
	file, err := os.Open(job.path)
	if err == nil {
		var info os.FileInfo
		if info, err = file.Stat(); err == nil && info.IsDir() {
			err = unix.EISDIR
		}
		if err != nil {
			_ = file.Close()
		}
	}
	if err != nil {
		t.log.Error("cannot follow a log file: " + err.Error())
		return
	}
	changed := t.watcher.watch(job.path)
	t.wg.Go(func() {
		defer func() { _ = file.Close() }()
		if err := t.follow(file, changed, &job); err != nil {
			t.log.Error(fmt.Sprintf("cannot follow %s any more: %v", job.path, err))
		}
	})
}

// stop copies what the workers have written until now and ends. The workers
// must have ended.
func (t *tails) stop() {
	close(t.done)
	t.wg.Wait()
	t.watcher.close()
}

func (t *tails) follow(file io.Reader, changed <-chan struct{}, job *tail) error {
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
		n, err := file.Read(buf)
		if n > 0 {
			if err := job.emit(cut.add(buf[:n])); err != nil {
				return err
			}
			patience = nil
			continue
		}
		if err != nil && err != io.EOF {
			return err
		}
		if last {
			return job.emit(cut.rest())
		}
		if patience == nil && len(cut.partial) > 0 {
			patience = time.After(partialPatience)
		}
		select {
		case <-changed:
		case <-poll(changed):
		case <-t.done:
		case <-patience:
			patience = nil
			if err := job.emit(cut.rest()); err != nil {
				return err
			}
		}
	}
}

// poll stands in for a file that is not watched.
func poll(changed <-chan struct{}) <-chan time.Time {
	if changed != nil {
		return nil
	}
	return time.After(pollPeriod)
}

func (job *tail) emit(text []byte) error {
	if job.out != nil {
		if err := job.out.print(text); err != nil {
			return err
		}
	}
	if job.filter == nil {
		return nil
	}
	for line := range bytes.Lines(text) {
		for _, needle := range job.needles {
			if bytes.Contains(line, needle) {
				if err := job.filter.print(line); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

// watcher reports writes to files. A nil watcher reports nothing.
type watcher struct {
	file *os.File
	done chan struct{}

	mu    sync.Mutex
	wakes map[int32][]chan struct{} // by watch, of which a file has one however often it is watched
}

// newWatcher returns nil if the system has no watcher to give.
func newWatcher() *watcher {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	w := &watcher{file: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), wakes: make(map[int32][]chan struct{})}
	go w.run()
	return w
}

func (w *watcher) run() {
	defer close(w.done)
	buf := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			w.wake(event)
			rest = rest[unix.SizeofInotifyEvent+int(event.Len):]
		}
		w.mu.Unlock()
	}
}

// wake passes one event on; mu is held. If events were lost it wakes all.
func (w *watcher) wake(event *unix.InotifyEvent) {
	if event.Mask&unix.IN_Q_OVERFLOW != 0 {
		for _, wakes := range w.wakes {
			offerAll(wakes)
		}
		return
	}
	offerAll(w.wakes[event.Wd])
}

// offer puts a token into c if it has none.
func offer(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func offerAll(wakes []chan struct{}) {
	for _, wake := range wakes {
		offer(wake)
	}
}

// watch returns a channel that has a token whenever the file may have been
// written since the last token was taken; nil if the file cannot be watched.
func (w *watcher) watch(path string) <-chan struct{} {
	if w == nil {
		return nil
	}
	wake := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	wd := -1
	conn, err := w.file.SyscallConn()
	if err == nil {
		_ = conn.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), path, unix.IN_MODIFY) })
	}
	if err != nil {
		return nil
	}
	w.wakes[int32(wd)] = append(w.wakes[int32(wd)], wake)
	return wake
}

func (w *watcher) close() {
	if w == nil {
		return
	}
	_ = w.file.Close()
	<-w.done
}
