package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"rallypoint/core/election/register"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// brokenValue is a register that fails as often as it is told to.
type brokenValue struct {
	value
	fails int // guarded by value.mu
	err   error
}

func (f *brokenValue) GetState(ctx context.Context) (state, token []byte, err error) {
	f.mu.Lock()
	f.fails--
	fails := f.fails >= 0
	f.mu.Unlock()
	if fails {
		return nil, nil, f.err
	}
	return f.value.GetState(ctx)
}

func openFailing(t *testing.T, f *brokenValue) error {
	t.Helper()
	p := params.Default()
	p.RunID, p.Endpoint, p.Min, p.Max, p.LocalAddr = "job", "a failing value", 1, 1, "127.0.0.1"
	m := testkit.Must(OpenRegister(p, f, slog.New(slog.DiscardHandler)))(t)
	defer m.Close()
	_, err := m.Next(testkit.Within(t, testkit.Patience))
	return err
}

// TestRegisterThatFails: an error of a program's register that may pass is repeated; one that does not pass,
// and that of a register that has tried for long enough itself, ends the search at once, with its own words.
func TestRegisterThatFails(t *testing.T) {
	const endless = 1 << 30
	for name, c := range map[string]struct {
		*brokenValue
		want error
	}{
		"for a while":      {&brokenValue{fails: 3, err: errors.New("no route")}, nil},
		"for good":         {&brokenValue{fails: endless, err: rendezvous.Errorf(rendezvous.CodeInvalid, "no such table")}, rendezvous.ErrInvalid},
		"in two parts":     {&brokenValue{fails: endless, err: fmt.Errorf("%w%w", rendezvous.Errorf(rendezvous.CodeInvalid, "the value: "), errors.New("no such table"))}, rendezvous.ErrInvalid},
		"after long tries": {&brokenValue{fails: endless, err: &register.Unreachable{Err: rendezvous.Errorf(rendezvous.CodeConnection, "tried for a minute")}}, rendezvous.ErrConnection},
	} {
		err := openFailing(t, c.brokenValue)
		if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != nil && c.fails != endless-1 {
			t.Errorf("%s: %d tries", name, endless-c.fails)
		}
	}
}

// TestForeignValue: a value that is not of a run is refused by name, and left alone.
func TestForeignValue(t *testing.T) {
	for text, state := range map[string][]byte{
		"another release": []byte("another program's"),
		`belongs to run "other"`: testkit.Must((&register.Record{
			RunID: "other", Group: "g", Term: 1, Leader: "l", Addr: "127.0.0.1:1", Lease: time.Second,
		}).Encode())(t),
	} {
		f := &brokenValue{value: value{state: state, version: 1}}
		if err := openFailing(t, f); rendezvous.CodeOf(err) != rendezvous.CodeState || !strings.Contains(err.Error(), text) || string(f.state) != string(state) {
			t.Errorf("%s: %v, %q", text, err, f.state)
		}
	}
}

// TestValueIsLost: where the value is deleted its leader writes it anew, and no node loses its place.
func TestValueIsLost(t *testing.T) {
	v := &value{}
	r := &run{t, func(p params.Params, log *slog.Logger) (*member.Member, error) {
		p.Endpoint = "a value in memory"
		return OpenRegister(p, v, log)
	}}
	nodes := r.nodes(2, 2, 3, "target=2", "lease_timeout=1")
	o := round(t, nodes...)[0]
	v.mu.Lock()
	v.state = nil
	v.mu.Unlock()
	testkit.Eventually(t, "it is there again", func() bool { v.mu.Lock(); defer v.mu.Unlock(); return v.state != nil })
	testkit.Check(t, nodes[1].SetClosed(t.Context(), "enough"))
	testkit.Eventually(t, "the other knows", nodes[0].Closed)
	v.mu.Lock()
	now := testkit.Must(register.Decode(v.state))(t)
	v.mu.Unlock()
	if now.Term != 1 || now.Facts.Round != o.Round || nodes[0].NodesWaiting() > 0 {
		t.Errorf("%+v after %+v", now, o)
	}
}

// TestRecordIsNoMeetingPlace: the value of a register may be asked for its run, and nothing else.
func TestRecordIsNoMeetingPlace(t *testing.T) {
	for endpoint, want := range map[string]*rendezvous.Error{
		"record://":   rendezvous.ErrInvalid,
		"record://0g": rendezvous.ErrInvalid,
		"record://00": rendezvous.ErrState,
	} {
		place, err := Locate(endpoint)
		if err == nil {
			_, _, err = Admin{At: place}.AskLeaders(t.Context())
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", endpoint, err)
		}
		p := params.Default()
		p.RunID, p.Endpoint = "job", endpoint
		if _, err := Open(p, nil); !errors.Is(err, rendezvous.ErrInvalid) {
			t.Errorf("%s as a node's endpoint: %v", endpoint, err)
		}
	}
}

// TestNameForDisplay: the name of a program's register says nothing about where the nodes are. A job of
// several machines with a register that is called "localhost" needs a token all the same.
func TestNameForDisplay(t *testing.T) {
	p := params.Default()
	p.RunID, p.Endpoint, p.Min, p.Max, p.Security = "job", "localhost", 2, 2, params.SecurityRequire
	m, err := OpenRegister(p, &value{}, nil)
	if err == nil {
		m.Close()
	}
	if !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), "no token") {
		t.Errorf("got %v", err)
	}
}
