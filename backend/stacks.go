package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"rallypoint/agent/stacks"
	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/wording"
	"rallypoint/roundstore"
)

// Stacks asks the agents of the run where its workers are; see AskStacks.
func (a Admin) Stacks(ctx context.Context) (*Stacks, error) {
	run, err := a.Status(ctx)
	if err != nil {
		return nil, err
	}
	return AskStacks(ctx, run, a.Token)
}

// Status returns the status of the run. It blocks until ctx ends at most. Errors: ErrInvalid
// (there is no such run, or there are several), ErrConnection, ErrAuth.
func (a Admin) Status(ctx context.Context) (*control.RunStatus, error) {
	servers := a.At.Servers()
	if servers == "" {
		_, st, err := a.AskLeaders(ctx)
		if err != nil {
			return nil, err
		}
		return OnlyRun(st.Runs, "the run id")
	}
	code, _, body, err := Get(ctx, servers, a.Token, "/status", a.RunID)
	var st control.Status
	var none control.NoRun
	switch {
	case err != nil && rendezvous.CodeOf(err) != rendezvous.CodeInternal:
		return nil, err
	case err != nil:
		return nil, rendezvous.Errorf(rendezvous.CodeConnection, "the control plane at %s cannot be asked: %v", servers, err)
	case code == http.StatusForbidden:
		return nil, rendezvous.Errorf(rendezvous.CodeAuth, "the control plane at %s requires a token", servers)
	case code == http.StatusNotFound && json.Unmarshal(body, &none) == nil && none.Error != "":
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "%s", none.Error)
	case code != http.StatusOK || json.Unmarshal(body, &st) != nil || st.Schema < 1:
		return nil, rendezvous.Errorf(rendezvous.CodeConnection, "the server at %s answers HTTP with code %d, but without a status of run %q", servers, code, runFor(a.RunID, a.Token))
	}
	return OnlyRun(st.Runs, "the run id")
}

// OnlyRun returns the requested run of a status, or the only one. what is the user's name for the
// run's id. Its error is ErrInvalid.
func OnlyRun(runs []control.RunStatus, what string) (*control.RunStatus, error) {
	switch len(runs) {
	case 0:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "there is no run")
	case 1:
		return &runs[0], nil
	}
	var names []string
	for _, r := range runs {
		names = append(names, r.RunID)
	}
	return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "%s is missing: which run? There are %s", what, wording.Names(names))
}

// stacksSchema is the version of Stacks. Fields are only added to it.
const stacksSchema = 1

// Stacks are where the workers of a run are. Lists are never nil.
type Stacks struct {
	Schema  int    `json:"schema"`
	RunID   string `json:"run_id"`
	Round   uint64 `json:"round"`
	Nodes   int    `json:"nodes"`   // of the round
	Ranks   int    `json:"ranks"`   // of which something is known
	Verdict string `json:"verdict"` // in one sentence
	NCCL    string `json:"nccl"`    // what NCCL's own watch says of the ranks, in one sentence; "": it has not answered
	// Suspects are the ranks that stand out; empty: none does.
	Suspects []int        `json:"suspects"`
	Silent   []SilentNode `json:"silent"` // nodes that did not answer
	stacks.Fold
	Workers []WorkerStatus `json:"workers"` // by rank; none of a node of an older release
}

// WorkerStatus is the process of a worker.
type WorkerStatus struct {
	stacks.Process
	Node string `json:"node"`
	Host string `json:"host"`
	Step *int64 `json:"step"` // nil: it has reported none
}

// SilentNode is a node of the round that did not answer.
type SilentNode struct {
	Rank  int    `json:"rank"` // of the node
	Node  string `json:"node"`
	Label string `json:"label"`
}

// cleanup limits the work of an asker after its time is over.
const cleanup = 5 * time.Second

