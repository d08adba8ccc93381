// Package statustext formats the status of a control plane as text, for terminals and for clients
// of its port that ask for no page.
package statustext

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// Limits of a run's description on a terminal. A pipe or file gets everything, as JSON does.
const (
	maxRows    = 40 // nodes
	maxShown   = 10 // changes
	MaxNode    = 36 // columns of a node's id
	maxRunName = 24
)

// Plainly shows a status whole and without colour.
func Plainly(st control.Status) string {
	return Render(st, Terminal{Width: Unlimited, Zone: time.Local})
}

// Render shows a status as text: one run in full, several in a line each.
func Render(st control.Status, term Terminal) string {
	var b strings.Builder
	called := NamesOf(st.Runs)
	now := time.Now()
	where := "Runs at " + printable.Text(st.Place)
	if s := st.Server; s != nil {
		now = s.Now
		process, connections := printable.Text(s.Host), ""
		if s.PID != 0 { // not shown to a token of one run
			process += fmt.Sprintf(" pid %d", s.PID)
			connections = ", " + wording.Count(s.Connections, "connection", "connections")
		}
		where = fmt.Sprintf("Control plane at %s (%s, version %s), up %s%s", printable.Text(s.Address), process, printable.Text(s.Version),
			ago(s.Now.Sub(s.StartedAt).Seconds()), connections)
		if st.Place != "" {
			where += ", named at " + printable.Text(st.Place)
		}
	}
	fmt.Fprintln(&b, term.apply(faint, wording.Wrap(where, term.Width, 0)))
	if s := st.Server; s != nil && s.Succession != nil {
		fmt.Fprintln(&b, term.apply(faint, wording.Wrap(successionLine(s.Succession, called, now), term.Width, 0)))
	}
	if text := tokenText(&st, called, term); text != "" {
		fmt.Fprintln(&b, term.apply(faint, "Token: "+wording.Wrap(text, term.Width, len("Token: "))))
	}
	if text := refusedText(st.Server); text != "" {
		fmt.Fprintln(&b, term.apply(faint, "Refused: "+wording.Wrap(text, term.Width, len("Refused: "))))
	}
	fmt.Fprintln(&b)
	switch {
	case len(st.Runs) == 0 && st.Server != nil && st.Server.Succession != nil && st.Server.Succession.Role == control.RoleWaiting:
		fmt.Fprintln(&b, "This process does not host, and does not know yet which one does: ask again.")
	case len(st.Runs) == 0:
		fmt.Fprintln(&b, "No run is known here yet.")
	case len(st.Runs) == 1 && st.RunsTotal == 1:
		renderRun(&b, &st.Runs[0], called, now, term)
	default:
		renderRuns(&b, &st, term)
	}
	return b.String()
}

// successionLine says who hosts and who hosts next.
func successionLine(s *control.SuccessionStatus, called Names, now time.Time) string {
	if len(s.Peers) > 0 {
		return peersLine(s, now)
	}
	host := printable.Text(called.Of(s.HostNode))
	text := fmt.Sprintf("Standby; node %s hosts at %s (term %d)", host, printable.Text(s.Host), s.Term)
	if s.Role == control.RoleHosting {
		text = fmt.Sprintf("Node %s hosts (term %d)", host, s.Term) + tookOver(s, "node "+printable.Text(called.Of(s.TookOver)), now)
		switch {
		case s.Missing != "":
			text += "; " + printable.Text(s.Missing)
		case s.Majority != nil:
			text += fmt.Sprintf("; majority: %d of %d voters", 1+reachable(s.Voters), 1+len(s.Voters))
		}
	}
	if s.Register {
		return text + "; next: any other node"
	}
	next := make([]string, 0, len(s.Standbys))
	for _, n := range s.Standbys {
		next = append(next, printable.Text(called.Of(n.Node)))
	}
	switch {
	case len(next) > 0:
		text += "; next: " + strings.Join(next, ", ")
	case len(s.NotBy) > 0:
		text += "; no standby: " + printable.Text(strings.Join(s.NotBy, "; "))
	default:
		text += "; no standby"
	}
	return text
}

