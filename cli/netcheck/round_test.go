package netcheck

import (
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTurns: each two nodes meet once, and none has two partners.
func TestTurns(t *testing.T) {
	for nodes := 1; nodes < 10; nodes++ {
		met := map[[2]int]int{}
		for turn := range turns(nodes) {
			for rank := range nodes {
				if peer := opponent(nodes, turn, rank); peer >= 0 {
					met[[2]int{rank, peer}]++
					if back := opponent(nodes, turn, peer); back != rank || peer == rank {
						t.Errorf("%d nodes, turn %d: %d meets %d, which meets %d", nodes, turn, rank, peer, back)
					}
				}
			}
		}
		if len(met) != nodes*(nodes-1) {
			t.Errorf("of %d nodes %d pairs have met", nodes, len(met)/2)
		}
	}
}

// TestMeasure has three nodes of this machine, which has perhaps no address for others, measure.
func TestMeasure(t *testing.T) {
	ctx := testkit.Within(t, testkit.Patience)
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	var reports [3]*Report
	var ends []<-chan error
	for rank := range reports {
		ends = append(ends, testkit.Go(func() (err error) {
			r := Round{Store: s, Rank: rank, Nodes: len(reports), Host: "h", Budget: testkit.Patience}
			reports[rank], err = r.Measure(ctx)
			return err
		}))
	}
	for _, end := range ends {
		testkit.Check(t, <-end)
	}
	interfaces, err := Interfaces()
	if rows := min(len(global(interfaces)), maxPaths) * 6; err != nil || len(reports[0].Rows) != rows || len(reports[1].Rows) != 0 || len(reports[0].Findings) != 0 {
		t.Errorf("%v: %+v, want %d rows", err, reports[0], rows)
	}
}

// TestPath measures one path, and is refused without the key.
func TestPath(t *testing.T) {
	key := []byte(strings.Repeat("k", keyLen))
	r, err := newResponder(key)
	testkit.Check(t, err)
	defer r.close()
	local := Address{"lo", netip.MustParseAddr("127.0.0.1")}
	p := path{Address: local}
	if err := p.measure(t.Context(), r.port(), key, []Address{local}); err != nil || p.Latency <= 0 || p.Bandwidth <= 1e6 || p.Source != "lo" {
		t.Errorf("%+v, %v", p, err)
	}
	if err := p.measure(t.Context(), r.port(), []byte(strings.Repeat("x", keyLen)), nil); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Error(err)
	}
}

func TestRoutes(t *testing.T) {
	for line, want := range map[string]string{
		"eth0	00000000	FE014D0A	0003	0	0	100	00000000	0	0	0": "default via 10.77.1.254 dev eth0 metric 100",
		"eth0	00014D0A	00000000	0001	0	0	0	00FFFFFF	0	0	0":   "10.77.1.0/24 dev eth0 metric 0",
		"eth0	00014D0A	00000000	0000	0	0	0	00FFFFFF	0	0	0":   "",
		"short": "",
	} {
		if r, ok := parseRoute4(strings.Fields(line)); ok != (want != "") || ok && r.String() != want {
			t.Errorf("%q: %v", line, r)
		}
	}
	line := "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd7700010000000000000000000000fe 00000400 00000001 00000000 00000003     eth0"
	if r, ok := parseRoute6(strings.Fields(line)); !ok || r.String() != "default (IPv6) via fd77:1::fe dev eth0 metric 1024" {
		t.Errorf("%v", r)
	}
}
