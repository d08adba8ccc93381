package run

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"rallypoint/agent"
	"rallypoint/agent/process"
)

// options is the command line of `rallypoint run` with defaults and PET_* variables applied. Only
// the types of the values are checked so far (docs/spec/agent.md A1-A5).
type options struct {
	nnodes, nproc                                string
	backend, endpoint, id, conf                  string
	standalone                                   bool
	maxRestarts                                  int
	monitorInterval                              float64
	startMethod, role                            string
	eventHandler, rdzvEventHandler               string
	module, noPython, runPath                    bool
	logDir, redirects, tee, logFormat            string
	prefixTemplate, ranksFilter, jobRanks        string
	foldLogs                                     bool
	outFilters, errFilters                       []string
	nodeRank, segment                            int
	masterAddr                                   string
	masterPort                                   int
	tokenFile, topology, otlp                    string
	localAddr, logsSpecs, numaBinding            string
	signals                                      string
	shutdownTimeout                              int
	virtualRank, slurm, slurmDrain               bool
	completion                                   string
	legacy, useEnv                               bool // torch.distributed.launch's ways
	exitBarrierTimeout, restartDelay             float64
	noMacros, keepDaemons, signalExit, allOfCPUs bool
	help                                         bool

	restartWindow time.Duration // 0: none
	maxNoProgress int

	hangTimeout, onHang string
	onFailure           string

	checks         []string
	checkTimeout   float64
	checkEvery     float64
	checkAway      string
	warm           bool
	autoProgress   bool
	preload        []string
	preloadTimeout float64

	onSignal, directiveSignal string
	drainTimeout              float64

	given map[string]bool // options that the command line or the environment names
	argv  []string        // the script and its arguments
}

// option is one option. Exactly one of the setters is set; on takes no value.
type option struct {
	name    string // with dashes; the spelling with underscores is another name of it
	short   byte
	meta    string // of the value in the help
	choices []string
	group   string
	help    string
	noPET   bool // no PET_ variable
	legacy  bool // only of torch.distributed.launch
	ours    bool // not torchrun's: it cannot be shortened, so that what torchrun takes stays unambiguous

	text   func(*options) *string
	number func(*options) *int
	window func(*options) *time.Duration // of a number: it may be followed by /TIME; nil: it may not
	real   func(*options) *float64
	list   func(*options) *[]string
	each   func(*options) *[]string // of a text that may be given several times
	on     func(*options) *bool
}

// The groups of the help.
const (
	groupJob     = "The job"
	groupNodes   = "The nodes"
	groupScript  = "The script"
	groupOutput  = "Output"
	groupFailure = "Failures and the end"
)

// OptionGroups are those of the help, in order.
var OptionGroups = []string{groupJob, groupNodes, groupScript, groupOutput, groupFailure}

