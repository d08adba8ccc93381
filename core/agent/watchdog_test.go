package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func request(pid int, scope string, expires float64, signal int) string {
	text, _ := json.Marshal(map[string]any{"version": 1, "pid": pid, "scope_id": scope, "expiration_time": expires, "signal": signal})
	return string(text)
}

func TestParseTimer(t *testing.T) {
	got, err := parseTimer([]byte(`{"version": 1, "pid": 7, "scope_id": "f#1", "expiration_time": 10.5, "signal": 9}`))
	if err != nil || got.pid != 7 || got.scope != "f#1" || !got.at.Equal(time.Unix(10, 5e8)) || got.signal != 9 || got.release() {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := parseTimer([]byte(request(7, "", -1, 0))); err != nil || !got.release() {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{
		"", "{", "[]", "7", `{"pid":7,"expiration_time":1,"signal":9}`, `{"scope_id":"x","expiration_time":1}`, `{"pid":1,"scope_id":"x","expiration_time":1}`,
		`{"pid":-7,"scope_id":"x","expiration_time":1}`, `{"pid":7,"scope_id":"x"}`, `{"pid":7,"scope_id":"x","expiration_time":1e300}`,
		`{"pid":7,"scope_id":"x","expiration_time":1,"signal":65}`, `{"pid":7,"scope_id":"x","expiration_time":Infinity}`,
	} {
		if got, err := parseTimer([]byte(bad)); err == nil {
			t.Errorf("%s is taken: %+v", bad, got)
		}
	}
}

// FuzzTimerRequests takes any bytes from the FIFO.
func FuzzTimerRequests(f *testing.F) {
	f.Add([]byte(request(7, "x", 10, 9)+"\n{\n"), 5)
	f.Fuzz(func(t *testing.T, text []byte, piece int) {
		path := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		var r requests
		running := make(timers)
		for r.read(file) == nil {
			for line := range r.lines() {
				if strings.ContainsRune(string(line), '\n') {
					t.Fatalf("a line has a line feed: %q", line)
				}
				if one, err := parseTimer(line); err == nil {
					running.take(one)
				}
			}
		}
		for _, expired := range running.expire(time.Unix(1<<40, 0)) {
			if len(expired) == 0 {
				t.Fatal("nothing has expired")
			}
		}
		if len(running) > 0 {
			t.Fatalf("left: %v", running)
		}
	})
}

// TestTimers holds the table against a plain model.
func TestTimers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		running, model := make(timers), map[timerKey]int{}
		for range rapid.IntRange(0, 30).Draw(t, "requests") {
			key := timerKey{rapid.IntRange(2, 4).Draw(t, "pid"), rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 1, 1, -1).Draw(t, "scope")}
			at := rapid.IntRange(-1, 10).Draw(t, "at")
			one, err := parseTimer([]byte(request(key.pid, key.scope, float64(at), 9)))
			if err != nil {
				t.Fatal(err)
			}
			running.take(one)
			if model[key] = at; at < 0 {
				delete(model, key)
			}
		}
		now := rapid.IntRange(0, 10).Draw(t, "now")
		expired := map[int]bool{}
		count := 0
		for key, at := range model {
			if at <= now {
				expired[key.pid] = true
				count++
			}
		}
		for _, list := range running.expire(time.Unix(int64(now), 0)) {
			if !expired[list[0].pid] || !slices.IsSortedFunc(list, func(a, b workerTimer) int { return a.at.Compare(b.at) }) {
				t.Fatalf("expired %v", list)
			}
			count -= len(list)
		}
		for key := range model {
			if expired[key.pid] {
				delete(model, key)
			}
		}
		if count != 0 || len(running) != len(model) {
			t.Fatalf("%d too few expired; left %v, expected %v", count, running, model)
		}
	})
}

// TestTimersAreBounded, however many a worker acquires.
func TestTimersAreBounded(t *testing.T) {
	running := make(timers)
	for i := range maxTimers {
		running[timerKey{2, fmt.Sprint(i)}] = workerTimer{}
	}
	one := workerTimer{timerKey: timerKey{2, "one more"}, at: time.Unix(1, 0)}
	if running.take(one) {
		t.Error("one more is taken")
	}
	one.scope = "0"
	if !running.take(one) {
		t.Error("one that is there is not replaced")
	}
}

// acquire is shell code that acquires a timer of process $1 that expires at once.
const acquire = `timer() { echo '{"version":1,"pid":'$1',"scope_id":"train.py#7","expiration_time":1,"signal":'$2'}' > $TORCHELASTIC_TIMER_FILE; }; `

func withWatchdog(s *stage) (path string) {
	path = filepath.Join(s.t.TempDir(), "timers")
	s.spec.Environ = append(s.spec.Environ, envTimerEnabled+"=1", envTimerFile+"="+path)
	return path
}

