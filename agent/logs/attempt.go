// Package logs gives workers their stdout and stderr: the agent's own streams, files, or
// both, with a prefix and filters, and keeps the end of stderr for the
// report of a failure.
package logs

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rallypoint/agent/macro"
	"rallypoint/internal/background"
	"rallypoint/internal/linequeue"
)

// Spec says where the workers' output goes. The zero value leaves it on the
// agent's own streams.
type Spec struct {
	// Dir is the base folder of the log files, made if it is missing. A relative
	// one stays relative in the workers' TORCHELASTIC_ERROR_FILE. "" is a new
	// folder in TempDir, removed at the end unless it holds something;
	// os.DevNull is no files at all: Redirects, Tee, Ranks and the filters have
	// no effect then.
	Dir     string
	TempDir string // "" is the system's

	Redirects StreamSpec // streams that go to files
	Tee       StreamSpec // streams that go to files and are copied to the console
	Ranks     []int      // local ranks whose output may reach the console; nil: all

	// GlobalRanks are the ranks of the whole job whose output may reach the console; nil:
	// all that Ranks allows.
	GlobalRanks []int

	// Fold makes one line of equal ones of several ranks, with the ranks in front in the
	// place of a prefix. All that the workers write to the console passes through the
	// agent then.
	Fold bool

	// PrefixTemplate is the prefix of copied lines, with the macros role_name,
	// local_rank, rank and hostname; "" is [<role><local rank>]:.
	PrefixTemplate string

	// OutFilters and ErrFilters are texts: a copied line that holds one of them
	// also goes to filtered_stdout.log or filtered_stderr.log.
	OutFilters, ErrFilters []string

	// Planner decides where each attempt's output goes. With it, only PrefixTemplate and the set
	// of filters come from this Spec. nil: this Spec decides everything.
	Planner *Planner
}

// isSilent reports whether nothing was asked for that needs files.
func (s *Spec) isSilent() bool {
	return s.Dir == "" && s.Redirects.isNone() && s.Tee.isNone() && s.Ranks == nil && len(s.OutFilters) == 0 && len(s.ErrFilters) == 0
}

// Tree is the log folder of one agent and its run:
// <base>/<run id>_<8 characters>/attempt_<restart count>[.<k>]/<local rank>/.
type Tree struct {
	spec   *Spec
	log    *slog.Logger
	Base   string   // made by us, to be removed if it stays empty; "" otherwise
	lock   *os.File // Base has its name; nil: there is none
	job    string   // "" without files, and with a planner
	Mark   string   // of a run without a folder, whose workers have it in EnvMark; "" for none
	starts map[int]int
}

// NewTree makes the folders that all attempts share.
func NewTree(spec *Spec, runID string, log *slog.Logger) (*Tree, error) {
	t := &Tree{spec: spec, log: log, starts: make(map[int]int)}
	switch {
	case spec.Planner != nil:
		t.Mark = rand.Text()
		return t, nil
	case spec.Dir == os.DevNull:
		return t, nil
	}
	base := spec.Dir
	if base == "" {
		temp := cmp.Or(spec.TempDir, os.TempDir())
		removeLeft(temp, os.Geteuid())
		made, err := makeUnique(temp, basePrefix)
		switch {
		case err != nil && spec.isSilent():
			log.Warn(fmt.Sprintf("cannot make a folder for the workers' error files: %v; failures are reported without tracebacks; "+
				"give another one with --log-dir or TMPDIR", err))
			t.Mark = rand.Text()
			return t, nil
		case err != nil:
			return nil, fmt.Errorf("cannot make a folder for logs: %w; give another one with --log-dir or TMPDIR", err)
		}
		base, t.Base, t.lock = made, made, lockBase(made)
	}
	if err := os.MkdirAll(base, 0o777); err != nil {
		return nil, fmt.Errorf("cannot make the log folder: %w", err)
	}
	job, err := makeUnique(base, jobPrefix(runID))
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("cannot make the log folder: %w", err)
	}
	t.job = job
	return t, nil
}

const uniqueLen = 8

