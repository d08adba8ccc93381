package secret

import (
	"crypto/fips140"
	"os"
	"os/exec"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// TestFIPSMode opens connections in a process that may use nothing but what FIPS 140 allows.
func TestFIPSMode(t *testing.T) {
	const mode = "fips140=only"
	if strings.Contains(os.Getenv("GODEBUG"), mode) {
		if !fips140.Enabled() {
			t.Error("it is not in FIPS mode")
		}
		return
	}
	cmd := exec.Command(testkit.Must(os.Executable())(t), "-test.run", "^(TestFIPSMode|TestStoreOpening|TestStoreRefusals|TestCertificate)$", "-test.v")
	cmd.Env = append(os.Environ(), "GODEBUG="+mode)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFIPSMode") || !strings.Contains(string(out), "--- PASS: TestStoreOpening") {
		t.Errorf("%v:\n%s", err, out)
	}
}
