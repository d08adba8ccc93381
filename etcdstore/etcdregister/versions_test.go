package etcdregister

import (
	"testing"

	"rallypoint/internal/etcdtest"
)

func TestOlderEtcd(t *testing.T) {
	t.Parallel()
	etcdtest.RunWithOlderEtcd(t, "TestRegister", "TestRegisterIsOnALease", "TestUsers")
}
