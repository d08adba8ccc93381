// Package run is `rallypoint run` and `rallypoint launch`: it reads torchrun's
// command line and runs the workers of this node until the job has ended.
package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"rallypoint/agent"
	"rallypoint/backend"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/background"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/wording"
	"rallypoint/tcpstore"
)

// execute is `rallypoint run`, or with legacy `rallypoint launch`: it runs the workers of
// this node until the job has ended and returns the exit code. args is what follows
// `run`. It checks the whole command line before its first side effect.
//
// It handles the signals that the command line names, for as long as it runs.
func execute(ctx context.Context, root *cobra.Command, args []string, env []string, legacy bool, stdout, stderr io.Writer) int {
	defer SurviveBrokenPipes()()
	o, err := parseOptions(args, environ(env).lookup, legacy)
	if err == nil && o.help {
		_, _ = io.WriteString(stdout, helpText(legacy))
		return ExitOK
	}
	if err == nil && o.completion != "" {
		text, err := completion(root, o.completion)
		if err == nil {
			_, err = io.WriteString(stdout, text)
		}
		if err != nil {
			return complain(stderr, err, ExitFailure)
		}
		return ExitOK
	}
	streams := linequeue.NewStreams(stdout, stderr)
	defer streams.Flush()
	inFormat := io.Writer(streams.Err) // what is said in the format of the log
	if cmp.Or(o.logFormat, environ(env).get(EnvLogFormat)) == "json" {
		inFormat = records{NewLog(streams.Err, slog.LevelWarn, true)}
	}
	var c *config
	if err == nil {
		c, err = configure(o, environ(env))
	}
	if err == nil {
		err = c.checkScript(o)
	}
	if err != nil {
		return complain(inFormat, err, ExitUsage)
	}
	keepDescriptors()
	collectLater(environ(env))
	log := NewLog(streams.Err, agentLevel(cmp.Or(environ(env).get("LOGLEVEL"), environ(env).get(EnvLogLevel)), c.rendezvous.params.Max > 1), c.logJSON)
	streams.Report(func(text string) { log.Warn(text) })
	if stderr == io.Writer(os.Stderr) { // which the workers' goes to
		c.spec.Streams = streams
	}
	interpreter := defaultInterpreter(env)
	closeEvents, err := c.setEvents(o, interpreter, env, streams.Err, log)
	if err != nil {
		return complain(inFormat, err, ExitUsage)
	}
	defer closeEvents()
	closePlanner, err := c.setPlanner(o, interpreter, env)
	if err != nil {
		return complain(inFormat, err, ExitUsage)
	}
	defer closePlanner()
	defer c.setTraces(log)()
	nameProcess()
	if legacy {
		log.Warn("launch is torch.distributed.launch's old command line; `rallypoint run` is the same with --use-env: scripts read LOCAL_RANK from their environment")
	}
	for _, text := range c.warnings {
		log.Warn(text)
	}
	for _, text := range c.notes {
		log.Debug(text)
	}
	return c.run(ctx, log, inFormat)
}

func (c *config) run(ctx context.Context, log *slog.Logger, stderr io.Writer) int {
	rdzv, err := c.rendezvous.open(log)
	if err != nil {
		return complain(stderr, err, ExitUsage)
	}
	c.spec.DialStore = tcpstore.Connect
	a, err := agent.New(c.spec, c.name, rdzv, log)
	if err != nil {
		return complain(stderr, err, ExitUsage)
	}
	log.Info(c.summary())
	stop := c.handleSignals(a)
	err = a.Run(ctx)
	stop()
	r := a.Result()
	if r.Idle && r.Notice != "" && !log.Enabled(ctx, slog.LevelWarn) { // else the log has it
		fmt.Fprintf(stderr, "rallypoint run: %s\n", r.Notice)
	}
	if err != nil && r.Idle {
		err = fmt.Errorf("no worker ran on this node: %w", err)
	}
	if c.slurmNode != "" {
		drainSlurmNode(ctx, c.slurmNode, unfitReason(err), log)
	}
	return c.exitCode(err, r.Idle, stderr)
}

// nameProcess gives the process the name that torchrun has in ps and top.
func nameProcess() { _ = os.WriteFile("/proc/self/comm", []byte("pt_elastic"), 0) }

// keepDescriptors keeps from the workers the descriptors that this process was started with,
// beyond the standard streams. Linux before 5.11 cannot; execute continues without.
func keepDescriptors() { _ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) }

// collectLater has the collector run from 8 MB on instead of 4, which an agent reaches while its
// job starts, of all times. GOGC, if it is given, decides.
func collectLater(env environ) {
	if env.get("GOGC") == "" {
		debug.SetGCPercent(200)
	}
}

// SurviveBrokenPipes lets a reader of our output go away without ending the job, or the server,
// until the function that it returns is called. SIGPIPE is caught and not ignored:
// workers would inherit that.
func SurviveBrokenPipes() (restore func()) {
	broken := make(chan os.Signal, 1) // never read: one that is full takes no more
	signal.Notify(broken, syscall.SIGPIPE)
	return func() { signal.Stop(broken) }
}

