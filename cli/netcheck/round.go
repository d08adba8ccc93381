package netcheck

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"rallypoint/core/store"
)

// Round is this node's place in a round whose nodes measure what they have between them.
type Round struct {
	Store       store.Store
	Rank, Nodes int
	Host        string
	// Advertised is the address by which the others know this node.
	Advertised netip.Addr
	// Budget is the time after which no more pairs are measured.
	Budget time.Duration
}

const (
	keyPrefix  = "rallypoint/check-net/"
	maxPaths   = 4 // addresses of a node that are measured
	maxRows    = 40
	slowFactor = 2 // an address is slow if another of its node is so many times as fast

	leastLatency = 500 * time.Microsecond // by which another address must be nearer
)

type node struct {
	Host       string     `json:"host"`
	Advertised netip.Addr `json:"advertised"`
	Port       int        `json:"port"`
	Key        string     `json:"key"`
	Addresses  []Address  `json:"addresses"`
}

// Report is what rank 0 makes of all measurements.
type Report struct {
	Rows     []string `json:"-"`        // each path, the slowest first; at rank 0 alone
	Findings []string `json:"findings"` // what is wrong; none: nothing was found
	Turns    string   `json:"turns"`    // how much was measured
}

// Measure has each pair of nodes measure the paths to each other's addresses, no node two pairs at a
// time. All nodes of the round must call it.
func (r *Round) Measure(ctx context.Context) (*Report, error) {
	began := time.Now()
	interfaces, err := Interfaces()
	if err != nil {
		return nil, err
	}
	own := global(interfaces)
	key := make([]byte, keyLen)
	_, _ = rand.Read(key)
	server, err := newResponder(key)
	if err != nil {
		return nil, err
	}
	defer server.close()
	if i := slices.IndexFunc(own, func(a Address) bool { return a.IP == r.Advertised }); i > 0 {
		own[0], own[i] = own[i], own[0]
	}
	me := node{r.Host, r.Advertised, server.port(), keyText(key), own[:min(len(own), maxPaths)]}
	if err := r.set(ctx, "node/"+strconv.Itoa(r.Rank), me); err != nil {
		return nil, err
	}
	nodes := make([]node, r.Nodes)
	for i := range nodes {
		if err := r.get(ctx, "node/"+strconv.Itoa(i), &nodes[i]); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
	}
	paths := []path{}
	turns, done := turns(r.Nodes), 0
	for ; done < turns; done++ {
		if peer := opponent(r.Nodes, done, r.Rank); peer >= 0 {
			measured, err := r.pair(ctx, done, peer, nodes[peer], own)
			if err != nil {
				return nil, err
			}
			paths = append(paths, measured...)
		}
		more, err := r.barrier(ctx, done, time.Since(began) < r.Budget)
		if err != nil {
			return nil, err
		}
		if !more {
			done++
			break
		}
	}
	if err := r.set(ctx, "paths/"+strconv.Itoa(r.Rank), paths); err != nil {
		return nil, err
	}
	report := &Report{}
	if r.Rank == 0 {
		var all []path
		for i := range nodes {
			var of []path
			if err := r.get(ctx, "paths/"+strconv.Itoa(i), &of); err != nil {
				return nil, fmt.Errorf("node %d: %w", i, err)
			}
			all = append(all, of...)
		}
		report = judge(nodes, all)
		report.Turns = fmt.Sprintf("%d of %d turns, in each of which every node measures with another", done, turns)
		err = r.set(ctx, "report", report)
	} else {
		err = r.get(ctx, "report", report)
	}
	if err != nil {
		return nil, err
	}
	r.awaitReaders(ctx)
	return report, nil
}

// awaitReaders has rank 0 wait until all others have the report: its end ends the job, and the store. A node that has
// found something ends the job, too, and with it this wait.
func (r *Round) awaitReaders(ctx context.Context) {
	n, err := r.Store.Add(ctx, keyPrefix+"readers", 1)
	if err == nil && int(n) == r.Nodes {
		err = r.set(ctx, "read", true)
	}
	if err == nil && r.Rank == 0 {
		_ = r.get(ctx, "read", new(bool))
	}
}

// pair measures with one node: first the lower rank, then the other.
func (r *Round) pair(ctx context.Context, turn, peer int, with node, own []Address) (paths []path, err error) {
	key, err := parseKey(with.Key)
	if err != nil {
		return nil, fmt.Errorf("node %d: %w", peer, err)
	}
	first := fmt.Sprintf("turn/%d/%d", turn, min(r.Rank, peer))
	if r.Rank > peer {
		if err := r.get(ctx, first, new(bool)); err != nil {
			return nil, err
		}
	}
	for _, a := range with.Addresses[:min(len(with.Addresses), maxPaths)] {
		p := path{From: r.Rank, To: peer, Address: a}
		if err := p.measure(ctx, with.Port, key, own); err != nil {
			p.Error = err.Error()
		}
		paths = append(paths, p)
	}
	if r.Rank < peer {
		err = r.set(ctx, first, true)
	}
	return paths, err
}

