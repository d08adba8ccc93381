package watchdog

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"rallypoint/internal/testkit"
	"rallypoint/internal/wake"
)

func request(pid int, scope string, expires float64, signal int) string {
	text, _ := json.Marshal(map[string]any{"version": 1, "pid": pid, "scope_id": scope, "expiration_time": expires, "signal": signal})
	return string(text)
}

func TestParseTimer(t *testing.T) {
	got, err := parseTimer([]byte(`{"version": 1, "pid": 7, "scope_id": "f#1", "expiration_time": 10.5, "signal": 9}`))
	if err != nil || got.Pid != 7 || got.Scope != "f#1" || !got.At.Equal(time.Unix(10, 5e8)) || got.Signal != 9 || got.release() {
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
	f.Add([]byte(request(7, "x", 10, 9) + "\n{\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		fd := testkit.Must(unix.MemfdCreate("text", unix.MFD_CLOEXEC))(t) // a file in a folder takes ten times as long
		file := os.NewFile(uintptr(fd), "text")
		defer file.Close()
		testkit.Must(file.Write(text))(t)
		testkit.Must(file.Seek(0, io.SeekStart))(t)
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
			one, err := parseTimer([]byte(request(key.Pid, key.Scope, float64(at), 9)))
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
				expired[key.Pid] = true
				count++
			}
		}
		for _, list := range running.expire(time.Unix(int64(now), 0)) {
			if !expired[list[0].Pid] || !slices.IsSortedFunc(list, func(a, b Timer) int { return a.At.Compare(b.At) }) {
				t.Fatalf("expired %v", list)
			}
			count -= len(list)
		}
		for key := range model {
			if expired[key.Pid] {
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
		running[timerKey{2, fmt.Sprint(i)}] = Timer{}
	}
	one := Timer{timerKey: timerKey{2, "one more"}, At: time.Unix(1, 0)}
	if running.take(one) {
		t.Error("one more is taken")
	}
	one.Scope = "0"
	if !running.take(one) {
		t.Error("one that is there is not replaced")
	}
}

// TestWatchdogReadsBeforeItEvaluates: a timer that was released in time does not expire
// because the agent itself had been stopped meanwhile.
func TestWatchdogReadsBeforeItEvaluates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "timers")
	fifo, err := newFIFO(path)
	if err != nil {
		t.Fatal(err)
	}
	asleep, awake := make(chan struct{}), make(chan struct{})
	calls := 0
	w := &Watchdog{path: path, fifo: fifo, log: slog.New(slog.DiscardHandler), done: make(chan struct{}), wake: wake.New(), now: func() time.Time {
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
	<-w.Expiries()
	for _, o := range w.Take() {
		if o.Timers[0].Pid != 9 {
			t.Errorf("expired: %+v", o.Timers)
		}
	}
	w.Stop()
}

// TestTimerFile is given to workers whenever it is set, and made up only for the
// watchdog.
func TestTimerFile(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"", ""},
		{EnvFile + "=/x", ""},
		{envEnabled + "=0", ""},
		{envEnabled + "=1 " + EnvFile + "=/x", "/x"},
		{envEnabled + "=1 TMPDIR=/var/tmp/", "/var/tmp/watchdog_timer_*"},
		{envEnabled + "=1 TMPDIR=/none", "/tmp/watchdog_timer_*"},
		{envEnabled + "=1", "/tmp/watchdog_timer_*"},
	} {
		got := FIFOPath(strings.Fields(c.env))
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
