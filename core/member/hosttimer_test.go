package member

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestHostFoundAsItsLeaseEnds: a timer that has fired while the control plane is found, and lost
// again, says nothing of the lease that has begun then.
func TestHostFoundAsItsLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Member{host: hostLiveness{gone: make(chan struct{})}, lost: errors.New("connection refused")}
		m.params.LeaseTimeout = time.Second
		m.mu.Lock()
		m.hostDownLocked()
		time.Sleep(time.Second) // its timer fires, and waits for the lock
		m.hostFoundLocked()
		m.hostDownLocked()
		m.mu.Unlock()
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if isClosed(m.host.gone) {
			t.Error("the lease of the second loss ended with that of the first")
		}
		m.hostFoundLocked()
	})
}
