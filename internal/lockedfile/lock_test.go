package lockedfile

import (
	"path/filepath"
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

// TestPaceOfACrowd: one of many tries rarely, and with pauses that differ; one of
// few tries often.
func TestPaceOfACrowd(t *testing.T) {
	f, err := OpenFile(filepath.Join(t.TempDir(), "file"), unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer func(flock func(int, int) error) { Flock = flock }(Flock)
	for _, c := range []struct {
		waiters, refused, bursts int
		longest                  time.Duration
	}{
		{0, 640, 10, lockWaitMax}, {crowd, 640, 10, lockWaitMax}, {crowd + 1, 40, 10, crowdLockWaitMax},
	} {
		tries, clock := 0, &pauses{}
		Flock = func(int, int) error {
			if tries++; tries <= c.refused {
				return unix.EWOULDBLOCK
			}
			return nil
		}
		if err := f.Lock(WaitLimit{Ctx: t.Context(), Waiters: c.waiters}, clock, unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if len(clock.list) != c.bursts {
			t.Errorf("%d waiters: %d tries with %d pauses, want %d", c.waiters, tries, len(clock.list), c.bursts)
		}
		for _, d := range clock.list {
			if d > c.longest {
				t.Errorf("%d waiters: a pause of %v", c.waiters, d)
			}
		}
		if last := clock.list[len(clock.list)-1]; last < c.longest/2 {
			t.Errorf("%d waiters: the last pause is %v", c.waiters, last)
		}
	}
}
