package control

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
)

// statusTag is the weak entity tag of a status: equal tags mean that no event has
// changed what it tells. Ages and counts of connections go on without one. It costs a
// lock of each run and no description of it; "" if there is no such run.
func (s *Server) statusTag(id string, one bool) string {
	var ids []string
	if one {
		ids = []string{id}
	} else {
		ids = s.runIDs()
	}
	sum := fnv.New128a()
	for _, id := range ids {
		r := s.lookUp(id)
		switch {
		case r != nil:
			r.mu.Lock()
			generation := "broken"
			if r.broken == nil {
				generation = r.machine.Generation()
			}
			fmt.Fprintf(sum, "%q %d %s %d %d\n", r.id, r.seq, generation, r.applied, r.stats.changelog.total)
			r.mu.Unlock()
		case one:
			return ""
		}
	}
	return fmt.Sprintf(`W/"%s-%x"`, s.id, sum.Sum(nil))
}

// hasTag reports whether the client says that it has the answer of that tag.
func hasTag(r *http.Request, tag string) bool {
	for _, line := range r.Header.Values("If-None-Match") {
		for one := range strings.SplitSeq(line, ",") {
			if strings.TrimPrefix(strings.TrimSpace(one), "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}
