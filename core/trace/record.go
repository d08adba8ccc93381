// Package trace is the record of what happened to runs: each event of a machine and the
// effects it had, a line of JSON each. Servers and replicas write it; package conformance
// checks it.
package trace

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	r "rallypoint/core/rendezvous"
)

// MaxRecord bounds a record in bytes. An event that takes more is recorded as too
// large, without what it says.
const MaxRecord = 1 << 20

// Record is one line of a history, as JSON.
type Record struct {
	At  time.Time `json:"at"`  // by the wall clock, for display and to order histories
	Run string    `json:"run"` // run id
	// Seconds since the recording process began, by its monotonic clock; 0: not known.
	Seconds float64 `json:"seconds"`
	// Slack is how many seconds earlier than that the event may have come: a follower of
	// a log knows only between which two looks an entry was written, or a State arose.
	Slack float64 `json:"slack,omitempty"`
	// Number counts the events of a run from 1. Those that a control plane with a
	// data directory restores when it starts again are recorded again, with their
	// numbers.
	Number uint64 `json:"number"`
	// State is the machine's snapshot after event Number: the record begins a run,
	// or a process that takes one up, and has no event.
	State []byte `json:"state,omitempty"`
	// Host is, with State, the id of the node in whose process the control plane runs, Group the
	// servers that it belongs to, and Succession what it began with. The histories of all who
	// have hosted a run in a group are one, in the order of the terms.
	Host       string        `json:"host,omitempty"`
	Group      string        `json:"group,omitempty"`
	Succession *r.Succession `json:"succession,omitempty"`
	// Aside tells that Event is a request that was answered without a change: it
	// has no number of its own, and Number is that of the event before it.
	Aside bool `json:"aside,omitempty"`
	// TooLarge is the size of an event that was left out.
	TooLarge int `json:"too_large,omitempty"`

	Event   r.Event    `json:"-"`
	Effects []r.Effect `json:"-"`
}

// line is a Record as it is written: events, effects and results under the names of
// their types.
type line struct {
	plain
	Event   named   `json:"event,omitempty"`
	Effects []named `json:"effects,omitempty"`
}

type plain Record

// named is one value under its type's name.
type named map[string]any

type answer struct {
	Session r.SessionID
	Number  uint64
	Result  named    `json:",omitempty"`
	Err     *r.Error `json:",omitempty"`
}

// types are what a history is made of, by the names that its format has for them:
// they stay when a Go type gets another name.
var types = map[string]reflect.Type{
	"Hello":           reflect.TypeFor[r.Hello](),
	"Disconnect":      reflect.TypeFor[r.Disconnect](),
	"LeaseExpired":    reflect.TypeFor[r.LeaseExpired](),
	"Join":            reflect.TypeFor[r.Join](),
	"Withdraw":        reflect.TypeFor[r.Withdraw](),
	"Leave":           reflect.TypeFor[r.Leave](),
	"CloseRun":        reflect.TypeFor[r.CloseRun](),
	"Evict":           reflect.TypeFor[r.Evict](),
	"Finish":          reflect.TypeFor[r.Finish](),
	"Linger":          reflect.TypeFor[r.AwaitPeers](),
	"KeyRequest":      reflect.TypeFor[r.KeyRequest](),
	"TimerFired":      reflect.TypeFor[r.TimerFired](),
	"Recovered":       reflect.TypeFor[r.Recovered](),
	"AnnounceStop":    reflect.TypeFor[r.AnnounceStop](),
	"Direct":          reflect.TypeFor[r.Direct](),
	"CancelDirective": reflect.TypeFor[r.CancelDirective](),
	"Cordon":          reflect.TypeFor[r.Cordon](),
	"Undrain":         reflect.TypeFor[r.Undrain](),
	"Forget":          reflect.TypeFor[r.Forget](),
	"Ended":           reflect.TypeFor[r.Ended](),
	"GiveDirective":   reflect.TypeFor[r.GiveDirective](),
	"ReportDirective": reflect.TypeFor[r.ReportDirective](),

	"Welcome":   reflect.TypeFor[r.Welcome](),
	"Refuse":    reflect.TypeFor[r.Refuse](),
	"Reply":     reflect.TypeFor[answer](),
	"Notify":    reflect.TypeFor[r.Notify](),
	"Drop":      reflect.TypeFor[r.Drop](),
	"SetTimer":  reflect.TypeFor[r.SetTimer](),
	"StopTimer": reflect.TypeFor[r.StopTimer](),
	"Change":    reflect.TypeFor[r.HistoryEntry](),

	"Outcome":   reflect.TypeFor[r.Outcome](),
	"KeyResult": reflect.TypeFor[r.KeyResult](),
	"Withdrawn": reflect.TypeFor[r.Withdrawn](),
}

// nameOf is types the other way round.
var nameOf = func() map[reflect.Type]string {
	byType := map[reflect.Type]string{}
	for name, t := range types {
		byType[t] = name
	}
	return byType
}()

func name(v any) named {
	if v == nil {
		return nil
	}
	if reply, ok := v.(r.Reply); ok {
		a := answer{Session: reply.Session, Number: reply.Number, Err: reply.Err}
		if reply.Result != nil {
			a.Result = name(reply.Result)
		}
		return named{"Reply": a}
	}
	return named{nameOf[reflect.TypeOf(v)]: v}
}

// UnmarshalJSON reads a value into its type.
func (n *named) UnmarshalJSON(b []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*n = named{}
	for name, text := range raw {
		t := types[name]
		if t == nil || len(raw) != 1 {
			return fmt.Errorf("no event or effect: %.80s", b)
		}
		v := reflect.New(t)
		if err := json.Unmarshal(text, v.Interface()); err != nil {
			return err
		}
		(*n)[name] = v.Elem().Interface()
	}
	return nil
}

// value is what was named; nil for nothing.
func (n named) value() any {
	for _, v := range n {
		if a, ok := v.(answer); ok {
			result, _ := a.Result.value().(r.Result)
			return r.Reply{Session: a.Session, Number: a.Number, Result: result, Err: a.Err}
		}
		return v
	}
	return nil
}

// Encode returns the record as a line of a history.
func (rec Record) Encode() ([]byte, error) {
	l := line{plain: plain(rec), Event: name(rec.Event)}
	for _, e := range rec.Effects {
		if _, ok := e.(r.Answer); !ok { // what an administrator is told changes nothing in the run
			l.Effects = append(l.Effects, name(e))
		}
	}
	b, err := json.Marshal(l)
	if err == nil && len(b) >= MaxRecord {
		l.TooLarge, l.State, l.Event, l.Effects = len(b), nil, nil, nil
		b, err = json.Marshal(l)
	}
	return append(b, '\n'), err
}

// Decode reads what Encode wrote.
func Decode(b []byte) (Record, error) {
	var l line
	if err := json.Unmarshal(b, &l); err != nil {
		return Record{}, err
	}
	rec := Record(l.plain)
	var ok bool
	if v := l.Event.value(); v != nil {
		if rec.Event, ok = v.(r.Event); !ok {
			return Record{}, fmt.Errorf("a %T is no event", v)
		}
	}
	for _, e := range l.Effects {
		effect, ok := e.value().(r.Effect)
		if !ok {
			return Record{}, fmt.Errorf("a %T is no effect", e.value())
		}
		rec.Effects = append(rec.Effects, effect)
	}
	return rec, nil
}
