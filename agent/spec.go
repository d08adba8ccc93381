package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/logs"
	"rallypoint/agent/telemetry"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/promtext"
)

// Defaults of a Spec's durations.
const (
	DefaultMonitorInterval    = 100 * time.Millisecond
	DefaultShutdownTimeout    = 30 * time.Second
	DefaultExitBarrierTimeout = 300 * time.Second
	DefaultDrainTimeout       = 120 * time.Second
	defaultRegroupGrace       = 30 * time.Second

	// maxRestartDelay bounds the growth of RestartDelay; a longer one stays as it is.
	maxRestartDelay = 5 * time.Minute
)

// Spec says what one agent runs. It does not change while the agent runs.
type Spec struct {
	RunID string
	Role  string
	Host  string // name of this node's machine in all texts; "": the kernel's

	// Argv is the command of each worker: a program, looked up in the PATH of
	// Environ, and its arguments, in which macros are replaced.
	Argv     []string
	NoMacros bool // arguments go to the workers as they are

	// Command names what the workers run where Argv does not, in the same words on all nodes of a
	// job: a function and its arguments. "": Argv does.
	Command string

	Workers     int      // on this node, > 0
	Environ     []string // the agent's environment, which the workers inherit
	VirtualRank bool     // each worker is local rank 0 with one GPU

	MaxRestarts int // of the whole job's workers, >= 0
	// RestartWindow makes MaxRestarts the limit for any period of that length, without a limit
	// for the whole run. 0: MaxRestarts is for the whole run.
	RestartWindow time.Duration
	// MaxNoProgress ends the run after that many rounds in a row in which no worker reported a
	// higher step than in the round before (rallypoint.progress). Rounds in which a node could
	// not record steps do not count. 0: never.
	MaxNoProgress int
	// HangTimeout is the time without a step of any worker after which the job counts as hanging.
	// 0 derives it from the time between steps (training.HangDetector), HangOff turns it off.
	// OnHang says what follows. All nodes need the same values.
	HangTimeout time.Duration
	OnHang      OnHang
	// DirectiveSignal is sent to each worker that has been given a directive; 0: none.
	DirectiveSignal unix.Signal
	// OnSignal is what Signal asks the job for, by signal, instead of ending this node's part:
	// save, drain or stop; see ParseOnSignal. The workers have DrainTimeout to save, > 0 then.
	OnSignal     map[unix.Signal]rendezvous.DirectiveKind
	DrainTimeout time.Duration
	// Leave has this node leave the run, by a *FailedError that is Unfit, if its workers keep
	// failing and the others can continue without it; the zero value has it restart them. It takes
	// a rendezvous in which other nodes can take its place.
	Leave LeaveRule
	// Keep has workers that fail end nothing while another worker of the node runs, and a lost node
	// nothing for the others: scripts that repair themselves continue without them. It takes a
	// rendezvous with a fixed number of nodes, and excludes Leave.
	Keep bool
	// Regroup has workers that say so (docs/world-record.md) keep their processes when others of
	// the job are lost or join: they leave the round, and continue in the next one within
	// RegroupGrace, or are replaced. It excludes Keep and Leave.
	Regroup      bool
	RegroupGrace time.Duration // > 0 with Regroup
	// RestartDelay is the pause before the first restart after a failure; it doubles
	// with each further one, up to maxRestartDelay. 0: none.
	RestartDelay time.Duration

	// MonitorInterval is how often Metrics get their numbers, and how often at the most the agent looks
	// for workers that no signal ends; > 0.
	MonitorInterval time.Duration

	// ShutdownTimeout is the grace between a signal to the workers and SIGKILL,
	// whatever the reason; 0 is none.
	ShutdownTimeout time.Duration

	// ExitBarrierTimeout bounds the wait for the other agents after success; 0
	// does not wait.
	ExitBarrierTimeout time.Duration

	// ReportTimeout bounds each message to the other nodes; 0: 5 s.
	ReportTimeout time.Duration

	// LostNodeTimeout bounds the wait for news of a lost node after a failure that
	// the budget does not cover; 0 does not wait. It should be lease_timeout plus
	// reconnect_grace.
	LostNodeTimeout time.Duration

	// Identical says that all agents have this role and as many workers, so that
	// ranks need no exchange. Restart counts are not agreed then.
	Identical bool

	// CPUs are those that each worker may use, by local rank; nil is all of this
	// process, for every worker. See BindCPUs.
	CPUs [][]int

	// Warm has the workers forked from a template that has imported Preload, or, if that is nil,
	// what the script imports at its top, within PreloadTimeout (0: the default). If that is not
	// possible, they start cold, and the log says why. It requires Subreaper, and a Python
	// interpreter in Argv.
	Warm           bool
	Preload        []string
	PreloadTimeout time.Duration

	// CountSteps has torch's optimizers count their steps in workers that report none: Argv is an
	// interpreter of Python (decision 0119).
	CountSteps bool

	// Checks are commands of a shell that examine this node, before it joins and before it joins
	// again after its workers were the first to fail: exit code 1 ends it by an *UnfitError. Each
	// has CheckTimeout.
	Checks       []string
	CheckTimeout time.Duration
	// CheckEvery also repeats them while the workers run and while the node waits for a place; 0:
	// it does not. After two bad results in a row the node asks the job to continue without it,
	// and its workers get DrainTimeout to save. CheckAway is how long the job keeps an unfit node
	// out.
	CheckEvery, CheckAway time.Duration

	// Subreaper makes this process adopt and end the detached descendants of its
	// workers. Only a process may ask for it that starts no other children.
	Subreaper bool

	// KeepDaemons lets processes that workers leave behind run on.
	KeepDaemons bool

	// LoopbackUsers are the users whose processes may query the health port at a loopback
	// address.
	LoopbackUsers params.LoopbackUsers

	// DialStore connects to the store of a round as a worker does, and tries until ctx ends. The
	// agent uses it to answer questions about its workers. With nil nobody can ask.
	DialStore func(ctx context.Context, addr string) (store.Store, error)

	Logs           logs.Spec
	Stdout, Stderr *os.File               // the console, for copied lines; the workers inherit 1 and 2
	Streams        *linequeue.Streams     // their queues, if others write to them, too; nil: the agent makes them
	Events         io.Writer              // of the agent and its workers, see telemetry.Run; nil: none
	RdzvEvents     io.Writer              // of the rendezvous as this node sees it; nil: none
	Metrics        io.Writer              // torch's metrics; nil: none
	Spans          telemetry.Spans        // of the traces of rounds; nil: none
	Expose         func(*promtext.Buffer) // adds to the metrics of the health port; nil: nothing
	Backend        string                 // of the rendezvous, for events

	// Notify receives each step of the run, in order, from the goroutine of Run:
	// it must not block. nil: none.
	Notify func(Event)
}