// optionTable has all options. torchrun's rules are argparse's: two spellings,
// any unambiguous prefix, values glued to short options, and everything from the
// first positional on is the script's. Neither pflag nor the standard library
// does the last three, so parseOptions reads the table.
var optionTable = []option{
	{name: "nnodes", group: groupJob, meta: "N|MIN:MAX", help: "number of nodes, or a range (default 1)", text: func(o *options) *string { return &o.nnodes }},
	{name: "nproc-per-node", group: groupJob, meta: "N", help: "workers on this node: a number, auto, cpu, gpu or xpu (default 1)", text: func(o *options) *string { return &o.nproc }},
	{name: "rdzv-id", group: groupJob, meta: "ID", help: "name of the job, the same on all nodes (default none)", text: func(o *options) *string { return &o.id }},
	{name: "role", group: groupJob, meta: "ROLE", help: "role of this node's workers, for log prefixes and ROLE_RANK (default \"default\")", text: func(o *options) *string { return &o.role }},
	{name: "standalone", group: groupJob, help: "a job of this node alone, without an endpoint", on: func(o *options) *bool { return &o.standalone }},

	{name: "rdzv-endpoint", group: groupNodes, meta: "ENDPOINT", help: "rendezvous address: HOST[:PORT] (29400), a list of servers HOST:PORT,HOST:PORT, or a shared file:///DIRECTORY", text: func(o *options) *string { return &o.endpoint }},
	{name: "rdzv-backend", group: groupNodes, meta: "NAME", help: "rallypoint, rallypoint-file, rallypoint-etcd, static, c10d, etcd or etcd-v2", text: func(o *options) *string { return &o.backend }},
	{name: "rdzv-conf", group: groupNodes, meta: "K=V,...", help: "options of the rendezvous, such as join_timeout=600; \"rallypoint help rdzv-conf\" lists them", text: func(o *options) *string { return &o.conf }},
	{name: "node-rank", group: groupNodes, meta: "N", help: "preferred rank of this node; with static its rank", number: func(o *options) *int { return &o.nodeRank }},
	{name: "master-addr", group: groupNodes, meta: "HOST", help: "node 0, if there is no endpoint (default 127.0.0.1)", text: func(o *options) *string { return &o.masterAddr }},
	{name: "master-port", group: groupNodes, meta: "PORT", help: "its port (default 29500)", number: func(o *options) *int { return &o.masterPort }},
	{name: "local-addr", group: groupNodes, meta: "HOST", help: "address by which other nodes reach this one", text: func(o *options) *string { return &o.localAddr }},

	{name: "segment", group: groupNodes, ours: true, meta: "N", help: "keep the ranks of each N consecutive nodes in one --topology domain (default 1)", number: func(o *options) *int { return &o.segment }},
	{name: "topology", group: groupNodes, ours: true, meta: "DOMAIN", help: "rack or NVLink domain of this node", text: func(o *options) *string { return &o.topology }},

	{name: "token-file", group: groupNodes, noPET: true, ours: true, meta: "FILE", help: "token that the control plane and its nodes share (default $RALLYPOINT_TOKEN_FILE)", text: func(o *options) *string { return &o.tokenFile }},

	{name: "check", group: groupNodes, noPET: true, ours: true, meta: "COMMAND", help: "examine this node before it joins, and again if its workers are the first to fail: exit code 1 keeps it out; may be given several times", each: func(o *options) *[]string { return &o.checks }},
	{name: "check-timeout", group: groupNodes, ours: true, meta: "SECONDS", help: "longest time for a check (default 30); the result of a longer one is unknown", real: func(o *options) *float64 { return &o.checkTimeout }},
	{name: "check-every", group: groupNodes, ours: true, meta: "SECONDS", help: "also examine this node at this interval while its workers run or while it waits for a place; it leaves after two bad results in a row (default 0: off)", real: func(o *options) *float64 { return &o.checkEvery }},
	{name: "check-away", group: groupNodes, ours: true, meta: "TIME", help: "how long the job refuses a node that a check found unfit while it took part (default 1h)", text: func(o *options) *string { return &o.checkAway }},

	{name: "slurm", group: groupNodes, noPET: true, ours: true, help: "take endpoint, id, rank and counts from Slurm's variables, unless given", on: func(o *options) *bool { return &o.slurm }},
	{name: "slurm-drain", group: groupNodes, noPET: true, ours: true, help: "with --slurm: ask Slurm to drain this node when it leaves as unfit (code 94); takes an operator's rights", on: func(o *options) *bool { return &o.slurmDrain }},

	{name: "module", short: 'm', group: groupScript, help: "the script is a module, as for python -m", on: func(o *options) *bool { return &o.module }},
	{name: "no-python", group: groupScript, help: "the script is a program, run without an interpreter", on: func(o *options) *bool { return &o.noPython }},
	{name: "run-path", group: groupScript, help: "run the script inside the interpreter: its exceptions are reported without a decorator", on: func(o *options) *bool { return &o.runPath }},
	{name: "start-method", group: groupScript, meta: "METHOD", choices: []string{"spawn", "fork", "forkserver"}, help: "accepted, no effect (default spawn)", text: func(o *options) *string { return &o.startMethod }},
	{name: "virtual-local-rank", group: groupScript, help: "each worker is local rank 0 and sees one GPU", on: func(o *options) *bool { return &o.virtualRank }},
	{name: "numa-binding", group: groupScript, noPET: true, meta: "MODE", choices: process.NUMAModes, help: "bind worker i to CPUs near device i", text: func(o *options) *string { return &o.numaBinding }},
	{name: "use-env", group: groupScript, noPET: true, legacy: true, help: "do not pass --local-rank to the script", on: func(o *options) *bool { return &o.useEnv }},
	{name: "warm", group: groupScript, ours: true, help: "import once and fork the workers (default $" + envWarm + "); if that is not safe, workers start as usual", on: func(o *options) *bool { return &o.warm }},
	{name: "preload", group: groupScript, ours: true, meta: "MODULE,...", help: "modules that --warm imports (default: the script's own top-level imports)", list: func(o *options) *[]string { return &o.preload }},
	{name: "preload-timeout", group: groupScript, ours: true, meta: "SECONDS", help: "longest time for these imports (default 60)", real: func(o *options) *float64 { return &o.preloadTimeout }},
	{name: "auto-progress", group: groupScript, ours: true, help: "count the steps of torch's optimizers in a script that reports none: the default, unless $" + envAutoProgress + " is 0", on: func(o *options) *bool { return &o.autoProgress }},
	{name: "no-macros", group: groupScript, ours: true, help: "do not replace $local_rank and $$ in the script's arguments", on: func(o *options) *bool { return &o.noMacros }},
	{name: "ignore-cpu-quota", group: groupScript, ours: true, help: "--nproc-per-node=cpu ignores the container's CPU quota", on: func(o *options) *bool { return &o.allOfCPUs }},

	{name: "log-dir", group: groupOutput, meta: "DIR", help: "folder of log files (default one in $TMPDIR, else /tmp, removed if empty)", text: func(o *options) *string { return &o.logDir }},
	{name: "redirects", short: 'r', group: groupOutput, meta: "STREAMS", help: "streams to write to files: 0 none, 1 stdout, 2 stderr, 3 both, or RANK:N,... (default 0)", text: func(o *options) *string { return &o.redirects }},
	{name: "tee", short: 't', group: groupOutput, meta: "STREAMS", help: "streams to write to files and to the console, as for -r (default 0)", text: func(o *options) *string { return &o.tee }},
	{name: "log-line-prefix-template", group: groupOutput, meta: "TEXT", help: "prefix of copied lines, with ${role_name} ${local_rank} ${rank} ${hostname}", text: func(o *options) *string { return &o.prefixTemplate }},
	{name: "local-ranks-filter", group: groupOutput, meta: "N,...", help: "local ranks whose output the console shows", text: func(o *options) *string { return &o.ranksFilter }},
	{name: "ranks-filter", group: groupOutput, ours: true, meta: "N,...", help: "ranks of the whole job whose output the console shows", text: func(o *options) *string { return &o.jobRanks }},
	{name: "fold-logs", group: groupOutput, ours: true, help: "merge equal lines of several ranks into one, [0-7] text; digits may differ", on: func(o *options) *bool { return &o.foldLogs }},
	{name: "duplicate-stdout-filters", group: groupOutput, meta: "TEXT,...", help: "copied lines that contain one of the texts also go to one file", list: func(o *options) *[]string { return &o.outFilters }},
	{name: "duplicate-stderr-filters", group: groupOutput, meta: "TEXT,...", help: "the same for stderr", list: func(o *options) *[]string { return &o.errFilters }},
	{name: "event-log-handler", group: groupOutput, meta: "NAME", help: "where events go: null, console, or a handler that torch knows (default null)", text: func(o *options) *string { return &o.eventHandler }},
	{name: "rdzv-event-log-handler", group: groupOutput, ours: true, meta: "NAME", help: "the same for events of the rendezvous, for which torch uses dynamic_rendezvous (default null)", text: func(o *options) *string { return &o.rdzvEventHandler }},
	{name: "otlp", group: groupOutput, ours: true, meta: "URL", help: "send a trace of each round to an OpenTelemetry collector, such as http://HOST:4318 (default $OTEL_EXPORTER_OTLP_ENDPOINT)", text: func(o *options) *string { return &o.otlp }},
	{name: "logs-specs", group: groupOutput, noPET: true, meta: "NAME", help: "plug-in that decides where output goes (entry point of group torchrun.logs_specs)", text: func(o *options) *string { return &o.logsSpecs }},

	{name: "max-restarts", group: groupFailure, meta: "N[/TIME]", help: "restarts allowed after failures: in total, or within a time, such as 10/6h (default 0)", number: func(o *options) *int { return &o.maxRestarts }, window: func(o *options) *time.Duration { return &o.restartWindow }},
	{name: "on-failure", group: groupFailure, ours: true, meta: "restart|regroup[:TIME]|leave[:N[/TIME]]|keep", help: "what a node does when its workers fail: restart the workers of the job; regroup those that can within TIME (30s), and replace the others; leave the job to a spare if they were the first to fail N times within a time, such as leave:2/1h; or keep its other workers running, for scripts that repair themselves (default restart)", text: func(o *options) *string { return &o.onFailure }},
	{name: "max-no-progress", group: groupFailure, ours: true, meta: "N", help: "end with code 93 after N rounds without a higher training step (default 0: never)", number: func(o *options) *int { return &o.maxNoProgress }},
	{name: "hang-timeout", group: groupFailure, ours: true, meta: "auto|SECONDS|off", help: "report a hang, with the place of each worker, after this time without a training step (default auto, at least 60)", text: func(o *options) *string { return &o.hangTimeout }},
	{name: "on-hang", group: groupFailure, ours: true, meta: "WHAT", choices: agent.OnHangNames, help: "reaction to a hang: report it, also log all stacks, or restart the first suspect as if it had failed (default report)", text: func(o *options) *string { return &o.onHang }},
	{name: "restart-delay", group: groupFailure, ours: true, meta: "SECONDS", help: "pause before the first restart, doubled for each further one, up to 5 minutes (default 0)", real: func(o *options) *float64 { return &o.restartDelay }},
	{name: "monitor-interval", group: groupFailure, meta: "SECONDS", help: "how often to check for waiting nodes (default 0.1)", real: func(o *options) *float64 { return &o.monitorInterval }},
	{name: "shutdown-timeout", group: groupFailure, meta: "SECONDS", help: "grace between a signal to the workers and SIGKILL (default 30)", number: func(o *options) *int { return &o.shutdownTimeout }},
	{name: "exit-barrier-timeout", group: groupFailure, ours: true, meta: "SECONDS", help: "longest wait for the other nodes after success (default 300)", real: func(o *options) *float64 { return &o.exitBarrierTimeout }},
	{name: "signals-to-handle", group: groupFailure, meta: "NAME,...", help: "signals forwarded to the workers (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)", text: func(o *options) *string { return &o.signals }},
	{name: "on-signal", group: groupFailure, ours: true, meta: "NAME:WHAT,...", help: "turn a signal into a request to save, drain this node or stop the job, such as USR1:save,TERM:drain", text: func(o *options) *string { return &o.onSignal }},
	{name: "drain-timeout", group: groupFailure, ours: true, meta: "SECONDS", help: "time that --on-signal and --check-every give the workers to save (default 120)", real: func(o *options) *float64 { return &o.drainTimeout }},
	{name: "directive-signal", group: groupFailure, ours: true, meta: "NAME", help: "signal for each worker that should save or stop (default none)", text: func(o *options) *string { return &o.directiveSignal }},
	{name: "signal-exit-code", group: groupFailure, ours: true, help: "exit with 128+N after signal N instead of 1", on: func(o *options) *bool { return &o.signalExit }},
	{name: "keep-daemons", group: groupFailure, ours: true, help: "do not end processes that workers leave behind", on: func(o *options) *bool { return &o.keepDaemons }},
	{name: "log-format", group: groupOutput, ours: true, noPET: true, meta: "FORMAT", choices: LogFormats, help: "format of the agent's own lines (default $" + EnvLogFormat + ", else text)", text: func(o *options) *string { return &o.logFormat }},
	{name: "print-completion", group: groupOutput, noPET: true, meta: "SHELL", choices: completionShells, help: "print a completion script and exit", text: func(o *options) *string { return &o.completion }},
	{name: "help", short: 'h', group: groupOutput, noPET: true, help: "this text", on: func(o *options) *bool { return &o.help }},
}

