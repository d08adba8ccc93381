// Package prove has the nodes of a small job misbehave on the user's own script, on this machine,
// and measures for how long the job stands.
package prove

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"rallypoint/internal/wording"
)

// A Scenario is one way in which a node misbehaves.
type Scenario struct {
	Name string
	What string // is done to the job

	least, most int   // nodes, as --nnodes takes them
	begin       int   // nodes that are started at first
	here        []int // the nodes that must have workers afterwards
	undisturbed bool  // these workers are the ones from before
	bySteps     bool  // it is seen by the steps that workers report
	apart       bool  // each node is on a machine of its own, as far as the network goes
	options     []string
	harm        func(j *job) error
}

// Scenarios are all scenarios, in the order in which they run.
var Scenarios = []Scenario{
	{Name: "worker-crash", What: "a worker is killed", least: 2, most: 2, begin: 2, here: []int{0, 1},
		harm: func(j *job) error { return j.signalWorkers(1, kill) }},
	{Name: "agent-kill", What: "a node's agent is killed; the other one continues", least: 1, most: 2, begin: 2, here: []int{0},
		harm: func(j *job) error { return j.signal(1, kill) }},
	{Name: "leader-kill", What: "the agent at the endpoint is killed; two nodes continue", least: 2, most: 3, begin: 3, here: []int{1, 2},
		harm: func(j *job) error { return j.signal(0, kill) }},
	{Name: "newcomer", What: "a third node joins a job of two to three", least: 2, most: 3, begin: 2, here: []int{0, 1, 2},
		harm: func(j *job) error { return j.start(2) }},
	{Name: "one-too-many", What: "a third node comes to a job of two, which must not notice", least: 2, most: 2, begin: 2, here: []int{0, 1}, undisturbed: true,
		harm: func(j *job) error { return j.start(2) }},
	{Name: "late-node", What: "the second of two nodes is late", least: 2, most: 2, begin: 1, here: []int{0, 1},
		harm: func(j *job) error { return j.start(1) }},
	{Name: "hang", What: "a worker is stopped with SIGSTOP and stays so", least: 2, most: 2, begin: 2, here: []int{0, 1},
		bySteps: true,
		options: []string{"--hang-timeout=5", "--on-hang=restart", "--shutdown-timeout=3"},
		harm:    func(j *job) error { return j.signalWorkers(1, stop) }},
	{Name: "slow-end", What: "a node is asked to end with SIGTERM; the other one continues", least: 1, most: 2, begin: 2, here: []int{0},
		harm: func(j *job) error { return j.signal(1, term) }},
	{Name: "lost-network", What: "a node loses its network; the other one continues", least: 1, most: 2, begin: 2, here: []int{0}, apart: true,
		harm: func(j *job) error { return j.network.unplug(1) }},
}

func (s *Scenario) address(node int) string {
	if s.apart {
		return net.IP(machineAddress(node)).String()
	}
	return "127.0.0.1"
}

// Find returns the scenarios of these names, in their order.
func Find(names []string) ([]Scenario, error) {
	var found []Scenario
	for _, s := range Scenarios {
		if slices.Contains(names, s.Name) {
			found = append(found, s)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(found, func(s Scenario) bool { return s.Name == name }) {
			return nil, fmt.Errorf("there is no scenario %q: %s", name, strings.Join(Names(), ", "))
		}
	}
	return found, nil
}

// Names are the names of all scenarios.
func Names() (names []string) {
	for _, s := range Scenarios {
		names = append(names, s.Name)
	}
	return names
}

// worker is one process of the script, known by its number and its start.
type worker struct {
	pid   int
	start uint64 // in ticks since the machine was started
	world int    // WORLD_SIZE
}

// seen is what is seen of a job at one time: the workers of each node, and how its launcher ended.
type seen struct {
	workers map[int][]worker
	ended   map[int]int // exit codes by node; -1: by a signal
}

// An Outcome is how one scenario went.
type Outcome string

// The outcomes.
const (
	Survived Outcome = "survived"
	Failed   Outcome = "failed"
	Unknown  Outcome = "unknown" // it could not be tried
)

// watch judges a job after it was harmed, from one sight of it after the other.
type watch struct {
	scenario Scenario
	procs    int // workers of a node
	settle   time.Duration
	limit    time.Duration
	before   seen // of the harm

	good  []worker // that have run since; nil: none do as they must
	since time.Duration
}

type verdict struct {
	outcome Outcome
	lost    time.Duration // without the workers that must run; valid if timed
	timed   bool
	text    string
	node    int // whose output tells more; -1: none
}

// look takes a sight of the job, at a time after the harm; nil: it is not decided.
func (w *watch) look(now seen, after time.Duration) *verdict {
	done := 0
	for _, i := range w.scenario.here {
		if code, ended := now.ended[i]; ended && code != 0 {
			return &verdict{outcome: Failed, text: fmt.Sprintf("node %d ended with %s", i, exitText(code)), node: i}
		} else if ended {
			done++
		}
	}
	if done == len(w.scenario.here) {
		if w.good != nil {
			return w.back()
		}
		return &verdict{outcome: Survived, text: "the script ended successfully", node: -1}
	}
	good := w.asTheyMust(now)
	switch {
	case good == nil && w.scenario.undisturbed && done == 0:
		return &verdict{outcome: Failed, text: "its workers were disturbed", node: w.scenario.here[0]}
	case good == nil:
		w.good = nil
	case w.good == nil || !slices.Equal(w.good, good):
		w.good, w.since = good, after
	}
	switch {
	case w.good != nil && after-w.since >= w.settle:
		return w.back()
	case w.good == nil && after > w.limit:
		return &verdict{outcome: Failed, text: fmt.Sprintf("not within %s: %s", wording.Seconds(w.limit), w.lacking(now)), node: w.scenario.here[0]}
	case after > w.limit+10*w.settle: // they come and go
		return &verdict{outcome: Failed, text: "workers start again and again", node: w.scenario.here[0]}
	}
	return nil
}

func (w *watch) back() *verdict {
	if w.scenario.undisturbed {
		return &verdict{outcome: Survived, timed: true, text: "no worker was disturbed", node: -1}
	}
	return &verdict{outcome: Survived, lost: w.since, timed: true, text: "all run after " + lostText(w.since), node: -1}
}

// asTheyMust returns the workers of all nodes that must have some, if they are new and count each
// other.
func (w *watch) asTheyMust(now seen) (all []worker) {
	for _, i := range w.scenario.here {
		if !w.nodeAsItMust(now, i) {
			return nil
		}
		all = append(all, now.workers[i]...)
	}
	return all
}

func (w *watch) nodeAsItMust(now seen, i int) bool {
	if len(now.workers[i]) != w.procs {
		return false
	}
	for _, x := range now.workers[i] {
		if x.world != w.procs*len(w.scenario.here) || slices.Contains(w.before.workers[i], x) != w.scenario.undisturbed {
			return false
		}
	}
	return true
}

func (w *watch) lacking(now seen) string {
	for _, i := range w.scenario.here {
		if !w.nodeAsItMust(now, i) {
			if len(now.workers[i]) > 0 && slices.Equal(now.workers[i], w.before.workers[i]) {
				return fmt.Sprintf("the workers of node %d are still those from before", i)
			}
			return fmt.Sprintf("node %d has no new workers", i)
		}
	}
	return ""
}

func exitText(code int) string {
	if code < 0 {
		return "a signal"
	}
	return fmt.Sprintf("exit code %d", code)
}

// lostText is a time to a tenth of a second, which is how often a job is looked at.
func lostText(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
