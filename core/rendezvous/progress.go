package rendezvous

import (
	"fmt"
	"slices"
	"strings"

	"rallypoint/internal/wording"
)

func (f *forming) waitsFor() Progress {
	if f.forms() {
		return f.progress()
	}
	return f.waitingProgress()
}

func (f *forming) progress() Progress {
	p := Progress{Headline: fmt.Sprintf("%d of %s here", f.joined.nodes, wording.Count(f.places(), "node", "nodes"))}
	if f.policy.Min < f.places() {
		p.Headline += fmt.Sprintf(" (at least %d needed)", f.policy.Min)
	}
	if partial := f.joined.partial(); partial != "" {
		p.Headline += "; " + partial
	}
	here, differ := f.here()
	details := []string{"here: " + here}
	if missing := f.missing(); missing != "" {
		details = append(details, "missing: "+missing)
	}
	if f.blocked() == blockedByHold {
		details = append(details, fmt.Sprintf("the control plane is new: waiting at most %s for nodes of an earlier one", wording.Seconds(f.holdTime())))
	}
	if f.joinedGrace > 0 {
		details = append(details, fmt.Sprintf("%d with a broken connection", f.joinedGrace))
	}
	if differ != "" {
		details = append(details, differ)
	}
	p.Detail = strings.Join(details, "; ")
	return p
}

// missing names who the forming round lacks: members of the last round, node
// ranks that no node asks for where nodes ask for ranks at all, else a count.
func (f *forming) missing() string {
	if f.round.awaited() > 0 {
		parts := []string{}
		for _, state := range []participantState{participantRunning, participantUnknown} {
			if f.round.tally[state] > 0 {
				parts = append(parts, f.round.inState(state))
			}
		}
		return strings.Join(parts, ", ") + fmt.Sprintf(" of round %d", f.round.number)
	}
	lack := f.joined.lack(f.places())
	if lack <= 0 {
		return ""
	}
	var text string
	if ranks := f.unclaimedRanks(lack); ranks != "" {
		text = "node ranks " + ranks
	} else {
		text = fmt.Sprintf("%d", lack)
	}
	if f.round.tally[participantLost] > 0 {
		text += "; lost from round " + fmt.Sprint(f.round.number) + ": " + f.round.inState(participantLost)
	}
	return text
}

// unclaimedRanks lists the node ranks that a round has and no pending join prefers; ""
// if none prefers any.
func (f *forming) unclaimedRanks(lack int) string {
	claimed := map[int]bool{}
	for _, n := range f.nodes.live {
		if n.join != nil && n.join.NodeRank >= 0 {
			claimed[n.join.NodeRank] = true
		}
	}
	if len(claimed) == 0 {
		return ""
	}
	var ranks []string
	for r := 0; r < f.places() && len(ranks) < lack; r++ {
		if claimed[r] {
			continue
		}
		if len(ranks) == maxNames {
			ranks = append(ranks, "…")
			break
		}
		ranks = append(ranks, fmt.Sprint(r))
	}
	return strings.Join(ranks, ", ")
}

// here names the nodes with a pending join, and says whether their commands differ.
func (f *forming) here() (names, differ string) {
	if f.joined.nodes > 1024 { // sorting all to name a few would not be worth it
		return fmt.Sprintf("%d nodes", f.joined.nodes), ""
	}
	nodes := f.candidates()
	return f.round.names.ofSome(nodes), f.commandsDiffer(nodes)
}

func (f *forming) waitingProgress() Progress {
	p := Progress{Spare: f.gain() == 0 || f.round.finishing()}
	p.Headline = fmt.Sprintf("round %d runs with %d of %s", f.round.number, len(f.round.participants), wording.Count(f.places(), "node", "nodes"))
	switch {
	case f.round.finishing():
		p.Detail = fmt.Sprintf("finished: %s; no more nodes are admitted", f.round.finishedNames())
	case f.gain() > 0:
		p.Detail = "waiting, to be admitted: " + f.waitingNames()
	case len(f.round.participants) < f.places() && f.round.next.partial() != "":
		p.Detail = "spare until a segment is whole: " + f.round.next.partial() + "; " + f.waitingNames()
	default:
		p.Detail = "spare until a place falls free: " + f.waitingNames()
	}
	return p
}

