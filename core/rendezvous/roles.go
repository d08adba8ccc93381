package rendezvous

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"rallypoint/core/store"
)

// Keys by which PyTorch's agents, and ours, assign ranks and end (docs/spec/agent.md A49,
// A51). The rank of an agent follows the first two.
const (
	RoleInfoPrefix      = "torchelastic/role_info/"
	AssignedRanksPrefix = "torchelastic/assigned_ranks/"
	ExitBarrierPrefix   = "torchelastic/agent/terminal_state/"
	ExitBarrierCount    = ExitBarrierPrefix + "num_members"
	ExitBarrierLast     = ExitBarrierPrefix + "last_member"
	ExitBarrierLost     = "lost before it finished: " // begins the value of ExitBarrierLast where a member did not finish
)

// noteKey draws conclusions from what an agent has written.
func (m *Machine) noteKey(n *node, r KeyRequest) {
	switch {
	case r.Op == store.OpAdd && r.Keys[0] == ExitBarrierCount:
		m.finish(n)
	case r.Op == store.OpSet && strings.HasPrefix(r.Keys[0], RoleInfoPrefix):
		m.assistRanks()
	}
}

// assistRanks lets the agents' rank assignment end although a member is lost:
// otherwise the survivors would wait for its keys until their store times out.
// The ranks so assigned serve only until the survivors regroup.
func (m *Machine) assistRanks() {
	if m.keys != nil && m.round.tally[participantLost] > 0 {
		m.keys.assistRanks(m.round.participants)
		m.serveWoken(m.keys)
	}
}

func (a *agentStore) assistRanks(members []*participant) {
	infos := make([][]byte, len(members))
	var model []byte
	for rank := range members {
		infos[rank], _ = a.engine.Get(RoleInfoPrefix + strconv.Itoa(rank))
		if infos[rank] != nil && model == nil {
			model = infos[rank]
		}
	}
	if model == nil {
		return
	}
	complete := true
	for rank, s := range members {
		if infos[rank] == nil && s.state == participantLost {
			infos[rank] = roleInfoFor(model, rank)
			a.set(RoleInfoPrefix+strconv.Itoa(rank), infos[rank])
		}
		complete = complete && infos[rank] != nil
	}
	if complete && members[0].state == participantLost {
		a.assignRoles(infos)
	}
}

// ranksLost reports whether a request waits for keys of the rank assignment that no agent
// will write: what the members of an adopted round had written died with the control
// plane before, and those of a round that was overtaken have stopped. (docs/decisions/0014
// and 0015.)
func (a *agentStore) ranksLost(r KeyRequest) bool {
	if !r.waitsForRanks() {
		return false
	}
	_, ready, _ := a.engine.Apply(r.onStore(), nil)
	return !ready
}

// waitsForRanks reports whether the request waits for keys of the rank assignment only.
func (k KeyRequest) waitsForRanks() bool {
	switch k.Op {
	case store.OpGet, store.OpMultiGet, store.OpWait:
	default:
		return false
	}
	for _, key := range k.Keys {
		if !strings.HasPrefix(key, RoleInfoPrefix) && !strings.HasPrefix(key, AssignedRanksPrefix) {
			return false
		}
	}
	return len(k.Keys) > 0
}

type roleInfo struct {
	Role           string `json:"role"`
	Rank           int    `json:"rank"`
	LocalWorldSize int    `json:"local_world_size"`
}

// roleInfoFor makes a lost member's role info out of a live one's.
func roleInfoFor(model []byte, rank int) []byte {
	var info roleInfo
	if json.Unmarshal(model, &info) != nil {
		return bytes.Clone(model)
	}
	info.Rank = rank
	text, err := json.Marshal(info)
	if err != nil {
		return bytes.Clone(model)
	}
	return text
}

// assignRoles does what the agent of rank 0 would have done, had it lived.
func (a *agentStore) assignRoles(infos [][]byte) {
	parsed := make([]roleInfo, len(infos))
	world, roleWorld := 0, map[string]int{}
	for i, text := range infos {
		if json.Unmarshal(text, &parsed[i]) != nil {
			return
		}
		world += parsed[i].LocalWorldSize
		roleWorld[parsed[i].Role] += parsed[i].LocalWorldSize
	}
	base, roleBase := 0, map[string]int{}
	for i, info := range parsed {
		key := AssignedRanksPrefix + strconv.Itoa(i)
		if _, ok := a.engine.Get(key); !ok {
			a.set(key, fmt.Appendf(nil, "[%d, %d, %d, %d]", base, world, roleBase[info.Role], roleWorld[info.Role]))
		}
		base += info.LocalWorldSize
		roleBase[info.Role] += info.LocalWorldSize
	}
}

// settleExitBarrier opens the agents' exit barrier once every live member has
// finished; a lost one is not waited for.
func (m *Machine) settleExitBarrier() {
	if m.keys == nil || !m.round.finishing() || m.round.live() > 0 {
		return
	}
	if _, ok := m.keys.engine.Get(ExitBarrierLast); !ok {
		how := "every live member has finished"
		if m.round.tally[participantLost] > 0 {
			how = ExitBarrierLost + m.round.inState(participantLost)
		}
		m.keys.set(ExitBarrierLast, []byte(how))
		m.serveWoken(m.keys)
	}
}