// handleSignals passes the signals on to the agent until the function that it
// returns is called, and tells it when the terminal has another size.
func (c *config) handleSignals(a *agent.Agent) (stop func()) {
	signals, resized := make(chan os.Signal, 4), make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	for sig := range c.spec.OnSignal {
		signal.Notify(signals, sig)
	}
	for _, sig := range c.signals {
		if sig == syscall.SIGHUP && signal.Ignored(sig) {
			continue // started by nohup: a terminal that closes must end nothing
		}
		signal.Notify(signals, sig)
	}
	unfollow := background.Run(context.Background(), func(ctx context.Context) {
		for {
			select {
			case sig := <-signals:
				if n, ok := sig.(syscall.Signal); ok {
					a.Signal(n)
				}
			case <-resized:
				a.Resized()
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		signal.Stop(signals)
		signal.Stop(resized)
		unfollow()
	}
}

func (c *config) summary() string {
	p := &c.rendezvous.params
	nodes := fmt.Sprintf("%d to %d nodes", p.Min, p.Max)
	if p.Min == p.Max {
		nodes = wording.Count(p.Max, "node", "nodes")
	}
	switch c.rendezvous.kind {
	case kindStandalone:
		nodes = "this node alone"
	case kindStatic:
		nodes += fmt.Sprintf(" (static, node 0 at %s, this is node %d)", c.rendezvous.place.Servers(), p.NodeRank)
	default:
		nodes += ", rendezvous at " + p.Endpoint
	}
	text := fmt.Sprintf("run %s on %s: %s, %s here", wording.RunName(p.RunID), p.Machine(), nodes, wording.Count(c.spec.Workers, "worker", "workers"))
	if c.spec.Role != "default" {
		text += ", role " + c.spec.Role
	}
	if c.spec.MaxRestarts > 0 {
		text += ", at most " + restartsText(&c.spec)
	}
	if dir := c.spec.Logs.Dir; dir != "" {
		text += "; logs in " + dir
	}
	if c.oneThread {
		text += "; OMP_NUM_THREADS=1 for each worker, as it is not set"
	}
	argv := c.spec.Argv
	if i := slices.Index(argv, runPathScript); i >= 0 { // leave out its many lines
		argv = slices.Replace(slices.Clone(argv), i-1, i+1)
	}
	return text + ": " + strings.Join(argv, " ")
}

func restartsText(s *agent.Spec) string {
	if s.RestartWindow > 0 {
		return fmt.Sprintf("%s in %v", wording.Count(s.MaxRestarts, "restart", "restarts"), s.RestartWindow)
	}
	return wording.Count(s.MaxRestarts, "restart", "restarts")
}

// exitCode says how the run ended, and its code. idle: no worker was started.
func (c *config) exitCode(err error, idle bool, stderr io.Writer) int {
	var failed *agent.FailedError
	var peer *agent.PeerError
	var stopped *agent.SignalError
	var stuck *agent.NoProgressError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, new(*agent.RequeueError)):
		fmt.Fprintf(stderr, "rallypoint run: %v\n", err)
		return ExitRequeue
	case errors.As(err, new(*agent.UnfitError)), rendezvous.CodeOf(err) == rendezvous.CodeUnfit:
		return complain(stderr, err, ExitUnfit)
	case idle && (rendezvous.CodeOf(err) == rendezvous.CodeMismatch || rendezvous.CodeOf(err) == rendezvous.CodeInvalid):
		return complain(stderr, err, ExitUsage)
	case errors.As(err, &stuck):
		complain(stderr, err, ExitNoProgress)
		if text := stuck.Report(); text != "" {
			fmt.Fprintln(stderr, text)
		}
		return ExitNoProgress
	case errors.As(err, &failed):
		fmt.Fprintln(stderr, failed.Error())
		if failed.Unfit {
			return ExitUnfit
		}
	case errors.As(err, &peer):
		if text := peer.Report(); text != "" { // which says more than who closed the run
			fmt.Fprintln(stderr, text)
			break
		}
		complain(stderr, err, ExitFailure)
	case errors.As(err, &stopped):
		fmt.Fprintf(stderr, "rallypoint run: %v\n", err)
		if c.signalExit {
			return 128 + int(stopped.Signal)
		}
	default:
		complain(stderr, err, ExitFailure)
	}
	return ExitFailure
}

const complaint = "rallypoint run: error: "

func complain(stderr io.Writer, err error, code int) int {
	fmt.Fprintf(stderr, "%s%v\n", complaint, err)
	return code
}

func (r *rendezvousConfig) open(log *slog.Logger) (agent.Rendezvous, error) {
	p := r.params
	p.Supervised = true
	if r.kind == kindStandalone {
		return backend.OpenStandalone(p, log)
	}
	return r.place.Open(p, log)
}