// peersLine is successionLine of servers of many runs, which are called by their names in the list.
func peersLine(s *control.SuccessionStatus, now time.Time) string {
	text, host := "", printable.Text(s.HostNode)
	switch {
	case s.Role == control.RoleHosting:
		text = fmt.Sprintf("Server %s leads (term %d)", host, s.Term) + tookOver(s, printable.Text(s.TookOver), now)
	case s.Missing != "":
		return "This server leads no run: it " + printable.Text(s.Missing)
	default:
		return fmt.Sprintf("This server stands by; %s leads at %s (term %d)", host, printable.Text(s.Host), s.Term)
	}
	if s.Missing != "" {
		return text + "; " + printable.Text(s.Missing)
	}
	missing := slices.DeleteFunc(slices.Clone(s.Peers), func(name string) bool {
		return name == s.HostNode || slices.ContainsFunc(s.Voters, func(v control.VoterStatus) bool { return v.Node == name && v.Reachable })
	})
	text += fmt.Sprintf("; %d of %d servers vote", len(s.Peers)-len(missing), len(s.Peers))
	if len(missing) > 0 {
		text += ", without " + printable.Text(strings.Join(missing, ", "))
	}
	return text
}

// tookOver says from whom the process that hosts has taken over, and when; "": from nobody.
func tookOver(s *control.SuccessionStatus, from string, now time.Time) string {
	if s.TookOver == "" || s.Since == nil {
		return ""
	}
	how := ""
	if s.Elected {
		how = ", which no longer answered,"
	}
	return fmt.Sprintf("; it took over from %s%s %s ago", from, how, ago(now.Sub(*s.Since).Seconds()))
}

// reachable counts voters that the host hears.
func reachable(voters []control.VoterStatus) (n int) {
	for _, v := range voters {
		if v.Reachable {
			n++
		}
	}
	return n
}

// renderRuns shows several runs in a line each.
func renderRuns(b *strings.Builder, st *control.Status, term Terminal) {
	t := Table{Columns: []Column{{Head: "RUN"}, {Head: "PHASE"}, {Head: "ROUND", Right: true}, {Head: "HERE", Right: true}, {Head: "OF"}, {Head: "WAIT", Right: true}, {Head: "WHAT"}}}
	for i := range st.Runs {
		r := &st.Runs[i]
		phase, style := shownState(r)
		t.Add(style, cut(printable.Text(r.RunID), term.Most(maxRunName)), phase, roundText(r.Round), fmt.Sprint(r.Present()), rangeText(rendezvous.NodeRange{Min: r.Nodes.Min, Max: r.Nodes.Max}),
			blankZero(r.Newcomers()), headline(r, term))
	}
	t.StyledColumn = 1
	t.Write(b, term)
	if more := st.RunsTotal - len(st.Runs); more > 0 {
		fmt.Fprintf(b, "… and %d more\n", more)
	}
	fmt.Fprintln(b)
	fmt.Fprintln(b, "One run in full: --rdzv-id RUN")
}

// headline is the most telling sentence about a run.
func headline(r *control.RunStatus, term Terminal) string {
	switch {
	case r.Closed != nil:
		return printable.Text(closedText(r.Closed, term))
	case r.Stopping != "":
		return printable.Text(r.Stopping)
	case r.Stalled != "":
		return printable.Text(r.Stalled)
	case r.NotStarted != "":
		return printable.Text(r.NotStarted)
	case len(r.Changes) > 0:
		return printable.Text(r.Changes[len(r.Changes)-1].Text)
	}
	return ""
}

