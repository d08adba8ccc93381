package process

import (
	"os"
	"strconv"
	"strings"
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
// content, and the folder of the progress records.
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
[ "$groups" = starting ] || for g in $groups; do kill -KILL -- "-$g"; done
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

// ParentDeathGuard is a small process that ends the descendants of the workers if the agent
// is killed: the parent-death signal reaches only the workers themselves. A
// nil guard does nothing. It is for one goroutine.
type ParentDeathGuard struct {
	pid    int
	pipe   *os.File
	forker *Forker
	groups string // the last line that it got, without held
	held   int    // the group of the workers' template; 0: none
}

// NewParentDeathGuard starts a guard. marker is a text that only the environment of the
// workers and their descendants holds; fifo, folder and group are what is to be
// removed, records a folder with all that is in it. Each is "" if there is none. It returns an error if there is no shell to
// be had.
func NewParentDeathGuard(f *Forker, marker, fifo, folder, group, records string) (*ParentDeathGuard, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = write.Close()
		return nil, err
	}
	defer func() { _ = null.Close() }()
	pid, err := f.startDetached([]string{"/bin/sh", "-c", guardScript, "rallypoint-guard", marker, fifo, folder, group, records},
		[]string{"PATH=/usr/bin:/bin"}, []uintptr{read.Fd(), null.Fd(), null.Fd()})
	if err != nil {
		_ = write.Close()
		return nil, err
	}
	return &ParentDeathGuard{pid: pid, pipe: write, forker: f}, nil
}

// startingLine stands for groups that are not known yet.
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

// Hold tells the guard which process group is the template's; 0 is none.
func (pdg *ParentDeathGuard) Hold(pid int) {
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
	_, _ = pdg.pipe.WriteString(strings.TrimSpace(line) + "\n")
}

// Close ends the guard and waits for its end.
func (pdg *ParentDeathGuard) Close() {
	if pdg == nil {
		return
	}
	_, _ = pdg.pipe.WriteString("done\n")
	_ = pdg.pipe.Close()
	_, _, _ = exitCode(pdg.pid, 0)
	pdg.forker.reap(pdg.pid)
}
