package run

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent"
	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/otlp"
)

// config is a checked command line: what to run, and how to find the other nodes.
type config struct {
	spec       agent.Spec
	name       string // of the entry point, in reports
	rendezvous rendezvousConfig
	signals    []os.Signal
	signalExit bool

	traces    otlp.Config
	slurmNode string // to drain if it is unfit; "": none

	logJSON   bool // the agent's own lines
	warnings  []string
	oneThread bool // OMP_NUM_THREADS is not given, and several workers share this machine
	notes     []string
}

// environ is the process's environment as a list and as a look-up.
type environ []string

func (e environ) lookup(name string) (string, bool) { return process.LookupEnv(e, name) }

func (e environ) get(name string) string {
	value, _ := e.lookup(name)
	return value
}

// configure checks everything that can be checked without a side effect.
// Errors are *usageError.
func configure(o *options, env environ) (*config, error) {
	c := &config{signalExit: o.signalExit, warnings: misspelled(env)}
	if o.slurmDrain {
		if c.slurmNode = env.get("SLURMD_NODENAME"); !o.slurm || c.slurmNode == "" {
			return nil, usagef("argument --slurm-drain: it takes --slurm, and SLURMD_NODENAME, which srun sets")
		}
	}
	if o.slurm {
		if err := o.fillFromSlurm(env); err != nil {
			return nil, err
		}
	}
	if err := c.setNodes(o, env); err != nil {
		return nil, err
	}
	for _, set := range []func(*options, environ) error{c.setScript, c.setWarm, c.setChecks, c.setWorkers, c.setCPUs, c.setTimes, c.setOnFailure, c.setHangs, c.setLogs, c.setConsole, c.setLogFormat, c.readTraces} {
		if err := set(o, env); err != nil {
			return nil, err
		}
	}
	c.warnOfIdle(o, env)
	c.setSignals(o)
	if err := c.setDirectives(o); err != nil {
		return nil, err
	}
	c.spec.RunID, c.spec.Role, c.spec.MaxRestarts = c.rendezvous.params.RunID, o.role, o.maxRestarts
	c.spec.RestartWindow, c.spec.MaxNoProgress = o.restartWindow, o.maxNoProgress
	if c.rendezvous.params.Min < c.rendezvous.params.Max && o.maxRestarts == 0 {
		c.notes = append(c.notes, "--max-restarts is 0: the first worker that fails ends the job; nodes that leave or join end only their round")
	}
	c.spec.Backend = c.rendezvous.kind.String()
	c.spec.VirtualRank, c.spec.NoMacros, c.spec.KeepDaemons = o.virtualRank, o.noMacros, o.keepDaemons
	c.spec.Identical = env.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1"
	c.spec.Host = c.rendezvous.params.HostName
	c.spec.LostNodeTimeout = c.rendezvous.params.LeaseTimeout + c.rendezvous.params.ReconnectGrace
	c.spec.LoopbackUsers = c.rendezvous.params.LoopbackUsers
	c.spec.Subreaper = true
	c.setEnviron(o, env)
	if err := c.spec.Validate(); err != nil {
		return nil, usagef("%v", err)
	}
	return c, nil
}

// warnOfIdle warns of options that have no effect beside the others.
func (c *config) warnOfIdle(o *options, env environ) {
	cold := !o.warm && env.get(envWarm) != "1"
	for _, idle := range []struct {
		option, why string
		is          bool
	}{
		{"preload", "without --warm", cold},
		{"preload-timeout", "without --warm", cold},
		{"check-timeout", "without --check", len(o.checks) == 0},
		{"on-hang", "with --hang-timeout=off", c.spec.HangTimeout == agent.HangOff},
		{"duplicate-stdout-filters", "without --tee", !o.given["tee"] && o.logsSpecs == ""},
		{"duplicate-stderr-filters", "without --tee", !o.given["tee"] && o.logsSpecs == ""},
	} {
		if idle.is && o.given[idle.option] {
			c.warnings = append(c.warnings, "--"+idle.option+" has no effect "+idle.why)
		}
	}
}

// runPathScript is the program that --run-path runs in each worker.
//
//go:embed run_path.py
var runPathScript string

