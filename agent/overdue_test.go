package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/agent/watchdog"
	"rallypoint/internal/wake"
)

// acquire is shell code that acquires a timer of process $1 that expires at once.
const acquire = `timer() { echo '{"version":1,"pid":'$1',"scope_id":"train.py#7","expiration_time":1,"signal":'$2'}' > $TORCHELASTIC_TIMER_FILE; }; `

func withWatchdog(s *harness) (path string) {
	path = filepath.Join(s.t.TempDir(), "timers")
	s.spec.Environ = append(s.spec.Environ, "TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_TIMER_FILE="+path)
	return path
}

// TestWatchdogRestarts: an expired timer is a worker failure, of the worker itself
// or of a child of it; the agent continues, and the FIFO is gone at the end.
func TestWatchdogRestarts(t *testing.T) {
	for name, script := range map[string]string{
		"worker":           `timer $$ 9; exec sleep 100`,
		"child":            `sleep 100 & timer $! 9; wait; exit 0`,
		"child elsewhere":  `setsid sh -c 'exec sleep 100' & timer $! 9; wait; exit 0`,
		"softly":           `timer $$ 15; exec sleep 100`,
		"softly, ends":     `trap 'exit 0' TERM; timer $$ 15; while :; do sleep 0.1; done`,
		"softly, stubborn": `trap '' TERM; timer $$ 15; while :; do sleep 100; done`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, 2, acquire+`[ -p $TORCHELASTIC_TIMER_FILE ] || exit 5; [ $RANK = 0 ] && exec sleep 100; `+script)
			path := withWatchdog(s)
			if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil { // A88
				t.Fatal(err)
			}
			s.spec.MaxRestarts = 1
			s.spec.ShutdownTimeout = 100 * time.Millisecond
			failures := s.failed(s.run())
			root := failures[failure.RootCause(failures)]
			if root.Rank != 1 || root.Terminated || !strings.HasPrefix(root.Message, `The timer "train.py#7" of process `) {
				t.Errorf("the cause is %+v", root)
			}
			if _, err := os.Lstat(path); err == nil {
				t.Error("the FIFO is still there")
			}
			if attempts, _ := filepath.Glob(s.spec.Logs.Dir + "/run_*/attempt_*"); len(attempts) != 2 {
				t.Errorf("attempts %v", attempts)
			}
		})
	}
}

// TestWatchdogHarmless: a timer without a signal, one that was released, one of a
// process that is no worker, and nonsense.
func TestWatchdogHarmless(t *testing.T) {
	bystander := os.Getpid()
	s := newHarness(t, 1, acquire+fmt.Sprintf(`timer $$ 0; timer %d 9; echo nonsense > $TORCHELASTIC_TIMER_FILE
		echo '{"version":1,"pid":'$$',"scope_id":"x","expiration_time":4000000000,"signal":9}' > $TORCHELASTIC_TIMER_FILE
		echo '{"version":1,"pid":'$$',"scope_id":"x","expiration_time":-1,"signal":0}' > $TORCHELASTIC_TIMER_FILE
		echo up > $SAY; until [ -e $GO ]; do sleep 0.01; done; exit 0`, bystander))
	withWatchdog(s)
	s.spec.Environ = append(s.spec.Environ, "GO="+s.spec.Logs.Dir+"/go")
	events := &eventLog{more: make(chan struct{}, 100)}
	s.spec.Events = events
	s.start()
	for events.count("timer expired") < 2 {
		<-events.more
	}
	s.hear()
	if err := os.WriteFile(s.spec.Logs.Dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if events.count("kill worker process") != 0 || events.count("watchdog started") != 1 || events.count("watchdog stopped") != 1 {
		t.Errorf("events %q", events.all)
	}
}

// eventLog keeps the events that are written to it.
type eventLog struct {
	mu   sync.Mutex
	all  []string
	more wake.Signal
}

func (e *eventLog) Write(event []byte) (int, error) {
	e.mu.Lock()
	e.all = append(e.all, strings.TrimSuffix(string(event), "\n"))
	e.mu.Unlock()
	e.more.Set()
	return len(event), nil
}

func (e *eventLog) count(name string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if strings.HasPrefix(event, `{"name":"`+name+`","source":"AGENT"`) {
			n++
		}
	}
	return n
}

// TestWatchdogFileCannotBeMade ends the run before a worker starts.
func TestWatchdogFileCannotBeMade(t *testing.T) {
	s := newHarness(t, 1, "exit 0")
	s.spec.Environ = append(s.spec.Environ, "TORCHELASTIC_ENABLE_FILE_TIMER=1", watchdog.EnvFile+"=/does/not/exist")
	if err := s.run(); err == nil || !strings.Contains(err.Error(), "timers") {
		t.Errorf("the run ended with %v", err)
	}
}
