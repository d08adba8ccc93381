package prove

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"rallypoint/agent/process"
	"rallypoint/internal/uuid"
	"rallypoint/internal/wording"
)

// Config says what is proven, and how.
type Config struct {
	Self      []string // the command rallypoint
	Python    string   // that runs scripts and torchrun; "": there is none
	Script    []string // the script, module or program, and its arguments
	Module    bool
	NoPython  bool
	Environ   []string
	Scenarios []Scenario `json:"-"` // none: all that can be tried here

	Procs  int           // workers of a node
	Budget time.Duration // for all scenarios
	Limit  time.Duration // for a job to be as it must
	Settle time.Duration // for which workers run before a fault, and afterwards until it counts as overcome
	Torch  bool          // beside torchrun, if torch is there
	Keep   bool          // the folder of the outputs

	AskedSteps bool          // what earlier jobs have shown
	FirstStep  time.Duration // of the script, from its start; 0: it reports no steps

	network *network // of a scenario that has one of its own
}

// A Result is one scenario with one launcher.
type Result struct {
	Scenario string   `json:"scenario"`
	Launcher string   `json:"launcher"` // rallypoint or torchrun
	Outcome  Outcome  `json:"outcome"`
	LostS    *float64 `json:"lost_s"` // without the workers that must run; null: it was not measured
	Text     string   `json:"text"`
	Output   []string `json:"output"` // the end of the node's output that tells why; empty if it survived
	TookS    float64  `json:"took_s"`
}

// Report is what came of it.
type Report struct {
	Schema  int      `json:"schema"`
	Script  []string `json:"script"`
	Torch   string   `json:"torch"`    // its version; "": it is not compared
	Folder  string   `json:"folder"`   // of the nodes' output; "": it is removed
	LeftOut string   `json:"left_out"` // the scenarios that cannot be tried on this machine, and why
	Results []Result `json:"results"`

	FirstStepS *float64 `json:"first_step_s"` // of the script after the start of its workers, which comes on top of each time; null: it reports no steps
}

// Run runs the scenarios, those of rallypoint first. plan is called before the first one, and told
// after each. It returns when nothing of what it started is left, at ctx's end at once.
func Run(ctx context.Context, c *Config, plan func(*Report), told func(Result)) (*Report, error) {
	runtime.LockOSThread() // the nodes die with this thread, so also when this process is killed
	defer runtime.UnlockOSThread()
	script, err := absolute(c)
	if err != nil {
		return nil, err
	}
	r := &Report{Schema: 1, Script: slices.Clone(c.Script), Results: []Result{}}
	if c.Torch && c.Python != "" {
		r.Torch = torchVersion(ctx, c.Python)
	}
	if r.Folder, err = os.MkdirTemp("", "rallypoint-prove-"); err != nil {
		return nil, err
	}
	if !c.Keep {
		defer func() { _ = os.RemoveAll(r.Folder); r.Folder = "" }()
	}
	if len(c.Scenarios) == 0 {
		c.Scenarios, r.LeftOut = c.possible(ctx)
	}
	launchers := []*launcher{c.rallypoint(script)}
	if r.Torch != "" {
		launchers = append(launchers, c.torchrun(script))
	}
	plan(r)
	bounded, cancel := context.WithTimeout(ctx, c.Budget)
	defer cancel()
	for _, l := range launchers {
		for i := range c.Scenarios {
			result := c.try(bounded, l, &c.Scenarios[i], r.Folder)
			if ctx.Err() != nil {
				return r, ctx.Err()
			}
			r.Results = append(r.Results, result)
			if c.FirstStep > 0 {
				r.FirstStepS = new(c.FirstStep.Seconds())
			}
			told(result)
		}
	}
	return r, nil
}

// possible are the scenarios that can be tried on this machine, and why others cannot.
func (c *Config) possible(ctx context.Context) ([]Scenario, string) {
	_, err := c.ask(ctx, question{Config: *c})
	if err == nil {
		return Scenarios, ""
	}
	var all []Scenario
	var without []string
	for _, s := range Scenarios {
		if s.apart {
			without = append(without, s.Name)
		} else {
			all = append(all, s)
		}
	}
	return all, fmt.Sprintf("%s (no network namespace can be made here: %v)", strings.Join(without, ", "), err)
}

// Worst is the worst outcome of rallypoint.
func (r *Report) Worst() Outcome {
	worst := Survived
	for _, x := range r.Results {
		if x.Launcher == nameRallypoint && (x.Outcome == Failed || worst == Survived) {
			worst = x.Outcome
		}
	}
	return worst
}

