package telemetry

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/internal/host"
	"rallypoint/internal/otlp"
	"rallypoint/internal/uuid"
)

// Spans takes the spans of a run's traces. It must not wait.
type Spans interface{ Record(otlp.Span) }

// TraceResource is what an agent's traces say of its process.
func TraceResource(machine string) []otlp.Attribute {
	return []otlp.Attribute{
		{Key: "service.instance.id", Value: uuid.New()}, {Key: "host.name", Value: host.FullNameOf(machine)}, {Key: "process.pid", Value: int64(os.Getpid())},
	}
}

// traces makes two traces of each round (docs/traces.md). That of its start is one for all nodes: each
// has a span "round", from the end of its workers in the round before until it has started them, with
// its steps as children; the others' parent is that of rank 0, whose id follows from the round. The
// run of a node's workers, which may take weeks, is a trace of its own.
type traces struct {
	run *Run

	begun   time.Time   // of the span "round" to come; zero: at the next join
	joining time.Time   // of the last join
	joined  bool        // it had an answer
	steps   []otlp.Span // not recorded yet: the children of the span "round" to come
	round   otlp.Link   // the last span "round"
	started time.Time   // of the workers

	workers  *otlp.Span // the span "run"; nil: no workers run, or have run since the last join
	before   otlp.Link  // the last span "run"
	reason   string     // why these workers, or the last ones, have ended
	culprit  *failure.Failure
	watchdog bool // ended them
}

// Take implements Consumer.
func (t *traces) Take(s State, message Message) {
	now := time.Now()
	switch m := message.(type) {
	case Joining:
		t.endRun(now, nil)
		if t.begun.IsZero() {
			t.begun = now
		}
		t.joining, t.joined = now, false
	case JoinFailed:
		t.step("wait", t.joining, now, m.Err)
	case Joined:
		t.step("wait", t.joining, now, nil)
		t.joined = true
	case WorkersStarted:
		t.started = now
	case StepDone:
		t.stepDone(s, m, now)
	case FirstStep:
		if t.workers != nil {
			first := otlp.Span{Trace: t.round.Trace, ID: otlp.NewSpanID(), Parent: t.round.Span, Name: "first_step", Start: t.workers.Start, End: m.At}
			t.run.Spans.Record(first)
		}
	case Stalled:
		if t.workers != nil {
			e := otlp.Event{Name: "stalled", At: now, Attributes: []otlp.Attribute{{Key: "rallypoint.reason", Value: m.Text}}}
			if m.Text == "" {
				e.Name, e.Attributes = "steps again", nil
			}
			t.workers.Events = append(t.workers.Events, e)
		}
	case Leaving:
		t.ended(now, m.Reason)
	case Stopping:
		t.ended(now, m.Why)
	case AttemptFailed:
		t.culprit, t.watchdog = m.Root, m.Overdue
	case PeerFailed:
		t.culprit = m.Root
	case RunDone:
		t.endRun(now, m.Err)
		t.record(t.before)
	}
}

func (t *traces) stepDone(s State, m StepDone, now time.Time) {
	began := now.Add(-m.Took)
	switch m.Step {
	case StepRanks:
		t.step("assign", began, now, m.Err)
	case StepStart:
		t.step("start", began, now, m.Err)
	case StepStop:
		t.step("stop", began, now, nil)
	case StepInitialize:
		t.endRound(s, now, m.Err)
	}
}

// step notes a child of the span "round" to come.
func (t *traces) step(name string, start, end time.Time, err error) {
	t.steps = append(t.steps, otlp.Span{ID: otlp.NewSpanID(), Name: name, Start: start, End: end, Error: errorText(err)})
}

// ended notes the end of the workers, of which the first report counts.
func (t *traces) ended(now time.Time, reason string) {
	if t.workers == nil || !t.workers.End.IsZero() {
		return
	}
	t.workers.End, t.begun, t.reason = now, now, reason
}

