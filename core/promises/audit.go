package promises

import (
	"bufio"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// Audit is what was found in a history of many runs.
type Audit struct {
	runs map[string]*audited
	ids  []string // in the order of their beginning
}

// audited is one run of a history.
type audited struct {
	judge      *Judge
	last       uint64 // number of the last event
	generation string // of the machine that the judge follows
	events     int
	digests    []uint64 // of the events since the machine's beginning, and what was done at them
	unjudged   string   // why it was not judged any further; "": it was
}

// Read reads a history to its end and judges every run in it. A torn line is passed
// over where a kill leaves one: at the end, or before another process goes on. The
// error says which line cannot be read.
func Read(history io.Reader) (*Audit, error) {
	a := &Audit{}
	var torn error
	lines := bufio.NewScanner(history)
	lines.Buffer(nil, 2*trace.MaxRecord)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		rec, err := trace.Decode(lines.Bytes())
		if torn != nil && (err != nil || rec.State == nil) {
			return a, torn
		}
		torn = nil
		if err != nil {
			torn = fmt.Errorf("line %d: %w", n, err)
			continue
		}
		a.Add(rec)
	}
	return a, lines.Err()
}

// Add judges the next record.
func (a *Audit) Add(rec trace.Record) {
	if a.runs == nil {
		a.runs = map[string]*audited{}
	}
	run := a.runs[rec.Run]
	if run == nil {
		run = &audited{judge: New(rec.Run)}
		if rec.Number > 0 || rec.State == nil {
			run.unjudged = fmt.Sprintf("its history begins with event %d", rec.Number)
		}
		a.runs[rec.Run] = run
		a.ids = append(a.ids, rec.Run)
	}
	run.add(rec)
}

func (run *audited) add(rec trace.Record) {
	if run.unjudged != "" {
		return
	}
	switch {
	case rec.State != nil:
		run.begin(rec)
	case rec.Aside && rec.Number == run.last && rec.Event != nil:
		run.judge.Answered(rec.Event, rec.Effects)
	case rec.Aside:
		// An answer that was too large, or is recorded again.
	case rec.Number <= run.last:
		run.again(rec)
	case rec.Number > run.last+1:
		run.unjudged = fmt.Sprintf("events %d to %d are missing", run.last+1, rec.Number-1)
	case rec.TooLarge > 0 || rec.Event == nil:
		run.unjudged = fmt.Sprintf("event %d was too large to be recorded (%d bytes)", rec.Number, rec.TooLarge)
	default:
		run.last = rec.Number
		run.events++
		run.digests = append(run.digests, digest(rec))
		if rec.Seconds > 0 {
			run.judge.At(seconds(rec.Seconds), seconds(rec.Slack), rec.Event)
		}
		run.judge.Apply(rec.Event, rec.Effects)
	}
}

// again judges an event that was recorded before, by a process that was killed since or
// by another one that folds the same log: both must have had the same, and done the
// same at it.
func (run *audited) again(rec trace.Record) {
	if rec.Number > 0 && rec.TooLarge == 0 && digest(rec) != run.digests[rec.Number-1] {
		run.judge.breach(10, "event %d is recorded twice, in two ways; again: %+v, effects: %+v", rec.Number, rec.Event, rec.Effects)
	}
}

var digestSeed = maphash.MakeSeed()

// digest tells events, and what was done at them in whatever order, apart. It does not
// put values into words: they may be large.
func digest(rec trace.Record) (sum uint64) {
	for _, e := range rec.Effects {
		var h maphash.Hash
		h.SetSeed(digestSeed)
		reply, ok := e.(r.Reply)
		result, keys := reply.Result.(r.KeyResult)
		if ok && keys {
			fmt.Fprintf(&h, "%s %d %d %v %q", reply.Session, reply.Number, result.Number, result.Ready, result.Keys)
			for _, value := range result.Values {
				fmt.Fprint(&h, len(value))
				h.Write(value)
			}
		} else {
			h.WriteString(text(e))
		}
		sum += h.Sum64()
	}
	event, err := r.EncodeEvent(rec.Event)
	if err != nil {
		event = []byte(err.Error())
	}
	return sum + maphash.Bytes(digestSeed, event)
}

// begin takes up the state of a run that begins, or that a new process goes on
// with.
func (run *audited) begin(rec trace.Record) {
	machine, err := r.Restore(rec.State)
	if err != nil {
		run.unjudged = err.Error()
		return
	}
	generation := machine.Generation()
	switch {
	case generation == run.generation && rec.Number <= run.last:
		run.judge.resume() // the clocks of the new process
		return
	case rec.Number > 0:
		run.unjudged = fmt.Sprintf("events up to %d are missing", rec.Number)
		return
	case run.generation != "":
		run.judge.Restarted()
	}
	run.generation, run.last, run.digests = generation, 0, nil
	run.judge.Replay(machine)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// resume gives timers and leases that run on in a new process their whole time again.
func (j *Judge) resume() {
	for name, t := range j.timers {
		t.set = 0
		j.timers[name] = t
	}
	for _, s := range j.sessions {
		s.heard, s.back = 0, 0
	}
}

// Runs are the ids of the runs, in the order of their beginning.
func (a *Audit) Runs() []string { return slices.Clone(a.ids) }

// Breaches are those of all runs.
func (a *Audit) Breaches() (all []Breach) {
	for _, id := range a.ids {
		all = append(all, a.runs[id].judge.breaches...)
	}
	return all
}

// Kept reports whether there was a run, and every run was judged to its end and
// keeps all promises.
func (a *Audit) Kept() bool {
	return len(a.ids) > 0 && len(a.Unjudged()) == 0 && len(a.Breaches()) == 0
}

// Unjudged are the runs that were not judged to their end, with the reason.
func (a *Audit) Unjudged() map[string]string {
	all := map[string]string{}
	for id, run := range a.runs {
		if run.unjudged != "" {
			all[id] = run.unjudged
		}
	}
	return all
}

// String is the result for people: a line for each run, and one for each breach.
func (a *Audit) String() string {
	var b strings.Builder
	for _, id := range a.ids {
		run := a.runs[id]
		verdict := "all promises hold"
		if n := len(run.judge.breaches); n > 0 {
			verdict = fmt.Sprintf("%d breaches", n)
		}
		if run.unjudged != "" {
			verdict += ", not judged to its end: " + run.unjudged
		}
		fmt.Fprintf(&b, "run %s: %d events, %d rounds: %s\n", id, run.events, run.judge.Rounds(), verdict)
		for _, breach := range run.judge.breaches {
			fmt.Fprintf(&b, "  %s\n", breach)
		}
	}
	return b.String()
}
