package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"rallypoint/core/rendezvous"
)

// step is a part of a run whose duration is measured (A98).
type step int

const (
	stepRun        step = iota
	stepRendezvous      // joining and the ranks
	stepRanks
	stepInitialize // stepRendezvous and stepStart
	stepStart
	stepMonitor
	stepStop
	stepRestart // from the end of an attempt to the start of the next
	steps
)

// stepNames are the names of the steps: torch's in its metrics, and ours on the health
// port, where steps without one are left out.
var stepNames = [steps]struct{ torch, label string }{
	stepRun:        {"SimpleElasticAgent.run", ""},
	stepRendezvous: {"SimpleElasticAgent._rendezvous", "rendezvous"},
	stepRanks:      {"SimpleElasticAgent._assign_worker_ranks", "assign_ranks"},
	stepInitialize: {"SimpleElasticAgent._initialize_workers", "initialize"},
	stepStart:      {"LocalElasticAgent._start_workers", "start"},
	stepMonitor:    {"LocalElasticAgent._monitor_workers", ""},
	stepStop:       {"LocalElasticAgent._stop_workers", "stop"},
	stepRestart:    {"SimpleElasticAgent._restart_workers", "restart"},
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

// measure hands a number to the sink of metrics, if there is one.
func (a *Agent) measure(name string, value int64) {
	if a.spec.Metrics == nil {
		return
	}
	now := float64(time.Now().UnixMicro()) / 1e6
	if text, err := json.Marshal(metric{now, metricGroup, name, value}); err == nil {
		a.spec.Metrics.Record(text)
	}
}

// measureRole is measure for a number that torch names after the workers' role.
func (a *Agent) measureRole(name string, value int64) {
	a.measure(fmt.Sprintf("workers.%s.%s", a.spec.Role, name), value)
}

// stepped notes the end of a step, and whether it failed.
func (a *Agent) stepped(s step, began time.Time, err error) {
	took := time.Since(began)
	a.tracker.stepped(s, took, err != nil)
	outcome := ".success"
	if err != nil {
		outcome = ".failure"
	}
	a.measure(stepNames[s].torch+outcome, 1)
	a.measure(stepNames[s].torch+".duration.ms", took.Milliseconds())
}

// States of the workers as a look at them finds them.
const (
	stateHealthy   = "HEALTHY"
	stateUnhealthy = "UNHEALTHY"
	stateSucceeded = "SUCCEEDED"
	stateFailed    = "FAILED"
)

// verdictStates are the states that end an attempt; an interrupt is no look.
var outcomeStates = map[outcome]string{
	allSucceeded: stateSucceeded, someFailed: stateFailed, mustRegroup: stateHealthy, unkillable: stateUnhealthy,
}

// looked measures what torch's agent does at each look at its workers.
func (a *Agent) looked(state string) {
	if state == "" || a.spec.Metrics == nil {
		return
	}
	a.stepped(stepMonitor, time.Now(), nil)
	a.measureRole("remaining_restarts", int64(a.spec.MaxRestarts-a.restarts))
	a.measureRole(strings.ToLower(state), 1)
}

// measureEnd measures the end of the run; began is its begin.
func (a *Agent) measureEnd(err error, began time.Time) {
	if failed := new(FailedError); err == nil || errors.As(err, &failed) {
		a.measureResult(err != nil)
		err = nil
	}
	if errors.Is(err, rendezvous.ErrGraceful) {
		err = nil
	}
	a.stepped(stepRun, began, err)
}

// measureResult measures a run whose workers have ended, each number 0 or 1 but for
// the flakiness: the share of the budget that was used, in percent.
func (a *Agent) measureResult(failed bool) {
	budget, left := a.spec.MaxRestarts, a.spec.MaxRestarts-a.restarts
	flakiness := 100
	if !failed {
		flakiness = int(100 - 100*float64(left+1)/float64(budget+1))
	}
	a.measureRole("flakiness", int64(flakiness))
	a.measureRole("run_total", 1)
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
		a.measureRole(kind.name, value)
	}
}