// TestWatchdogRestarts: an expired timer is a worker failure, of the worker itself
// or of a child of it; the agent goes on, and the FIFO is gone at the end (W8).
func TestWatchdogRestarts(t *testing.T) {
	for name, script := range map[string]string{
		"worker":           `timer $$ 9; exec sleep 100`,
		"child":            `sleep 100 & timer $! 9; wait; exit 0`,
		"child elsewhere":  `setsid sh -c 'exec sleep 100' & timer $! 9; wait; exit 0`,
		"softly":           `timer $$ 15; exec sleep 100`,
		"softly, ends":     `trap 'exit 0' TERM; timer $$ 15; while :; do sleep 0.01; done`,
		"softly, stubborn": `trap '' TERM; timer $$ 15; while :; do sleep 100; done`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 2, acquire+`[ -p $TORCHELASTIC_TIMER_FILE ] || exit 5; [ $RANK = 0 ] && exec sleep 100; `+script)
			path := withWatchdog(s)
			if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil { // A88
				t.Fatal(err)
			}
			s.spec.MaxRestarts = 1
			s.spec.ShutdownTimeout = 100 * time.Millisecond
			failures := s.failed(s.run())
			root := failures[rootCause(failures)]
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
	s := newStage(t, 1, acquire+fmt.Sprintf(`timer $$ 0; timer %d 9; echo nonsense > $TORCHELASTIC_TIMER_FILE
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

// TestWatchdogReadsBeforeItJudges: a timer that was released in time does not expire
// because the agent itself had been stopped meanwhile.
func TestWatchdogReadsBeforeItJudges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "timers")
	fifo, err := newFIFO(path)
	if err != nil {
		t.Fatal(err)
	}
	asleep, awake := make(chan struct{}), make(chan struct{})
	calls := 0
	w := &watchdog{path: path, fifo: fifo, log: discard(), done: make(chan struct{}), wake: make(chan struct{}, 1), now: func() time.Time {
		if calls++; calls == 2 { // it knows the timer, and is about to sleep until its end
			close(asleep)
			<-awake
		}
		return time.Now()
	}}
	go w.run()
	expires := time.Now().Add(200 * time.Millisecond)
	fmt.Fprintln(fifo, request(7, "released", float64(expires.UnixNano())/1e9, 9))
	<-asleep
	// More than one read takes.
	for i := range 200 {
		fmt.Fprintln(fifo, request(8, fmt.Sprint(i), 4e9, 9))
	}
	fmt.Fprintln(fifo, request(7, "released", -1, 0))
	fmt.Fprintln(fifo, request(9, "expired", 1, 9))
	time.Sleep(time.Until(expires) + time.Millisecond)
	close(awake)
	<-w.expiries()
	for _, o := range w.take() {
		if o.timers[0].pid != 9 {
			t.Errorf("expired: %+v", o.timers)
		}
	}
	w.stop()
}

// eventLog is a sink.
type eventLog struct {
	mu   sync.Mutex
	all  []string
	more chan struct{}
}

func (l *eventLog) Record(event []byte) {
	l.mu.Lock()
	l.all = append(l.all, string(event))
	l.mu.Unlock()
	offer(l.more)
}

func (l *eventLog) count(name string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, event := range l.all {
		if strings.HasPrefix(event, `{"name":"`+name+`","source":"AGENT"`) {
			n++
		}
	}
	return n
}

// TestWatchdogFileCannotBeMade ends the run before a worker starts.
func TestWatchdogFileCannotBeMade(t *testing.T) {
	s := newStage(t, 1, "exit 0")
	s.spec.Environ = append(s.spec.Environ, envTimerEnabled+"=1", envTimerFile+"=/does/not/exist")
	if err := s.run(); err == nil || !strings.Contains(err.Error(), "timers") {
		t.Errorf("the run ended with %v", err)
	}
}

// TestTimerFile is given to workers whenever it is set, and made up only for the
// watchdog (A88).
func TestTimerFile(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"", ""},
		{envTimerFile + "=/x", ""},
		{envTimerEnabled + "=0", ""},
		{envTimerEnabled + "=1 " + envTimerFile + "=/x", "/x"},
		{envTimerEnabled + "=1 TMPDIR=/t/", "/t/watchdog_timer_*"},
		{envTimerEnabled + "=1", "/tmp/watchdog_timer_*"},
	} {
		got := timerFile(strings.Fields(c.env))
		if same, _ := filepath.Match(c.want, got); !same {
			t.Errorf("%s: %q", c.env, got)
		}
	}
}

// TestRequestsCutLines drops what is too long for one line.
func TestRequestsCutLines(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	go func() {
		defer write.Close()
		fmt.Fprint(write, "a\nb"+strings.Repeat("x", 40<<10)+"\nc\n\nd\n")
	}()
	var r requests
	var got []string
	for r.read(read) == nil {
		for line := range r.lines() {
			got = append(got, string(line))
		}
	}
	if !slices.Equal(got, []string{"a", "c", "d"}) {
		t.Errorf("lines %.50q", got)
	}
}
