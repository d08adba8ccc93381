package stacks

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// NCCL is what NCCL's own watch, RAS, knows of a node's workers: which of them have begun fewer
// collectives than others of a communicator, or do not answer it. It does not know where a kernel is.
type NCCL struct {
	Ranks     int      `json:"ranks"`     // workers of the node that it knows
	Behind    []Behind `json:"behind"`    // of these, the ones most behind first
	Mute      []int    `json:"mute"`      // of these, those that do not answer it
	Elsewhere int      `json:"elsewhere"` // processes of other nodes in the same communicators that are behind or do not answer
}

// Behind is a worker that has begun fewer collectives of a kind than another of its communicator.
type Behind struct {
	Rank int    `json:"rank"`
	What string `json:"what"` // the kind, such as AllReduce
	Has  uint64 `json:"has"`
	Most uint64 `json:"most"`
}

// The address of RAS, and the variables by which a worker changes it.
const (
	ncclAddr    = "localhost:28028"
	envNCCLAddr = "NCCL_RAS_ADDR"
	envNCCLOff  = "NCCL_RAS_ENABLE"
)

// Bounds of what RAS may say and take: anybody on this machine can listen at its port.
const (
	ncclPatience = 3 * time.Second
	maxNCCLBytes = 16 << 20
	maxNCCLLine  = 256
	maxNCCLWhat  = 24
	maxNCCLRanks = 64 // that are behind, or mute, of a node
	maxNCCLShown = 4
)

// AskNCCL asks the RAS of the workers of this node, whose environment getenv reads; nil: none answers,
// or it knows none of the workers, or it is older than NCCL 2.28.7.
func AskNCCL(ctx context.Context, getenv func(name string) string, own []netip.Addr, targets []Target) *NCCL {
	if len(targets) == 0 || getenv(envNCCLOff) == "0" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ncclPatience)
	defer cancel()
	text, err := fetchNCCL(ctx, cmp.Or(getenv(envNCCLAddr), ncclAddr))
	if err != nil {
		return nil
	}
	ranks := make(map[int]int)
	for _, t := range targets {
		ranks[t.Pid] = t.Rank
	}
	n, _ := readNCCL(text, own, ranks)
	return n
}

// fetchNCCL carries out the conversation of NCCL's client, ncclras.
func fetchNCCL(ctx context.Context, addr string) ([]byte, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(conn, maxNCCLLine)
	for _, line := range []struct{ ask, answer string }{{"CLIENT PROTOCOL 2", "SERVER PROTOCOL "}, {"TIMEOUT 1", "OK\n"}, {"SET FORMAT json", "OK\n"}} {
		if _, err := fmt.Fprintln(conn, line.ask); err != nil {
			return nil, err
		}
		text, err := in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(string(text), line.answer) {
			return nil, fmt.Errorf("%s answers %q to %q", addr, text, line.ask)
		}
	}
	if _, err := fmt.Fprintln(conn, "VERBOSE STATUS"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(in, maxNCCLBytes+1))
	if len(text) > maxNCCLBytes {
		return nil, errors.New("the answer is too long")
	}
	return text, err
}

type ncclProcess struct {
	Host   string            `json:"host"` // its address
	Pid    int               `json:"pid"`
	Counts map[string]uint64 `json:"collective_counts"` // begun, by kind
}

