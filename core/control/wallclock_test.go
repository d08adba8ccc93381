package control

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// wallClock are the places where a time of day is used, and what for. All other
// times are differences of time.Time values that carry Go's monotonic clock.
var wallClock = map[string]string{
	"internal/pack/packer.go UnixNano":      "when a run was closed, for display",
	"internal/pack/unpacker.go Unix":        "the same",
	"internal/pack/unpacker.go UTC":         "the same",
	"core/rendezvous/closed.go UTC":         "the same",
	"core/rendezvous/directive.go UTC":      "until when a directive stands, as a text",
	"core/rendezvous/status.go UTC":         "times of the status, by the server's clock alone",
	"core/control/metricspage.go UnixMilli": "when the server started",
	"core/control/wire/stream.go Unix":      "a deadline in the past, which ends a connection's I/O",
	"core/params/params.go UnixNano":        "incarnation of a named node: TestNamedNodeWhoseClockWentBack",
}

// TestWallClocksDecideNothing finds every use of a time of day in what decides
// who is alive and when a round is complete. A node whose clock is an hour off,
// or moves by one, differs from others by such uses only.
func TestWallClocksDecideNothing(t *testing.T) {
	daytime := map[string]bool{"Unix": true, "UnixNano": true, "UnixMilli": true, "UnixMicro": true, "UTC": true,
		"Local": true, "In": true, "Date": true, "Parse": true, "Clock": true, "Weekday": true, "YearDay": true}
	found := map[string]bool{}
	for _, folder := range []string{"core/rendezvous", "internal/pack", "core/control", "core/control/wire", "core/control/discovery", "core/control/client", "core/params", "roundstore"} {
		paths, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(paths), err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if f, ok := call.Fun.(*ast.SelectorExpr); ok && daytime[f.Sel.Name] {
						found[folder+"/"+filepath.Base(path)+" "+f.Sel.Name] = true
					}
				}
				return true
			})
		}
	}
	for use := range found {
		if wallClock[use] == "" {
			t.Errorf("%s: a time of day; is it for display only? Then say so in wallClock", use)
		}
	}
	for use := range wallClock {
		if !found[use] {
			t.Errorf("%s is not there any more", use)
		}
	}
}

// TestNamedNodeWhoseClockWentBack starts a named node again after its clock was
// moved back: what was its last start counts as newer as long as it is alive, and
// for no longer.
func TestNamedNodeWhoseClockWentBack(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 1)
	first, again := testHello("a", "s1", p), testHello("a", "s2", p)
	first.Named, again.Named = true, true
	first.Incarnation, again.Incarnation = 3600, 1
	old := dialNode(t, s.addr)
	old.enter(first)
	if f, ok := dialNode(t, s.addr).greet(again).(wire.Refuse); !ok || f.Err.Code != rendezvous.CodeNodeInUse {
		t.Errorf("got %+v", f)
	}
	old.conn.Close()
	awaitEvents[rendezvous.Disconnect](t, s.rec, 1)
	s.clock.Advance(p.ReconnectGrace)
	dialNode(t, s.addr).enter(again)
}
