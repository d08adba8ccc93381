package telemetry

import (
	"fmt"
	"strings"
	"time"
)

// Step is a part of a run whose duration is measured.
type Step int

const (
	StepRun        Step = iota
	StepRendezvous      // joining and the ranks
	StepRanks
	StepInitialize // StepRendezvous and StepStart
	StepStart
	StepMonitor
	StepStop
	StepRestart // from the end of an attempt to the start of the next
	steps
)

// stepNames are the names of the steps: torch's in its metrics, and ours on the health
// port, where steps without one are left out.
var stepNames = [steps]struct{ torch, label string }{
	StepRun:        {"SimpleElasticAgent.run", ""},
	StepRendezvous: {"SimpleElasticAgent._rendezvous", "rendezvous"},
	StepRanks:      {"SimpleElasticAgent._assign_worker_ranks", "assign_ranks"},
	StepInitialize: {"SimpleElasticAgent._initialize_workers", "initialize"},
	StepStart:      {"LocalElasticAgent._start_workers", "start"},
	StepMonitor:    {"LocalElasticAgent._monitor_workers", ""},
	StepStop:       {"LocalElasticAgent._stop_workers", "stop"},
	StepRestart:    {"SimpleElasticAgent._restart_workers", "restart"},
}

// metricGroup is that of all metrics of torch's agent.
const metricGroup = "torchelastic"

// metric is one number as it is written: torch's MetricData.
type metric struct {
	Timestamp float64 `json:"timestamp"` // seconds since 1970
	Group     string  `json:"group_name"`
	Name      string  `json:"name"`
	Value     int64   `json:"value"`
}

// metrics hands torch's metrics to a sink.
type metrics struct{ run *Run }

// Take implements Consumer.
func (me *metrics) Take(s State, message Message) {
	switch m := message.(type) {
	case StepDone:
		me.step(m)
	case Monitored:
		me.step(StepDone{Step: StepMonitor})
		me.role("remaining_restarts", int64(me.run.remaining(s)))
		me.role(strings.ToLower(m.State), 1)
	case Measured:
		me.result(s, m.Failed)
	}
}

func (me *metrics) record(name string, value int64) {
	now := float64(time.Now().UnixMicro()) / 1e6
	writeLine(me.run.Metrics, metric{now, metricGroup, name, value})
}

// role is record for a number that torch names after the workers' role.
func (me *metrics) role(name string, value int64) {
	me.record(fmt.Sprintf("workers.%s.%s", me.run.Role, name), value)
}

func (me *metrics) step(m StepDone) {
	outcome := ".success"
	if m.Err != nil {
		outcome = ".failure"
	}
	me.record(stepNames[m.Step].torch+outcome, 1)
	me.record(stepNames[m.Step].torch+".duration.ms", m.Took.Milliseconds())
}

// States of the workers as a look at them finds them.
const (
	StateHealthy   = "HEALTHY"
	StateUnhealthy = "UNHEALTHY"
	StateSucceeded = "SUCCEEDED"
	StateFailed    = "FAILED"
)

// result measures a run whose workers have exited. Each number is 0 or 1, except the flakiness,
// which is the used share of the budget in percent.
func (me *metrics) result(s State, failed bool) {
	budget, left := me.run.MaxRestarts, me.run.remaining(s)
	flakiness := 100
	if !failed {
		flakiness = int(100 - 100*float64(left+1)/float64(budget+1))
	}
	me.role("flakiness", int64(flakiness))
	me.role("run_total", 1)
	for _, kind := range []struct {
		name          string
		failed, again bool
	}{
		{"run_success_with_retries", false, true},
		{"run_success_no_retries", false, false},
		{"run_failed_with_retries", true, true},
		{"run_failed_no_retries", true, false},
	} {
		value := int64(0)
		if kind.failed == failed && kind.again == (left != budget) {
			value = 1
		}
		me.role(kind.name, value)
	}
}
