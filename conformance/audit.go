package conformance

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// Audit is the result of checking a history of many runs.
type Audit struct {
	runs   map[string]*audited
	ids    []string    // in the order of their beginning
	past   io.ReaderAt // what was read so far; nil: it cannot be read again
	offset int64       // where in it the present record begins
}

type audited struct {
	checker   *Checker
	group     string          // whose control plane the checker follows
	last      uint64          // number of the last event
	known     map[string]bool // generations of the machine that the checker follows
	cuts      []cut
	events    int
	digests   []uint64 // of the events since the machine's beginning, and what was done at them
	unchecked string   // why it was not checked any further; "": it was
}

// cut is where a control plane continued from an older state: a copy of its data
// directory was restored. Events after the one of that number never happened.
type cut struct {
	offset int64
	number uint64
}

// Read reads a history to its end and checks every run in it. A history that can be read again
// (an io.ReaderAt, such as a file) may have runs whose control plane continued from a restored
// copy of its data. Read skips a torn line where a kill may leave one: at the end, or before
// another process continues. An error says which line cannot be read.
func Read(history io.Reader) (*Audit, error) {
	a := &Audit{}
	a.past, _ = history.(io.ReaderAt)
	return a, eachRecord(history, func(offset int64, rec trace.Record) {
		a.offset = offset
		a.Add(rec)
	})
}

// eachRecord calls take with each record of a history and with the offset of its line. It
// passes over a torn line at the end, or before a process continues.
func eachRecord(history io.Reader, take func(offset int64, rec trace.Record)) error {
	var torn error
	lines := bufio.NewScanner(history)
	lines.Buffer(nil, 2*trace.MaxRecord)
	offset := int64(0)
	for n, size := 1, 0; lines.Scan(); n++ {
		offset += int64(size)
		size = len(lines.Bytes()) + 1
		if len(lines.Bytes()) == 0 {
			continue
		}
		rec, err := trace.Decode(lines.Bytes())
		if torn != nil && (err != nil || rec.State == nil) {
			return torn
		}
		torn = nil
		if err != nil {
			torn = fmt.Errorf("line %d: %w", n, err)
			continue
		}
		take(offset, rec)
	}
	return lines.Err()
}

// ReadAll reads the histories of all processes that have hosted one run, or several, as
// one: they are ordered by the hosts' terms and by the host that each has succeeded, and where
// these do not tell, by the wall clock. A host
// that was started again has founded a group of its own, until it steps down: that one
// comes before the group that continued. One history alone is read by Read; of several each
// is an io.ReaderAt.
func ReadAll(histories ...io.Reader) (*Audit, error) {
	if len(histories) == 1 {
		return Read(histories[0])
	}
	var parts []part
	for i, history := range histories {
		at, ok := history.(io.ReaderAt)
		if !ok {
			return &Audit{}, fmt.Errorf("history %d cannot be read twice", i+1)
		}
		found, err := partsOf(at)
		if err != nil {
			return &Audit{}, fmt.Errorf("history %d: %w", i+1, err)
		}
		parts = append(parts, found...)
	}
	a := &Audit{}
	for _, p := range ordered(parts) {
		for _, rec := range p.records {
			a.Add(rec)
		}
	}
	return a, nil
}

// CheckFiles checks the histories in some files as ReadAll does, and writes the result to out.
// It fails if a file cannot be read, if there is no history, or if not all of it was kept.
func CheckFiles(out io.Writer, paths ...string) error {
	var histories []io.Reader
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		histories = append(histories, file)
	}
	a, err := ReadAll(histories...)
	fmt.Fprint(out, a)
	switch {
	case err != nil:
		return fmt.Errorf("%s is not a history that this release can read: %w", strings.Join(paths, ", "), err)
	case len(a.ids) == 0:
		return fmt.Errorf("%s holds no history", strings.Join(paths, ", "))
	case !a.Kept():
		return errors.New("not all guarantees were kept, or could be checked")
	}
	return nil
}

