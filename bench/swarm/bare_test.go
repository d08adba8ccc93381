package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func controlPlane(t *testing.T) (addr string) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := control.Start(control.Config{}, l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// TestDirect: nodes agree on each directive, and end it.
func TestDirect(t *testing.T) {
	const times = 3
	var out bytes.Buffer
	testkit.Check(t, direct(testkit.Within(t, testkit.Patience), &out, controlPlane(t), 20, times))
	for i, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		var took map[string]float64
		if err := json.Unmarshal([]byte(line), &took); err != nil || i >= times || took["agreed_s"] <= 0 || took["over_s"] < took["agreed_s"] {
			t.Errorf("line %d of %d: %s", i+1, times, line)
		}
	}
}

// TestBareNodesBeat: the nodes send beats by turns while nothing else happens.
func TestBareNodesBeat(t *testing.T) {
	const nodes, beats = 5, 4
	addr := controlPlane(t)
	ctx := testkit.Within(t, testkit.Patience)
	s := testkit.Must(gatherBare(ctx, addr, nodes, "beats"))(t)
	defer s.leave()
	s.beatEvery = 10 * time.Millisecond
	count := regexp.MustCompile(`received_frames_total{kind="beat"} (\d+)`)
	testkit.Check(t, s.await(ctx, "the beats", func(*bareNode) bool {
		answer := testkit.Must(http.Get("http://" + addr + "/metrics"))(t)
		defer answer.Body.Close()
		var got int
		if found := count.FindSubmatch(testkit.Must(io.ReadAll(answer.Body))(t)); found != nil {
			fmt.Sscan(string(found[1]), &got)
		}
		return got >= nodes*beats
	}))
	http.DefaultClient.CloseIdleConnections()
}