// jobPrefix is the beginning of a run's log folder's name: the run id. A long one is cut and gets
// a hash of the whole, since a file name has at most 255 bytes.
func jobPrefix(runID string) string {
	const most = 160
	name := strings.ReplaceAll(runID, "/", "_")
	if len(name) > most {
		sum := sha256.Sum256([]byte(runID))
		name = strings.ToValidUTF8(name[:most], "") + "~" + hex.EncodeToString(sum[:16])
	}
	return name + "_"
}

func makeUnique(parent, prefix string) (string, error) {
	for {
		// Joined by hand: a base such as "./logs" stays as it was given.
		path := strings.TrimSuffix(parent, "/") + "/" + prefix + strings.ToLower(rand.Text()[:uniqueLen])
		if err := os.Mkdir(path, 0o700); !errors.Is(err, fs.ErrExist) {
			return path, err
		}
	}
}

// Close removes the folder of this run if the user did not name it and no file in it has content.
func (t *Tree) Close() {
	if t.Base == "" {
		return
	}
	if t.lock != nil {
		_ = os.Remove(t.Base + "/" + lockName)
		_ = t.lock.Close()
	}
	if hasContent(t.Base) {
		return
	}
	if err := os.RemoveAll(t.Base); err != nil {
		t.log.Warn("cannot remove an empty log folder: " + err.Error())
	}
}

// Attempt is the open files of one attempt.
type Attempt struct {
	tree  *Tree
	Dir   string // "" without files, and with a planner
	Plan  *Plan
	files map[string]*os.File // by path: workers may share one
	pipes []*os.File          // the ends that only the workers need
	tails *tails
	tees  []*stderrTee
	folds map[*linequeue.Queue]*folder // by the console's stream

	filters []*linequeue.Queue // of files in files
}

// Attempt makes the folder of the next attempt. Folders of earlier ones stay.
func (t *Tree) Attempt(restarts int) (*Attempt, error) {
	a := &Attempt{tree: t, files: make(map[string]*os.File), folds: make(map[*linequeue.Queue]*folder)}
	if t.job == "" {
		return a, nil
	}
	a.Dir = t.job + "/attempt_" + strconv.Itoa(restarts)
	if k := t.starts[restarts]; k > 0 {
		a.Dir += "." + strconv.Itoa(k)
	}
	t.starts[restarts]++
	if err := os.Mkdir(a.Dir, 0o777); err != nil {
		return nil, fmt.Errorf("cannot make the folder of an attempt: %w", err)
	}
	return a, nil
}

// Worker is where one worker's output and error file go.
type Worker struct {
	Out, Err  *os.File   // nil: the agent's own stream
	ErrorFile string     // "" without files
	ErrFile   string     // the file that stderr goes to; "" if none
	outTee    *stderrTee // that stdout goes through; nil if none
	tee       *stderrTee // that stderr goes through; nil if none
	Shared    *fileEnd   // that both stdout and stderr go to, with those of the other workers; nil if none
}

// LastStderr returns the end of the worker's stderr, as far as it is known, or, with shared, the
// end of the file that it shares with others.
func (w *Worker) LastStderr() (text []byte, shared bool) {
	switch {
	case w.tee != nil:
		return w.tee.last(), false
	case w.ErrFile != "":
		text = (&fileEnd{path: w.ErrFile}).last()
		if err := room(filepath.Dir(w.ErrFile)); err != nil && text != nil { // not of a device
			text = fmt.Appendf(text, "what it wrote last is missing: %s: %v\n", w.ErrFile, err)
		}
		return text, false
	}
	text = w.Shared.last()
	return text, len(text) > 0
}

// room tells why the disk of a folder takes nothing more.
func room(dir string) error {
	f, err := os.CreateTemp(dir, ".room-")
	if err == nil {
		defer os.Remove(f.Name())
		_, err = f.Write(make([]byte, 4096))
		err = errors.Join(err, f.Close())
	}
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS} {
		if errors.Is(err, full) {
			return full
		}
	}
	return nil
}

// Names are the names that the prefix template may use.
type Names struct {
	Role, Host  string
	Local, Rank int
}

func (t *Tree) prefix(n Names) string {
	if t.spec.PrefixTemplate == "" {
		return fmt.Sprintf("[%s%d]:", n.Role, n.Local)
	}
	return macro.Substitute(t.spec.PrefixTemplate, map[string]string{
		"role_name": n.Role, "local_rank": strconv.Itoa(n.Local), "rank": strconv.Itoa(n.Rank), "hostname": n.Host,
	})
}

