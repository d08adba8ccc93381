package backend

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"rallypoint/agent/logs"
	"rallypoint/agent/question"
	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/wording"
)

// logsSchema is the version of Logs. Fields are only added to it.
const logsSchema = 1

// The ranks to ask about, other than a single one.
const (
	LogsAll     = -1
	LogsCulprit = -2 // of the worker that failed first, in the last round in which one has
)

// Logs is the last output of a run's workers. Lists are never nil.
type Logs struct {
	Schema  int          `json:"schema"`
	RunID   string       `json:"run_id"`
	Round   uint64       `json:"round"`   // in which it was written
	Nodes   int          `json:"nodes"`   // of the round that runs
	Failure string       `json:"failure"` // of the worker that failed first, if that was asked for
	Silent  []SilentNode `json:"silent"`  // nodes that did not answer
	Streams []LogStream  `json:"streams"` // by rank
}

// LogStream is the end of one stream. Texts are fit for a terminal.
type LogStream struct {
	Ranks  []int  `json:"ranks"` // several: they write into one file
	Node   string `json:"node"`
	Host   string `json:"host"`
	Stream string `json:"stream"` // stdout, stderr, or output for both in one
	Before int64  `json:"before"` // bytes of the stream that came before
	Text   string `json:"text"`
	Why    string `json:"why"` // nothing is known of it; "" if it is
}

// Bounds of an answer, and how long agents are waited for.
const (
	maxLogs      = 4 << 20 // of a job, in bytes
	minLogs      = 4 << 10 // of a node
	maxLogNodes  = 1024    // of which all may be asked
	logsPatience = 2 * time.Second
)

// Logs asks the agents of the run for the last output of its workers; see AskLogs.
func (a Admin) Logs(ctx context.Context, rank int) (*Logs, error) {
	run, err := a.Status(ctx)
	if err != nil {
		return nil, err
	}
	return AskLogs(ctx, run, a.Token, rank)
}

// AskLogs asks the agents of a run's round for the last output of its workers, of one rank or as
// LogsAll says. It names nodes that have not answered after logsPatience. See openRound.
func AskLogs(ctx context.Context, run *control.RunStatus, token *secret.Token, rank int) (*Logs, error) {
	r, _, stop, err := askLogs(ctx, run, token, rank, false)
	if err != nil {
		return nil, err
	}
	stop()
	return r, nil
}

// askLogs asks, and returns the parts that follow where it was asked for them.
func askLogs(ctx context.Context, run *control.RunStatus, token *secret.Token, rank int, follow bool) (r *Logs, parts question.Parts, stop func(), err error) {
	nodes := len(run.Members)
	switch {
	case rank < LogsCulprit:
		return nil, parts, nil, rendezvous.Errorf(rendezvous.CodeInvalid, "there is no rank %d", rank)
	case rank == LogsAll && nodes > maxLogNodes:
		return nil, parts, nil, rendezvous.Errorf(rendezvous.CodeInvalid, "run %q has %d nodes, the output of all ranks is shown of %d at most: ask for one rank", run.RunID, nodes, maxLogNodes)
	}
	s, stop, err := openRound(ctx, run, token)
	if err != nil {
		return nil, parts, nil, err
	}
	q := logs.Request{Rank: rank, Culprit: rank == LogsCulprit, Follow: follow, Bytes: max(minLogs, maxLogs/max(nodes, 1))}
	if rank >= 0 {
		q.Bytes = 2 * logs.Kept
	}
	limited, cancel := context.WithTimeout(ctx, logsPatience)
	defer cancel()
	number, answers, err := logs.Ask(limited, s, nodes, q, cleanup)
	if err == nil {
		r, err = newLogs(run, answers, rank)
	} else {
		err = notAsked(run, err)
	}
	if err != nil {
		stop()
		return nil, parts, nil, err
	}
	return r, question.PartsOf(s, number), stop, nil
}

// newLogs makes one answer of those of the nodes.
func newLogs(run *control.RunStatus, answers []*logs.Node, rank int) (*Logs, error) {
	r := &Logs{Schema: logsSchema, RunID: run.RunID, Round: run.Round, Nodes: len(run.Members), Silent: []SilentNode{}, Streams: []LogStream{}}
	if rank == LogsCulprit {
		r.Round = 0
		for _, n := range answers {
			if n != nil {
				r.Round = max(r.Round, n.Round)
			}
		}
	}
	first, last, known := math.MaxInt, -1, false
	for i, n := range answers {
		m := run.Members[i]
		switch {
		case n == nil:
			r.Silent = append(r.Silent, SilentNode{m.Rank, m.Node, m.Label})
			continue
		case n.Parts == nil:
			return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the agent of node %s is too old to show its workers' output", m.Label)
		case n.Refused != "":
			return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "node %s refuses: %s", m.Label, n.Refused)
		}
		first, last = min(first, n.First), max(last, n.First+n.Workers-1)
		known = known || rank >= n.First && rank < n.First+n.Workers
		if rank != LogsCulprit || n.Round == r.Round && n.Round > 0 {
			r.Failure = n.Failure
			r.add(run, i, n)
		}
	}
	slices.SortStableFunc(r.Streams, func(a, b LogStream) int { return cmp.Compare(a.Ranks[0], b.Ranks[0]) })
	switch {
	case rank >= 0 && last < first:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "no node of run %q has answered, so rank %d was not found%s", run.RunID, rank, r.silence())
	case rank >= 0 && !known:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "run %q has no rank %d: ranks %d to %d have answered%s", run.RunID, rank, first, last, r.silence())
	case rank == LogsCulprit && r.Round == 0:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "no worker of the nodes of run %q is known to have failed%s%s", run.RunID, r.silence(), stalledHint(run))
	case rank == LogsCulprit && run.LastFailure != nil && r.Round < run.LastFailure.Round:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the node whose worker failed first in round %d of run %q has left, so what the worker wrote is not available%s", run.LastFailure.Round, run.RunID, r.silence())
	}
	return r, nil
}

func (l *Logs) add(run *control.RunStatus, group int, n *logs.Node) {
	for _, p := range n.Parts {
		l.Streams = append(l.Streams, LogStream{p.Ranks, run.Members[group].Node, n.Host, p.Stream, p.At, logs.Text(p.Text), p.Why})
	}
}

func (l *Logs) silence() string {
	var labels []string
	for _, n := range l.Silent {
		labels = append(labels, n.Label)
	}
	if len(labels) == 0 {
		return ""
	}
	return fmt.Sprintf("; %s did not answer within %v", wording.Names(labels), logsPatience)
}

// stalledHint names the ranks to ask about in a job that hangs, where no worker has
// failed.
func stalledHint(run *control.RunStatus) string {
	if run.Stalled == "" {
		return ""
	}
	return "; the run has stalled (" + run.Stalled + "): name one of these ranks by --rank"
}
