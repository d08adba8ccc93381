package agent

import (
	"cmp"
	"errors"
	"slices"

	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/agent/watchdog"
	"rallypoint/internal/background"
	"rallypoint/internal/linequeue"
)

// launcher has what this node starts its processes with, and ends what they leave.
type launcher struct {
	*node
	cgroup        *process.Cgroup // of the workers; nil: none
	forker        *process.Forker
	reaper        *process.Reaper
	guard         *process.ParentDeathGuard
	template      *process.Template // of the workers; nil: none
	site          string            // see process.Launch; "": none
	tree          *logs.Tree
	console       *logs.Console
	sleepDetector *process.SleepDetector
	timers        string             // path of the watchdog's FIFO; "" if it is off
	oom           process.OOMCounter // since workers were started last
}

func newLauncher(n *node) *launcher {
	return &launcher{
		node: n, console: logs.NewConsole(n.spec.Streams), oom: process.NewOOMCounter("/"),
		sleepDetector: process.NewSleepDetector(n.spec.Environ), timers: watchdog.FIFOPath(n.spec.Environ),
	}
}

// open makes the files and the helpers that all rounds use. After an error there is nothing to close.
func (l *launcher) open() (err error) {
	if l.tree, err = logs.NewTree(&l.spec.Logs, l.spec.RunID, l.log); err != nil {
		return startError(err)
	}
	if !l.spec.KeepDaemons {
		l.cgroup = process.NewCgroup()
	}
	l.progress = progress.NewTracker(l.spec.Environ, l.log)
	l.progress.WaitWindow = cmp.Or(l.waitWindow, l.progress.WaitWindow)
	l.forker = process.NewForker(l.cgroup)
	l.reaper = process.NewReaper(l.forker, l.spec.Subreaper, l.spec.KeepDaemons, l.tree.Marker(), l.log)
	if !l.spec.KeepDaemons {
		if l.guard, err = process.NewParentDeathGuard(l.forker, l.tree.Marker(), l.timers, l.tree.Base, l.cgroup.Folder(), l.progress.Folder(), l.log); err != nil {
			l.log.Warn("if this process is killed, what its workers have started keeps running: " + err.Error())
		}
	}
	if l.spec.CountSteps && l.progress.Folder() != "" { // the Python module lies beside the workers' progress records
		if l.site, err = process.NewSite(l.progress.Folder()); err != nil {
			l.log.Warn("the steps of optimizers are not counted: " + err.Error())
		}
	}
	return nil
}

func (l *launcher) close() {
	l.template.Close()
	l.guard.Close()
	l.reaper.Close()
	l.cgroup.Close()
	l.forker.Close()
	l.progress.Close()
	background.Within(linequeue.StallLimit, l.tree.Close)
}

// holdTemplate starts the workers' template, which imports while the nodes meet.
func (l *launcher) holdTemplate() {
	if !l.spec.Warm {
		return
	}
	argv, differ := arguments(&l.spec, 0), false
	for local := range l.spec.Workers {
		differ = differ || !slices.Equal(argv, arguments(&l.spec, local))
	}
	l.template = process.NewTemplate(l.forker, l.reaper, l.guard, process.TemplateConfig{
		Argv: argv, Differ: differ, Environ: merge(l.spec.Environ, nil), Marker: l.tree.Marker(), Folder: l.progress.Folder(),
		Preload: l.spec.Preload, Timeout: cmp.Or(l.spec.PreloadTimeout, process.DefaultPreloadTimeout),
	}, l.log)
}

// awaitTemplate waits until workers can be forked, if the node forks them: a cold one would import
// the same. It ends with the round.
func (l *launcher) awaitTemplate() error {
	if l.template == nil {
		return nil
	}
	ctx, cancel := l.untilRegroup()
	defer cancel()
	l.template.Prepare(ctx.Done())
	if ctx.Err() != nil {
		return l.cutShort()
	}
	return nil
}

// startError is an error for which workers could not be started.
func startError(err error) error {
	if start := new(process.StartError); errors.As(err, &start) {
		return err
	}
	return &process.StartError{LocalRank: -1, Err: err}
}