// Layout makes the folders of those of the workers that are started, and says where they write.
func (a *Attempt) Layout(workers int, started []int) (*Plan, error) {
	plan := &Plan{Workers: make([]Paths, workers)}
	if a.Dir == "" {
		return plan, nil
	}
	spec := a.tree.spec
	plan.outFilter, plan.errFilter = a.Dir+"/filtered_stdout.log", a.Dir+"/filtered_stderr.log"
	for _, local := range started {
		dir := a.Dir + "/" + strconv.Itoa(local)
		if err := os.Mkdir(dir, 0o777); err != nil {
			return nil, fmt.Errorf("cannot make the log folder of local rank %d: %w", local, err)
		}
		w := &plan.Workers[local]
		w.ErrorFile = dir + "/error.json"
		shown := spec.Ranks == nil || slices.Contains(spec.Ranks, local)
		for _, s := range []struct {
			std       stdSet
			name      string
			file, tee *string
		}{{stdOut, "stdout.log", &w.out, &w.teeOut}, {stdErr, "stderr.log", &w.err, &w.teeErr}} {
			tee := spec.Tee.forRank(local)&s.std != 0
			switch {
			case tee || spec.Redirects.forRank(local)&s.std != 0:
				*s.file = dir + "/" + s.name
			case !shown:
				*s.file = os.DevNull
			}
			if tee && shown {
				*s.tee = *s.file
			}
		}
	}
	return plan, nil
}

// Worker opens the files of one worker.
func (a *Attempt) Worker(local int) (Worker, error) {
	paths := &a.Plan.Workers[local]
	w := Worker{ErrorFile: paths.ErrorFile}
	var err error
	if w.Out, err = a.open(paths.out); err == nil {
		w.Err, err = a.open(paths.err)
	}
	if err != nil {
		return w, fmt.Errorf("cannot open a log file of local rank %d: %w", local, err)
	}
	if paths.err != os.DevNull {
		w.ErrFile = paths.err
	}
	return w, nil
}

// open returns the file of a path, nil for "".
func (a *Attempt) open(path string) (*os.File, error) {
	if file := a.files[path]; file != nil || path == "" {
		return file, nil
	}
	file, err := openLog(path)
	if err != nil {
		return nil, err
	}
	a.files[path] = file
	return file, nil
}

// TeeStderr makes the worker's stderr pass through the agent if it goes to the agent's
// own stderr, so that its last lines can be shown in a report. Not if stdout, the
// descriptor out, goes to the same file: a detour would change the order of the two.
func (a *Attempt) TeeStderr(w *Worker, out int, c *Console, to *os.File) (err error) {
	switch {
	case w.Err != nil:
	case linequeue.SameFile(out, int(to.Fd())):
		w.Err, w.Shared = to, endOf(int(to.Fd()))
	default:
		w.tee, w.Err, err = a.through(to, c.Err, "stderr", func(text []byte) { c.copy(c.Err, text) })
	}
	return err
}

// through makes what a worker writes to a stream of the agent's pass through the agent, and returns the
// end that the worker writes to.
func (a *Attempt) through(to *os.File, dst *linequeue.Queue, what string, pass func([]byte)) (*stderrTee, *os.File, error) {
	t, write, err := newStderrTee(to, dst, pass)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a pipe or terminal for %s: %w", what, err)
	}
	a.pipes, a.tees = append(a.pipes, write), append(a.tees, t)
	return t, write, nil
}

// FoldConsole routes what a worker writes to the agent's own streams through the agent, which
// folds it. If the agent's streams are one file, the worker gets one stream, too, so that the
// order is kept.
func (a *Attempt) FoldConsole(w *Worker, rank int, c *Console, out, err *os.File) error {
	joined := w.Out == nil && w.Err == nil && linequeue.SameFile(int(out.Fd()), int(err.Fd()))
	through := func(to *os.File, dst *linequeue.Queue) (*stderrTee, *os.File, error) {
		return a.through(to, dst, "a worker's output", a.folder(c, dst).source(rank).print)
	}
	var failed error
	if w.Out == nil {
		if w.outTee, w.Out, failed = through(out, c.Out); failed == nil && joined {
			w.tee, w.Err = w.outTee, w.Out
		}
	}
	if w.Err == nil && failed == nil {
		w.tee, w.Err, failed = through(err, c.Err)
	}
	return failed
}

