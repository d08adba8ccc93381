package process

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Reaper ends the processes that workers leave behind: members of their process groups, and
// descendants with sessions of their own. It finds the latter in the workers' control group, if
// there is one, and among this process's children if it is a child subreaper, else by the marker
// in their environment, unless they have changed that.
type Reaper struct {
	log       *slog.Logger
	forker    *Forker
	subreaper bool
	keep      bool   // leave daemons alone
	marker    string // "" if there is none, or no need of one

	// Of a subreaper: its children and their sessions, and its own, from before the
	// workers. Nothing that workers start can be in one of these sessions.
	before   map[int]bool
	sessions map[int]bool

	children chan os.Signal
	done     chan struct{}
	wg       sync.WaitGroup
	reaping  sync.Mutex // the kernel's list skips a child while another one is reaped
}

// NewReaper returns a reaper. With subreaper this process becomes one, adopts
// orphaned descendants of the workers and reaps them when they end; only a
// program that starts no children but by f from now on may ask for it. keep leaves
// everything alone that is not a worker. marker, which may be "", is a text that only the
// environment of the workers and of their descendants holds. Close ends it.
func NewReaper(f *Forker, subreaper, keep bool, marker string, log *slog.Logger) *Reaper {
	s := &Reaper{log: log, forker: f, keep: keep, done: make(chan struct{})}
	if !subreaper || os.Getpid() == 1 {
		s.marker = marker
	}
	if !subreaper || keep {
		return s
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		log.Warn("cannot adopt processes that workers leave behind: " + err.Error())
		return s
	}
	s.subreaper = true
	s.before, s.sessions = make(map[int]bool), make(map[int]bool)
	if own, err := unix.Getsid(0); err == nil {
		s.sessions[own] = true
	}
	for _, pid := range ownChildren() {
		s.before[pid] = true
		if stat, ok := readStat(pid); ok {
			s.sessions[stat.session] = true
		}
	}
	s.children = make(chan os.Signal, 1)
	signal.Notify(s.children, unix.SIGCHLD)
	s.wg.Go(s.follow)
	return s
}

// Close ends the reaper. This process is no longer a subreaper, and all children that have exited
// are reaped.
func (r *Reaper) Close() {
	close(r.done)
	if r.subreaper {
		signal.Stop(r.children)
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	}
	r.wg.Wait()
	r.reapOrphans() // those whose signal came too late
}

// follow reaps adopted processes as they end, so that they do not stay zombies while
// the workers run.
func (r *Reaper) follow() {
	for {
		select {
		case <-r.children:
			r.reapOrphans()
		case <-r.done:
			return
		}
	}
}

// reapOrphans takes the exit status of all adopted processes that have ended.
func (r *Reaper) reapOrphans() {
	r.reaping.Lock()
	defer r.reaping.Unlock()
	for _, pid := range r.orphans() {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

// orphans returns the children of this process that are neither workers nor from before
// them: some may be none of the workers' all the same (see adopted).
func (r *Reaper) orphans() []int {
	if !r.subreaper {
		return nil
	}
	r.forker.mu.Lock()
	defer r.forker.mu.Unlock()
	var orphans []int
	for _, pid := range ownChildren() {
		if !r.forker.known[pid] && !r.before[pid] {
			orphans = append(orphans, pid)
		}
	}
	return orphans
}

// adopted tells whether a process is this one's child because it descends from a
// worker. Process 1 of a container gets the orphans of all processes in it, so there it
// has to carry the marker, if there is one.
func (r *Reaper) adopted(pid int, stat procStat) bool {
	return r.subreaper && stat.parent == os.Getpid() && !r.before[pid] && !r.sessions[stat.session] &&
		(r.marker == "" || os.Getpid() != 1)
}

// maxPasses bounds how often killOrphans looks again: a program that forks faster than it
// is killed is left to the parent-death signals and to the system.
const maxPasses = 100

// endOrphans passes d's signal on to the processes that the groups' leaders, now reaped, left
// behind, waits for them until grace ends, and kills the rest. It returns when none is left,
// or the groups of those that SIGKILL does not end.
func (r *Reaper) endOrphans(grace context.Context, groups []int, d *delivery) (stuck []int) {
	if r.keep {
		return nil
	}
	for grace.Err() == nil {
		left := r.left(groups)
		if len(left) == 0 {
			return nil
		}
		d.pass(left)
		select {
		case <-d.wake:
			r.reapOrphans()
		case <-grace.Done():
		}
	}
	return r.killOrphans(groups)
}

// killOrphans is endOrphans for what has outlived its grace.
func (r *Reaper) killOrphans(groups []int) (stuck []int) {
	for range maxPasses {
		left := r.left(groups)
		if len(left) == 0 {
			return nil
		}
		killAll(left)
		limit := time.Now().Add(leastDeathWait)
		for _, orphan := range left {
			if foreign(orphan.pid) != "" || !orphan.await(limit) {
				stuck = append(stuck, orphan.stat.group)
				r.log.Error(fmt.Sprintf("process %d, which a worker has started, %s", orphan.pid, unended(orphan.pid)))
			}
			_ = orphan.pidfd.Close()
		}
		r.reapOrphans()
		if len(stuck) > 0 {
			return stuck
		}
	}
	r.log.Error("the workers have started processes that start others faster than these can be killed; some still run")
	return nil
}

// orphan is a process that a worker started, and may have left behind.
type orphan struct {
	pid   int
	stat  procStat
	pidfd *os.File
}

func (o *orphan) kill(sig unix.Signal) {
	conn, err := o.pidfd.SyscallConn()
	if err == nil {
		_ = conn.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	}
}

// ended waits for the end of the process, at most until the descriptor's deadline or its close, and
// reports whether the process ended.
func (o *orphan) ended() bool {
	conn, err := o.pidfd.SyscallConn()
	return err == nil && conn.Read(readable) == nil
}

// await is ended with a limit. It looks at least once.
func (o *orphan) await(limit time.Time) (ended bool) {
	_ = o.pidfd.SetReadDeadline(limit)
	if o.ended() {
		return true
	}
	if conn, err := o.pidfd.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { ended = readable(fd) })
	}
	return ended
}

