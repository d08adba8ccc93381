package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/core/rendezvous"
)

func TestMain(m *testing.M) {
	etcd.M = m
	goleak.VerifyTestMain(&etcd)
}

const patience = 20 * time.Second

type testWriter struct {
	t    *testing.T
	name string
}

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s: %s", w.name, strings.TrimSpace(string(b)))
	return len(b), nil
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	const n = 4
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			p := rendezvous.DefaultParams()
			p.RunID, p.Endpoint, p.NodeID, p.Min, p.Max = "job", "file://"+dir, fmt.Sprint("n", i), n, n
			p.LocalAddr = "127.0.0.1"
			m, err := Open(p, slog.New(slog.NewTextHandler(testWriter{t, p.NodeID}, &slog.HandlerOptions{Level: slog.LevelDebug})))
			if err != nil {
				t.Error(err)
				return
			}
			defer m.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			o, err := m.Next(ctx)
			t.Log(time.Since(began), o, err)
			if err != nil {
				t.Error(err)
			}
			if err := m.Keys(1).Barrier(ctx, "torchelastic/agent/terminal_state", n); err != nil {
				t.Error(err)
			}
			if err := m.Shutdown(ctx, rendezvous.EndSuccess, ""); err != nil && !errors.Is(err, rendezvous.ErrClosed) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestTokenThatProtectsNothing is refused wherever there is no control plane, whether its
// file is there or not.
func TestTokenThatProtectsNothing(t *testing.T) {
	p := rendezvous.DefaultParams()
	p.RunID, p.Min, p.Max, p.NodeRank, p.TokenFile = "job", 2, 2, 0, t.TempDir()+"/none"
	for _, endpoint := range []string{"file://" + t.TempDir(), "etcd://127.0.0.1:1", "etcds://127.0.0.1:1", "static://127.0.0.1:29500"} {
		p.Endpoint = endpoint
		if _, err := Open(p, nil); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), p.TokenFile+" would protect nothing") {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	p.Endpoint = "a blob"
	if _, err := OpenRegister(p, nil, nil); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), "a blob has none") {
		t.Errorf("a blob: %v", err)
	}
	p.Endpoint = "127.0.0.1:1"
	if _, err := Open(p, nil); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a control plane: %v", err)
	}
}
