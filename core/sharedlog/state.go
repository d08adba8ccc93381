package sharedlog

import (
	"bytes"
	"encoding/gob"

	"rallypoint/core/rendezvous"
)

func init() {
	for _, ev := range []any{rendezvous.Hello{}, rendezvous.Disconnect{}, rendezvous.LeaseExpired{}, rendezvous.TimerFired{}, rendezvous.Join{}, rendezvous.Withdraw{}, rendezvous.Leave{}, rendezvous.CloseRun{}, rendezvous.Finish{}, rendezvous.Linger{}, rendezvous.KeyRequest{}} {
		gob.Register(ev)
	}
}

func encode(ev rendezvous.Event) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&ev)
	return b.Bytes(), err
}

func decode(data []byte) (ev rendezvous.Event, err error) {
	err = gob.NewDecoder(bytes.NewReader(data)).Decode(&ev)
	return ev, err
}

func saveMachine(m *rendezvous.Machine) []byte                  { return nil }
func loadMachine(b []byte) (*rendezvous.Machine, error)         { return nil, nil }
func machineTimers(m *rendezvous.Machine) []rendezvous.SetTimer { return nil }