func readable(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0
}

func killAll(list []*orphan) {
	for _, o := range list {
		o.kill(unix.SIGKILL)
	}
}

// left returns the live processes of the groups and those that were adopted.
func (r *Reaper) left(groups []int) []*orphan {
	var pids []int
	for _, group := range groups {
		// Right after its leader was reaped a group exists only if it has other
		// members, and these keep its number from being given away.
		if unix.Kill(-group, 0) == nil {
			pids = groupMembers(groups)
			break
		}
	}
	pids = append(append(pids, r.orphans()...), r.forker.group.members()...)
	pids = append(pids, markedProcesses(r.marker)...)
	slices.Sort(pids)
	return r.open(slices.Compact(pids), func(pid int, stat procStat) bool {
		return slices.Contains(groups, stat.group) || r.adopted(pid, stat) || r.forker.group.has(pid) || isMarked(pid, r.marker)
	})
}

// open returns the live processes that are ours; the caller closes their descriptors.
func (r *Reaper) open(pids []int, ours func(pid int, stat procStat) bool) []*orphan {
	var live []*orphan
	for _, pid := range pids {
		pidfd := openPidfd(pid)
		if pidfd == nil {
			continue
		}
		// Read after the descriptor was opened: if another process has got the number in
		// between, the descriptor still names the old one, which is gone.
		stat, ok := readStat(pid)
		if !ok || stat.state == 'Z' || stat.state == 'X' || r.forker.keeps(pid, stat.session) || !ours(pid, stat) {
			_ = pidfd.Close()
			continue
		}
		live = append(live, &orphan{pid, stat, pidfd})
	}
	return live
}

func (r *Reaper) members(groups []int) []*orphan {
	if len(groups) == 0 {
		return nil
	}
	return r.open(groupMembers(groups), func(_ int, stat procStat) bool { return slices.Contains(groups, stat.group) })
}

// processesWith returns the processes of the machine that fit.
func processesWith(fits func(pid int) bool) (pids []int) {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = folder.Close() }()
	names, _ := folder.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && fits(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// markedProcesses returns the processes that have the marker in their environment.
func markedProcesses(marker string) []int {
	if marker == "" {
		return nil
	}
	return processesWith(func(pid int) bool { return isMarked(pid, marker) })
}

// EndMarked kills the processes that have the marker in their environment, until none is left but those
// that SIGKILL does not end.
func EndMarked(marker string) {
	for ended, passes := true, 0; ended && passes < maxPasses; passes++ {
		var marked []*orphan
		for _, pid := range markedProcesses(marker) {
			pidfd := openPidfd(pid)
			switch {
			case pidfd == nil:
			case isMarked(pid, marker): // read after the descriptor was opened; a zombie has no environment
				marked = append(marked, &orphan{pid: pid, pidfd: pidfd})
			default:
				_ = pidfd.Close()
			}
		}
		killAll(marked)
		ended = false
		limit := time.Now().Add(leastDeathWait)
		for _, o := range marked {
			ended = o.await(limit) || ended
			_ = o.pidfd.Close()
		}
	}
}

func isMarked(pid int, marker string) bool {
	if marker == "" {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(text, []byte(marker))
}

func groupMembers(groups []int) []int {
	return processesWith(func(pid int) bool {
		stat, ok := readStat(pid)
		return ok && slices.Contains(groups, stat.group)
	})
}

// procStat has the fields of /proc/<pid>/stat that the reaper needs.
type procStat struct {
	state   byte
	parent  int
	group   int
	session int
}

func readStat(pid int) (procStat, bool) { return parseStat(StatFields(pid)) }

// StatFields are the fields of a process in /proc that follow its program's name, which may hold
// anything: its state first. There are none of one that is gone.
func StatFields(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return statFields(string(text))
}

func statFields(text string) []string {
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
}

func parseStat(fields []string) (procStat, bool) {
	if len(fields) < 4 {
		return procStat{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	group, err2 := strconv.Atoi(fields[2])
	session, err3 := strconv.Atoi(fields[3])
	return procStat{fields[0][0], parent, group, session}, err1 == nil && err2 == nil && err3 == nil
}

func ownChildren() []int { return Children(os.Getpid()) }

// Children returns the children of all threads of a process.
func Children(pid int) (children []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		children = append(children, pidsIn(list)...)
	}
	return children
}

// pidsIn are the processes that a file of the kernel's lists; one in another namespace has no number.
func pidsIn(file string) (pids []int) {
	text, _ := os.ReadFile(file)
	for field := range bytes.FieldsSeq(text) {
		if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}