// Validate reports the first thing that is wrong with the spec.
func (s *Spec) Validate() error {
	switch {
	case len(s.Argv) == 0:
		return fmt.Errorf("there is no command to run")
	case s.Workers < 1:
		return fmt.Errorf("the number of workers on this node is %d, it must be at least 1", s.Workers)
	case s.MaxRestarts < 0:
		return fmt.Errorf("the number of restarts is %d, it must not be negative", s.MaxRestarts)
	case s.RestartWindow < 0:
		return fmt.Errorf("the window of restarts is %v, it must not be negative", s.RestartWindow)
	case s.RestartWindow > 0 && s.MaxRestarts > maxWindowRestarts:
		return fmt.Errorf("the number of restarts in a window is %d, at most %d are possible", s.MaxRestarts, maxWindowRestarts)
	case s.MaxNoProgress < 0:
		return fmt.Errorf("the number of rounds without progress is %d, it must not be negative", s.MaxNoProgress)
	case s.CheckEvery < 0 || len(s.Checks) > 0 && (s.CheckAway <= 0 || s.CheckAway > rendezvous.MaxWithin):
		return fmt.Errorf("a node is checked every %v and kept out for %v, which must be at least 0, and above 0 and at most %v", s.CheckEvery, s.CheckAway, rendezvous.MaxWithin)
	case (len(s.OnSignal) > 0 || s.CheckEvery > 0) && s.DrainTimeout <= 0:
		return fmt.Errorf("the time that on_signal or a check gives the workers to save is %v, it must be greater than 0", s.DrainTimeout)
	case s.Leave.Failures < 0 || s.Leave.Failures > 0 && (s.Leave.Window <= 0 || s.Leave.Window > rendezvous.MaxWithin):
		return fmt.Errorf("a node leaves after %d failures in %v, it must be at least 1 in a time above 0 and at most %v", s.Leave.Failures, s.Leave.Window, rendezvous.MaxWithin)
	case s.Keep && s.Leave.Failures > 0:
		return fmt.Errorf("a node whose workers fail cannot both keep the others and leave")
	case s.Regroup && (s.Keep || s.Leave.Failures > 0 || s.RegroupGrace <= 0):
		return fmt.Errorf("workers regroup within %v, it must be above 0, and neither the others are kept nor the node leaves", s.RegroupGrace)
	case s.MonitorInterval <= 0:
		return fmt.Errorf("the monitor interval is %v, it must be greater than 0", s.MonitorInterval)
	case s.ShutdownTimeout < 0:
		return fmt.Errorf("shutdown_timeout must be non-negative, got %v", s.ShutdownTimeout)
	case s.ExitBarrierTimeout < 0:
		return fmt.Errorf("exit_barrier_timeout must be non-negative, got %v", s.ExitBarrierTimeout)
	case s.CPUs != nil && len(s.CPUs) != s.Workers:
		return fmt.Errorf("there are CPUs for %d workers, but %d workers", len(s.CPUs), s.Workers)
	case s.Logs.Redirects.MaxRank() >= s.Workers || s.Logs.Tee.MaxRank() >= s.Workers:
		return fmt.Errorf("the selection of streams names local rank %d, but there are %d workers (local ranks 0 to %d)",
			max(s.Logs.Redirects.MaxRank(), s.Logs.Tee.MaxRank()), s.Workers, s.Workers-1)
	}
	if s.VirtualRank {
		_, _, err := virtualDevices(s.Environ, s.Workers)
		return err
	}
	return nil
}

// EntryPoint is the name of the command in reports and events: for an
// interpreter the first argument that is no option, else the program.
// interpreter is the program that runs scripts, "" if none does.
func EntryPoint(argv []string, interpreter string) string {
	if argv[0] != interpreter {
		return argv[0]
	}
	for _, arg := range argv[1:] {
		if !strings.HasPrefix(arg, "-") {
			return arg
		}
	}
	return ""
}

// setDefaults gives the agent's own streams, its messages' limit and the workers' CPUs their defaults.
func (s *Spec) setDefaults() {
	if s.CPUs == nil {
		s.CPUs = make([][]int, s.Workers)
	}
	s.ReportTimeout = cmp.Or(s.ReportTimeout, 5*time.Second)
	s.Stdout = cmp.Or(s.Stdout, os.Stdout)
	s.Stderr = cmp.Or(s.Stderr, os.Stderr)
}