// unsetNumber is the value of a number that has no default.
const unsetNumber = -1 << 62

func defaultOptions() *options {
	return &options{
		nnodes: "1:1", nproc: "1", backend: "static", id: "none", segment: 1, monitorInterval: 0.1, startMethod: "spawn",
		eventHandler: "null", rdzvEventHandler: "null", role: "default", redirects: "0", tee: "0", masterAddr: "127.0.0.1",
		masterPort: unsetNumber, signals: "SIGTERM,SIGINT,SIGHUP,SIGQUIT", shutdownTimeout: unsetNumber,
		exitBarrierTimeout: unsetNumber, drainTimeout: 120, hangTimeout: "auto", onHang: agent.OnHangNames[agent.HangReport], onFailure: "restart", preloadTimeout: process.DefaultPreloadTimeout.Seconds(),
		checkTimeout: agent.DefaultCheckTimeout.Seconds(), checkAway: "1h", given: make(map[string]bool),
	}
}

// usageError is a mistake on the command line: exit code 2 and its text in one
// line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// parseOptions reads a command line and the PET_ variables below it. getenv reports
// whether a variable is set; legacy is the command line of torch.distributed.launch.
// Errors are *usageError; with one, the options are those that were read before it.
func parseOptions(args []string, getenv func(string) (string, bool), legacy bool) (*options, error) {
	o := defaultOptions()
	o.legacy = legacy
	for i := range optionTable {
		f := &optionTable[i]
		name := f.variable()
		value, set := getenv(name)
		if f.noPET || !set {
			continue
		}
		if err := f.setFromEnvironment(o, name, value); err != nil {
			return o, err
		}
		o.given[f.name] = true
	}
	var err error
	o.argv, err = o.parseArgs(args)
	return o, err
}

