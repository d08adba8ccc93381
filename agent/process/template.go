package process

import (
	"bufio"
	"cmp"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/printable"
)

// templateScript is what the sitecustomize of a template runs: see there.
//
//go:embed template.py
var templateScript string

// DefaultPreloadTimeout is how long the imports of a template may take.
const DefaultPreloadTimeout = time.Minute

// TemplateConfig says which workers a template is for.
type TemplateConfig struct {
	Argv    []string      // the workers' command: an interpreter of Python, its options, what it runs
	Differ  bool          // each worker has a command of its own, which no template can have
	Environ []string      // what they have in common
	Marker  string        // see NewReaper
	Folder  string        // which only this user may enter; "": a temporary one
	Preload []string      // modules to import; nil: what the script imports at its top
	Timeout time.Duration // of the imports, > 0

	ForkPatience   time.Duration // how long a template may take to fork a worker; 0: defaultForkPatience
	OutputPatience time.Duration // how long one that is ready or killed may keep its streams open; 0: defaultOutputPatience
}

// moduleName is compiled when it is first needed: what a package compiles costs each command's start.
var moduleName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)*$`) })

// IsModuleName tells whether a text can name a module of Python.
func IsModuleName(text string) bool { return moduleName().MatchString(text) }

// Template is the workers' interpreter, started early and held: it imports once and forks the
// workers, which are this process's children then as if it had started them (decision 0108). Where
// that cannot be it says why, once, and the workers start cold. A nil Template is none. Its
// methods are for one goroutine.
type Template struct {
	forker *Forker
	guard  *ParentDeathGuard
	config TemplateConfig
	log    *slog.Logger

	process *templateProcess // nil: none
	lives   int              // how many processes may be started still
	said    map[string]bool  // the reasons that the log has
}

// templateProcess is one held interpreter.
type templateProcess struct {
	pid    int
	conn   *net.UnixConn
	reader *bufio.Reader // of conn
	first  []byte        // what it is told first
	folder string
	config *TemplateConfig
	began  time.Time
	done   chan struct{} // closed once err says whether the imports went well
	err    error
	ready  string // what was imported and how long that took; "" once the log has it

	output  *os.File       // what the imports print
	prints  sync.WaitGroup // who reads it
	printed string         // its beginning, once prints is over
	open    bool           // another process has the other end still
}

// maxTemplates bounds how often a template that ended is replaced.
const maxTemplates = 5

const (
	defaultForkPatience   = 10 * time.Second
	defaultOutputPatience = 5 * time.Second
)

// maxAnswer bounds a line of a template.
const maxAnswer = 4096

// NewTemplate starts a template for the workers that f starts; Prepare waits for it, Close ends it.
func NewTemplate(f *Forker, s *Reaper, g *ParentDeathGuard, c TemplateConfig, log *slog.Logger) *Template {
	c.ForkPatience, c.OutputPatience = cmp.Or(c.ForkPatience, defaultForkPatience), cmp.Or(c.OutputPatience, defaultOutputPatience)
	t := &Template{forker: f, guard: g, config: c, log: log, lives: maxTemplates, said: make(map[string]bool)}
	switch {
	case !s.subreaper:
		t.giveUp("this process does not adopt what its workers leave behind")
	case c.Differ:
		t.giveUp("their command lines differ")
	default:
		t.begin()
	}
	return t
}

// giveUp has all workers start cold from now on.
func (t *Template) giveUp(why string) {
	t.lives = 0
	t.end()
	t.sayCold(why)
}

// sayCold says once why workers start cold.
func (t *Template) sayCold(why string) {
	if !t.said[why] {
		t.said[why] = true
		t.log.Warn("workers start cold: " + printable.Text(why))
	}
}

func (t *Template) begin() {
	t.lives--
	p, err := t.start()
	if err != nil {
		t.giveUp(err.Error())
		return
	}
	t.process = p
	t.guard.hold(p.pid)
	go func() { // ends with the process, or by the timeout
		defer close(p.done)
		if p.err = p.await(); p.err != nil {
			_ = unix.Kill(-p.pid, unix.SIGKILL)
		}
		_ = os.RemoveAll(p.folder)
	}()
}

// interpreterOptions splits an interpreter's command line into its options and the rest; false if
// that is not possible.
func interpreterOptions(argv []string) (options, rest []string, ok bool) {
	for i := 1; i < len(argv); i++ {
		arg := argv[i]
		switch {
		case arg == "-m" || arg == "-c" || !strings.HasPrefix(arg, "-"):
			return argv[1:i], argv[i:], true
		case arg == "-X" || arg == "-W":
			i++
		case strings.HasPrefix(arg, "-X") || strings.HasPrefix(arg, "-W"):
		case strings.ContainsAny(arg, "mc") || arg == "-" || strings.HasPrefix(arg, "--"):
			return nil, nil, false
		}
	}
	return nil, nil, false
}

// start starts the interpreter with a program that does nothing: where it loads what holds it, that
// executes the workers' command line, which is held then as well, and never runs.
func (t *Template) start() (*templateProcess, error) {
	options, rest, ok := interpreterOptions(t.config.Argv)
	program, err := LookUp(t.config.Argv[0], t.config.Environ)
	if !ok || err != nil {
		return nil, errors.Join(errors.New("the command line does not run a script or a module with Python"), err)
	}
	p := &templateProcess{config: &t.config, done: make(chan struct{}), began: time.Now()}
	if p.folder, err = os.MkdirTemp(t.config.Folder, "rallypoint-template-"); err != nil {
		return nil, err
	}
	held := append(append([]string{t.config.Argv[0]}, options...), "-c", "pass", program)
	if err = t.launch(p, append(held, t.config.Argv...), rest); err != nil {
		_ = os.RemoveAll(p.folder)
		return nil, err
	}
	return p, nil
}

// launch starts a process that has its folder.
func (t *Template) launch(p *templateProcess, argv, rest []string) error {
	if err := errors.Join(writeSite(p.folder), os.WriteFile(filepath.Join(p.folder, "template.py"), []byte(templateScript), 0o600)); err != nil {
		return err
	}
	conn, theirs, err := socketPair()
	if err != nil {
		return err
	}
	null, err1 := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	read, write, err2 := os.Pipe()
	defer func() { _, _, _ = theirs.Close(), null.Close(), write.Close() }()
	if err = errors.Join(err1, err2); err == nil {
		p.pid, err = t.forker.start(argv, t.environment(p.folder, "probe"), []uintptr{null.Fd(), write.Fd(), write.Fd(), theirs.Fd()}, nil)
	}
	if err != nil {
		_, _ = conn.Close(), read.Close()
		return err
	}
	t.forker.keep(p.pid)
	p.conn, p.reader, p.output = conn, bufio.NewReader(io.LimitReader(conn, 1<<62)), read
	_ = conn.SetDeadline(p.began.Add(t.config.Timeout))
	p.first = slices.Concat(message(t.environment(p.folder, "hold")), message(t.instructions(rest)))
	p.prints.Go(p.readPrinted)
	return nil
}

// instructions are this process, the interpreter's program, the modules to import, and the
// environment that the workers have in common.
func (t *Template) instructions(rest []string) []string {
	kind, name := "script", rest[0]
	switch {
	case rest[0] == "-m" && len(rest) > 1:
		kind, name = "module", rest[1]
	case rest[0] == "-c" && len(rest) > 2: // --run-path
		name = rest[2]
	}
	text := append([]string{strconv.Itoa(os.Getpid()), kind, name, strconv.Itoa(len(t.config.Preload))}, t.config.Preload...)
	return append(text, t.config.Environ...)
}

// environment is the workers' environment with the variables that make their interpreter a
// template.
func (t *Template) environment(folder, stage string) []string {
	env := withSite(t.config.Environ, folder, stage)
	if t.config.Marker != "" {
		env = append(env, envStage+"_OF="+t.config.Marker)
	}
	return env
}

// socketPair returns both ends of a connection; theirs is for a process that is started.
func socketPair() (*net.UnixConn, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "template"), os.NewFile(uintptr(pair[1]), "template")
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

// message is texts with a NUL between two, and before them the length.
func message(texts []string) []byte {
	text := strings.Join(texts, "\x00")
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// readPrinted reads the output of the imports, and ends a process that prints anything.
func (t *templateProcess) readPrinted() {
	defer func() { _ = t.output.Close() }()
	text := make([]byte, 512)
	n, err := t.output.Read(text)
	if n == 0 {
		t.open = errors.Is(err, os.ErrDeadlineExceeded)
		return
	}
	t.printed, _, _ = strings.Cut(string(text[:n]), "\n")
	_ = t.conn.SetReadDeadline(time.Now()) // await reports it
}

func (t *templateProcess) line() (string, error) {
	text, err := t.reader.ReadSlice('\n')
	if err != nil || len(text) > maxAnswer {
		return "", errors.Join(errors.New("it does not answer"), err)
	}
	return strings.TrimSpace(string(text)), nil
}

// await waits until the interpreter has imported everything.
func (t *templateProcess) await() error {
	_, err := t.conn.Write(t.first)
	var first, second string
	if err == nil || errors.Is(err, unix.EPIPE) { // it says why
		first, err = t.line()
	}
	if err == nil {
		second, err = t.line()
	}
	reason, refused := strings.CutPrefix(second, "no ")
	late := errors.Is(err, os.ErrDeadlineExceeded)
	if err != nil || refused {
		_ = unix.Kill(-t.pid, unix.SIGKILL) // so that nothing is printed any more
	}
	_ = t.output.SetReadDeadline(time.Now().Add(t.config.OutputPatience))
	t.prints.Wait() // the interpreter closes its streams before it is ready
	switch {
	case t.printed != "":
		return fmt.Errorf("the imports printed: %s", t.printed)
	case t.open:
		return errors.New("the imports left a process running")
	case refused:
		return errors.New(reason)
	case late:
		return fmt.Errorf("the imports did not finish within %v (--preload-timeout)", t.config.Timeout)
	case err != nil && first == "":
		return errors.New("the interpreter does not load sitecustomize from PYTHONPATH: it has -I, -E or -S, or is not CPython")
	case err != nil:
		return errors.New("the interpreter ended during the imports")
	}
	names := "nothing"
	if list := strings.TrimSpace(strings.TrimPrefix(second, "ready")); list != "" {
		names = list
	}
	t.ready = fmt.Sprintf("workers are forked from a template that has imported %s in %.1fs", printable.Text(names), time.Since(t.began).Seconds())
	return nil
}

// Prepare waits until workers can be forked, or it is clear that they cannot, or cancel is closed.
// A template that has ended, or whose files have changed, is replaced.
func (t *Template) Prepare(cancel <-chan struct{}) {
	if t == nil {
		return
	}
	for fresh := false; ; {
		if t.process == nil {
			if t.lives <= 0 {
				return
			}
			t.begin()
			fresh = true
			continue
		}
		p := t.process
		select {
		case <-p.done:
		case <-cancel:
			return
		}
		if p.err != nil {
			t.giveUp(p.err.Error())
			return
		}
		if p.ready != "" {
			t.log.Info(p.ready)
			p.ready = ""
		}
		changed, err := p.ask(nil)
		switch {
		case err != nil:
			t.log.Warn("the template of the workers is replaced: " + err.Error())
		case changed == "" || fresh:
			return
		default:
			t.lives++ // which is no fault
			t.log.Info("the template of the workers is replaced: " + printable.Text(changed) + " has changed")
		}
		t.end()
	}
}

// ask sends a request and returns the answer: with sockets, to fork a worker for each; without,
// which of the imported files has changed.
func (t *templateProcess) ask(sockets []int) (string, error) {
	_ = t.conn.SetDeadline(time.Now().Add(t.config.ForkPatience))
	if err := send(t.conn, nil, sockets); err != nil {
		return "", err
	}
	return t.line()
}

func send(conn *net.UnixConn, texts []string, files []int) error {
	text := message(texts)
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	_, _, err := conn.WriteMsgUnix(text[:4], rights, nil)
	if err == nil && len(text) > 4 {
		_, err = conn.Write(text[4:])
	}
	return err
}

// importVariables are how the names of variables begin that libraries read while they are
// imported: a template has read one value for all workers.
var importVariables = []string{
	"OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "PYTORCH_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_",
	"KINETO_", "CUBLAS_", "PYTHON", "LD_", "LC_", "LANG", "OMPI_COMM_WORLD_LOCAL_SIZE",
}

// laterVariables begin like them, but are read later.
const laterVariables = "TORCH_NCCL_"

// differing is a variable that is read while libraries are imported and that differs; "" for none.
func differing(ours, theirs []string) string {
	for _, pair := range [][2][]string{{ours, theirs}, {theirs, ours}} {
		for _, entry := range pair[0] {
			name, value, _ := strings.Cut(entry, "=")
			early := slices.ContainsFunc(importVariables, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
			if other, set := LookupEnv(pair[1], name); early && !strings.HasPrefix(name, laterVariables) && (!set || other != value) {
				return name
			}
		}
	}
	return ""
}

// fork forks those of the workers that it can, and returns their pids; the others' are 0, and they
// have to start cold. It may be called without a template.
func (t *Template) fork(workers []Launch) []int {
	pids := make([]int, len(workers))
	if t == nil || t.process == nil {
		return pids
	}
	select {
	case <-t.process.done: // without an error, else there were none
	default:
		return pids
	}
	var forks []*heldFork
	for i, w := range workers {
		if name := differing(t.config.Environ, w.Env); name != "" {
			t.sayCold("libraries read " + name + " while they are imported, and workers have values of their own")
		} else {
			forks = append(forks, &heldFork{launch: w, pid: &pids[i]})
		}
	}
	for batch := range slices.Chunk(forks, maxForks) {
		if err := t.forkHeld(batch); err != nil {
			t.sayCold("the template failed to fork: " + err.Error())
			t.end()
			break
		}
	}
	return pids
}

// maxForks bounds the workers of one request: each takes two descriptors for a moment.
const maxForks = 16

// heldFork is a worker that is forked and held.
type heldFork struct {
	launch  Launch
	control *net.UnixConn // without a word the worker ends
	said    int           // its pid, as it says
	err     error
	pid     *int // set once it is let go
}

// forkHeld forks workers, gives them the same state as those that start starts, and lets them
// run. On an error some may not have been forked.
func (t *Template) forkHeld(forks []*heldFork) error {
	var sockets []int
	var theirs []*os.File
	closeTheirs := func() {
		for _, file := range theirs {
			_ = file.Close()
		}
	}
	for _, h := range forks {
		control, file, err := socketPair()
		if err != nil {
			closeTheirs()
			return err
		}
		defer func() { _ = control.Close() }()
		_ = control.SetDeadline(time.Now().Add(t.config.ForkPatience))
		h.control, theirs, sockets = control, append(theirs, file), append(sockets, int(file.Fd()))
	}
	t.forker.mu.Lock() // so that the reaper never takes them for orphans
	defer t.forker.mu.Unlock()
	var greetings sync.WaitGroup
	for _, h := range forks {
		greetings.Go(h.greet)
	}
	reason, err := t.process.ask(sockets)
	closeTheirs()
	if err != nil {
		for _, h := range forks {
			_ = h.control.SetDeadline(time.Now())
		}
	} else if reason != "" {
		err = errors.New(reason)
	}
	greetings.Wait()
	for _, h := range forks {
		if h.err == nil {
			h.err = h.release()
		}
		if h.err != nil {
			err = cmp.Or(err, h.err)
			continue
		}
		*h.pid = h.said
		t.forker.known[h.said] = true
	}
	return err
}

// greet tells the process which worker it is, as soon as it runs, and learns its pid.
func (h *heldFork) greet() {
	env := h.launch.Env
	if h.launch.Site != "" {
		env = append(slices.Clone(env), envStage+"="+stageObserve)
	}
	files := h.launch.Files
	h.err = send(h.control, env, []int{int(files[0]), int(files[1]), int(files[2])})
	if h.err != nil {
		return
	}
	line, err := bufio.NewReaderSize(h.control, 32).ReadSlice('\n')
	if err == nil {
		h.said, err = strconv.Atoi(strings.TrimSpace(string(line)))
	}
	if err != nil {
		h.err = fmt.Errorf("a worker did not report its pid: %w", err)
	}
}

// release binds a worker that has said its pid to its CPUs, and lets it go.
func (h *heldFork) release() error {
	if stat, ok := readStat(h.said); !ok || stat.parent != os.Getpid() {
		return fmt.Errorf("%d is not a child of this process", h.said)
	}
	if h.launch.CPUs != nil {
		if err := bindTo(h.said, h.launch.CPUs); err != nil {
			return err
		}
	}
	_, err := h.control.Write([]byte("g"))
	return err
}

func (t *Template) end() {
	p := t.process
	if p == nil {
		return
	}
	t.process = nil
	t.guard.hold(0)
	_ = unix.Kill(-p.pid, unix.SIGKILL)
	_ = p.conn.Close()
	<-p.done
	p.prints.Wait()
	t.forker.awaitKilled(p.pid)
}

// Close ends the template; the workers keep running.
func (t *Template) Close() {
	if t != nil {
		t.lives = 0
		t.end()
	}
}