func (c *Config) try(ctx context.Context, l *launcher, s *Scenario, folder string) (r Result) {
	began := time.Now()
	r = Result{Scenario: s.Name, Launcher: l.name, Outcome: Unknown, Output: []string{}}
	defer func() { r.TookS = time.Since(began).Seconds() }()
	if ctx.Err() != nil {
		r.Text = "not tried: the budget is spent"
		return r
	}
	if s.apart && c.network == nil {
		return c.tryApart(ctx, l, s, folder)
	}
	mark := uuid.New()
	env := append(slices.DeleteFunc(slices.Clone(c.Environ), ofAJob), envMark+"="+mark)
	if here, err := os.Getwd(); err == nil && c.Module { // where python -m looks for it
		path := process.Getenv(env)("PYTHONPATH")
		env = append(env, "PYTHONPATH="+strings.TrimSuffix(here+":"+path, ":"))
	}
	if s.apart { // on two machines, which warn or refuse without a token
		env = append(env, "RALLYPOINT_SECURITY=", "GLOO_SOCKET_IFNAME="+device, "NCCL_SOCKET_IFNAME="+device)
	}
	j, err := newJob(l, s, c.network, env, filepath.Join(folder, l.name+"-"+s.Name))
	if err != nil {
		r.Text = err.Error()
		return r
	}
	defer j.end(mark)
	v, err := c.judge(ctx, j, s)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		r.Text = "not decided: the budget is spent"
	case err != nil:
		r.Text = err.Error()
	default:
		r.Outcome, r.Text = v.outcome, v.text
		if v.timed {
			r.LostS = new(v.lost.Seconds())
		}
		if v.outcome != Survived && v.node >= 0 {
			r.Output = j.tail(v.node)
		}
	}
	return r
}

// patience is how long a job may take to start, and its script to make a step.
const patience = 60 * time.Second

// stepPatience leaves most of the budget to a script that makes no step. A program without Python
// has no long imports.
func (c *Config) stepPatience() time.Duration {
	if c.NoPython {
		return c.Settle
	}
	return min(patience, c.Budget/5)
}

// judge starts a job, harms it, and says what becomes of it.
func (c *Config) judge(ctx context.Context, j *job, s *Scenario) (*verdict, error) {
	v, err := c.begin(ctx, j, s)
	if err != nil || v.outcome != Survived {
		if v != nil && v.outcome == Failed {
			v.text = "without any fault: " + v.text
		}
		return v, err
	}
	if s.bySteps && c.FirstStep == 0 && j.launcher.name == nameRallypoint {
		return &verdict{outcome: Unknown, text: "a hang is seen by the steps of a script, and this one reports none (rallypoint.progress)", node: -1}, nil
	}
	w := &watch{scenario: *s, procs: c.Procs, settle: c.settled(), limit: c.Limit, before: j.look()}
	harmed := time.Now()
	if err := s.harm(j); err != nil {
		return nil, err
	}
	return j.until(ctx, harmed, w.look)
}

// begin starts the nodes that a job has at first, and waits until they have run for a while.
func (c *Config) begin(ctx context.Context, j *job, s *Scenario) (*verdict, error) {
	began := time.Now()
	for i := range s.begin {
		if err := j.start(i); err != nil {
			return nil, err
		}
		if i > 0 || j.launcher.hostIsTold && s.begin > 1 {
			continue
		}
		v, err := j.until(ctx, began, func(now seen, after time.Duration) *verdict {
			if j.listens() {
				return &verdict{outcome: Survived}
			}
			return unstarted(now, after, "node 0 does not listen")
		})
		if err != nil || v.outcome != Survived {
			return v, err
		}
	}
	if s.begin < s.least { // it waits
		listens := time.Since(began)
		return j.until(ctx, began, func(now seen, after time.Duration) *verdict {
			if after >= listens+c.Settle {
				return &verdict{outcome: Survived}
			}
			return unstarted(now, after, "")
		})
	}
	// Without a fault it is as after one, with the nodes that begin.
	first := &watch{scenario: Scenario{here: numbers(s.begin)}, procs: c.Procs, settle: c.Settle, limit: patience}
	v, err := j.until(ctx, began, func(now seen, after time.Duration) *verdict {
		if v := first.look(now, after); v != nil {
			return v
		}
		if first.good != nil && c.knowsSteps(ctx, j, after-first.since) {
			first.settle = c.settled()
		} else {
			first.settle = c.stepPatience() + c.Settle
		}
		return nil
	})
	if err == nil && v.outcome == Survived && (!v.timed || len(j.look().ended) > 0) {
		v = &verdict{outcome: Unknown, text: "the script ended before the fault: give it more to do, or a shorter --settle", node: -1}
	}
	return v, err
}

