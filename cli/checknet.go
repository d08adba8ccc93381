package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	nodecheck "rallypoint/agent/check"
	"rallypoint/cli/netcheck"
	"rallypoint/internal/host"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
	"rallypoint/tcpstore"
)

// Limits of `check net`: the time for measurements, and for these and the exchange of their results.
const (
	netBudget = time.Minute
	netLimit  = 3 * time.Minute
)

// checkNet shows this machine's network, and measures that between the nodes of a job if this process
// is a worker of one.
func checkNet(ctx context.Context, getenv func(string) string, out io.Writer) nodecheck.Verdict {
	if rank := getenv("LOCAL_RANK"); rank != "" && rank != "0" {
		return nodecheck.Verdict{State: nodecheck.Fit} // one worker of a node measures
	}
	unknown := func(err error) nodecheck.Verdict { return nodecheck.Verdict{Text: err.Error()} }
	interfaces, err := netcheck.Interfaces()
	if err != nil {
		return unknown(err)
	}
	routes, err := netcheck.Routes()
	if err != nil {
		return unknown(err)
	}
	say := func(format string, args ...any) { fmt.Fprintln(out, printable.Text(fmt.Sprintf(format, args...))) }
	name := host.Name()
	for _, i := range interfaces {
		say("%s: interface %v", name, i)
	}
	for _, r := range routes {
		say("%s: route %v", name, r)
	}
	round, err := netRound(getenv)
	if err != nil {
		return unknown(err)
	}
	if round == nil {
		return nodecheck.Verdict{State: nodecheck.Fit}
	}
	say("%s: advertises %v", name, round.Advertised)
	ctx, cancel := context.WithTimeout(ctx, netLimit)
	defer cancel()
	if round.Store, err = tcpstore.Connect(ctx, net.JoinHostPort(getenv("MASTER_ADDR"), getenv("MASTER_PORT"))); err != nil {
		return unknown(err)
	}
	defer round.Store.Close()
	report, err := round.Measure(ctx)
	if err != nil {
		return unknown(err)
	}
	for _, row := range report.Rows {
		say("%s", row)
	}
	say("%s", report.Turns)
	for _, f := range report.Findings {
		say("%s", f)
	}
	if n := len(report.Findings); n > 0 {
		return nodecheck.Verdict{State: nodecheck.Unfit, Reason: "net", Text: "see above: " + wording.Count(n, "finding", "findings")}
	}
	return nodecheck.Verdict{State: nodecheck.Fit}
}

// netRound is the place of a worker's node in its round; nil: this process is no worker.
func netRound(getenv func(string) string) (*netcheck.Round, error) {
	if getenv("GROUP_WORLD_SIZE") == "" || getenv("MASTER_ADDR") == "" {
		return nil, nil
	}
	nodes, err := strconv.Atoi(getenv("GROUP_WORLD_SIZE"))
	if err != nil || nodes < 1 {
		return nil, fmt.Errorf("GROUP_WORLD_SIZE is %q", getenv("GROUP_WORLD_SIZE"))
	}
	rank, err := strconv.Atoi(getenv("GROUP_RANK"))
	if err != nil || rank < 0 || rank >= nodes {
		return nil, fmt.Errorf("GROUP_RANK is %q", getenv("GROUP_RANK"))
	}
	r := &netcheck.Round{Rank: rank, Nodes: nodes, Host: host.Name(), Budget: netBudget}
	master := getenv("RALLYPOINT_MASTER_ADDR")
	if master == "" {
		master = getenv("MASTER_ADDR")
	}
	if rank == 0 {
		if r.Advertised, err = netip.ParseAddr(master); err == nil {
			return r, nil
		}
	}
	r.Advertised, err = netcheck.LocalAddress(master)
	return r, err
}