// endRound records the span "round", with its steps, and begins the span "run" unless err is why no
// workers were started.
func (t *traces) endRound(s State, now time.Time, err error) {
	round := otlp.Span{Trace: otlp.NewTraceID(), ID: otlp.NewSpanID(), Name: "round", Start: t.begun, End: now, Error: errorText(err)}
	round.Attributes = t.attributes()
	if t.joined {
		place := s.Place
		if place.Generation != "" {
			round.Trace, round.Parent = roundIDs(t.run.ID, place)
		}
		if place.Group == 0 && round.Parent != (otlp.SpanID{}) {
			round.ID, round.Parent = round.Parent, otlp.SpanID{}
		}
		round.Attributes = append(round.Attributes, placeAttributes(s)...)
	}
	if t.reason != "" {
		round.Attributes = append(round.Attributes, otlp.Attribute{Key: "rallypoint.reason", Value: t.reason})
	}
	round.Attributes = append(round.Attributes, t.culpritAttributes()...)
	if t.before != (otlp.Link{}) {
		round.Links = []otlp.Link{t.before}
	}
	t.run.Spans.Record(round)
	t.begun, t.round = time.Time{}, otlp.Link{Trace: round.Trace, Span: round.ID}
	t.record(t.round)
	if err != nil {
		return
	}
	t.reason, t.culprit, t.watchdog = "", nil, false
	t.workers = &otlp.Span{
		Trace: otlp.NewTraceID(), ID: otlp.NewSpanID(), Name: "run", Start: t.started, Links: []otlp.Link{t.round},
		Attributes: append(t.attributes(), placeAttributes(s)...),
	}
}

// record records the steps as children of a span.
func (t *traces) record(parent otlp.Link) {
	for _, step := range t.steps {
		step.Trace, step.Parent = parent.Trace, parent.Span
		t.run.Spans.Record(step)
	}
	t.steps = nil
}

// endRun records the span "run" of the workers that have ended, if there are any; err is how the job
// ends with them. Their stop is a step of the next round, if there is one.
func (t *traces) endRun(now time.Time, err error) {
	w := t.workers
	if w == nil {
		return
	}
	t.ended(now, "")
	if t.reason != "" {
		w.Attributes = append(w.Attributes, otlp.Attribute{Key: "rallypoint.reason", Value: t.reason})
	}
	w.Error = errorText(err)
	if f := t.culprit; f != nil {
		w.Error = f.Summary()
		w.Attributes = append(w.Attributes, t.culpritAttributes()...)
		exception := otlp.Event{Name: "exception", At: f.Time, Attributes: []otlp.Attribute{
			{Key: "exception.type", Value: t.errorType()}, {Key: "exception.message", Value: f.Summary()},
		}}
		if text := strings.TrimSpace(f.Message + "\n" + f.Stack); text != "" {
			exception.Attributes = append(exception.Attributes, otlp.Attribute{Key: "exception.stacktrace", Value: text})
		}
		w.Events = append(w.Events, exception)
	}
	t.run.Spans.Record(*w)
	t.before = otlp.Link{Trace: w.Trace, Span: w.ID}
	t.workers = nil
}

func (t *traces) attributes() []otlp.Attribute {
	return []otlp.Attribute{{Key: "rallypoint.run.id", Value: t.run.ID}, {Key: "rallypoint.role", Value: t.run.Role}}
}

func placeAttributes(s State) []otlp.Attribute {
	p := s.Place
	a := []otlp.Attribute{
		{Key: "rallypoint.round", Value: int64(p.Round)}, {Key: "rallypoint.node.rank", Value: int64(p.Group)}, {Key: "rallypoint.node.count", Value: int64(p.Groups)},
		{Key: "rallypoint.world_size", Value: int64(p.Workers)}, {Key: "rallypoint.restarts", Value: int64(s.Restarts)},
	}
	if len(p.Dropped) > 0 {
		a = append(a, otlp.Attribute{Key: "rallypoint.dropped", Value: strings.Join(p.Dropped, "; ")})
	}
	return a
}

// culpritAttributes are those of the worker that failed first.
func (t *traces) culpritAttributes() []otlp.Attribute {
	f := t.culprit
	if f == nil {
		return nil
	}
	return []otlp.Attribute{
		{Key: "error.type", Value: t.errorType()}, {Key: "rallypoint.culprit.rank", Value: int64(f.Rank)},
		{Key: "rallypoint.culprit.host", Value: f.Host}, {Key: "rallypoint.culprit.exit_code", Value: int64(f.ExitCode)},
	}
}

// errorType is what ended the culprit, as rallypoint_agent_failures_total names it.
func (t *traces) errorType() string { return causeNames[causeOf(t.culprit, t.watchdog)] }

// roundIDs are the ids of a round's trace, and of the span of its rank 0, by which all nodes find
// them without a word to each other.
func roundIDs(run string, p *Place) (trace otlp.TraceID, first otlp.SpanID) {
	sum := sha256.Sum256(fmt.Appendf(nil, "rallypoint round\x00%s\x00%s\x00%d", run, p.Generation, p.Round))
	copy(trace[:], sum[:])
	copy(first[:], sum[len(trace):])
	return trace, first
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