// renderRun shows one run in full.
func renderRun(b *strings.Builder, r *control.RunStatus, called Names, now time.Time, term Terminal) {
	phase, style := shownState(r)
	head := []string{phase}
	if r.Round > 0 {
		text := fmt.Sprintf("round %d", r.Round)
		if r.RoundAt != nil {
			text += fmt.Sprintf(" since %s (%s)", clock(*r.RoundAt, now, term), ago(now.Sub(*r.RoundAt).Seconds()))
		}
		head = append(head, text)
	}
	here, nodes := r.Present(), "nodes"
	if r.Nodes.Max == 1 {
		nodes = "node"
	}
	if r.Nodes.Min == r.Nodes.Max {
		head = append(head, fmt.Sprintf("%d of %s %s here", here, rangeText(r.Nodes), nodes))
	} else {
		head = append(head, fmt.Sprintf("%s of %s here", wording.Count(here, "node", "nodes"), rangeText(r.Nodes)))
	}
	if r.RoundStore != "" && r.Closed == nil {
		head = append(head, "store "+printable.Text(r.RoundStore))
	}
	name := "Run " + wording.RunName(cut(printable.Text(r.RunID), term.Most(maxRunName))) + ": "
	line := wording.Wrap(strings.Join(head, ", "), term.Width, wording.Columns.StringWidth(name))
	line = strings.Replace(line, phase, term.apply(style, phase), 1)
	fmt.Fprintln(b, term.apply(bold, name)+line)
	remark(b, "Progress: ", progressText(r.Progress, called), term)
	remark(b, "Stalled: ", r.Stalled, term)
	if r.Progress != nil && r.Progress.Slow != nil {
		remark(b, "Slow: ", r.Progress.Slow.Text, term)
	}
	remark(b, "Stopping: ", r.Stopping, term)
	if f := r.LastFailure; f != nil && r.Stopping == "" {
		remark(b, "Last failure: ", fmt.Sprintf("%s ago, %s", ago(now.Sub(f.At).Seconds()), f.Text), term)
	}
	if r.ScaledTo > 0 {
		remark(b, "Scaled to: ", fmt.Sprint(r.ScaledTo), term)
	}
	for _, d := range r.Directives {
		remark(b, "Directive: ", directiveText(&d, called, now), term)
	}
	for _, d := range r.Drained {
		node := called.Of(d.Node)
		who := node + ", by " + d.By
		if d.Cordoned {
			who += ", cordoned"
		}
		switch {
		case d.Cause == rendezvous.CauseAdmin.String():
		case d.Cordoned:
			who = d.Node + ", which is unfit and leaves when its workers have saved"
		default:
			who = node + ", which left as unfit"
		}
		remark(b, "Drained: ", who+": "+d.Reason, term)
	}
	for _, m := range r.Members {
		if m.Suspect != "" && m.State == "running" {
			remark(b, "Suspect: ", m.Node+", "+m.Suspect, term)
		}
	}
	remark(b, "Not started: ", r.NotStarted, term)
	remark(b, "Missing: ", missingText(r), term)
	remark(b, "Finished: ", finishedText(r, called, term.Most(maxShown)), term)
	if r.Closed != nil {
		remark(b, "Closed: ", closedText(r.Closed, term), term)
	}
	renderNodes(b, r, term)
	renderChanges(b, r, now, term)
}

// directiveText says what a directive asks for, and when.
func directiveText(d *rendezvous.DirectiveStatus, called Names, now time.Time) string {
	left := max(0, d.At.Add(time.Duration(d.WithinS*float64(time.Second))).Sub(now)).Round(time.Second)
	what := d.Kind
	switch {
	case len(d.Nodes) > 0:
		what += " " + strings.Join(called.all(d.Nodes), ", ")
	case d.Target > 0:
		what += fmt.Sprintf(" to %d", d.Target)
	}
	return fmt.Sprintf("%s in %v (%s), by %s: %s%s", what, left, d.ID, d.By, d.Reason, phaseText(d))
}

// phaseText says how far a directive is.
func phaseText(d *rendezvous.DirectiveStatus) string {
	switch d.Phase {
	case rendezvous.DirectiveAgreeing:
		return "; agreeing: waits for " + strings.Join(d.Missing, ", ")
	case rendezvous.DirectiveAgreed:
		at := "told at once"
		if d.Step != nil {
			at = fmt.Sprintf("agreed at step %d", *d.Step)
		}
		return fmt.Sprintf("; %s: saved by %d of %d", at, d.Saved, d.Members)
	}
	return ""
}

