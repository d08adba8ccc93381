package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"rallypoint/internal/wake"
)

// delivery brings the signal of one Stop to the workers' processes. A process gets it when no process
// of its worker is above it any more: a script that saves keeps its helpers, and a wrapper that ends
// leaves the signal to what it has wrapped. A shell waits for its children and does not tell them, so
// they get the signal with it. What a worker starts during the stop, to save for instance, gets none
// before the grace is over. It is for one goroutine.
type delivery struct {
	sig    unix.Signal
	wide   bool           // the process groups of the workers get it at once, with all that is in them
	groups []int          // these groups
	shells []int          // those of them whose worker is a shell, and which are not signalled as a group
	wraps  []int          // those of them whose worker is a shell: its child may be the rank
	before map[int]bool   // the processes of the machine before the stop; nil: all that are found
	passed map[int]bool   // those that need not get it any more
	wake   wake.Signal    // set when a worker or a followed process ends
	follow []*orphan      // closed at the end
	ends   sync.WaitGroup // their watches
}

// newDelivery prepares the stop of a worker group. The keyboard's signals go to whole groups, as from
// a terminal, and so does all that is followed by SIGKILL at once.
func newDelivery(o StopOptions, w *WorkerGroup) *delivery {
	d := &delivery{sig: o.Signal, passed: make(map[int]bool), wake: w.exits.wake}
	d.wide = o.Grace <= 0 || slices.Contains([]unix.Signal{unix.SIGKILL, unix.SIGINT, unix.SIGQUIT}, o.Signal)
	for _, p := range w.Procs {
		d.groups = append(d.groups, p.Pid)
		if !p.HasExited() && isShell(p.Pid) {
			d.wraps = append(d.wraps, p.Pid)
		}
	}
	if d.wide || w.allExited() {
		return d
	}
	d.before = make(map[int]bool)
	processesWith(func(pid int) bool { d.before[pid] = true; return false })
	return d
}

// pass signals those of the processes that are due, and follows them until close.
func (d *delivery) pass(live []*orphan) {
	at := make(map[int]*orphan, len(live))
	for _, o := range live {
		at[o.pid] = o
	}
	for _, o := range live {
		if d.passed[o.pid] || slices.Contains(d.groups, o.pid) || !due(o, at, maxAncestors) {
			_ = o.pidfd.Close()
			continue
		}
		d.passed[o.pid] = true
		late := d.before != nil && !d.before[o.pid]
		if !late && !(d.wide && slices.Contains(d.groups, o.stat.group)) {
			o.kill(d.sig)
		}
		d.follow = append(d.follow, o)
		d.ends.Go(func() {
			o.ended()
			d.wake.Set()
		})
	}
}

// due reports whether no live process is above one that would keep the signal from it.
func due(o *orphan, live map[int]*orphan, most int) bool {
	parent := live[o.stat.parent]
	return parent == nil || most > 0 && parent.stat.session == o.stat.session && isShell(parent.pid) && due(parent, live, most-1)
}

func (d *delivery) close() {
	for _, o := range d.follow {
		_ = o.pidfd.Close()
	}
	d.ends.Wait()
}

// shells are the programs that wait for their children when a signal comes, or end without passing
// it on.
var shells = []string{"sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "lksh", "mksh", "tcsh", "toybox", "yash", "zsh"}

// isShell reports whether a process runs a shell, by its program: the name of a process that runs a
// script is the script's.
func isShell(pid int) bool {
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && slices.Contains(shells, strings.TrimRight(filepath.Base(strings.TrimSuffix(program, " (deleted)")), "-.0123456789"))
}
