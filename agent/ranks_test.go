package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/descriptors"
	"rallypoint/internal/testkit"
)

// TestRanksOfTwoRoles is the table of A49, each agent a goroutine.
func TestRanksOfTwoRoles(t *testing.T) {
	agents := []roleInfo{{"ps", 0, 4, 0, "", nil, nil}, {"tr", 1, 1, 2, "", nil, nil}, {"tr", 2, 2, 0, "", nil, nil}, {"tr", 3, 3, 1, "", nil, nil}, {"ps", 4, 5, 0, "", nil, nil}}
	want := []ranks{{0, 15, 0, 9, 2, nil, 0}, {4, 15, 0, 6, 2, nil, 0}, {5, 15, 1, 6, 2, nil, 0}, {7, 15, 3, 6, 2, nil, 0}, {10, 15, 4, 9, 2, nil, 0}}
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	var wg sync.WaitGroup
	for i := range agents {
		wg.Go(func() {
			got, err := agreeRanks(t.Context(), s, agents[i], len(agents))
			if err != nil || got != want[i] {
				t.Errorf("agent %d has %+v (%v), expected %+v", i, got, err, want[i])
			}
		})
	}
	wg.Wait()
}

// TestRanksOfAnyRoles gives each agent its part of 0..n-1, in the world and in its
// role, in the order of the agents' own ranks.
func TestRanksOfAnyRoles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "agents")
		var agents []roleInfo
		for i := range n {
			role := rapid.SampledFrom([]string{"master", "ps", "trainer"}).Draw(t, "role")
			agents = append(agents, roleInfo{role, i, rapid.IntRange(1, 9).Draw(t, "workers"), 0, "", nil, nil})
		}
		s := store.NewMemory(store.NewEngine(store.Limits{}))
		defer s.Close()
		got, errs := make([]ranks, n), make([]error, n)
		var wg sync.WaitGroup
		for i := range agents {
			wg.Go(func() { got[i], errs[i] = agreeRanks(context.Background(), s, agents[i], n) })
		}
		wg.Wait()
		world, roleWorld := 0, map[string]int{}
		for i, a := range agents {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			world += a.LocalWorldSize
			roleWorld[a.Role] += a.LocalWorldSize
		}
		taken, next := make([]int, world), map[string]int{}
		for i, a := range agents {
			r := got[i]
			if r.world != world || r.roleWorld != roleWorld[a.Role] || r.roleBase != next[a.Role] {
				t.Fatalf("agent %d of %v has %+v", i, agents, r)
			}
			next[a.Role] += a.LocalWorldSize
			for k := range a.LocalWorldSize {
				taken[r.base+k]++
			}
		}
		for rank, times := range taken {
			if times != 1 {
				t.Fatalf("rank %d is there %d times: %v of %v", rank, times, got, agents)
			}
		}
	})
}

func TestRanksWithoutExchange(t *testing.T) {
	if got, want := identicalRanks(2, 3, 4, 1), (ranks{8, 12, 8, 12, 1, nil, 0}); got != want {
		t.Errorf("%+v, expected %+v", got, want)
	}
}

// TestRanksFromControlPlane reads what stands in for a lost agent 0: four numbers
// without a restart count, where the own one holds.
func TestRanksFromControlPlane(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	if err := s.Set(t.Context(), rendezvous.AssignedRanksPrefix+"1", []byte("[4, 8, 4, 8]")); err != nil {
		t.Fatal(err)
	}
	got, err := agreeRanks(t.Context(), s, roleInfo{"r", 1, 4, 3, "", nil, nil}, 2)
	if want := (ranks{4, 8, 4, 8, 3, nil, 0}); err != nil || got != want {
		t.Errorf("%+v (%v), expected %+v", got, err, want)
	}
}

// restartedAfterRanks is the agents' store of a control plane that is restarted once it has told the ranks.
type restartedAfterRanks struct {
	store.Store
	restarted bool
}

func (f *restartedAfterRanks) Get(ctx context.Context, key string) ([]byte, error) {
	if f.restarted {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	value, err := f.Store.Get(ctx, key)
	f.restarted = strings.HasPrefix(key, rendezvous.AssignedRanksPrefix)
	return value, err
}

func (f *restartedAfterRanks) Check(ctx context.Context, keys []string) (bool, error) {
	if f.restarted {
		return false, nil
	}
	return f.Store.Check(ctx, keys)
}

// TestRanksAreReadAtOnce: what goes with them is not lost if the control plane is restarted as soon as an agent has them.
func TestRanksAreReadAtOnce(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	two, one := 2, 1
	agents := []roleInfo{{"r", 0, 2, 3, "", &budget{Step: 7, Last: noStep}, &two}, {"r", 1, 2, 0, "", &budget{Step: 7, Last: noStep}, &one}}
	var wg sync.WaitGroup
	for i := range agents {
		wg.Go(func() {
			got, err := agreeRanks(t.Context(), &restartedAfterRanks{Store: s}, agents[i], len(agents))
			if err != nil || got.restarts != 3 || got.carried != 3 || got.budget == nil || got.budget.Step != 7 {
				t.Errorf("agent %d has %+v with %+v (%v)", i, got, got.budget, err)
			}
		})
	}
	wg.Wait()
}

// TestRanksForTorch: an agent of torch's gets the four numbers on which it insists.
func TestRanksForTorch(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	testkit.Check(t, s.Set(t.Context(), rendezvous.RoleInfoPrefix+"1", []byte(`{"role": "r", "rank": 1, "local_world_size": 2}`)))
	_ = testkit.Must(agreeRanks(t.Context(), s, roleInfo{"r", 0, 1, 3, "", nil, nil}, 2))(t)
	testkit.Equal(t, string(testkit.Must(s.Get(t.Context(), rendezvous.AssignedRanksPrefix+"1"))(t)), "[1,3,1,3]")
}

func TestRanksWaitForAllAgents(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := agreeRanks(ctx, s, roleInfo{"r", 0, 1, 0, "", nil, nil}, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestStoreBeyondTheDescriptors: the node that has the round's store warns once of more workers
// than connections fit.
func TestStoreBeyondTheDescriptors(t *testing.T) {
	log, lines := testkit.NewLog(t)
	a := &Agent{launcher: &launcher{node: &node{log: log}}}
	fit := descriptors.Limit() - descriptors.Spare
	for _, s := range []assignment{
		{group: 0, ranks: ranks{world: fit}}, {group: 1, ranks: ranks{world: fit + 1}},
	} {
		a.assignment = &s
		if a.warnOfShortage(); len(lines.All()) > 0 {
			t.Errorf("group %d of %d workers: %q", s.group, s.ranks.world, lines.All())
		}
	}
	a.assignment = &assignment{ranks: ranks{world: fit + 1}}
	a.warnOfShortage()
	a.warnOfShortage()
	if all := lines.All(); len(all) != 1 || !strings.Contains(all[0], fmt.Sprintf("the store of this round will have %d connections", fit+1)) {
		t.Errorf("it says %q", all)
	}
}