// ordered puts parts into the order in which they are checked: group by group, the longest
// one last.
func ordered(parts []part) (list []part) {
	slices.SortStableFunc(parts, func(x, y part) int { return cmp.Or(cmp.Compare(x.term, y.term), x.at.Compare(y.at)) })
	var groups [][]part
	for _, p := range parts {
		// One that succeeds an earlier host of the group than the last one is a breach to be found.
		i := slices.IndexFunc(groups, func(g []part) bool { return slices.ContainsFunc(g, p.succeeds) })
		if p.group != "" {
			i = slices.IndexFunc(groups, func(g []part) bool { return g[0].run == p.run && g[0].group == p.group })
		} else if i < 0 && p.term > 1 { // of the host before there is no history: it may be the next one of any group
			i = slices.IndexFunc(groups, func(g []part) bool { return g[0].run == p.run && g[len(g)-1].term < p.term })
		}
		if i < 0 {
			groups = append(groups, []part{p})
			continue
		}
		groups[i] = append(groups[i], p)
	}
	slices.SortStableFunc(groups, func(x, y []part) int { return cmp.Or(cmp.Compare(len(x), len(y)), x[0].at.Compare(y[0].at)) })
	return slices.Concat(groups...)
}

// part is one control plane's records of a run.
type part struct {
	run        string
	group      string // "": not known
	host, from string // nodes in whose processes it and the control plane before run
	term       uint64 // 0: in no node's process
	at         time.Time
	records    []trace.Record
}

func (p part) succeeds(before part) bool {
	return p.run == before.run && (p.term > 1 && p.term == before.term+1 && p.from == before.host || p.term == 0 && before.term == 0)
}

// partsOf divides a history where control planes begin. A torn line is the last of its
// part: its process was killed.
func partsOf(history io.ReaderAt) (parts []part, err error) {
	last := map[string]int{} // the part that a run is in
	err = eachRecord(io.NewSectionReader(history, 0, math.MaxInt64), func(_ int64, rec trace.Record) {
		i, known := last[rec.Run]
		if begins := rec.State != nil && rec.Number == 0; !known || begins {
			i = len(parts)
			last[rec.Run] = i
			parts = append(parts, part{run: rec.Run, group: rec.Group, host: rec.Host, at: rec.At})
			if s := rec.Succession; s != nil {
				parts[i].term, parts[i].from = max(s.Term, 1), s.From
			}
		}
		parts[i].records = append(parts[i].records, rec)
	})
	return parts, err
}

// Add checks the next record.
func (a *Audit) Add(rec trace.Record) {
	if a.runs == nil {
		a.runs = map[string]*audited{}
	}
	run := a.runs[rec.Run]
	if run == nil {
		run = &audited{checker: New(rec.Run)}
		if rec.Number > 0 || rec.State == nil {
			run.unchecked = fmt.Sprintf("its history begins with event %d", rec.Number)
		}
		a.runs[rec.Run] = run
		a.ids = append(a.ids, rec.Run)
	}
	if run.wentBack(rec) {
		a.rewind(run, rec)
	}
	run.add(rec)
}

// wentBack reports whether a record shows that the control plane has gone on from an
// older state: each start draws a generation, which its first event names.
func (a *audited) wentBack(rec trace.Record) bool {
	ev, is := rec.Event.(r.Recovered)
	return is && a.unchecked == "" && ev.Generation != "" && rec.Number > 0 && rec.Number <= a.last &&
		digest(rec) != a.digests[rec.Number-1]
}

// rewind takes the checker of a run back to the event before rec's, by reading everything up to
// that again. The checker keeps its findings, and its knowledge of the rounds.
func (a *Audit) rewind(run *audited, rec trace.Record) {
	if a.past == nil {
		run.unchecked = fmt.Sprintf("it continued from the state after event %d, and its history cannot be read again", rec.Number-1)
		return
	}
	run.cuts = append(run.cuts, cut{a.offset, rec.Number - 1})
	old := &audited{checker: New(rec.Run)}
	err := eachRecord(io.NewSectionReader(a.past, 0, a.offset), func(offset int64, was trace.Record) {
		if was.Run == rec.Run && !run.abandoned(was, offset) {
			old.add(was)
		}
	})
	if err != nil || old.last != rec.Number-1 {
		run.unchecked = fmt.Sprintf("it continued from the state after event %d, and up to there only %d events could be read again (%v)", rec.Number-1, old.last, err)
		return
	}
	old.checker.violations = run.checker.violations
	for place := range run.checker.places {
		old.checker.places[place] = true
	}
	run.checker, run.last, run.known, run.digests, run.unchecked = old.checker, old.last, old.known, old.digests, old.unchecked
}

// abandoned reports whether a record is of an event that a restored control plane no longer
// knows.
func (a *audited) abandoned(rec trace.Record, offset int64) bool {
	return slices.ContainsFunc(a.cuts, func(c cut) bool { return offset < c.offset && rec.Number > c.number })
}

