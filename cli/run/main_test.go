package run

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

const (
	// asRun makes this test binary the command itself, with run and launch alone.
	asRun = "RALLYPOINT_TEST_AS_RUN"
	// testPluginPatience is pluginPatience of that command.
	testPluginPatience = "RALLYPOINT_TEST_PLUGIN_PATIENCE"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func init() {
	if os.Getenv(asRun) != "1" {
		return
	}
	os.Unsetenv(asRun)
	if patience, err := time.ParseDuration(os.Getenv(testPluginPatience)); err == nil {
		pluginPatience = patience
	}
	root := &cobra.Command{Use: "rallypoint", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(New(), NewLaunch())
	err := root.Execute()
	var status ExitStatus
	if err != nil && !errors.As(err, &status) {
		status = ExitUsage
	}
	os.Exit(int(status))
}

// TestAgentLogIsOff: the level off is documented for nodes, and holds for an agent.
func TestAgentLogIsOff(t *testing.T) {
	var b strings.Builder
	NewLog(&b, agentLevel("off", true), false).Error("an error")
	NewLog(&b, agentLevel("off", true), true).Error("an error")
	if b.Len() > 0 {
		t.Error(b.String())
	}
}
