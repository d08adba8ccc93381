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

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
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

func (tw testWriter) Write(b []byte) (int, error) {
	tw.t.Logf("%s: %s", tw.name, strings.TrimSpace(string(b)))
	return len(b), nil
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	const n = 4
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			p := params.Default()
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

// TestToken: each endpoint takes a token, whose file has to be there, but for one that would
// be used over a plain connection to another machine.
func TestToken(t *testing.T) {
	p := params.Default()
	p.RunID, p.Min, p.Max, p.NodeRank = "job", 2, 2, 0
	good, none := testkit.TokenFile(t), t.TempDir()+"/none"
	for endpoint, wrong := range map[string]string{
		"file://" + t.TempDir(): "", "etcd://127.0.0.1:1": "", "etcds://192.0.2.1:1": "", "static://127.0.0.1:29500": "", "static://192.0.2.1:29500": "", "127.0.0.1:1": "", "a blob": "",
		"etcd://127.0.0.1:1,192.0.2.1:1": "use etcds://", "etcd://localhost,host0": "use etcds://",
	} {
		for _, file := range []string{good, none} {
			p.Endpoint, p.TokenFile, p.Security = endpoint, file, params.SecurityRequire
			open := Open
			if endpoint == "a blob" {
				open = func(p params.Params, log *slog.Logger) (Node, error) { return node(OpenRegister(p, nil, log)) }
			}
			n, err := open(p, nil)
			if err == nil {
				n.Close()
			}
			want := wrong
			if file == none && want == "" {
				want = "no such file"
			}
			switch {
			case want == "" && err != nil:
				t.Errorf("%s: %v", endpoint, err)
			case want != "" && file == good && (!errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file)):
				t.Errorf("%s: %v; want one that says %q", endpoint, err, want)
			case file == none && !errors.Is(err, rendezvous.ErrInvalid):
				t.Errorf("%s without its file: %v", endpoint, err)
			}
		}
	}
}
