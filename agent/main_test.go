package agent

import (
	"os"
	"os/signal"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain takes the signals that workers are tested with: those that nohup or a shell in the
// background has ignored stay ignored in workers.
func TestMain(m *testing.M) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
	goleak.VerifyTestMain(m)
}
