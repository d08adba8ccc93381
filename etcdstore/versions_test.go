package etcdstore

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOlderEtcd runs some of the tests with the etcd that the distribution packages:
// Debian's, by an older release than the one of all tests. `make test-etcd-versions`
// runs all of them so.
func TestOlderEtcd(t *testing.T) {
	t.Parallel()
	binary, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("the distribution's etcd is not installed (Debian: etcd-server)")
	}
	if binary == testBinary(t) {
		t.Skip("all tests run with it")
	}
	const some = "^(TestModel|TestWaitsEndWithTheWrite|TestLateRequestsDoNothing|TestLeasesAreGrantedOnce|TestLogHasOneOrder|TestLogSurvivesCompaction|TestLogOfSomebodyElse|TestRuns|TestUsers)$"
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run", some, "-test.v", "-rapid.checks=10", "-test.timeout=2m")
	again.Env = append(os.Environ(), envTestBinary+"="+binary)
	out, err := again.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range strings.Split(strings.Trim(some, "^()$"), "|") {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass:\n%s", name, out)
		}
	}
}
