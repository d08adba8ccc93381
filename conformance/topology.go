package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	r "rallypoint/core/rendezvous"
)

// segment is how many consecutive ranks are on nodes of one topology domain.
func (a *account) segment() int { return max(1, a.policy.Segment) }

// inSegments is how many of the nodes in these domains make whole segments.
func (a *account) inSegments(domains []string) (n int) {
	nodes := map[string]int{}
	for _, domain := range domains {
		if nodes[domain]++; nodes[domain]%a.segment() == 0 {
			n += a.segment()
		}
	}
	return n
}

func domainsOf(sessions []*session) (domains []string) {
	for _, s := range sessions {
		domains = append(domains, s.domain)
	}
	return domains
}

// waiting is how many of the nodes with a pending join a round could have.
func (a *account) waiting() int { return a.inSegments(domainsOf(a.joiners())) }

// next are the domains of the nodes that a regroup now would take: live members and newcomers.
func (a *account) next() (domains []string, newcomers int) {
	for _, s := range a.joiners() {
		if !s.grace && a.participantOf(s) == nil {
			domains = append(domains, s.domain)
		}
	}
	newcomers = len(domains)
	for _, t := range a.participants {
		if t.live() {
			domains = append(domains, t.domain)
		}
	}
	return domains, newcomers
}

// oneDomain reports whether all of these nodes, and the members of the last round, are in one
// domain and each segment is a node: then guarantee 10 alone gives the ranks.
func (a *account) oneDomain(all []*session) bool {
	domains := domainsOf(all)
	for _, t := range a.participants {
		domains = append(domains, t.domain)
	}
	slices.Sort(domains)
	return a.segment() == 1 && len(slices.Compact(domains)) <= 1
}

// checkSegments checks a round of nodes in several domains: each segment has one domain, one
// that is whole does not move, and one that loses a node stays if its domain has another.
func (c *Checker) checkSegments(told map[*session]r.Outcome, chosen, all []*session) {
	n := c.segment()
	domains := make([]string, len(chosen)/n)
	for _, s := range chosen {
		if b := told[s].Rank / n; told[s].Rank >= 0 && b < len(domains) {
			domains[b] = s.domain
		}
	}
	members, seated, prefers := 0, 0, false
	old := map[int][]*session{} // members that have rejoined, by segment of the last round
	for _, s := range all {
		prefers = prefers || s.join.NodeRank >= 0
		_, chosen := told[s]
		if t := c.participantOf(s); t != nil {
			members++
			if chosen {
				seated++
			}
			if b := t.rank / n; b < len(c.participants)/n && c.domainOf(b) == s.domain {
				old[b] = append(old[b], s)
			}
		}
	}
	for _, s := range chosen {
		if b := told[s].Rank / n; told[s].Rank >= 0 && b < len(domains) && domains[b] != s.domain {
			c.violated(2, "round %d: segment %d has nodes of %q and %q", told[s].Round, b, domains[b], s.domain)
		}
	}
	if n == 1 {
		if want := min(members, len(chosen)); seated < want {
			c.violated(6, "round %d left out members for others: %d of %d have a place", told[chosen[0]].Round, seated, want)
		}
		if prefers {
			return
		}
	}
	for b, whole := range old {
		if b >= len(domains) || len(whole) < n && domains[b] != c.domainOf(b) {
			continue
		}
		for _, s := range whole {
			if o, ok := told[s]; !ok || o.Rank != c.participantOf(s).rank {
				c.violated(10, "round %d: segment %d stays, but %s of rank %d in it has rank %d (%v)", told[chosen[0]].Round, b, s.node, c.participantOf(s).rank, o.Rank, ok)
			}
		}
	}
	if before := len(c.participants) / n; n > 1 && len(domains) >= before {
		had, stay := map[string]int{}, map[string]int{}
		for b := range before {
			domain := c.domainOf(b)
			had[domain]++
			if domains[b] == domain {
				stay[domain]++
			}
		}
		for domain, segments := range had {
			nodes := 0
			for _, s := range all {
				if s.domain == domain {
					nodes++
				}
			}
			if want := min(segments, nodes/n); stay[domain] < want {
				c.violated(10, "round %d: %q has nodes for %d of its segments, %d stay", told[chosen[0]].Round, domain, want, stay[domain])
			}
		}
	}
}

// domainOf is the domain of a segment of the last round; "" if no member has said it.
func (a *account) domainOf(segment int) string {
	for _, t := range a.participants[segment*a.segment() : (segment+1)*a.segment()] {
		if t.domain != "" {
			return t.domain
		}
	}
	return ""
}

// domainText tells the domains of members by rank, as facts do.
func domainText(participants []*participant) (text string) {
	for i := 0; i < len(participants); {
		n := 1
		for i+n < len(participants) && participants[i+n].domain == participants[i].domain {
			n++
		}
		text += fmt.Sprintf("%d %s\n", n, participants[i].domain)
		i += n
	}
	return text
}

// toldDomains decodes the result of domainText; nil if it is not for that many members.
func toldDomains(text string, world int) (domains []string) {
	for line := range strings.Lines(text) {
		number, domain, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > world-len(domains) {
			return nil
		}
		domains = append(domains, slices.Repeat([]string{domain}, n)...)
	}
	if len(domains) != world {
		return nil
	}
	return domains
}

// learnDomains records the domains that facts give for members that have not reported theirs.
func (a *account) learnDomains(text string) {
	for i, domain := range toldDomains(text, len(a.participants)) {
		if t := a.participants[i]; t.domain == "" {
			t.domain = domain
		}
		a.domains = text
	}
}