func (c *config) setScript(o *options, env environ) error {
	switch {
	case len(o.argv) == 0:
		return usagef("there is nothing to run: name the script and its arguments after the options, as in `rallypoint run --nproc-per-node=8 train.py`; `rallypoint run --help` lists the options")
	case o.noPython && o.legacy && !o.useEnv:
		return usagef("When using the '--no-python' flag, you must also set the '--use-env' flag.")
	case o.noPython && o.module && !o.runPath:
		return usagef("Don't use both the '--no-python' flag and the '--module' flag at the same time.")
	case o.noPython && !o.runPath:
		c.spec.Argv = o.argv
		c.name = agent.EntryPoint(o.argv, "")
		return nil
	}
	chosen := chooseInterpreter(env)
	program := chosen.path
	if given := env.get("PYTHON_EXEC"); given != "" {
		program = given
	} else if text := "workers run in " + chosen.path + ", " + chosen.why; chosen.not != "" {
		c.warnings = append(c.warnings, text+", and not in "+chosen.not+"; PYTHON_EXEC names another")
	} else {
		c.notes = append(c.notes, text)
	}
	c.spec.Argv = append(append([]string{program}, interpreterArgs(o, env)...), o.argv[0])
	if o.legacy && !o.useEnv {
		c.spec.Argv = append(c.spec.Argv, "--local-rank=${local_rank}")
	}
	c.spec.Argv = append(c.spec.Argv, o.argv[1:]...)
	c.name = agent.EntryPoint(append([]string{program}, o.argv...), chosen.path)
	if o.runPath {
		c.name = o.argv[0]
	}
	return nil
}

// envWarm switches --warm on, envAutoProgress --auto-progress off.
const (
	envWarm         = "RALLYPOINT_WARM"
	envAutoProgress = "RALLYPOINT_AUTO_PROGRESS"
)

// setWarm sets whether the workers are forked, and from which imports (decision 0108), and
// whether optimizer steps are counted (0119).
func (c *config) setWarm(o *options, env environ) (err error) {
	if c.spec.PreloadTimeout, err = seconds("--preload-timeout", o.preloadTimeout, true); err != nil {
		return err
	}
	for _, name := range o.preload {
		if !process.IsModuleName(name) {
			return usagef("argument --preload: %q is not the name of a module", name)
		}
	}
	for _, name := range []string{envWarm, envAutoProgress} {
		if text := env.get(name); text != "" && text != "0" && text != "1" {
			return usagef("environment variable %s: %q is neither 1 nor 0", name, text)
		}
	}
	warm, counts, program := o.warm || env.get(envWarm) == "1", env.get(envAutoProgress), o.noPython && !o.runPath
	c.spec.CountSteps = !program && (o.autoProgress || counts != "0")
	switch c.spec.Warm, c.spec.Preload = warm, o.preload; {
	case !warm:
	case program:
		c.spec.Warm = false
		c.warnings = append(c.warnings, "workers start cold: --no-python runs a program without an interpreter")
	case o.keepDaemons:
		c.spec.Warm = false
		c.warnings = append(c.warnings, "workers start cold: with --keep-daemons this process does not adopt what loses its parent")
	}
	return nil
}

func (c *config) setChecks(o *options, _ environ) (err error) {
	for _, command := range o.checks {
		if strings.TrimSpace(command) == "" || strings.Contains(command, "\x00") {
			return usagef("argument --check: %q is no command", command)
		}
	}
	c.spec.Checks = o.checks
	if c.spec.CheckAway, err = agent.ParseWindow(o.checkAway); err != nil || c.spec.CheckAway > rendezvous.MaxWithin {
		return usagef("argument --check-away: %q must be a time of at most %v, such as 30m, 6h or 2d", o.checkAway, rendezvous.MaxWithin)
	}
	if c.spec.CheckTimeout, err = seconds("--check-timeout", o.checkTimeout, true); err != nil {
		return err
	}
	c.spec.CheckEvery, err = seconds("--check-every", o.checkEvery, false)
	switch {
	case err != nil || c.spec.CheckEvery == 0:
		return err
	case len(o.checks) == 0:
		return usagef("argument --check-every: there is nothing to run; name a command by --check")
	case c.rendezvous.kind != kindDynamic:
		return usagef("argument --check-every: no other node can take the place of one that leaves a %v job; use --rdzv-endpoint=HOST:PORT, a directory or an etcd", c.rendezvous.kind)
	}
	return nil
}

func (c *config) setWorkers(o *options, env environ) error {
	n, warning, err := localWorkers(o.nproc, o.allOfCPUs, defaultInterpreter(env))
	if err != nil {
		return err
	}
	c.spec.Workers = n
	if warning != "" {
		c.warnings = append(c.warnings, warning)
	}
	if o.nproc != strconv.Itoa(n) {
		c.notes = append(c.notes, "Using nproc_per_node="+o.nproc+": "+strconv.Itoa(n)+" workers")
	}
	if o.argv[0] == "-" && (n > 1 || o.maxRestarts > 0) {
		c.warnings = append(c.warnings, "the script is on standard input, which one worker reads, once: other workers, and those of a restart, run nothing; name a file")
	}
	if o.maxRestarts < 0 {
		return usagef("argument --max-restarts: it is %d, it must not be negative", o.maxRestarts)
	}
	if o.maxNoProgress < 0 {
		return usagef("argument --max-no-progress: it is %d, it must not be negative", o.maxNoProgress)
	}
	return nil
}

