package progress

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// EnvDirective is the variable with the path of a worker's directive file.
const EnvDirective = "RALLYPOINT_DIRECTIVE_FILE"

// SettleTime is how long after Hold a worker that has not seen it may take to make its step
// visible. A worker stores its step and loads the agent's word without a fence between
// them, so that the processor may load first; a store leaves the processor within
// microseconds, also where the thread or its virtual machine is interrupted.
const SettleTime = 2 * time.Millisecond

// HoldLimit is how long a worker lets itself be held: one whose agent has died continues then.
const HoldLimit = 10 * time.Second

// Asked is an agent's request to a worker for one directive. The word of a record has it after a
// first byte, the phase, which alone is written while the rest stands: nobody can see one byte
// half written.
type Asked struct {
	Number uint64 // grows with each directive of an attempt, from 1; at most maxNumber
	Kind   int    // of the directive, at most 255
	Named  bool   // it is about this node
}

const (
	phaseNone    = 0
	phaseHold    = 1 // wait in the next report
	phaseRelease = 2 // continue; the report of the step at offsetReach or of a later one takes the directive
)

const maxNumber = 1<<39 - 1 // so that the word is a positive number, which is easier to read in some languages

// word is the directive word without its phase.
func (a Asked) word() uint64 {
	word := min(a.Number, maxNumber)<<24 | uint64(a.Kind&0xff)<<8
	if a.Named {
		word |= 1 << 16
	}
	return word
}

// State is how far a worker is with a directive; the numbers are those of the record.
type State int

// The states.
const (
	StateNone  State = iota // it is not held, or not any more
	StateHeld               // it waits in the report of its step
	StateTaken              // its script has the directive
	StateSaved              // its script has saved what the directive asks for
)

// Answer is what one worker says.
type Answer struct {
	Step   int64 // -1: none was reported
	Holds  bool  // it lets itself be held
	Number uint64
	State  State // with the directive of that number
}

// errNoRecord is why a worker without a record, or one whose record was spoiled, cannot be
// asked for anything.
var errNoRecord = errors.New("it has no progress record")

// Answer reads what a worker says; an error if it has no record.
func (t *Tracker) Answer(local int) (Answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.record(local)
	if err != nil {
		return Answer{Step: noStep}, err
	}
	said, err := r.read() // the next sample logs an error
	if err != nil {
		return Answer{Step: noStep}, err
	}
	a := Answer{Step: said.step, Holds: said.knows&knowsDirectives != 0, Number: said.answer >> 24, State: State(said.answer & 0xff)}
	if a.State > StateSaved {
		a.State = StateNone
	}
	return a, nil
}

// record returns the record of a worker that can be asked.
func (t *Tracker) record(local int) (*record, error) {
	if local >= len(t.records) || t.records[local].refused != nil {
		return nil, errNoRecord
	}
	return t.records[local], nil
}

// Hold has a worker that lets itself be held wait in its next report, until Release or Clear.
func (t *Tracker) Hold(local int, asked Asked) error {
	return t.ask(local, func(r *record) error { return r.ask(asked, phaseHold, 0) })
}

// Release lets a worker continue and take the directive in the first report of step reach or a
// later one.
func (t *Tracker) Release(local int, asked Asked, reach int64) error {
	return t.ask(local, func(r *record) error { return r.ask(asked, phaseRelease, reach) })
}

// Clear asks nothing of a worker any more.
func (t *Tracker) Clear(local int) error {
	return t.ask(local, func(r *record) error { return r.clear() })
}

func (t *Tracker) ask(local int, write func(*record) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.record(local)
	if err == nil {
		err = write(r)
	}
	return err
}

// ask writes a phase of a directive. It comes after the data that the phase needs.
func (r *record) ask(asked Asked, phase byte, reach int64) error {
	if r.asked != asked {
		if err := r.clear(); err != nil {
			return err
		}
		if err := r.write(offsetAsked+1, asked.word()>>8, 7); err != nil {
			return err
		}
		r.asked = asked
	}
	if phase == phaseRelease {
		if err := r.write(offsetReach, uint64(max(reach, 0)), 8); err != nil {
			return err
		}
	}
	return r.write(offsetAsked, uint64(phase), 1)
}

func (r *record) clear() error {
	if r.asked == (Asked{}) {
		return nil
	}
	err := r.write(offsetAsked, phaseNone, 1)
	if err == nil {
		err = r.write(offsetAsked+1, 0, 7)
	}
	r.asked = Asked{}
	return err
}

func (r *record) write(offset int64, value uint64, size int) error {
	file, err := r.file.Open()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, value)[:size], offset)
	return err
}

// Directive is the content of a worker's directive file, as JSON with these names; fields
// are appended only (docs/progress-record.md).
type Directive struct {
	Number   uint64   `json:"number"` // as in the record
	ID       string   `json:"id"`
	Kind     string   `json:"kind"`
	Named    bool     `json:"named"`
	Step     *int64   `json:"step"`     // from which the worker acts; nil: at once
	Deadline *float64 `json:"deadline"` // seconds since 1970; nil: there is none
	Target   int      `json:"target"`   // of scale: the number of nodes; 0 else
	By       string   `json:"by"`
	Reason   string   `json:"reason"`
	Text     string   `json:"text"` // all of it, human-readable
}

// Path is where a worker's record lies; "" if it has none.
func (t *Tracker) Path(local int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if local >= len(t.records) || t.records[local].refused != nil {
		return ""
	}
	return t.records[local].file.Path()
}

// DirectivePath is where a worker finds its directive; "" if it has no record.
func (t *Tracker) DirectivePath(local int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if local >= len(t.records) {
		return ""
	}
	return directivePath(t.records[local])
}

func directivePath(r *record) string { return r.file.Path() + ".directive" }

// WriteDirective replaces a worker's directive file at once; nil removes it.
func (t *Tracker) WriteDirective(local int, d *Directive) error {
	path := t.DirectivePath(local)
	t.direct(local, d != nil)
	switch {
	case path == "":
		return errNoRecord
	case d == nil:
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	return replaceFile(path, append(text, '\n'))
}

func (t *Tracker) direct(local int, has bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if has && t.directed != nil {
		t.directed[local] = true
	} else {
		delete(t.directed, local)
	}
}

// replaceFile puts a file in the place of another one; a write that fails leaves no file.
func replaceFile(path string, text []byte) error {
	temp := path + "." + strconv.Itoa(os.Getpid())
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if failed := file.Close(); err == nil {
		err = failed
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// KindDeparture is the kind of a request that is no directive: to leave the round at a step, for
// workers that can regroup.
const KindDeparture = 255
