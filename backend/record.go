package backend

import (
	"context"
	"encoding/hex"
	"log/slog"
	"strings"
	"time"

	"rallypoint/core/election/register"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// schemeRecord begins an endpoint that holds the value of a register itself, in hexadecimal, as a program
// has it that brings its own backend. A run can be asked there, but nodes cannot meet.
const schemeRecord = "record"

// record is the value of a register. It is also that register, which nobody can change.
type record []byte

func parseRecord(endpoint string) (place, error) {
	_, text, _ := strings.Cut(strings.TrimSpace(endpoint), "://")
	b, err := hex.DecodeString(text)
	if err != nil || len(b) == 0 {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint %.40q is not valid: it is no record of a run in hexadecimal", endpoint)
	}
	return record(b), nil
}

var errRecordIsNoPlace = rendezvous.Errorf(rendezvous.CodeInvalid, "nodes cannot meet in the record of a run: give HOST:PORT, file:///DIRECTORY or etcd://HOST")

func (r record) complete(*params.Params) error { return errRecordIsNoPlace }

func (r record) open(params.Params, *slog.Logger) (Node, error) { return nil, errRecordIsNoPlace }

func (r record) shown() string { return "a program's backend" }

func (r record) only() string { return "" }

func (r record) runs(context.Context, time.Duration) ([]string, error) {
	of, err := register.Decode(r)
	if err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeState, "what is stored at %s is not of a run: %v", r.shown(), err)
	}
	return []string{of.RunID}, nil
}

func (r record) register(string, time.Duration) (register.Register, func(), error) {
	return r, func() {}, nil
}

// GetState implements register.Register.
func (r record) GetState(context.Context) (state, token []byte, err error) { return r, nil, nil }

// SetState implements register.Register.
func (r record) SetState(context.Context, []byte, []byte) (now, nowToken []byte, ok bool, err error) {
	return r, nil, false, nil
}