func (c *config) setCPUs(o *options, env environ) error {
	if o.numaBinding == "" {
		return nil
	}
	answer, err := askTorch(defaultInterpreter(env), "accelerator", pciQuestion)
	if err != nil {
		return usagef("argument --numa-binding: %v", err)
	}
	devices := strings.Fields(answer)
	if len(devices) == 0 {
		return usagef("argument --numa-binding: No accelerator available for NUMA binding")
	}
	cpus, err := process.BindCPUs(o.numaBinding, devices, c.spec.Workers)
	if err != nil {
		return usagef("argument --numa-binding: %v", err)
	}
	c.spec.CPUs = cpus
	return nil
}

// Variables below options.
const (
	envShutdownTimeout    = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
	envExitBarrierTimeout = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"
)

func (c *config) setTimes(o *options, env environ) error {
	s := &c.spec
	var err error
	if s.MonitorInterval, err = seconds("--monitor-interval", o.monitorInterval, true); err != nil {
		return err
	}
	if s.RestartDelay, err = seconds("--restart-delay", o.restartDelay, false); err != nil {
		return err
	}
	s.ShutdownTimeout = agent.DefaultShutdownTimeout
	if o.shutdownTimeout != unsetNumber {
		s.ShutdownTimeout, err = seconds("--shutdown-timeout", float64(o.shutdownTimeout), false)
	} else if text := env.get(envShutdownTimeout); text != "" {
		s.ShutdownTimeout, err = secondsOf(envShutdownTimeout, text)
	}
	if err != nil {
		return err
	}
	s.ExitBarrierTimeout = agent.DefaultExitBarrierTimeout
	if o.exitBarrierTimeout != unsetNumber {
		s.ExitBarrierTimeout, err = seconds("--exit-barrier-timeout", o.exitBarrierTimeout, false)
	} else if text := env.get(envExitBarrierTimeout); text != "" {
		s.ExitBarrierTimeout, err = secondsOf(envExitBarrierTimeout, text)
	}
	return err
}

// The variables of --hang-timeout and --on-hang.
const (
	envHangTimeout = "RALLYPOINT_HANG_TIMEOUT"
	envOnHang      = "RALLYPOINT_ON_HANG"
)

// setHangs sets when a job counts as hanging, and what happens then (decision 0111).
func (c *config) setHangs(o *options, env environ) error {
	name, text := "argument --hang-timeout", o.hangTimeout
	if !o.given["hang-timeout"] {
		name, text = "environment variable "+envHangTimeout, env.get(envHangTimeout)
	}
	switch text {
	case "", "auto":
	case "off":
		c.spec.HangTimeout = agent.HangOff
	default:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x > 0) {
			return usagef("%s: %q must be auto, off or a number of seconds above 0", name, text)
		}
		c.spec.HangTimeout = time.Duration(math.Min(x, maxSeconds) * float64(time.Second))
	}
	name, text = "argument --on-hang", o.onHang
	if !o.given["on-hang"] {
		name, text = "environment variable "+envOnHang, cmp.Or(env.get(envOnHang), o.onHang)
	}
	at := slices.Index(agent.OnHangNames, text)
	if at < 0 {
		return usagef("%s: %q must be one of %s", name, text, strings.Join(agent.OnHangNames, ", "))
	}
	c.spec.OnHang = agent.OnHang(at)
	return nil
}

// maxSeconds keeps durations within the range of time.Duration.
const maxSeconds = 10 * 365 * 24 * 3600

func seconds(name string, x float64, positive bool) (time.Duration, error) {
	d := time.Duration(math.Min(x, maxSeconds) * float64(time.Second))
	switch {
	case math.IsNaN(x) || x < 0 && !positive:
		return 0, usagef("argument %s: it is %v, it must not be negative", name, x)
	case positive && d <= 0:
		return 0, usagef("argument %s: it is %v, it must be greater than 0", name, x)
	}
	return d, nil
}

func secondsOf(variable, text string) (time.Duration, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		return 0, usagef("environment variable %s: %q is not a number of seconds", variable, text)
	}
	return seconds(variable, x, false)
}

