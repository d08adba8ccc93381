package rendezvous

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"rallypoint/internal/printable"
)

// A topology domain is all nodes with the same --topology value: a rack, an NVLink domain. A
// segment is as many consecutive ranks as --segment says, on nodes of one domain; a round
// consists of whole segments (docs/decisions/0129). Nodes that name no domain are one, whose
// name is empty.

// headcount counts nodes by their domain, and how many of them make whole segments.
type headcount struct {
	segment int            // nodes of a segment
	nodes   int            // all that were added
	usable  int            // of these, how many make whole segments
	domains map[string]int // nodes by domain; nil while every segment is one node
	rests   map[int]int    // domains by how many of their nodes make no whole segment, if any
}

// add counts nodes of a domain, or takes them back if by is negative. It costs O(1).
func (h *headcount) add(domain string, by int) {
	h.nodes += by
	if h.segment <= 1 {
		h.usable = h.nodes
		return
	}
	if h.domains == nil {
		h.domains, h.rests = map[string]int{}, map[int]int{}
	}
	was := h.domains[domain]
	is := was + by
	h.usable += is/h.segment*h.segment - was/h.segment*h.segment
	change(h.domains, domain, by)
	if rest := was % h.segment; rest > 0 {
		change(h.rests, rest, -1)
	}
	if rest := is % h.segment; rest > 0 {
		change(h.rests, rest, 1)
	}
}

// change adds to a count, and forgets it when it is 0.
func change[K comparable](counts map[K]int, key K, by int) {
	if counts[key] += by; counts[key] == 0 {
		delete(counts, key)
	}
}

// lack is how many more nodes are needed at least until so many are usable.
func (h *headcount) lack(size int) int {
	lack := max(0, size-h.usable)
	if lack == 0 || h.segment <= 1 {
		return lack
	}
	needed := (lack + h.segment - 1) / h.segment
	lack = needed * h.segment
	for _, rest := range slices.Backward(slices.Sorted(maps.Keys(h.rests))) {
		n := min(needed, h.rests[rest])
		lack -= n * rest
		needed -= n
	}
	return lack
}

// partial names domains with nodes that make no whole segment, and how many they have of how many, those with
// the fewest missing first: "rack7 has 7 of 8, rack9 has 2 of 8".
func (h *headcount) partial() string {
	var nearest []string
	before := func(a, b string) int {
		return cmp.Or(cmp.Compare(h.domains[b]%h.segment, h.domains[a]%h.segment), cmp.Compare(a, b))
	}
	all := 0
	for domain, nodes := range h.domains {
		if nodes%h.segment == 0 {
			continue
		}
		all++
		i, _ := slices.BinarySearchFunc(nearest, domain, before)
		if i < maxNames {
			nearest = slices.Insert(nearest, i, domain)[:min(len(nearest)+1, maxNames)]
		}
	}
	for i, domain := range nearest {
		nodes := h.domains[domain]
		nearest[i] = fmt.Sprintf("%s has %d of %d", domain, nodes, (nodes/h.segment+1)*h.segment)
	}
	return nameSome(nearest, all)
}

// maxDomains bounds the text by which facts tell the domains of a round's segments.
const maxDomains = 16 << 10

type domainRun struct {
	ranks  int
	domain string
}

// parseDomains reads what domainsOf has written, and counts the members; -1 if it cannot be.
func parseDomains(text string) (runs []domainRun, ranks int) {
	for line := range strings.Lines(text) {
		number, domain, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > MaxNodes-ranks || len(domain) > MaxNameLen || printable.Text(domain) != domain {
			return nil, -1
		}
		runs = append(runs, domainRun{n, domain})
		ranks += n
	}
	return runs, ranks
}

// ranksOf is the number of members whose domains the text lists; -1 if it lists none.
func ranksOf(text string) int {
	_, ranks := parseDomains(text)
	return ranks
}