// readNCCL compares the processes of each communicator that has a worker of this node. Other jobs on
// this machine have communicators of their own.
func readNCCL(text []byte, own []netip.Addr, ranks map[int]int) (*NCCL, error) {
	var status struct {
		Communicators []struct {
			Ranks   []ncclProcess `json:"ranks"`
			Missing []ncclProcess `json:"missing_ranks"`
		} `json:"communicators"`
	}
	begin := max(0, bytes.IndexByte(text, '{')) // after what a release may say first
	if err := json.Unmarshal(text[begin:], &status); err != nil {
		return nil, err
	}
	rankOf := func(p ncclProcess) (int, bool) {
		rank, known := ranks[p.Pid]
		addr, err := netip.ParseAddr(p.Host)
		return rank, known && err == nil && (addr.IsLoopback() || slices.Contains(own, addr.Unmap().WithZone("")))
	}
	known, mute, behind, elsewhere := make(map[int]bool), make(map[int]bool), make(map[int]Behind), make(map[ncclKey]bool)
	for _, c := range status.Communicators {
		all := slices.Concat(c.Ranks, c.Missing)
		if !slices.ContainsFunc(all, func(p ncclProcess) bool { _, mine := rankOf(p); return mine }) {
			continue
		}
		for _, p := range c.Missing {
			if rank, mine := rankOf(p); mine {
				known[rank], mute[rank] = true, true
			} else {
				elsewhere[ncclKey{p.Host, p.Pid}] = true
			}
		}
		most := make(map[string]uint64)
		for _, p := range c.Ranks {
			for what, n := range p.Counts {
				most[what] = max(most[what], n)
			}
		}
		for _, p := range c.Ranks {
			rank, mine := rankOf(p)
			if mine {
				known[rank] = true
			}
			for what, n := range most {
				switch {
				case !collective(what) || p.Counts[what] >= n:
				case !mine:
					elsewhere[ncclKey{p.Host, p.Pid}] = true
				case n-p.Counts[what] > behind[rank].Most-behind[rank].Has:
					behind[rank] = Behind{rank, pack.CutText(printable.Text(what), maxNCCLWhat), p.Counts[what], n}
				}
			}
		}
	}
	if len(known) == 0 {
		return nil, nil
	}
	n := &NCCL{Ranks: len(known), Behind: slices.Collect(maps.Values(behind)), Mute: slices.Sorted(maps.Keys(mute)), Elsewhere: len(elsewhere)}
	sortBehind(n.Behind)
	n.Behind, n.Mute = n.Behind[:min(len(n.Behind), maxNCCLRanks)], n.Mute[:min(len(n.Mute), maxNCCLRanks)]
	return n, nil
}

// ncclKey names a process of another node.
type ncclKey struct {
	host string
	pid  int
}

// collective reports whether all ranks of a communicator begin as many operations of a kind.
func collective(what string) bool {
	return !strings.Contains(what, "Send") && !strings.Contains(what, "Recv") && !strings.Contains(what, "Signal")
}

func sortBehind(list []Behind) {
	slices.SortFunc(list, func(a, b Behind) int {
		return cmp.Or(cmp.Compare(b.Most-b.Has, a.Most-a.Has), cmp.Compare(a.Rank, b.Rank))
	})
}

func (n *NCCL) check() error {
	if n == nil {
		return nil
	}
	if n.Ranks < 0 || n.Elsewhere < 0 || len(n.Behind) > maxNCCLRanks || len(n.Mute) > maxNCCLRanks || !possible(n.Mute) {
		return errors.New("an answer about NCCL that cannot be")
	}
	for i := range n.Behind {
		b := &n.Behind[i]
		if !possible([]int{b.Rank}) || b.Has > b.Most {
			return errors.New("an answer about NCCL with a rank that cannot be")
		}
		b.What = pack.CutText(printable.Text(b.What), maxNCCLWhat)
	}
	return nil
}

// NCCLText says what RAS knows on all nodes that have answered; "": nothing.
func NCCLText(nodes []*Node) string {
	var all NCCL
	for _, n := range nodes {
		if n != nil && n.NCCL != nil {
			all.Ranks += n.NCCL.Ranks
			all.Behind, all.Mute = append(all.Behind, n.NCCL.Behind...), append(all.Mute, n.NCCL.Mute...)
			all.Elsewhere = max(all.Elsewhere, n.NCCL.Elsewhere)
		}
	}
	if all.Ranks == 0 {
		return ""
	}
	sortBehind(all.Behind)
	slices.Sort(all.Mute)
	var parts []string
	for _, b := range all.Behind[:min(len(all.Behind), maxNCCLShown)] {
		parts = append(parts, fmt.Sprintf("rank %d has begun %d of %d %s", b.Rank, b.Has, b.Most, b.What))
	}
	if more := len(all.Behind) - maxNCCLShown; more > 0 {
		parts = append(parts, fmt.Sprintf("%s behind, too", wording.Count(more, "other rank is", "other ranks are")))
	}
	if len(all.Mute) > 0 {
		parts = append(parts, fmt.Sprintf("%s %s not answer", RanksText(all.Mute), form(len(all.Mute), "does", "do")))
	}
	switch {
	case len(parts) > 0:
	case all.Elsewhere > 0:
		parts = append(parts, fmt.Sprintf("%s behind or silent on nodes that have not said which ranks these are", wording.Count(all.Elsewhere, "process is", "processes are")))
	default:
		parts = append(parts, "all ranks have begun the same collectives, so it cannot tell which one hangs")
	}
	return "NCCL: " + strings.Join(parts, "; ")
}