// remark writes a line with a title, unless there is nothing to say.
func remark(b *strings.Builder, title, text string, term Terminal) {
	if text != "" {
		fmt.Fprintln(b, term.apply(bold, title)+wording.Wrap(printable.Text(text), term.Width, len(title)))
	}
}

// fullName is what a full round has.
func fullName(r *control.RunStatus) string {
	if cmp.Or(r.ScaledTo, r.Nodes.Target) > 0 {
		return "target"
	}
	return "maximum"
}

// missingText counts the nodes that the round lacks. The reason why it has not started
// names them.
func missingText(r *control.RunStatus) string {
	m := r.Missing
	var parts []string
	if r.Below.Nodes > 0 {
		text := fmt.Sprintf("%d below the %s", r.Below.Nodes, fullName(r))
		if r.Below.Who != "" {
			text += ": " + r.Below.Who
		}
		parts = append(parts, text)
	}
	if m.Min > 0 {
		parts = append(parts, fmt.Sprintf("%d for the minimum (%d)", m.Min, r.Nodes.Min))
	}
	if m.Target > m.Min {
		parts = append(parts, fmt.Sprintf("%d for the %s (%d)", m.Target, fullName(r), cmp.Or(r.ScaledTo, r.Nodes.Target, r.Nodes.Max)))
	}
	return strings.Join(parts, ", ")
}

