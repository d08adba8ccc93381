package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/params"
	"rallypoint/roundstore"
)

// TestServeSurvivesItsFile cuts off the data file under a control plane: nodes that
// are new get the reason why they cannot join, and SIGTERM ends it.
func TestServeSurvivesItsFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := &serverProcess{args: []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", dir}}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	join := func(id string) error {
		p := params.Default()
		p.RunID, p.Min, p.Max, p.JoinTimeout = id, 1, 1, 4*time.Second
		controltest.MeetAt(&p, s.addr)
		m, err := roundstore.Open(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		_, err = m.Next(ctx)
		return err
	}
	if err := join("before"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "control.db"), 0); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := join(fmt.Sprint("after", i)); err == nil || !strings.Contains(err.Error(), "cannot store") || !strings.Contains(err.Error(), "start it again") {
			t.Errorf("a new node: %v", err)
		}
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v: %s", err, s.stderr)
		}
	case <-ctx.Done():
		s.cmd.Process.Kill()
		<-ended
		t.Errorf("it does not end on SIGTERM: %s", s.stderr)
	}
}