func (a *Attempt) folder(c *Console, dst *linequeue.Queue) *folder {
	f := a.folds[dst]
	if f == nil {
		f = newFolder(c, dst)
		a.folds[dst] = f
	}
	return f
}

// StandardStreams are the workers' stdin, stdout and stderr if those are not redirected: this
// process's, or /dev/null for one that is closed. A closed one's number may by now belong to a
// private file, which is marked close-on-exec.
func (a *Attempt) StandardStreams() ([]uintptr, error) {
	files := []uintptr{0, 1, 2}
	for i, fd := range files {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			continue
		}
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		a.pipes = append(a.pipes, null)
		files[i] = null.Fd()
	}
	return files, nil
}

// Resized gives the workers' terminals the size of the agent's.
func (a *Attempt) Resized() {
	for _, t := range a.tees {
		t.fit()
	}
}

// Started closes the files that only the workers need, once they have been started.
func (a *Attempt) Started() {
	if a == nil {
		return
	}
	for _, pipe := range a.pipes {
		_ = pipe.Close()
	}
	a.pipes = nil
}

// Follow begins to copy the files that are tee'd to the console, and to the
// filter files, which are made in any case.
func (a *Attempt) Follow(c *Console, workers []Names) error {
	spec := a.tree.spec
	for _, s := range []struct {
		tee     func(*Paths) string
		dst     *linequeue.Queue
		filter  string
		needles []string
	}{
		{func(p *Paths) string { return p.teeOut }, c.Out, a.Plan.outFilter, spec.OutFilters},
		{func(p *Paths) string { return p.teeErr }, c.Err, a.Plan.errFilter, spec.ErrFilters},
	} {
		var filtered *linequeue.Queue
		if len(s.needles) > 0 && s.filter != "" {
			file, err := a.open(s.filter)
			if err != nil {
				return fmt.Errorf("cannot open a filter file: %w", err)
			}
			filtered = a.filter(file)
		}
		for _, w := range workers {
			path := s.tee(&a.Plan.Workers[w.Local])
			if path == "" {
				continue
			}
			file, _, err := openRegular(path, os.O_CREATE)
			if err != nil {
				a.tree.log.Error("cannot follow a log file: " + err.Error())
				continue
			}
			prefix := a.tree.prefix(w)
			job := tail{file: file, console: s.dst, out: c.printer(s.dst, prefix)}
			if spec.Fold {
				job.out = a.folder(c, s.dst).source(w.Rank)
			}
			if filtered != nil {
				job.filter = c.printer(filtered, prefix)
				for _, needle := range s.needles {
					job.needles = append(job.needles, []byte(needle))
				}
			}
			if a.tails == nil {
				a.tails = newTails(a.tree.log)
			}
			a.tails.add(job)
		}
	}
	return nil
}

// filter returns a queue for lines that hold a text of OutFilters or ErrFilters.
func (a *Attempt) filter(file *os.File) *linequeue.Queue {
	q := linequeue.New(file, file.Name())
	q.ReportElsewhere(func(text string) { a.tree.log.Warn(text) })
	a.filters = append(a.filters, q)
	return q
}

// Close copies the remaining output to the console's queues and closes everything. The workers must
// have ended. It waits for readers and file systems no longer than linequeue's limits.
func (a *Attempt) Close() {
	if a == nil {
		return
	}
	a.Started()
	for _, t := range a.tees {
		t.stop()
	}
	if a.tails != nil {
		a.tails.stop()
		a.tails = nil
	}
	for _, f := range a.folds {
		f.stop()
	}
	a.folds = nil
	filters, files := a.filters, a.files
	a.filters, a.files = nil, nil
	background.Within(linequeue.StallLimit, func() { // a file system may hold up the close, too
		linequeue.FlushAll(filters...)
		for _, file := range files {
			_ = file.Close()
		}
	})
}

// Marker is the part of the workers' TORCHELASTIC_ERROR_FILE, or of EnvMark, that no
// other run has.
func (t *Tree) Marker() string {
	switch {
	case t.Mark != "":
		return EnvMark + "=" + t.Mark
	case t.job == "":
		return ""
	}
	return filepath.Base(t.job) + "/attempt_"
}