const petPrefix = "PET_"

// variable is the name of the variable that has an option's default.
func (op *option) variable() string {
	return petPrefix + strings.ToUpper(strings.ReplaceAll(op.name, "-", "_"))
}

// parseArgs applies the options before the first positional argument and returns the rest.
func (o *options) parseArgs(args []string) (rest []string, err error) {
	for len(args) > 0 {
		arg := args[0]
		switch {
		case arg == "--":
			return args[1:], nil
		case arg == "-" || !strings.HasPrefix(arg, "-") || negativeNumber.MatchString(arg):
			return args, nil
		case strings.HasPrefix(arg, "--"):
			args, err = o.parseLong(args)
		default:
			args, err = o.parseShort(args)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// negativeNumber matches the numbers that argparse accepts as values although they begin with a
// dash.
var negativeNumber = regexp.MustCompile(`^-\d+$|^-\d*\.\d+$`)

func (o *options) parseLong(args []string) (rest []string, err error) {
	name, value, glued := strings.Cut(args[0][2:], "=")
	f, err := findOption(name, o.legacy)
	if err != nil {
		return nil, err
	}
	args = args[1:]
	switch {
	case f.on != nil && glued:
		return nil, usagef("argument --%s: it takes no value, but %q was given", f.name, value)
	case f.on != nil:
	case !glued:
		if value, args, err = takeValue(f, args); err != nil {
			return nil, err
		}
	}
	return args, o.set(f, value)
}

// parseShort reads a cluster such as -m, -r3, -r 3, -mr3 or -r=3.
func (o *options) parseShort(args []string) (rest []string, err error) {
	cluster, args := args[0][1:], args[1:]
	for cluster != "" {
		f := shortOption(cluster[0])
		if f == nil {
			return nil, usagef("unrecognized arguments: -%s%s; see `rallypoint run --help`", cluster, Suggestion(cluster, OptionNames(o.legacy)))
		}
		cluster = cluster[1:]
		if f.on != nil {
			if err := o.set(f, ""); err != nil {
				return nil, err
			}
			continue
		}
		value := strings.TrimPrefix(cluster, "=")
		if cluster == "" {
			if value, args, err = takeValue(f, args); err != nil {
				return nil, err
			}
		}
		return args, o.set(f, value)
	}
	return args, nil
}

func shortOption(letter byte) *option {
	i := slices.IndexFunc(optionTable, func(f option) bool { return f.short != 0 && f.short == letter })
	if i < 0 {
		return nil
	}
	return &optionTable[i]
}

func takeValue(f *option, args []string) (value string, rest []string, err error) {
	if len(args) == 0 || looksLikeOption(args[0]) {
		return "", nil, usagef("argument --%s: expected one argument", f.name)
	}
	return args[0], args[1:], nil
}

func looksLikeOption(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && !negativeNumber.MatchString(arg) && !strings.Contains(arg, " ")
}

// findOption finds an option by either spelling or an unambiguous prefix.
func findOption(name string, legacy bool) (*option, error) {
	var found []*option
	for i := range optionTable {
		f := &optionTable[i]
		other := strings.ReplaceAll(f.name, "-", "_")
		switch {
		case f.legacy && !legacy:
		case name == f.name, name == other:
			return f, nil
		case f.ours || name == "":
		case strings.HasPrefix(f.name, name), strings.HasPrefix(other, name):
			found = append(found, f)
		}
	}
	switch len(found) {
	case 0:
		return nil, usagef("unrecognized arguments: --%s%s; see `rallypoint run --help`", name, Suggestion(name, OptionNames(legacy)))
	case 1:
		return found[0], nil
	}
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = "--" + f.name
	}
	return nil, usagef("ambiguous option: --%s could match %s", name, strings.Join(names, ", "))
}

func (o *options) set(f *option, value string) error {
	o.given[f.name] = true
	if f.on != nil {
		*f.on(o) = true
		return nil
	}
	if f.choices != nil && !slices.Contains(f.choices, value) {
		return usagef("argument --%s: invalid choice: %q (choose from %s)", f.name, value, strings.Join(f.choices, ", "))
	}
	if expected := f.convert(o, value); expected != "" {
		return usagef("argument --%s: invalid %s value: %q", f.name, expected, value)
	}
	return nil
}

func (op *option) setFromEnvironment(o *options, variable, value string) error {
	if op.on != nil {
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil {
			return usagef("environment variable %s: %q is not a number; 1 is on, 0 is off", variable, value)
		}
		*op.on(o) = n != 0
		return nil
	}
	if expected := op.convert(o, value); expected != "" {
		return usagef("environment variable %s: invalid %s value: %q", variable, expected, value)
	}
	return nil
}

// convert sets the option. If the value is wrong, it returns what the option expects.
func (op *option) convert(o *options, value string) (expected string) {
	switch {
	case op.text != nil:
		*op.text(o) = value
	case op.number != nil:
		if number, window, found := strings.Cut(value, "/"); found && op.window != nil {
			d, err := agent.ParseWindow(window)
			if err != nil {
				return "N/TIME (such as 10/6h)"
			}
			value, *op.window(o) = number, d
		} else if op.window != nil {
			*op.window(o) = 0
		}
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
		if err != nil {
			return "int"
		}
		*op.number(o) = int(n)
	case op.real != nil:
		x, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return "float"
		}
		*op.real(o) = x
	case op.list != nil:
		*op.list(o) = splitList(value)
	case op.each != nil:
		*op.each(o) = append(*op.each(o), value)
	}
	return ""
}

// splitList splits at commas; a doubled comma is a comma of an item.
func splitList(text string) []string {
	if text == "" {
		return nil
	}
	const comma = "\x00"
	items := strings.Split(strings.ReplaceAll(text, ",,", comma), ",")
	for i := range items {
		items[i] = strings.ReplaceAll(items[i], comma, ",")
	}
	return items
}
