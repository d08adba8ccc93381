package filelog

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// closedLog is a log whose only node has succeeded and gone; it is open.
func closedLog(t *testing.T, closedFor time.Duration) *Log {
	t.Helper()
	l := openLog(t, t.TempDir(), nil)
	p := rendezvous.DefaultPolicy()
	p.Min, p.Max, p.ClosedFor = 1, 1, closedFor
	request := rendezvous.Request{Session: "s", Number: 1}
	appendEvents(t, l, rendezvous.Hello{Session: "s", Node: "a", Policy: p}, rendezvous.CloseRun{Request: request, Reason: "enough"}, rendezvous.Disconnect{Session: "s"}, rendezvous.LeaseExpired{Session: "s"})
	return l
}

func appendEvents(t *testing.T, l *Log, events ...rendezvous.Event) {
	t.Helper()
	var entries [][]byte
	for _, ev := range events {
		entries = append(entries, testkit.Must(rendezvous.EncodeEvent(ev))(t))
	}
	testkit.Check(t, l.Append(testkit.Within(t, logPatience), entries))
}

// clockJumps makes the files of a run as old as a clock shows them that was set by that much.
func clockJumps(t *testing.T, l *Log, by time.Duration) {
	t.Helper()
	at := time.Now().Add(-by)
	for _, path := range testkit.Must(filepath.Glob(filepath.Join(l.dir, "*")))(t) {
		testkit.Check(t, os.Chtimes(path, at, at))
	}
}

// staysFor is for how long the run stays closed by what its directory says.
func staysFor(t *testing.T, l *Log) time.Duration {
	t.Helper()
	records := testkit.Must(Inspect(l.parent, "job"))(t)
	if len(records) != 1 {
		return 0
	}
	ended, _, _ := records[0].Ended()
	return ended.For
}

// Guarantee 9: a clock that is set neither begins a closed run again early nor keeps it closed for
// longer.
func TestWallClockJumps(t *testing.T) {
	const whole = 10 * time.Minute
	for name, jump := range map[string]time.Duration{"a year on": 365 * 24 * time.Hour, "a year back": -365 * 24 * time.Hour} {
		t.Run("while the last node leaves, "+name, func(t *testing.T) {
			l := closedLog(t, whole)
			clockJumps(t, l, jump)
			testkit.Check(t, l.Close(t.Context()))
			if left := staysFor(t, l); left != whole {
				t.Errorf("it stays closed for %v instead of %v", left, whole)
			}
		})
		t.Run("after that, "+name, func(t *testing.T) {
			l := closedLog(t, whole)
			testkit.Check(t, l.Close(t.Context()))
			clockJumps(t, l, jump)
			late := openLog(t, l.parent, nil)
			if left := staysFor(t, l); left < whole/2 || left >= whole {
				t.Errorf("a node that comes finds it closed for %v of %v", left, whole)
			}
			testkit.Check(t, late.Close(t.Context()))
		})
		t.Run("its time passes, "+name, func(t *testing.T) {
			l := closedLog(t, 50*time.Millisecond)
			testkit.Check(t, l.Close(t.Context()))
			testkit.Eventually(t, "its time is over", func() bool {
				clockJumps(t, l, jump)
				late := openLog(t, l.parent, nil)
				defer late.Close(t.Context())
				return staysFor(t, l) == 0
			})
		})
	}
}

// TestClockOfAnotherMachine: where no clock is shared the times of files tell. One that went back
// counts as none; the machine that has come then tells by its own.
func TestClockOfAnotherMachine(t *testing.T) {
	const whole = 50 * time.Millisecond
	l := openLog(t, t.TempDir(), nil)
	closing := rendezvous.Closing{Kind: rendezvous.ClosedSuccess, By: "a"}
	appendEvents(t, l, rendezvous.Ended{Closing: closing, For: whole, Machine: "another", Uptime: time.Hour})
	l.crash()
	clockJumps(t, l, -365*24*time.Hour)
	late := openLog(t, l.parent, nil)
	if left := staysFor(t, l); left != whole {
		t.Errorf("a node that comes finds it closed for %v of %v", left, whole)
	}
	testkit.Check(t, late.Close(t.Context()))
	testkit.Eventually(t, "its time is over", func() bool {
		late := openLog(t, l.parent, nil)
		defer late.Close(t.Context())
		return staysFor(t, l) == 0
	})
}

// playClock says what this process takes for its machine.
func playClock() error {
	machine, _ := machineClock()
	_, err := fmt.Print(machine)
	return err
}

// TestTimeNamespace: a namespace whose clock since the start was set is no clock of this machine.
func TestTimeNamespace(t *testing.T) {
	child := func(command ...string) string {
		t.Helper()
		cmd := exec.CommandContext(context.Background(), command[0], command[1:]...)
		cmd.Env = append(os.Environ(), roleVariable+"=clock")
		out, err := cmd.Output()
		if err != nil {
			t.Skipf("no time namespace can be made here: %v", err)
		}
		return string(out)
	}
	self := testkit.Must(os.Executable())(t)
	own, _ := machineClock()
	if same := child(self); same != own || own == "" {
		t.Errorf("two processes of a machine take it for %q and %q", own, same)
	}
	if other := child("unshare", "--time", "--fork", "--boottime", "3600", self); other == own || other == "" {
		t.Errorf("a process whose clock was set takes its machine for %q, as this one does", other)
	}
}
