package process

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// Forker starts processes, all from one operating-system thread that lives until
// close: Linux sends the parent-death signal when the thread that forked ends,
// not when its process does.
type Forker struct {
	forks chan func() // to be called by the thread
	done  chan struct{}
	group *Cgroup // of what it starts; nil: this process's

	mu    sync.Mutex
	known map[int]bool // pids started here and not reaped yet
	kept  map[int]bool // those of them that are no workers, and end only when they are told to; true: with their sessions
}

// NewForker starts the forking thread, which Close ends. group, which may be nil, gets the
// processes that the Forker starts.
func NewForker(group *Cgroup) *Forker {
	f := &Forker{group: group, forks: make(chan func()), done: make(chan struct{}), known: make(map[int]bool), kept: make(map[int]bool)}
	go f.run()
	return f
}

func (f *Forker) run() {
	defer close(f.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // every child is gone: the thread may live or end
	for fork := range f.forks {
		fork()
	}
}

// start starts a program in its own session, with SIGKILL as its parent-death
// signal, and returns its pid. The program is looked up in the PATH of env. cpus are
// those that it may use; nil is those of this process.
func (f *Forker) start(argv, env []string, files []uintptr, cpus []int) (pid int, err error) {
	program, err := LookUp(argv[0], env)
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}}
	if f.group != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(f.group.dir.Fd())
		if pid, err = f.fork(program, argv, attr, cpus); err == nil || !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.ENOSYS) &&
			!errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.EINVAL) {
			return pid, err
		}
		attr.Sys.UseCgroupFD = false // not into this group: then without
	}
	return f.fork(program, argv, attr, cpus)
}

// startDetached is start for a process that survives this one; the program is a path.
func (f *Forker) startDetached(argv, env []string, files []uintptr) (pid int, err error) {
	return f.fork(argv[0], argv, &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true}}, nil)
}

func (f *Forker) fork(program string, argv []string, attr *syscall.ProcAttr, cpus []int) (pid int, err error) {
	forked := make(chan struct{})
	f.forks <- func() {
		defer close(forked)
		f.mu.Lock() // so that the reaper never takes a worker for an orphan
		defer f.mu.Unlock()
		err = withCPUs(cpus, func() (err error) { pid, err = syscall.ForkExec(program, argv, attr); return err })
		if err == nil {
			f.known[pid] = true
		}
	}
	<-forked
	if err != nil {
		return 0, &os.PathError{Op: "start", Path: program, Err: err}
	}
	return pid, nil
}

// keep has the reaper leave a process alone that start started.
func (f *Forker) keep(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, kept := f.kept[pid]; !kept {
		f.kept[pid] = false
	}
}

// keepSession is keep with all that the process starts in its session.
func (f *Forker) keepSession(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept[pid] = true
}

func (f *Forker) keeps(pid, session int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, kept := f.kept[pid]
	return kept || f.kept[session]
}

// reap takes the exit status of a child that start started and forgets it. It
// reports false if the child still runs.
func (f *Forker) reap(pid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	var status syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err == nil && got == 0:
			return false
		}
		delete(f.known, pid)
		delete(f.kept, pid)
		return true
	}
}

// Close ends the thread. Children that still run get their parent-death signal
// at the latest when the process ends.
func (f *Forker) Close() {
	close(f.forks)
	<-f.done
}

// LookUp finds a program in the PATH of env as execvp does: a name with a slash is taken as it is.
func LookUp(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	if name == "" {
		return "", &os.PathError{Op: "start", Path: name, Err: syscall.ENOENT}
	}
	path, _ := LookupEnv(env, "PATH")
	var denied error
	for folder := range strings.SplitSeq(path, ":") {
		folder = cmp.Or(folder, ".")
		file := folder + "/" + name
		info, err := os.Stat(file)
		switch {
		case err != nil || info.IsDir():
		case info.Mode()&0o111 == 0:
			denied = &os.PathError{Op: "start", Path: file, Err: syscall.EACCES}
		default:
			return file, nil
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("start %s: %w in PATH", name, syscall.ENOENT)
}
