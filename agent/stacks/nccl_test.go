package stacks

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// rasRank is a process as RAS describes it.
func rasRank(rank int, host string, pid, allReduce, broadcast int) string {
	return fmt.Sprintf(`{"rank": %d, "host": %q, "pid": %d, "cuda_dev": 0, "nvml_dev": 0,
		"status": {"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false},
		"collective_counts": {"Broadcast": %d, "AllReduce": %d, "SendRecv": %d, "Send": 0, "Recv": %d}}`, rank, host, pid, broadcast, allReduce, rank, pid)
}

func rasMissing(rank int, host string, pid int) string {
	return fmt.Sprintf(`{"rank": %d, "host": %q, "pid": %d, "cuda_dev": 0, "nvml_dev": 0, "status": {"unresponsive": true, "considered_dead": false}}`, rank, host, pid)
}

func rasComm(ranks, missing []string) string {
	return fmt.Sprintf(`{"hash": "0x1f", "secondary_hash": "0x1:0x2", "size": %d, "ranks_count": %d, "missing_ranks_count": %d, "ranks": [%s], "missing_ranks": [%s]}`,
		len(ranks)+len(missing), len(ranks), len(missing), strings.Join(ranks, ","), strings.Join(missing, ","))
}

func rasStatus(comms ...string) string {
	return fmt.Sprintf(`{"nccl_version": "2.28.7+cuda13.0", "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": "2026-03-04 12:00:00",
		"communicators_count": %d, "communicators": [%s], "ras": {"collection_time_sec": 0.012, "timeouts_count": 0}}`+"\n", len(comms), strings.Join(comms, ","))
}

// Two nodes with two ranks each: this one is 10.0.0.1, whose workers are ranks 4 and 5 of the job.
var (
	ncclOwn   = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	ncclRanks = map[int]int{100: 4, 101: 5}
)

