package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/agent/stacks"
	"rallypoint/agent/telemetry"
	"rallypoint/agent/watchdog"
	"rallypoint/core/world"
	"rallypoint/internal/background"
	"rallypoint/internal/host"
	"rallypoint/internal/ownfile"
)

// attempt is one start of this node's workers. Under Spec.Regroup it lives on over rounds: those that
// run keep their processes, and the others are replaced (docs/decisions/0150).
type attempt struct {
	*launcher
	*history
	hangs     *hangs
	workers   *process.WorkerGroup
	started   time.Time
	logs      []*logs.Attempt // by local rank: those started together have one
	watchdog  *watchdog.Watchdog
	outputs   []logs.Worker
	streams   []*logs.Stream
	reading   sync.WaitGroup           // of an output, for the announcement of its worker's failure
	questions sync.WaitGroup           // their goroutine
	followers *followers               // of the workers' output
	ended     map[int]*process.Process // by local rank
	failures  []*process.Process       // ended badly, in the order in which it was seen
	succeeded int
	stacks    []*ownfile.File // into which the workers write theirs, by local rank; nil: there are none
	directed  uint64          // the number of the last directive that the workers were given
	survival
	findings
}

func newAttempt(l *launcher, h *history, hangs *hangs) *attempt {
	n := l.spec.Workers
	t := &attempt{
		launcher: l, history: h, hangs: hangs, logs: make([]*logs.Attempt, n), outputs: make([]logs.Worker, n),
		ended: make(map[int]*process.Process), followers: newFollowers(), survival: survival{able: make([]bool, n)},
	}
	t.oom.Reset()
	return t
}

func (t *attempt) start() error {
	var all []int
	for local := range t.spec.Workers {
		all = append(all, local)
	}
	files, launches, err := t.prepare(all)
	if err == nil && t.timers != "" {
		if t.watchdog, err = watchdog.Serve(t.timers, t.log); err == nil {
			t.publish(telemetry.WatchdogActed{Name: "watchdog started"})
		}
	}
	if err == nil {
		t.guard.Starting()
		t.running.Store(true)
		t.started = time.Now()
		t.workers, err = process.StartWorkers(t.forker, t.reaper, t.template, launches, t.log)
	}
	files.Started()
	if err != nil {
		t.running.Store(false)
		t.guard.Watch(nil)
		t.watchdog.Stop()
		files.Close()
		t.removeRecords()
		return cmp.Or(t.interrupted(), startError(err))
	}
	t.guard.Watch(t.workers.Procs)
	t.publish(telemetry.WorkersStarted{Workers: t.workers.Procs, Summary: t.startLine()})
	return nil
}

// prepare prepares the start of workers: their files, which the caller closes also after an error,
// and their commands.
func (t *attempt) prepare(locals []int) (*logs.Attempt, []process.Launch, error) {
	files, err := t.tree.Attempt(t.restarts.agreed)
	if err != nil {
		return nil, nil, err
	}
	sets, err := t.plan(files, locals)
	if err != nil {
		return files, nil, err
	}
	launches, names, err := t.launches(files, sets, locals)
	if err == nil {
		err = files.Follow(t.console, names)
	}
	return files, launches, err
}

// plan decides where the workers write that are to be started, and makes the variables of all.
func (t *attempt) plan(files *logs.Attempt, locals []int) (sets [][][2]string, err error) {
	planner := t.spec.Logs.Planner
	if planner == nil {
		if files.Plan, err = files.Layout(t.spec.Workers, locals); err != nil {
			return nil, err
		}
	}
	s := t.assignment
	if t.workers == nil {
		t.progress.Begin(s.Round, t.spec.Workers, t.changed)
	}
	t.progress.SetFailure(t.reportedFailure(s.group))
	t.openStacks(locals)
	t.openWorlds(locals)
	for local := range t.spec.Workers {
		p := place{assignment: s, local: local, restarts: t.restarts.agreed, files: map[string]string{
			watchdog.EnvFile: t.timers, world.EnvFile: t.worlds.path(local), stacks.EnvFile: t.stackPath(local),
		}}
		if record := t.progress.Path(local); record != "" {
			p.files[progress.EnvFile], p.files[progress.EnvDirective] = record, t.progress.DirectivePath(local)
		}
		if files.Plan != nil {
			p.errorFile = files.Plan.Workers[local].ErrorFile
		}
		sets = append(sets, additions(&t.spec, p))
	}
	if planner != nil {
		if files.Plan, err = t.askPlanner(planner, sets); err != nil {
			return nil, err
		}
	}
	files.Plan.Show(t.spec.Logs.GlobalRanks, s.ranks.base)
	if t.tree.Mark != "" { // no folder tells the workers of this run from others
		for local := range sets {
			sets[local] = append(sets[local], [2]string{logs.EnvMark, t.tree.Mark})
		}
	}
	return sets, nil
}