// openRound opens the store of a run's round, through which its agents are asked; stop closes it.
// run is how the run stands. It needs the job's rights: to reach that store and, with a token, to
// know it. Errors: ErrInvalid (no round runs, or its store is not known), ErrConnection, ErrAuth.
func openRound(ctx context.Context, run *control.RunStatus, token *secret.Token) (s store.Store, stop func(), err error) {
	switch {
	case run.Phase != rendezvous.PhaseRunning && run.Phase != rendezvous.PhaseFinishing:
		return nil, nil, rendezvous.Errorf(rendezvous.CodeInvalid, "run %q is %s: no workers run that could be asked", run.RunID, run.Phase)
	case run.RoundStore == "":
		return nil, nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"where the store of round %d of run %q is, is not known: a node or a control plane of an older release has completed the round", run.Round, run.RunID)
	}
	name := secret.StoreName{Run: run.RunID, Generation: run.RoundGeneration, Round: run.Round}
	conn, disconnect, err := roundstore.Connect(ctx, run.RoundStore, name, token)
	if err != nil {
		return nil, nil, err
	}
	return conn, func() {
		_ = conn.Close()
		disconnect()
	}, nil
}

func notAsked(run *control.RunStatus, err error) error {
	return rendezvous.Errorf(rendezvous.CodeConnection, "the agents of run %q could not be asked in the store of round %d at %s: %v", run.RunID, run.Round, run.RoundStore, err)
}

// AskStacks asks the agents of a run's round where their workers are, independently of other
// requests, and returns the answers that have arrived by the end of ctx. See openRound.
func AskStacks(ctx context.Context, run *control.RunStatus, token *secret.Token) (*Stacks, error) {
	s, stop, err := openRound(ctx, run, token)
	if err != nil {
		return nil, err
	}
	defer stop()
	answers, err := stacks.Ask(ctx, s, len(run.Members), stacks.Now, cleanup)
	if err != nil {
		return nil, notAsked(run, err)
	}
	r := &Stacks{Schema: stacksSchema, RunID: run.RunID, Round: run.Round, Nodes: len(run.Members), Silent: []SilentNode{}, Workers: []WorkerStatus{}}
	var folds []stacks.Fold
	for i, f := range answers {
		if f == nil {
			m := run.Members[i]
			r.Silent = append(r.Silent, SilentNode{m.Rank, m.Node, m.Label})
			continue
		}
		folds = append(folds, f.Fold)
		for _, w := range f.Workers {
			worker := WorkerStatus{w, run.Members[i].Node, f.Host, nil}
			if step, ok := f.Steps[w.Rank]; ok {
				worker.Step = &step
			}
			r.Workers = append(r.Workers, worker)
		}
	}
	slices.SortStableFunc(r.Workers, func(a, b WorkerStatus) int { return a.Rank - b.Rank })
	r.Fold = stacks.Join(folds)
	r.Ranks, r.Suspects = r.Fold.Ranks(), r.Fold.Suspects()
	r.Verdict, r.NCCL = r.verdict(), stacks.NCCLText(answers)
	return r, nil
}

func (s *Stacks) verdict() string {
	switch n := len(s.Groups); {
	case n == 0:
		return "no node has answered"
	case n == 1:
		if s.Ranks == 1 {
			return "the only rank: " + s.Groups[0].Where()
		}
		return fmt.Sprintf("all %d ranks are at the same place: %s", s.Ranks, s.Groups[0].Where())
	case len(s.Suspects) == 0:
		return fmt.Sprintf("no outlier: %s in %d groups", wording.Count(s.Ranks, "rank", "ranks"), n)
	}
	first, last := s.Groups[0], s.Groups[len(s.Groups)-1]
	noun := "rank"
	if len(first.Ranks) > 1 {
		noun = "ranks"
	}
	return fmt.Sprintf("%s %s: %s; most ranks (%d of %d): %s", noun, stacks.RankList(first.Ranks), first.Where(), len(last.Ranks), s.Ranks, last.Where())
}
