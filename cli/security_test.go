package cli

import (
	"strings"
	"testing"

	"rallypoint/cli/run"
	"rallypoint/core/params"
)

// TestSecurityRequired: jobs of several machines and a serve that they reach, without a
// token.
func TestSecurityRequired(t *testing.T) {
	t.Setenv(params.EnvTokenFile, "")
	for _, test := range []struct {
		value string
		args  []string
		code  int
		says  string
	}{
		{"require", []string{"serve", "--listen", "0.0.0.0:0"}, run.ExitFailure, "RALLYPOINT_SECURITY=require makes that an error"},
		{"yes", []string{"serve", "--listen", "127.0.0.1:0"}, run.ExitFailure, `"yes": expected "require"`},
		{"require", []string{"run", "--no-python", "--nnodes", "2", "--rdzv-id", "j", "--rdzv-endpoint", "192.0.2.1:1", "true"}, run.ExitUsage, "no token"},
		{"require", []string{"run", "--no-python", "--nnodes", "2", "--master-addr", "192.0.2.1", "--rdzv-backend", "static", "true"}, run.ExitUsage, "no token"},
		{"require", []string{"run", "--no-python", "--rdzv-id", "j", "--nnodes", "2", "--rdzv-endpoint", "file://" + t.TempDir(), "true"}, run.ExitUsage, "give all nodes a token file"},
		{"require", []string{"run", "--no-python", "--standalone", "true"}, run.ExitOK, ""},
		{"", []string{"run", "--no-python", "--standalone", "--rdzv-conf", "allow_uid=ten", "true"}, run.ExitUsage, `allow_uid="ten": expected user ids`},
		{"", []string{"run", "--no-python", "--standalone", "--rdzv-conf", "allow_uid=1", "true"}, run.ExitOK, ""},
	} {
		t.Setenv(params.EnvSecurity, test.value)
		code, _, stderr := execute(t, test.args...)
		if code != test.code || !strings.Contains(stderr, test.says) {
			t.Errorf("%s, %v: %d, %q", test.value, test.args, code, stderr)
		}
	}
}