// knowsSteps reports whether the job makes steps, if a fault is seen by them alone, and whether it is
// known how long after its start the script makes its first one. The first job is asked that; a
// script whose first job makes none for long reports none.
func (c *Config) knowsSteps(ctx context.Context, j *job, ran time.Duration) bool {
	if j.launcher.name != nameRallypoint || j.stepped || c.AskedSteps && (!j.scenario.bySteps || c.FirstStep == 0) {
		return true
	}
	if j.stepped = j.steps(ctx); j.stepped && !c.AskedSteps {
		c.FirstStep = ran
	}
	c.AskedSteps = c.AskedSteps || j.stepped || ran >= c.stepPatience()
	return j.stepped || ran >= c.stepPatience()
}

// settled is for how long workers run before they have settled: for --settle, and beyond their first
// step.
func (c *Config) settled() time.Duration { return max(c.Settle, c.FirstStep+time.Second) }

// unstarted is the verdict about a job that does not start; nil: it may do so yet.
func unstarted(now seen, after time.Duration, why string) *verdict {
	for i, code := range now.ended {
		return &verdict{outcome: Failed, text: fmt.Sprintf("node %d ended with %s", i, exitText(code)), node: i}
	}
	if after > patience {
		return &verdict{outcome: Failed, text: fmt.Sprintf("%s within %s", why, wording.Seconds(patience))}
	}
	return nil
}

func numbers(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// ofAJob reports whether a variable belongs to a job in which this command itself may run.
func ofAJob(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	switch name {
	case "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
		"MASTER_ADDR", "MASTER_PORT", "RALLYPOINT_ROUND", envMark:
		return true
	}
	return strings.HasPrefix(name, "TORCHELASTIC_") || strings.HasPrefix(name, "PET_")
}

// absolute is the script as it is named from another folder.
func absolute(c *Config) ([]string, error) {
	script := slices.Clone(c.Script)
	if c.Module || c.NoPython && !strings.Contains(script[0], "/") {
		return script, nil
	}
	if _, err := os.Stat(script[0]); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no file %q", script[0])
	}
	path, err := filepath.Abs(script[0])
	script[0] = path
	return script, err
}

const nameRallypoint = "rallypoint"

// lastCall lets a round begin soon without the nodes that are not to come, and not without those
// that are: torchrun takes seconds to start. By default it is 30 s for both launchers.
const lastCall = "last_call_timeout=5"

// rallypoint starts nodes by this command.
func (c *Config) rallypoint(script []string) *launcher {
	return &launcher{nameRallypoint, false, func(s *Scenario, node, port int) []string {
		argv := append(slices.Clone(c.Self), "run")
		argv = append(argv, s.options...)
		argv = append(argv, c.common(s, node, port, "rallypoint", lastCall+",host_name=node"+strconv.Itoa(node))...)
		if !c.NoPython {
			argv = append(argv, "--auto-progress") // for a script that reports no steps
		}
		return append(c.kind(argv), script...)
	}}
}

// torchrun starts nodes by torch's launcher with its own rendezvous.
func (c *Config) torchrun(script []string) *launcher {
	return &launcher{"torchrun", true, func(s *Scenario, node, port int) []string {
		host := fmt.Sprintf(",is_host=%t", node == 0)
		argv := append([]string{c.Python, "-m", "torch.distributed.run"}, c.common(s, node, port, "c10d", lastCall+host)...)
		return append(c.kind(argv), script...)
	}}
}

func (c *Config) common(s *Scenario, node, port int, backend, conf string) []string {
	return []string{fmt.Sprintf("--nnodes=%d:%d", s.least, s.most), fmt.Sprintf("--nproc-per-node=%d", c.Procs), "--max-restarts=3", "--rdzv-backend=" + backend,
		fmt.Sprintf("--rdzv-endpoint=%s:%d", s.address(0), port), "--rdzv-id=prove", "--rdzv-conf=" + conf, "--local-addr=" + s.address(node)}
}

func (c *Config) kind(argv []string) []string {
	switch {
	case c.Module:
		return append(argv, "--module")
	case c.NoPython:
		return append(argv, "--no-python")
	}
	return argv
}

// torchVersion asks an interpreter; "" if it has no torch.
func torchVersion(ctx context.Context, python string) string {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", "import importlib.metadata as m; print(m.version('torch'))")
	cmd.Env = slices.DeleteFunc(os.Environ(), ofAJob)
	text, err := cmd.Output()
	if version := strings.TrimSpace(string(text)); err == nil && len(version) < 40 {
		return version
	}
	return ""
}
