package etcdregister

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// aRegister opens a register of the run "job".
func aRegister(t testing.TB, config etcdclient.Config) *Register {
	t.Helper()
	r := testkit.Must(New(config, "job"))(t)
	t.Cleanup(r.Close)
	testkit.Must(r.read(testkit.Within(t, testkit.Patience)))(t)
	return r
}

func (r *Register) read(ctx context.Context) (string, error) {
	state, _, err := r.GetState(ctx)
	return string(state), err
}

// add adds a text to those that the register has.
func (r *Register) add(ctx context.Context, text string) error {
	state, token, err := r.GetState(ctx)
	for err == nil {
		ok := false
		next := strings.TrimPrefix(string(state)+","+text, ",")
		if state, token, ok, err = r.SetState(ctx, []byte(next), token); ok || err == nil && string(state) == next {
			return nil
		}
	}
	return err
}

func addTexts(t testing.TB, r *Register, texts ...string) {
	t.Helper()
	for _, text := range texts {
		testkit.Check(t, r.add(testkit.Within(t, testkit.Patience), text))
	}
}

// holds checks what the register has.
func holds(t testing.TB, r *Register, want string) {
	t.Helper()
	testkit.Equal(t, testkit.Must(r.read(testkit.Within(t, testkit.Patience)))(t), want)
}

// watched waits until a watch of the register, which is opened again when it ends, tells of a text.
func watched(t testing.TB, r *Register) (await func(text string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	states, done := make(chan string, 100), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = r.Watch(ctx, func(state, _ []byte) { states <- string(state) })
			time.Sleep(10 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func(text string) {
		t.Helper()
		for late := time.After(testkit.Patience); ; {
			select {
			case state := <-states:
				if strings.HasSuffix(state, text) {
					return
				}
			case <-late:
				t.Fatalf("the watch does not tell of %q", text)
			}
		}
	}
}

// TestRegister: of several that set a value one does, and the others are told which; a value that is told
// by a watch is never older than one that was read; one that is set for a time is gone after it.
func TestRegister(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	a, b := aRegister(t, config), aRegister(t, config)
	ctx := testkit.Within(t, testkit.Patience)
	await := watched(t, b)
	results := make(chan bool)
	for i, r := range []*Register{a, b, a, b} {
		go func() {
			_, _, ok, err := r.SetState(ctx, fmt.Append(nil, "first ", i), nil)
			if err != nil {
				t.Error(err)
			}
			results <- ok
		}()
	}
	won := 0
	for range 4 {
		if <-results {
			won++
		}
	}
	testkit.Equal(t, won, 1)
	state, token, err := a.GetState(ctx)
	testkit.Check(t, err)
	now, _, ok, err := b.SetState(ctx, []byte("late"), []byte("1"))
	if testkit.Check(t, err); ok || string(now) != string(state) {
		t.Errorf("an old token: %v, %q", ok, now)
	}
	_, token, ok, err = a.SetState(ctx, []byte("second"), token)
	if testkit.Check(t, err); !ok {
		t.Error("the present token is refused")
	}
	await("second")
	testkit.Equal(t, testkit.Must(Runs(ctx, config))(t)[0], "job")
	_, _, ok, err = a.SetFor(ctx, []byte("last"), token, time.Second)
	if testkit.Check(t, err); !ok {
		t.Error("the last value is refused")
	}
	await("last")
	if age := testkit.Must(b.Age(ctx))(t); age > time.Minute {
		t.Errorf("it is %v old", age)
	}
	await("")
	_, token, ok, err = b.SetState(ctx, []byte("again"), nil)
	if testkit.Check(t, err); !ok {
		t.Error("a value that is gone stands in the way")
	}
	if _, _, ok, err = b.SetFor(ctx, nil, token, 0); err != nil || !ok {
		t.Error(ok, err)
	}
	holds(t, a, "")
	_ = token
}

// TestWatchAfterCompaction: a watch that has missed revisions which etcd has dropped since reports what is
// there, and what comes.
func TestWatchAfterCompaction(t *testing.T) {
	t.Parallel()
	config := etcdclient.Config{Endpoints: []string{etcdtest.Start(t).Endpoint()}, Prefix: "/test"}
	r, writer := aRegister(t, config), aRegister(t, config)
	addTexts(t, writer, "x", "missed")
	_, err := writer.client.Etcd.Compact(testkit.Within(t, testkit.Patience), writer.revision)
	testkit.Check(t, err)
	await := watched(t, r)
	await("missed")
	addTexts(t, writer, "later")
	await("later")
}

// TestRegisterIsOnALease: what a leader leaves behind that was killed is gone after the TTL.
func TestRegisterIsOnALease(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	config.TTL = 2 * time.Second
	r := aRegister(t, config)
	r.wrote = time.Now().Add(-time.Hour)
	addTexts(t, r, "x")
	testkit.Eventually(t, "it is gone", func() bool {
		text, err := r.read(t.Context())
		testkit.Check(t, err)
		return text == ""
	})
}