// waitingNames lists the pending joins that are not members.
func (f *forming) waitingNames() string {
	return f.round.names.ofSome(slices.DeleteFunc(f.candidates(), func(n *node) bool { return f.round.participantOf(n) != nil }))
}

// notComplete says what blocks the round that is being formed.
func (f *forming) notComplete() string {
	p, regroups := f.policy, fmt.Sprintf("it regroups after round %d", f.round.number)
	first := f.round.live() == 0
	switch f.blocked() {
	case blockedByMembers:
		return fmt.Sprintf("%s and waits at most regroup_timeout (%v) for members that have not rejoined: %s", regroups, p.RegroupTimeout, f.missing())
	case blockedByLack:
		if first {
			return f.tooFew()
		}
		return regroups + " and waits for replacements: " + f.tooFew()
	case blockedByConnections:
		return f.brokenConnections()
	case blockedByHold:
		if first {
			return fmt.Sprintf("enough nodes are here, but the control plane is new: for at most %v it waits for nodes of an earlier one; "+
				"with %d nodes the round starts at once", f.holdTime(), f.enough())
		}
		return fmt.Sprintf("%s, but the control plane is new: for at most %v it waits for nodes of an earlier one", regroups, f.holdTime())
	}
	if p.QuietPeriod > 0 {
		return fmt.Sprintf("enough nodes are here (%d); more are waited for until none has come for quiet_period (%v), at most for last_call_timeout (%v)",
			f.joined.usable, p.QuietPeriod, p.LastCallTimeout)
	}
	return fmt.Sprintf("enough nodes are here (%d); more are waited for until last_call_timeout (%v) has passed or %d are here",
		f.joined.usable, p.LastCallTimeout, f.enough())
}

func (f *forming) tooFew() string {
	p := f.policy
	text := fmt.Sprintf("%d of at least %s here", f.joined.usable, wording.Count(p.Min, "node is", "nodes are"))
	if p.segment() > 1 {
		text += fmt.Sprintf(" in whole segments of %d", p.Segment)
	}
	text += fmt.Sprintf(", %d more needed", f.lack())
	if partial := f.joined.partial(); partial != "" {
		text += ": " + partial
	}
	if ranks := f.unclaimedRanks(f.joined.lack(f.places())); ranks != "" {
		text += "; no node has come for node rank " + ranks
	}
	if f.round.tally[participantLost] > 0 {
		text += fmt.Sprintf("; lost from round %d: %s", f.round.number, f.round.inState(participantLost))
	}
	return text
}

func (f *forming) brokenConnections() string {
	who := "the connection of a waiting node is broken"
	if f.joinedGrace > 1 {
		who = fmt.Sprintf("the connections of %d waiting nodes are broken", f.joinedGrace)
	}
	return fmt.Sprintf("%s; the round waits for its return, at most for reconnect_grace (%v)", who, f.policy.ReconnectGrace)
}

// nnodes is how many nodes a policy wants, as --nnodes takes it.
func (p *Policy) nnodes() string {
	if p.Min == p.Max {
		return fmt.Sprint(p.Max)
	}
	return fmt.Sprintf("%d:%d", p.Min, p.Max)
}

// agreed are the options on which all nodes of a run must agree, as one types them: names and
// values, always the same names.
func (p *Policy) agreed() [][2]string {
	quorum := "1"
	if p.NoQuorum {
		quorum = "0"
	}
	return [][2]string{
		{"--nnodes", p.nnodes()}, {"node_unit", fmt.Sprint(p.NodeUnit)}, {"--segment", fmt.Sprint(p.segment())},
		{"target", fmt.Sprint(p.Target)}, {"quorum", quorum},
	}
}

// differences says in what a node's policy differs from another one: options with their values,
// and the values that the other one has for them.
func differences(want, have Policy) (options, values []string) {
	others := have.agreed()
	for i, o := range want.agreed() {
		if o != others[i] {
			options, values = append(options, o[0]+"="+o[1]), append(values, others[i][1])
		}
	}
	return options, values
}

func describePolicy(p Policy) string {
	given, _ := differences(p, Policy{NodeUnit: 1})
	return strings.Join(given, " ")
}
