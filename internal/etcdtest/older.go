package etcdtest

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// RunWithOlderEtcd runs the named tests of the package again with the etcd that the
// distribution packages: Debian's, by an older release than the one of all tests.
// `make test-etcd-versions` runs all of them so.
func RunWithOlderEtcd(t *testing.T, names ...string) {
	t.Helper()
	binary, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("the distribution's etcd is not installed (Debian: etcd-server)")
	}
	if binary == Binary(t) {
		t.Skip("all tests run with it")
	}
	some := "^(" + strings.Join(names, "|") + ")$"
	args := []string{"-test.run", some, "-test.v", "-test.timeout=2m"}
	if flag.Lookup("rapid.checks") != nil {
		args = append(args, "-rapid.checks=10")
	}
	again := exec.CommandContext(t.Context(), os.Args[0], args...)
	again.Env = append(os.Environ(), envBinary+"="+binary)
	out, err := again.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range names {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass:\n%s", name, out)
		}
	}
}
