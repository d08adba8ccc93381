// Package training has the nodes' reports about their workers' training steps: one node's report,
// which its heartbeats carry, and the summary of all nodes' reports. docs/progress.md defines the
// words.
package training

import (
	"time"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// Report is how far the workers of one node have come in one round. Ages are of the
// moment at which the report was made.
type Report struct {
	Round     uint64
	Workers   int // of the node
	Reporting int // of these, those that have reported a step in this round and run on; 0 only with Stalled, Failed, Suspect or Failure

	Smallest, Largest int64 // steps of the workers that report; 0 or more

	SinceFirst   time.Duration // since the first step of the round was reported
	SinceChange  time.Duration // since the last time that any worker's step changed
	SinceSlowest time.Duration // the same, of the workers that are at Smallest

	PerStep time.Duration // of the last steps; 0: not known
	Gap     time.Duration // from the last change in this node's round before to the first in this one; 0: not known

	// Stalled says that the job makes no step any more, and where its workers are; "": it does,
	// as far as is known. Such a report may be of workers that have reported no step.
	Stalled string

	// Counted says that the workers have reported no step: theirs are those that torch's optimizers
	// have made since the workers' start.
	Counted bool

	// Failed is how many workers have failed, while the others of the node run on.
	Failed int

	// Waits is how much of their time the workers wait for other ranks.
	Waits Waits

	// Suspect says what a check of the node has found, and why the node stays nevertheless; "" if
	// nothing.
	Suspect string

	// Failure is the last one that has ended a round of the job; its Round is 0 if there was none, or
	// if it is another node that reports it. Such a report may say nothing of steps.
	Failure Failure
}

// Failure is that workers of a job have failed.
type Failure struct {
	Round uint64
	Age   time.Duration
	Text  string // human-readable: which worker, and why
}

// valid reports whether the report can be true: a peer may send anything.
func (r *Report) valid() bool {
	return r.Round > 0 && (r.Reporting >= 1 || r.Reporting == 0 && (r.Stalled != "" || r.Failed > 0 || r.Suspect != "" || r.Failure.Round > 0)) && r.Failed >= 0 && r.Failed <= r.Workers-r.Reporting && r.Workers >= r.Reporting && r.Workers <= maxWorkers &&
		r.Smallest >= 0 && r.Largest >= r.Smallest &&
		plausible(r.SinceFirst) && plausible(r.SinceChange) && plausible(r.SinceSlowest) && plausible(r.PerStep) && plausible(r.Gap) && plausible(r.Failure.Age) && r.Waits.valid()
}

// Limits of a report's fields.
const (
	maxWorkers = 1 << 20
	maxAge     = 100 * 365 * 24 * time.Hour
	maxStalled = 512
	maxFailure = 512
)

func plausible(d time.Duration) bool { return d >= 0 && d <= maxAge }

// fields is how many values a report has; append-only.
const fields = 18

// Pack writes a report as a list, an empty one for nil.
func Pack(p *pack.Packer, r *Report) {
	if r == nil {
		p.List(0)
		return
	}
	p.List(fields)
	p.Uint(r.Round)
	p.Int(r.Workers)
	p.Int(r.Reporting)
	p.Int64(r.Smallest)
	p.Int64(r.Largest)
	for _, d := range []time.Duration{r.SinceFirst, r.SinceChange, r.SinceSlowest, r.PerStep, r.Gap} {
		p.Duration(d)
	}
	p.Cut(r.Stalled, maxStalled)
	p.Bool(r.Counted)
	p.Int(r.Failed)
	r.Waits.pack(p)
	p.Uint(r.Failure.Round)
	p.Duration(r.Failure.Age)
	p.Cut(r.Failure.Text, maxFailure)
	p.Cut(r.Suspect, maxStalled)
}

// Unpack decodes the result of Pack; nil if there is no report, or an invalid one.
func Unpack(u *pack.Unpacker) *Report {
	if u.Open() == 0 {
		u.Close()
		return nil
	}
	r := &Report{
		Round: u.Uint(), Workers: u.Int(), Reporting: u.Int(), Smallest: u.Int64(), Largest: u.Int64(),
		SinceFirst: u.Duration(), SinceChange: u.Duration(), SinceSlowest: u.Duration(), PerStep: u.Duration(), Gap: u.Duration(),
	}
	r.Stalled = printable.Text(u.Text(maxStalled))
	r.Counted, r.Failed = u.Bool(), u.Int()
	r.Waits = unpackWaits(u)
	r.Failure = Failure{u.Uint(), u.Duration(), printable.Text(u.Text(maxFailure))}
	r.Suspect = printable.Text(u.Text(maxStalled))
	u.Close()
	if u.Err() != nil || !r.valid() {
		return nil
	}
	return r
}