func (a *audited) add(rec trace.Record) {
	if a.unchecked != "" {
		return
	}
	switch {
	case rec.State != nil:
		a.begin(rec)
	case rec.Aside && rec.Number == a.last && rec.Event != nil:
		a.checker.Answered(rec.Event, rec.Effects)
	case rec.Aside:
		// An answer that was too large, or is recorded again.
	case rec.Number <= a.last:
		a.again(rec)
	case rec.Number > a.last+1:
		a.unchecked = fmt.Sprintf("events %d to %d are missing", a.last+1, rec.Number-1)
	case rec.TooLarge > 0 || rec.Event == nil:
		a.unchecked = fmt.Sprintf("event %d was too large to be recorded (%d bytes)", rec.Number, rec.TooLarge)
	default:
		a.last = rec.Number
		a.events++
		a.digests = append(a.digests, digest(rec))
		if rec.Seconds > 0 {
			a.checker.at(seconds(rec.Seconds), seconds(rec.Slack), rec.Event)
		}
		a.checker.Apply(rec.Event, rec.Effects)
		if ev, is := rec.Event.(r.Recovered); is {
			a.known[ev.Generation] = true // it may continue under it
		}
	}
}

// again checks an event that was recorded before, by a process that was killed since or
// by another one that applies the same log: both must have had the same, and done the
// same at it.
func (a *audited) again(rec trace.Record) {
	if rec.Number > 0 && rec.TooLarge == 0 && digest(rec) != a.digests[rec.Number-1] {
		a.checker.violated(10, "event %d is recorded twice, in two ways; again: %+v, effects: %+v", rec.Number, rec.Event, rec.Effects)
	}
}

var digestSeed = maphash.MakeSeed()

// digest distinguishes events with their effects, in whatever order. It does not format values,
// which may be large.
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

// begin restores the state of a run that begins, or that a new process continues.
func (a *audited) begin(rec trace.Record) {
	machine, err := r.Restore(rec.State)
	if err != nil {
		a.unchecked = err.Error()
		return
	}
	generation := machine.Generation()
	switch {
	case a.known[generation] && rec.Number <= a.last && rec.Succession == nil:
		a.checker.resume(-seconds(rec.Slack)) // the clocks of the new process
		return
	case rec.Number > 0:
		a.unchecked = fmt.Sprintf("events up to %d are missing", rec.Number)
		return
	case rec.Succession != nil && (rec.Succession.Term > 1 || len(a.known) == 0):
		if rec.Group != a.group {
			a.checker.otherGroup()
		}
		a.checker.TookOver(rec.Host, *rec.Succession)
	case rec.Succession != nil:
		a.checker.founded(rec.Host, *rec.Succession)
	case len(a.known) > 0:
		a.checker.Restarted()
	}
	a.group = rec.Group
	a.known, a.last, a.digests = map[string]bool{generation: true}, 0, nil
	a.checker.Replay(machine)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// resume has timers and leases that run on in a new process begin again: at its start, or
// as long before it as they may have been set by others.
func (c *Checker) resume(set time.Duration) {
	for name, t := range c.timers {
		t.set = set
		c.timers[name] = t
	}
	for _, s := range c.sessions {
		s.heard, s.back = 0, 0
	}
}

// Runs are the ids of the runs, in the order of their beginning.
func (a *Audit) Runs() []string { return slices.Clone(a.ids) }

// Violations are those of all runs.
func (a *Audit) Violations() (all []Violation) {
	for _, id := range a.ids {
		all = append(all, a.runs[id].checker.violations...)
	}
	return all
}

// Kept reports whether there was a run, and every run was checked to its end and
// keeps all guarantees.
func (a *Audit) Kept() bool {
	return len(a.ids) > 0 && len(a.Unchecked()) == 0 && len(a.Violations()) == 0
}

// Unchecked are the runs that were not checked to their end, with the reason.
func (a *Audit) Unchecked() map[string]string {
	all := map[string]string{}
	for id, run := range a.runs {
		if run.unchecked != "" {
			all[id] = run.unchecked
		}
	}
	return all
}

// String is the result, human-readable: a line for each run, and one for each violation.
func (a *Audit) String() string {
	var b strings.Builder
	for _, id := range a.ids {
		run := a.runs[id]
		verdict := "all guarantees hold"
		if n := len(run.checker.violations); n > 0 {
			verdict = fmt.Sprintf("%d breaches", n)
		}
		if run.unchecked != "" {
			verdict += ", not checked to its end: " + run.unchecked
		}
		fmt.Fprintf(&b, "run %s: %d events, %d rounds: %s\n", id, run.events, run.checker.Rounds(), verdict)
		for _, breach := range run.checker.violations {
			fmt.Fprintf(&b, "  %s\n", breach)
		}
	}
	return b.String()
}
