package process

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
)

// guardScript waits until its input ends, which happens when the agent does,
// however it ends. If the last line that came is "done", there is nothing to do. If
// it is neither that nor empty, there are workers: it kills their control group, if
// they have one, the process groups that the line names, if they were known already,
// and then whatever carries the marker in its environment: descendants of the workers
// that have left their groups. It
// looks until it has found none three times, with pauses: a process in the middle
// of an exec shows no environment. At last it removes what the agent would have:
// the FIFO of the watchdog, the control group, a temporary log folder without
// content, and the folder of the progress records. The signal is given with -s: dash
// takes the "--" after "-KILL" for a pid, and kills nothing.
const guardScript = `
while read -r line; do groups=$line; done
[ "$groups" != done ] || exit 0
clean() {
	[ -p "$1" ] && rm -f -- "$1"
	for i in 1 2 3 4 5 6 7 8 9 10; do
		[ -d "$3" ] || break
		echo 1 > "$3/cgroup.kill"
		rmdir "$3" && break
		sleep 0.1
	done
	[ -n "$2" ] && kept=$(find "$2" -type f -size +0c) && [ -z "$kept" ] && rm -rf -- "$2"
	[ -z "$4" ] || rm -rf -- "$4"
	exit 0
}
[ -n "$groups" ] || clean "$2" "$3" "$4" "$5"
[ -z "$4" ] || echo 1 > "$4/cgroup.kill"
[ "$groups" = starting ] || for g in $groups; do kill -s KILL -- "-$g"; done
[ -n "$1" ] || clean "$2" "$3" "$4" "$5"
quiet=0
while [ "$quiet" -lt 3 ]; do
	left=
	for f in $(grep -lsF -e "$1" /proc/[0-9]*/environ); do
		p=${f#/proc/}
		kill -KILL "${p%/environ}" && left=1
	done
	if [ -n "$left" ]; then quiet=0; else quiet=$((quiet + 1)); sleep 0.05; fi
done
clean "$2" "$3" "$4" "$5"
`

// ParentDeathGuard is a small process that ends the descendants of the workers if the agent is
// killed: the parent-death signal reaches only the workers themselves. A guard that was killed,
// by a user or for lack of memory, is replaced. A nil guard does nothing. It is for one
// goroutine.
type ParentDeathGuard struct {
	forker   *Forker
	argv     []string
	log      *slog.Logger
	followed sync.WaitGroup

	groups string // the last line that it got, without held
	held   int    // the group of the workers' template; 0: none

	mu     sync.Mutex
	pid    int
	pipe   *os.File
	told   string // the last line that it got
	closed bool
}

// maxReplacedGuards bounds how often a guard is replaced: where none lives, more do not help.
const maxReplacedGuards = 10

// NewParentDeathGuard starts a guard. marker is a text that only the environment of the workers
// and their descendants holds; fifo, folder and group are removed at the end, and records with
// everything in it. Each is "" if there is none. It returns an error if the machine has no shell.
func NewParentDeathGuard(f *Forker, marker, fifo, folder, group, records string, log *slog.Logger) (*ParentDeathGuard, error) {
	pdg := &ParentDeathGuard{forker: f, log: log,
		argv: []string{"/bin/sh", "-c", guardScript, "rallypoint-guard", marker, fifo, folder, group, records}}
	pid, err := pdg.start()
	if err != nil {
		return nil, err
	}
	pdg.followed.Go(func() { pdg.follow(pid) })
	return pdg, nil
}

// start starts the process. The caller holds mu, or nobody else has the guard yet.
func (pdg *ParentDeathGuard) start() (pid int, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = read.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = write.Close()
		return 0, err
	}
	defer func() { _ = null.Close() }()
	pid, err = pdg.forker.startDetached(pdg.argv, []string{"PATH=/usr/bin:/bin"}, []uintptr{read.Fd(), null.Fd(), null.Fd()})
	if err != nil {
		_ = write.Close()
		return 0, err
	}
	pdg.pid, pdg.pipe = pid, write
	return pid, nil
}

// follow replaces the process whenever it ends, until Close.
func (pdg *ParentDeathGuard) follow(pid int) {
	for left := maxReplacedGuards; pid != 0; left-- {
		_, _, _ = exitCode(pid, 0)
		pdg.forker.reap(pid)
		pid = pdg.replace(left)
	}
}

// replace starts a new process for a guard that has ended, and passes the old one's knowledge on.
// It returns 0 if there is no new one: Close ended the old one, or it cannot be replaced.
func (pdg *ParentDeathGuard) replace(left int) (pid int) {
	pdg.mu.Lock()
	defer pdg.mu.Unlock()
	if pdg.closed {
		return 0
	}
	_ = pdg.pipe.Close()
	err := fmt.Errorf("replaced %d times already", maxReplacedGuards)
	if left > 0 {
		pid, err = pdg.start()
	}
	if err != nil {
		pdg.log.Warn("the process that watches this one has ended and cannot be replaced; if this process is killed, what its workers have started keeps running: " + err.Error())
		return 0
	}
	_, _ = pdg.pipe.WriteString(pdg.told)
	pdg.log.Warn("the process that watches this one has ended; another takes its place", "pid", pid)
	return pid
}

// startingLine is the line for groups that are not known yet.
const startingLine = "starting"

// Starting tells the guard that workers are being started, whose groups are not
// known yet.
func (pdg *ParentDeathGuard) Starting() {
	if pdg != nil {
		pdg.groups = startingLine
		pdg.tell()
	}
}

// Watch tells the guard which process groups there are now.
func (pdg *ParentDeathGuard) Watch(procs []*Process) {
	if pdg == nil {
		return
	}
	var line strings.Builder
	for _, p := range procs {
		line.WriteString(strconv.Itoa(p.Pid) + " ")
	}
	pdg.groups = line.String()
	pdg.tell()
}

// hold tells the guard which process group is the template's; 0 is none.
func (pdg *ParentDeathGuard) hold(pid int) {
	if pdg != nil {
		pdg.held = pid
		pdg.tell()
	}
}

func (pdg *ParentDeathGuard) tell() {
	line := pdg.groups
	if pdg.held != 0 && line != startingLine {
		line += strconv.Itoa(pdg.held)
	}
	pdg.mu.Lock()
	defer pdg.mu.Unlock()
	pdg.told = strings.TrimSpace(line) + "\n"
	_, _ = pdg.pipe.WriteString(pdg.told)
}

// Close ends the guard and waits until it has exited.
func (pdg *ParentDeathGuard) Close() {
	if pdg == nil {
		return
	}
	pdg.mu.Lock()
	pdg.closed = true
	_, _ = pdg.pipe.WriteString("done\n")
	_ = pdg.pipe.Close()
	pdg.mu.Unlock()
	pdg.followed.Wait()
}
