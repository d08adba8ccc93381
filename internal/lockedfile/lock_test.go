package lockedfile

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pauses is a clock that records for how long it was asked to wait, and does not wait.
type pauses struct {
	RealClock
	list []time.Duration
}

func (p *pauses) After(d time.Duration) <-chan time.Time {
	p.list = append(p.list, d)
	now := make(chan time.Time, 1)
	now <- time.Time{}
	return now
}

// TestPace: tries come in bursts, with pauses between them that grow up to the longest.
func TestPace(t *testing.T) {
	f, err := OpenFile(filepath.Join(t.TempDir(), "file"), unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer func(flock func(int, int) error) { Flock = flock }(Flock)
	const bursts = 10
	tries, clock := 0, &pauses{}
	Flock = func(int, int) error {
		if tries++; tries <= bursts*lockBurst {
			return unix.EWOULDBLOCK
		}
		return nil
	}
	if err := f.Lock(WaitLimit{Ctx: t.Context()}, clock, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if len(clock.list) != bursts || clock.list[0] != lockWaitMin || clock.list[bursts-1] != lockWaitMax || !slices.IsSorted(clock.list) {
		t.Errorf("%d tries with the pauses %v", tries, clock.list)
	}
}