func (c *config) setLogs(o *options, env environ) error {
	l := &c.spec.Logs
	l.Dir, l.TempDir = o.logDir, process.TempDir(env.get)
	if named := env.get("TMPDIR"); named != "" && l.TempDir != named {
		c.warnings = append(c.warnings, fmt.Sprintf("TMPDIR is %s, which is no folder that this process may write to: temporary files are in %s", named, l.TempDir))
	}
	l.OutFilters, l.ErrFilters = o.outFilters, o.errFilters
	l.PrefixTemplate = cmp.Or(o.prefixTemplate, env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"))
	var err error
	if l.Redirects, err = logs.ParseStreamSpec(o.redirects); err != nil {
		return usagef("argument --redirects: %v", err)
	}
	if l.Tee, err = logs.ParseStreamSpec(o.tee); err != nil {
		return usagef("argument --tee: %v", err)
	}
	if info, err := os.Stat(l.Dir); o.logsSpecs == "" && l.Dir != "" && l.Dir != os.DevNull && err == nil && !info.IsDir() {
		return usagef("argument --log-dir: %s is a file, it must be a folder", l.Dir)
	}
	if o.ranksFilter == "" {
		return nil
	}
	for text := range strings.SplitSeq(o.ranksFilter, ",") {
		rank, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return usagef("--local_ranks_filter must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2")
		}
		l.Ranks = append(l.Ranks, rank)
	}
	return nil
}

func (c *config) setLogFormat(o *options, env environ) error {
	format := cmp.Or(o.logFormat, env.get(EnvLogFormat), "text")
	if !slices.Contains(LogFormats, format) {
		return usagef("environment variable %s: %q is no format: choose from %s", EnvLogFormat, format, strings.Join(LogFormats, ", "))
	}
	c.logJSON = format == "json"
	return nil
}

func (c *config) readTraces(o *options, env environ) (err error) {
	if o.otlp != "" {
		if c.traces, err = otlp.Endpoint(o.otlp, env.get); err != nil {
			return usagef("argument --otlp: %v", err)
		}
		return nil
	}
	if c.traces, err = otlp.FromEnvironment(env.get); err != nil { // it may be for the script alone
		c.traces = otlp.Config{}
		c.warnings = append(c.warnings, fmt.Sprintf("no traces are sent: %v", err))
	}
	return nil
}

// setSignals takes the signals by name; an unknown name is only warned of.
func (c *config) setSignals(o *options) {
	for name := range strings.SplitSeq(o.signals, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		sig := unix.SignalNum(name)
		switch sig {
		case 0:
			c.warnings = append(c.warnings, "Signal "+name+" is not known on this system and is not handled")
		case unix.SIGKILL, unix.SIGSTOP:
			c.warnings = append(c.warnings, "Signal "+name+" cannot be handled by any program")
		default:
			c.signals = append(c.signals, sig)
		}
	}
}

func (c *config) setEnviron(o *options, env environ) {
	for _, entry := range env {
		switch name, _, _ := strings.Cut(entry, "="); name {
		case envInterpreter, envAsModule, envDebugger, envSignals:
		default:
			c.spec.Environ = append(c.spec.Environ, entry)
		}
	}
	c.spec.Environ = append(c.spec.Environ, envSignals+"="+o.signals)
	if _, given := env.lookup("OMP_NUM_THREADS"); !given && c.spec.Workers > 1 {
		c.spec.Environ = append(c.spec.Environ, "OMP_NUM_THREADS=1")
		c.oneThread = true
	}
}

const envSignals = "TORCHELASTIC_SIGNALS_TO_HANDLE"

func parseNodes(text string) (least, most int, err error) {
	first, second, ranged := strings.Cut(text, ":")
	least, err1 := strconv.Atoi(strings.TrimSpace(first))
	most, err2 := least, error(nil)
	if ranged {
		most, err2 = strconv.Atoi(strings.TrimSpace(second))
	}
	switch {
	case err1 != nil || err2 != nil:
		return 0, 0, usagef("argument --nnodes: %q is not a number of nodes N or a range MIN:MAX", text)
	case least < 1 || most < least:
		return 0, 0, usagef("argument --nnodes: min_nodes must be > 0 and <= max_nodes, got %q", text)
	case most > rendezvous.MaxNodes:
		return 0, 0, usagef("argument --nnodes: %d nodes are more than this version takes (%d)", most, rendezvous.MaxNodes)
	}
	return least, most, nil
}

func parseConf(text string) (map[string]string, error) {
	conf := make(map[string]string)
	if strings.TrimSpace(text) == "" {
		return conf, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(item, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case key == "":
			return nil, usagef("argument --rdzv-conf: %q is not in the format <key1>=<value1>,<key2>=<value2>,...", text)
		case value == "":
			return nil, usagef("argument --rdzv-conf: The rendezvous configuration option '%s' must have a value specified.", key)
		}
		conf[key] = value
	}
	return conf, nil
}