// barrier waits until all nodes have ended a turn, and returns whether there is time for another.
func (r *Round) barrier(ctx context.Context, turn int, more bool) (bool, error) {
	name := "next/" + strconv.Itoa(turn)
	n, err := r.Store.Add(ctx, keyPrefix+name+"/count", 1)
	if err != nil {
		return false, err
	}
	if int(n) == r.Nodes { // the last one decides for all
		if err := r.set(ctx, name, more); err != nil {
			return false, err
		}
	}
	err = r.get(ctx, name, &more)
	return more, err
}

func (r *Round) set(ctx context.Context, name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return r.Store.Set(ctx, keyPrefix+name, text)
}

func (r *Round) get(ctx context.Context, name string, v any) error {
	text, err := r.Store.Get(ctx, keyPrefix+name)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// turns is how many turns it takes until each node has met each other one.
func turns(nodes int) int { return (nodes+1)/2*2 - 1 }

// opponent is a node's partner in a turn, by the circle method of tournaments; -1: it has none.
func opponent(nodes, turn, rank int) int {
	n := turns(nodes) // odd; the node that stays is rank n
	peer := turn
	if rank < n {
		if peer = ((2*turn-rank)%n + n) % n; peer == rank {
			peer = n
		}
	}
	if peer >= nodes {
		return -1
	}
	return peer
}

// judge finds nodes that others cannot reach, or know by their slow address.
func judge(nodes []node, paths []path) *Report {
	report := &Report{}
	slices.SortStableFunc(paths, func(a, b path) int { return cmp.Compare(a.Bandwidth, b.Bandwidth) })
	for i, p := range paths {
		if i == maxRows {
			report.Rows = append(report.Rows, fmt.Sprintf("and %d more, which are faster", len(paths)-maxRows))
			break
		}
		report.Rows = append(report.Rows, p.text(nodes))
	}
	for to, n := range nodes {
		speeds, latencies := map[netip.Addr][]float64{}, map[netip.Addr][]float64{}
		var failed []string
		for _, p := range paths {
			switch {
			case p.To != to:
			case p.Error == "":
				speeds[p.Address.IP] = append(speeds[p.Address.IP], p.Bandwidth)
				latencies[p.Address.IP] = append(latencies[p.Address.IP], p.Latency.Seconds())
			case p.Address.IP == n.Advertised:
				failed = append(failed, nodes[p.From].Host+" ("+p.Error+")")
			}
		}
		if len(failed) > 0 {
			report.Findings = append(report.Findings, fmt.Sprintf("%s cannot be reached at %s, which it advertises, by %s", n.Host, n.Advertised, strings.Join(failed, ", ")))
		}
		is, isLatency := median(speeds[n.Advertised]), median(latencies[n.Advertised])
		if len(speeds[n.Advertised]) == 0 {
			continue
		}
		var best Address
		bestSpeed, bestLatency := is, isLatency
		for _, a := range n.Addresses {
			speed, latency := median(speeds[a.IP]), median(latencies[a.IP])
			faster := speed >= slowFactor*bestSpeed
			nearer := speed*slowFactor > bestSpeed && latency*slowFactor <= bestLatency && bestLatency-latency >= leastLatency.Seconds()
			if len(speeds[a.IP]) > 0 && a.IP != n.Advertised && (faster || nearer) {
				best, bestSpeed, bestLatency = a, speed, latency
			}
		}
		if best.Interface != "" {
			slow := n.Addresses[slices.IndexFunc(n.Addresses, func(a Address) bool { return a.IP == n.Advertised })]
			report.Findings = append(report.Findings, fmt.Sprintf("%s advertises %s on %s, %s and %s, while %s on %s has %s and %s: start it with --local-addr=%s, and its workers with NCCL_SOCKET_IFNAME=%s GLOO_SOCKET_IFNAME=%s",
				n.Host, slow.IP, slow.Interface, bandwidth(is), milliseconds(isLatency), best.IP, best.Interface, bandwidth(bestSpeed), milliseconds(bestLatency), best.IP, best.Interface, best.Interface))
		}
	}
	return report
}

func (p path) text(nodes []node) string {
	source := p.Source
	if source == "" {
		source = "?"
	}
	of := fmt.Sprintf("%s (%s) to %s at %s (%s)", nodes[p.From].Host, source, nodes[p.To].Host, p.Address.IP, p.Address.Interface)
	if p.Address.IP == nodes[p.To].Advertised {
		of += ", advertised"
	}
	if p.Error != "" {
		return of + ": " + p.Error
	}
	return fmt.Sprintf("%s: %s, %s", of, milliseconds(p.Latency.Seconds()), bandwidth(p.Bandwidth))
}

func milliseconds(seconds float64) string { return fmt.Sprintf("%.2f ms", seconds*1e3) }

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// LocalAddress is this machine's address on the way to another.
func LocalAddress(host string) (netip.Addr, error) {
	conn, err := net.Dial("udp", net.JoinHostPort(host, "9")) // which sends nothing
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}
