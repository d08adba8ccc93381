package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"rallypoint/agent/failure"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// ranks are the numbers of one agent's workers: worker k has base + k among all and roleBase + k
// among those of its role.
type ranks struct {
	base, world         int
	roleBase, roleWorld int
	restarts            int     // agreed by the whole job
	budget              *budget // the same; nil: none
	carried             int     // the same: how many workers, which wait for this round, continue in it
}

// roleInfo is what each agent publishes about itself. Restarts, Host and Budget are our
// additions, which torch's agents ignore.
type roleInfo struct {
	Role           string  `json:"role"`
	Rank           int     `json:"rank"`
	LocalWorldSize int     `json:"local_world_size"`
	Restarts       int     `json:"restarts"`
	Host           string  `json:"host"`
	Budget         *budget `json:"budget,omitempty"` // nil: none
	// Survivors is how many workers wait on the node to continue in this round; nil: it has
	// stopped its workers, so that all have to start from the beginning.
	Survivors *int `json:"survivors,omitempty"`
}

// assignment is this node's place in a round.
type assignment struct {
	rendezvous.Outcome
	group, groups int
	ranks         ranks
	keys          store.Store
	peers         []failure.Failure // of all nodes in the order of the store, as far as they were read
}

// identicalRanks are the ranks if all agents have the same role and as many
// workers.
func identicalRanks(group, groups, local, restarts int) ranks {
	return ranks{
		base: group * local, world: groups * local,
		roleBase: group * local, roleWorld: groups * local,
		restarts: restarts,
	}
}

// agreeRanks exchanges role infos through the agents' store: agent 0 reads
// all and writes each agent's share. The restart count is the highest that any
// agent knows, so that all workers of the round see one number.
//
// It blocks until every agent of the round has taken part, or ctx ends.
func agreeRanks(ctx context.Context, s store.Store, own roleInfo, groups int) (ranks, error) {
	text, err := json.Marshal(own)
	if err != nil {
		return ranks{}, err
	}
	if err := s.Set(ctx, rendezvous.RoleInfoPrefix+strconv.Itoa(own.Rank), text); err != nil {
		return ranks{}, fmt.Errorf("publish role info: %w", err)
	}
	if own.Rank == 0 {
		if err := assignRanks(ctx, s, groups); err != nil {
			return ranks{}, err
		}
	}
	text, err = s.Get(ctx, rendezvous.AssignedRanksPrefix+strconv.Itoa(own.Rank))
	if err != nil {
		return ranks{}, fmt.Errorf("read assigned ranks: %w", err)
	}
	r, err := parseShare(text)
	if err != nil {
		return ranks{}, err
	}
	if r.restarts = max(r.restarts, own.Restarts); own.Survivors == nil {
		r.carried = 0
	}
	if own.Budget == nil {
		r.budget = nil
	}
	return r, nil
}

// share is what agent 0 assigns to an agent: four numbers, on which torch's agents insist, and for one of
// ours what the job has agreed on, in the same key. The control plane may be restarted between two reads, with
// the keys lost: who read one of them would go on without the others.
func (r ranks) share(ours bool) ([]byte, error) {
	values := []any{r.base, r.world, r.roleBase, r.roleWorld}
	if ours {
		values = append(values, r.restarts, r.carried, r.budget)
	}
	return json.Marshal(values)
}

// parseShare reads what agent 0, which may be torch's, or the control plane in its place has assigned.
func parseShare(text []byte) (r ranks, err error) {
	values := []any{&r.base, &r.world, &r.roleBase, &r.roleWorld, &r.restarts, &r.carried, &r.budget}
	if err = json.Unmarshal(text, &values); err != nil || len(values) < 4 {
		return ranks{}, fmt.Errorf("assigned ranks %.80q are not four numbers", text)
	}
	if r.budget != nil && !r.budget.possible() {
		return ranks{}, fmt.Errorf("agent 0 gave %.80q, which has no restart budget", text)
	}
	return r, nil
}

// ofEach reads what each agent of a round writes under a prefix with its rank. It blocks until all have
// done so, or ctx ends.
func ofEach(ctx context.Context, s store.Store, prefix string, groups int) ([][]byte, error) {
	keys := make([]string, groups)
	for i := range keys {
		keys[i] = prefix + strconv.Itoa(i)
	}
	return s.MultiGet(ctx, keys)
}

// assignRanks is agent 0's part.
func assignRanks(ctx context.Context, s store.Store, groups int) error {
	texts, err := ofEach(ctx, s, rendezvous.RoleInfoPrefix, groups)
	if err != nil {
		return fmt.Errorf("read role infos: %w", err)
	}
	infos, ours := make([]roleInfo, groups), make([]struct{ Restarts *int }, groups)
	for i, text := range texts {
		if err := errors.Join(json.Unmarshal(text, &infos[i]), json.Unmarshal(text, &ours[i])); err != nil {
			return fmt.Errorf("role info of agent %d: %w", i, err)
		}
	}
	shares, keys := shareRanks(infos), make([]string, groups)
	carried, job := continuing(infos), jobBudget(infos)
	for i, r := range shares {
		keys[i] = rendezvous.AssignedRanksPrefix + strconv.Itoa(i)
		r.carried, r.budget = carried, job
		if texts[i], err = r.share(ours[i].Restarts != nil); err != nil {
			return fmt.Errorf("ranks of agent %d: %w", i, err)
		}
	}
	if err := s.MultiSet(ctx, keys, texts); err != nil {
		return fmt.Errorf("publish assigned ranks: %w", err)
	}
	return nil
}

// continuing is how many workers continue in a round: those that wait for it, unless a node has
// stopped its own.
func continuing(infos []roleInfo) (n int) {
	for _, info := range infos {
		if info.Survivors == nil {
			return 0
		}
		n += *info.Survivors
	}
	return n
}

// shareRanks computes the ranks of all agents: bases are running sums of the local
// sizes in the order of the agents, over all and over the role.
func shareRanks(infos []roleInfo) []ranks {
	world, restarts, roleWorld := 0, 0, map[string]int{}
	shares := make([]ranks, len(infos))
	for i, info := range infos {
		shares[i].base, shares[i].roleBase = world, roleWorld[info.Role]
		world += info.LocalWorldSize
		roleWorld[info.Role] += info.LocalWorldSize
		restarts = max(restarts, info.Restarts)
	}
	for i, info := range infos {
		shares[i].world, shares[i].roleWorld, shares[i].restarts = world, roleWorld[info.Role], restarts
	}
	return shares
}

// meet counts this agent under one key, and waits for the other, which the last agent of the
// round writes. It returns that one's value.
func (a *assignment) meet(ctx context.Context, count, last string) (value []byte, err error) {
	n, err := a.keys.Add(ctx, count, 1)
	if err == nil && n >= int64(a.groups) {
		err = a.keys.Set(ctx, last, []byte("1"))
	}
	if err != nil {
		return nil, err
	}
	return a.keys.Get(ctx, last)
}

// members reads the role infos of the round's agents; nil if its store does not answer.
func (a *assignment) members(ctx context.Context) []telemetry.MemberStatus {
	texts, err := ofEach(ctx, a.keys, rendezvous.RoleInfoPrefix, a.groups)
	if err != nil {
		return nil
	}
	members := make([]telemetry.MemberStatus, len(texts))
	for i, text := range texts {
		var info roleInfo
		if json.Unmarshal(text, &info) != nil {
			info = roleInfo{}
		}
		members[i] = telemetry.MemberStatus{GroupRank: i, Host: info.Host, Role: info.Role, Workers: info.LocalWorldSize}
	}
	return members
}