// askPlanner has the plug-in decide where the workers write, and puts the variables as it left them
// into sets.
func (t *attempt) askPlanner(planner *logs.Planner, sets [][][2]string) (*logs.Plan, error) {
	envs := make([]map[string]string, len(sets))
	for local, set := range sets {
		envs[local] = make(map[string]string, len(set))
		for _, v := range set {
			envs[local][v[0]] = v[1]
		}
		delete(envs[local], logs.EnvErrorFile) // the plug-in's to set
	}
	ctx, cancel := t.untilInterrupt(0)
	defer cancel()
	plan, envs, err := planner.Plan(ctx, envs)
	for local, env := range envs {
		sets[local] = nil
		for _, name := range slices.Sorted(maps.Keys(env)) {
			sets[local] = append(sets[local], [2]string{name, env[name]})
		}
	}
	return plan, err
}

// launches prepares the start of some workers; sets are the variables that all get.
func (t *attempt) launches(to *logs.Attempt, sets [][][2]string, locals []int) ([]process.Launch, []logs.Names, error) {
	s := t.assignment
	standard, err := to.StandardStreams()
	if err != nil {
		return nil, nil, err
	}
	var launches []process.Launch
	var names []logs.Names
	descriptors := make([][]uintptr, t.spec.Workers)
	for _, local := range locals {
		w, err := to.Worker(local)
		if err != nil {
			return nil, nil, err
		}
		files := slices.Clone(standard)
		if w.Out != nil {
			files[1] = w.Out.Fd()
		}
		switch {
		case t.spec.Logs.Fold:
			if err := to.FoldConsole(&w, s.ranks.base+local, t.console, t.spec.Stdout, t.spec.Stderr); err != nil {
				return nil, nil, err
			}
			if w.Out != nil {
				files[1] = w.Out.Fd()
			}
		case !t.spec.KeepDaemons: // daemons outlive this process, through which the workers' stderr goes here
			if err := to.TeeStderr(&w, int(files[1]), t.console, t.spec.Stderr); err != nil {
				return nil, nil, err
			}
		}
		t.outputs[local], t.logs[local] = w, to
		if w.Err != nil {
			files[2] = w.Err.Fd()
		}
		descriptors[local] = files
		launches = append(launches, process.Launch{
			Local: local, Argv: arguments(&t.spec, local), Env: merge(t.spec.Environ, sets[local]), Files: files, CPUs: t.spec.CPUs[local], Site: t.site,
		})
		names = append(names, logs.Names{Role: t.spec.Role, Host: host.NameOf(t.spec.Host), Local: local, Rank: s.ranks.base + local})
	}
	t.streams = append(logs.Without(t.streams, locals), to.Streams(t.outputs, descriptors)...)
	return launches, names, nil
}

func (t *attempt) startLine() string {
	s := t.assignment
	text := fmt.Sprintf("started %d workers: ranks %d to %d of %d", t.spec.Workers, s.ranks.base, s.ranks.base+t.spec.Workers-1, s.ranks.world)
	if t.spec.Workers == 1 {
		text = fmt.Sprintf("started a worker: rank %d of %d", s.ranks.base, s.ranks.world)
	}
	if t.restarts.agreed > 0 {
		text += ", after " + t.restarts.String()
	}
	if dir := t.logs[0].Dir; dir != "" && t.tree.Base == "" {
		text += ", logs in " + dir
	}
	return text
}

func (t *attempt) files() (all []*logs.Attempt) {
	for _, f := range t.logs {
		if f != nil && !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

// endRecords ends what the workers share with the agent.
func (t *attempt) endRecords() {
	background.Within(filePatience, t.reading.Wait)
	t.progress.End()
	t.noteFirstStep()
	t.removeRecords()
}

// closeFiles ends those who read the workers' output, and closes its files.
func (t *attempt) closeFiles() {
	t.followers.end()
	t.questions.Wait()
	for _, files := range t.files() {
		files.Close()
	}
}