// finishedText names who finished while others still run.
func finishedText(r *control.RunStatus, called Names, most int) string {
	if len(r.Finished) == 0 || r.Phase == rendezvous.PhaseClosed {
		return ""
	}
	shown := called.all(r.Finished[:min(len(r.Finished), most)])
	text := strings.Join(shown, ", ")
	if more := len(r.Finished) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func closedText(c *rendezvous.ClosedStatus, term Terminal) string {
	text := c.How + " by " + c.By
	if c.At != nil {
		text += " at " + c.At.In(term.Zone).Format(time.DateTime)
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// renderNodes shows the nodes of the run: members by rank, then waiting nodes, then idle ones. Of
// many, those that run undisturbed are left out first.
func renderNodes(b *strings.Builder, r *control.RunStatus, term Terminal) {
	waits := map[string]control.WaitingStatus{}
	for _, w := range r.Waiting {
		waits[w.Node] = w
	}
	total, most := len(r.Members)+len(r.Waiting)+len(r.Idle), term.Most(maxRows)
	var lines []nodeLine
	left := 0
	for i := range r.Members {
		m := &r.Members[i]
		w, rejoined := waits[m.Node]
		rejoined = rejoined && w.Role == rendezvous.RoleMember
		if rejoined {
			total--
		}
		if total > most && (m.State == "running" || m.State == "finished") && !m.Reconnecting {
			left++
			continue
		}
		n := nodeLine{NodeStatus: &m.NodeStatus, age: m.LeaseAgeS, rank: fmt.Sprint(m.Rank), state: m.State, workers: leftText(m), step: stepText(m.Progress), why: m.Cause, note: hostNote(m.Host)}
		if rejoined {
			n.waited = waitedText(w)
		}
		lines = append(lines, n)
	}
	for i := range r.Waiting {
		w := &r.Waiting[i]
		if w.Role == rendezvous.RoleMember {
			continue
		}
		n := nodeLine{NodeStatus: &w.NodeStatus, age: w.LeaseAgeS, rank: "-", state: w.Role, waited: waitedText(*w)}
		if w.NodeRank >= 0 {
			n.note = fmt.Sprintf("(asks for rank %d)", w.NodeRank)
		}
		lines = append(lines, n)
	}
	for i := range r.Idle {
		n := &r.Idle[i]
		lines = append(lines, nodeLine{NodeStatus: &n.NodeStatus, age: n.LeaseAgeS, rank: "-", state: "idle", why: n.Reason})
	}
	t := Table{
		Columns:      []Column{{Head: "NODE"}, {Head: "RANK", Right: true}, {Head: "STATE"}, {Head: "STEP", Right: true}, {Head: "HEARD", Right: true}, {Head: "WAITS", Right: true}, {Head: "TOPOLOGY"}, {Head: "ADDRESS"}, {Head: "PROCESS"}},
		StyledColumn: 2,
	}
	widest, shown := term.Most(MaxNode), lines[:min(len(lines), most)]
	for _, n := range shown {
		t.Add(stateStyle(n.state, n.Reconnecting), NodeText(cmp.Or(n.Name, n.Node, "?"), widest), n.rank, stateText(n.state, n.Reconnecting)+n.workers, n.step, heard(n.age), n.waited, NodeText(n.Topology, widest),
			printable.Text(n.Address), processText(n.Label, n.Node, n.why, n.note))
	}
	if left += len(lines) - len(shown); len(lines)+left > 0 {
		fmt.Fprintln(b)
		t.Write(b, term)
	}
	if left > 0 {
		fmt.Fprintf(b, "      … and %d more, which --json shows\n", left)
	}
}

// nodeLine is what the table shows of a node.
type nodeLine struct {
	*rendezvous.NodeStatus
	age                                           *float64 // of its lease
	rank, state, workers, step, waited, why, note string
}

func NodeText(node string, widest int) string { return cut(printable.Text(node), widest) }

func stateText(state string, reconnecting bool) string {
	state = printable.Text(state)
	if reconnecting {
		return state + "?"
	}
	return state
}

// leftText says how many workers of a node are left, if some have failed.
func leftText(m *control.MemberStatus) string {
	if m.FailedWorkers == 0 || m.State != "running" {
		return ""
	}
	return fmt.Sprintf(", %d of %s", m.Workers-m.FailedWorkers, wording.Count(m.Workers, "worker", "workers"))
}

func hostNote(host bool) string {
	if host {
		return "(hosts the control plane)"
	}
	return ""
}

// processText says which process a node is: why it is not in the round first, other remarks last.
func processText(label, node, why, note string) string {
	if label == node {
		label = ""
	}
	label = strings.TrimPrefix(label, rendezvous.MachineOf(node)+" ") // the row begins with it
	who := strings.TrimSpace(printable.Text(label) + " " + note)
	why = printable.Text(strings.TrimPrefix(why, "lost: "))
	switch {
	case why == "":
		return who
	case who == "":
		return why
	}
	return why + " - " + who
}

// heard is the time since a node was last heard.
func heard(age *float64) string {
	if age == nil {
		return "-"
	}
	return ago(*age)
}

// waitedText is how long a node has waited.
func waitedText(w control.WaitingStatus) string {
	if w.Since == nil {
		return "-"
	}
	return ago(w.WaitingS)
}

// renderChanges shows the last changes, the oldest first.
func renderChanges(b *strings.Builder, r *control.RunStatus, now time.Time, term Terminal) {
	shown := r.Changes[max(0, len(r.Changes)-term.Most(maxShown)):]
	if len(shown) == 0 {
		return
	}
	title := "Last changes"
	if hidden := r.ChangesTotal - uint64(len(shown)); hidden > 0 {
		title += fmt.Sprintf(" (%d before)", hidden)
	}
	fmt.Fprintln(b)
	fmt.Fprintln(b, term.apply(bold, title))
	for _, c := range shown {
		at := clock(c.At, now, term)
		fmt.Fprintln(b, "  "+term.apply(faint, at)+"  "+wording.Wrap(printable.Text(c.Text), term.Width, len(at)+4))
	}
}

// clock is a time of day, with the date if it was another day.
func clock(t, now time.Time, term Terminal) string {
	t, now = t.In(term.Zone), now.In(term.Zone)
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// ago is a human-readable length of time.
func ago(seconds float64) string {
	d := time.Duration(max(seconds, 0) * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Truncate(100*time.Millisecond).Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d m %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d m", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
}

func blankZero(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func roundText(round uint64) string {
	if round == 0 {
		return "-"
	}
	return fmt.Sprint(round)
}

// rangeText is how many nodes a round may have.
func rangeText(n rendezvous.NodeRange) string {
	switch {
	case n.Max == 0:
		return "?"
	case n.Min == n.Max:
		return fmt.Sprint(n.Max)
	case n.Target > 0:
		return fmt.Sprintf("%d to %d (target %d)", n.Min, n.Max, n.Target)
	}
	return fmt.Sprintf("%d to %d", n.Min, n.Max)
}

// shownState is the state of a run, and how it is shown. An older server tells the phase alone.
func shownState(r *control.RunStatus) (string, Style) {
	state := printable.Text(cmp.Or(r.State, string(r.Phase)))
	switch r.Phase {
	case rendezvous.PhaseForming, rendezvous.PhaseRegroup:
		return state, yellow
	case rendezvous.PhaseRunning, rendezvous.PhaseFinishing:
		if state == string(r.Phase) && r.Below.Who == "" {
			return state, green
		}
		return state, yellow
	}
	return state, Plain
}

func stateStyle(state string, reconnecting bool) Style {
	switch {
	case reconnecting:
		return yellow
	case state == "running", state == "finished":
		return green
	case state == "lost":
		return red
	case state == "idle", state == rendezvous.RoleSpare:
		return faint
	}
	return yellow
}

// refusedText says how many connections the server's process has refused since it started, by
// reason; "" if none.
func refusedText(s *control.ServerStatus) string {
	if s == nil {
		return ""
	}
	var parts []string
	for _, part := range []struct {
		where  string
		counts map[string]uint64
	}{{"", s.Refused}, {" at its node's round store", s.StoresRefused}, {" by its node's forwarder", s.ForwardersRefused}} {
		for _, reason := range slices.Sorted(maps.Keys(part.counts)) {
			parts = append(parts, fmt.Sprintf("%d %s%s", part.counts[reason], printable.Text(reason), part.where))
		}
	}
	return strings.Join(parts, ", ")
}

// tokenText names the server's token by its fingerprints and says which nodes have proven that
// they know it; "" without a token. A node with a broken connection has not proven anything to
// this server yet.
func tokenText(st *control.Status, called Names, term Terminal) string {
	if st.Server == nil || len(st.Server.Fingerprints) == 0 {
		return ""
	}
	keys := st.Server.Fingerprints
	by, all := map[string][]string{}, 0
	for _, n := range connectedNodes(st.Runs) {
		by[n.fingerprint] = append(by[n.fingerprint], called.Of(n.node))
		all++
	}
	text := printable.Text(strings.Join(keys, ", "))
	switch proven := all - len(by[""]); {
	case all == 0:
		return text
	case all == 1 && proven == 1:
		text += " (the one node has proven it"
	case proven == all:
		text += fmt.Sprintf(" (all %d nodes have proven it", all)
	default:
		text += fmt.Sprintf(" (%d of %d nodes have proven it; not: %s", proven, all, namesText(by[""], term))
	}
	for i, key := range keys {
		if i > 0 && len(by[key]) > 0 {
			text += fmt.Sprintf("; by %s: %s", printable.Text(key), namesText(by[key], term))
		}
	}
	return text + ")"
}

// connectedNode is a node that a server has a connection of.
type connectedNode struct{ node, fingerprint string }

// connectedNodes lists the nodes of all runs that are connected, each once.
func connectedNodes(runs []control.RunStatus) []connectedNode {
	var nodes []connectedNode
	for i := range runs {
		r := &runs[i]
		for _, m := range r.Members {
			if m.Alive && !m.Reconnecting {
				nodes = append(nodes, connectedNode{m.Node, m.Fingerprint})
			}
		}
		for _, w := range r.Waiting {
			if w.Role != rendezvous.RoleMember && !w.Reconnecting {
				nodes = append(nodes, connectedNode{w.Node, w.Fingerprint})
			}
		}
		for _, n := range r.Idle {
			if !n.Reconnecting && !slices.Contains(r.Finished, n.Node) {
				nodes = append(nodes, connectedNode{n.Node, n.Fingerprint})
			}
		}
	}
	return nodes
}

// namesText lists nodes, of many the first ones.
func namesText(nodes []string, term Terminal) string {
	shown := make([]string, 0, maxShown)
	for _, node := range nodes[:min(len(nodes), term.Most(maxShown))] {
		shown = append(shown, NodeText(node, MaxNode))
	}
	text := strings.Join(shown, ", ")
	if more := len(nodes) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