func TestNCCLCounts(t *testing.T) {
	const here, there = "10.0.0.1", "10.0.0.2"
	all := []string{rasRank(0, here, 100, 42, 7), rasRank(1, here, 101, 42, 7), rasRank(2, there, 100, 42, 7), rasRank(3, there, 101, 42, 7)}
	with := func(at int, other string) []string {
		list := slices.Clone(all)
		list[at] = other
		return list
	}
	for name, test := range map[string]struct {
		status string
		want   *NCCL
		text   string
	}{
		"equal":           {rasStatus(rasComm(all, nil)), &NCCL{Ranks: 2}, "NCCL: all ranks have begun the same collectives, so it cannot tell which one hangs"},
		"one is behind":   {rasStatus(rasComm(with(1, rasRank(1, here, 101, 41, 7)), nil)), &NCCL{Ranks: 2, Behind: []Behind{{5, "AllReduce", 41, 42}}}, "NCCL: rank 5 has begun 41 of 42 AllReduce"},
		"the most behind": {rasStatus(rasComm(with(1, rasRank(1, here, 101, 41, 2)), nil)), &NCCL{Ranks: 2, Behind: []Behind{{5, "Broadcast", 2, 7}}}, "NCCL: rank 5 has begun 2 of 7 Broadcast"},
		"elsewhere": {rasStatus(rasComm(with(2, rasRank(2, there, 100, 41, 7)), nil)), &NCCL{Ranks: 2, Elsewhere: 1},
			"NCCL: 1 process is behind or silent on nodes that have not said which ranks these are"},
		"a rank is mute": {rasStatus(rasComm(all[1:], []string{rasMissing(0, here, 100)})), &NCCL{Ranks: 2, Mute: []int{4}}, "NCCL: rank 4 does not answer"},
		"another job":    {rasStatus(rasComm([]string{rasRank(0, here, 7, 1, 1), rasRank(1, there, 100, 2, 2)}, nil)), nil, ""},
		"two communicators": {rasStatus(rasComm(all, nil), rasComm([]string{rasRank(0, here, 100, 5, 0), rasRank(1, there, 101, 9, 0)}, nil), rasComm([]string{rasRank(0, here, 7, 1, 1), rasRank(1, here, 8, 2, 2)}, nil)),
			&NCCL{Ranks: 2, Behind: []Behind{{4, "AllReduce", 5, 9}}}, "NCCL: rank 4 has begun 5 of 9 AllReduce"},
		"none": {rasStatus(), nil, ""},
	} {
		got, err := readNCCL([]byte(test.status), ncclOwn, ncclRanks)
		if err != nil || (got == nil) != (test.want == nil) {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		if got != nil && (got.Ranks != test.want.Ranks || got.Elsewhere != test.want.Elsewhere || !slices.Equal(got.Behind, test.want.Behind) || !slices.Equal(got.Mute, test.want.Mute)) {
			t.Errorf("%s: %+v", name, got)
		}
		if text := NCCLText([]*Node{nil, {}, {NCCL: got}}); text != test.text {
			t.Errorf("%s: %q", name, text)
		}
	}
	for _, text := range []string{"", "ERROR: Unknown command", "[]", `{"communicators": [{"ranks": [{"pid": "x"}]}]}`} {
		if got, err := readNCCL([]byte(text), ncclOwn, ncclRanks); got != nil || err == nil {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// TestNCCLOfAllNodes: what the nodes say is one sentence, however many ranks are behind.
func TestNCCLOfAllNodes(t *testing.T) {
	behind := func(ranks ...int) *Node {
		n := &NCCL{Ranks: 8, Elsewhere: 3}
		for _, rank := range ranks {
			n.Behind = append(n.Behind, Behind{rank, "AllReduce", uint64(rank), 42})
		}
		return &Node{NCCL: n}
	}
	if text := NCCLText([]*Node{behind(3), nil, {NCCL: &NCCL{Ranks: 1, Mute: []int{9, 8}}}, behind(17, 18, 19, 20)}); text != "NCCL: rank 3 has begun 3 of 42 AllReduce; rank 17 has begun 17 of 42 AllReduce; rank 18 has begun 18 of 42 AllReduce; "+
		"rank 19 has begun 19 of 42 AllReduce; 1 other rank is behind, too; ranks 8, 9 do not answer" {
		t.Errorf("%q", text)
	}
	h := newHang(0, []*Node{behind(3)}, nil, false, false)
	if !strings.HasSuffix(h.Text, "; NCCL: rank 3 has begun 3 of 42 AllReduce") {
		t.Errorf("a hang is told as %q", h.Text)
	}
}

// TestNCCLOfAnotherNode: an answer passes through the round's store, into which workers can write.
func TestNCCLOfAnotherNode(t *testing.T) {
	n := Node{NCCL: &NCCL{Ranks: 2, Behind: []Behind{{5, "All\x1bReduce" + strings.Repeat("x", 100), 1, 2}}, Mute: []int{4}}}
	got, err := decode(n.Encode())
	if err != nil || len(got.NCCL.Behind[0].What) > maxNCCLWhat || strings.Contains(got.NCCL.Behind[0].What, "\x1b") {
		t.Errorf("%+v, %v", got, err)
	}
	if old, err := decode(Node{}.Encode()); err != nil || old.NCCL != nil {
		t.Errorf("%+v, %v", old, err)
	}
	for _, bad := range []NCCL{{Ranks: -1}, {Mute: []int{-1}}, {Mute: make([]int, maxNCCLRanks+1)}, {Behind: []Behind{{Rank: -2}}}, {Behind: []Behind{{Has: 2, Most: 1}}}, {Behind: make([]Behind, maxNCCLRanks+1)}} {
		if got, err := decode(Node{NCCL: &bad}.Encode()); err == nil {
			t.Errorf("%+v is taken as %+v", bad, got)
		}
	}
}

// rasServer is what listens at RAS's port, and the lines that a client sends it.
func rasServer(t *testing.T, serve func(conn net.Conn, lines *bufio.Scanner)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Check(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn, bufio.NewScanner(conn))
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// speak answers as NCCL does.
func speak(status string) func(net.Conn, *bufio.Scanner) {
	return func(conn net.Conn, lines *bufio.Scanner) {
		for lines.Scan() {
			switch line := lines.Text(); {
			case strings.HasPrefix(line, "CLIENT PROTOCOL "):
				fmt.Fprintln(conn, "SERVER PROTOCOL 2")
			case line == "TIMEOUT 1", line == "SET FORMAT json" && status != "":
				fmt.Fprintln(conn, "OK")
			case line == "VERBOSE STATUS":
				fmt.Fprint(conn, status)
				return
			default:
				fmt.Fprintln(conn, "ERROR: Unknown command "+line)
			}
		}
	}
}

func TestAskNCCL(t *testing.T) {
	targets := []Target{{Rank: 4, Pid: 100}, {Rank: 5, Pid: 101}}
	equal := rasStatus(rasComm([]string{rasRank(0, "127.0.0.1", 100, 42, 7), rasRank(1, "127.0.0.1", 101, 42, 7)}, nil))
	for name, test := range map[string]struct {
		serve func(net.Conn, *bufio.Scanner)
		known bool
	}{
		"NCCL":           {speak(equal), true},
		"an older one":   {speak(""), false},
		"a stranger":     {func(conn net.Conn, _ *bufio.Scanner) { fmt.Fprint(conn, strings.Repeat("x", 2*maxNCCLLine)) }, false},
		"one that stops": {func(conn net.Conn, lines *bufio.Scanner) { lines.Scan(); fmt.Fprintln(conn, "SERVER PROTOCOL 2") }, false},
		"a silent one": {func(_ net.Conn, lines *bufio.Scanner) {
			for lines.Scan() {
			}
		}, false},
		"an endless one": {func(conn net.Conn, lines *bufio.Scanner) {
			speak(strings.Repeat(" ", maxNCCLBytes+1))(conn, lines)
		}, false},
	} {
		addr := rasServer(t, test.serve)
		env := map[string]string{envNCCLAddr: addr}
		if n := AskNCCL(t.Context(), func(name string) string { return env[name] }, ncclOwn, targets); (n != nil) != test.known || n != nil && n.Ranks != 2 {
			t.Errorf("%s: %+v", name, n)
		}
		env[envNCCLOff] = "0"
		if n := AskNCCL(t.Context(), func(name string) string { return env[name] }, ncclOwn, targets); n != nil {
			t.Errorf("%s is asked although it is off: %+v", name, n)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if n := AskNCCL(ended, func(string) string { return "127.0.0.1:1" }, ncclOwn, targets); n != nil {
		t.Errorf("%+v", n)
	}
}

func FuzzNCCL(f *testing.F) {
	f.Add([]byte(rasStatus(rasComm([]string{rasRank(0, "10.0.0.1", 100, 42, 7)}, []string{rasMissing(1, "10.0.0.1", 101)}))))
	f.Add([]byte(`{"communicators": [{"ranks": [{"host": "::1", "pid": 100, "collective_counts": {"\u001b": 18446744073709551615}}, {"host": "10.0.0.1", "pid": 101}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := readNCCL(text, ncclOwn, ncclRanks)
		if n == nil {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		var again NCCL
		encoded, err := json.Marshal(n)
		testkit.Check(t, err)
		testkit.Check(t, json.Unmarshal(encoded, &again))
		before := again
		if err := again.check(); err != nil || !reflect.DeepEqual(again, before) {
			t.Errorf("what was read is refused or changed: %+v, %v", n, err)
		}
	})
}
