package agent

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"rallypoint/agent/process"
	"rallypoint/core/rendezvous"
)

func testPlace(local int) place {
	return place{
		assignment: &assignment{
			Outcome: rendezvous.Outcome{Round: 5, Generation: "g", StoreAddr: "h", StorePort: 77, AdvertisedAddr: "h"},
			group:   1, groups: 3, ranks: ranks{base: 2, world: 6, roleBase: 1, roleWorld: 4},
		},
		local: local, errorFile: "e", restarts: 1,
	}
}

// TestEnvironment holds all that A39 names, and nothing else.
func TestEnvironment(t *testing.T) {
	s := &Spec{RunID: "id", Role: "trainer", Workers: 2, MaxRestarts: 3, Environ: []string{"A=1", "RANK=99", "A=2"}}
	got := merge(s.Environ, additions(s, testPlace(1)))
	want := []string{
		"A=1", "A=2", "RANK=3", "LOCAL_RANK=1", "GROUP_RANK=1", "ROLE_RANK=2", "ROLE_NAME=trainer", "LOCAL_WORLD_SIZE=2",
		"WORLD_SIZE=6", "GROUP_WORLD_SIZE=3", "ROLE_WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=77",
		"TORCHELASTIC_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=3", "TORCHELASTIC_RUN_ID=id",
		"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_ERROR_FILE=e", "RALLYPOINT_ROUND=5", "RALLYPOINT_GENERATION=g", "RALLYPOINT_MASTER_ADDR=h", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	s.Environ = []string{"TORCH_NCCL_ASYNC_ERROR_HANDLING=0"}
	if value, _ := process.LookupEnv(merge(s.Environ, additions(s, testPlace(0))), "TORCH_NCCL_ASYNC_ERROR_HANDLING"); value != "0" {
		t.Errorf("the user's TORCH_NCCL_ASYNC_ERROR_HANDLING becomes %q", value)
	}
}

// TestInnerAgent: an agent that is a worker itself gives its workers nothing that the outer agent has
// given to it alone, and every variable that agents give is on the page of variables.
func TestInnerAgent(t *testing.T) {
	ours := func(name string) bool {
		return strings.HasPrefix(name, "RALLYPOINT_") || strings.HasPrefix(name, "TORCHELASTIC_")
	}
	p := testPlace(1)
	p.files = make(map[string]string)
	for _, name := range ownFiles {
		p.files[name] = "outer"
	}
	page, err := os.ReadFile("../docs/environment.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ = bytes.Cut(page, []byte("## Given to each worker"))
	outer := []string{"TORCHELASTIC_ENABLE_FILE_TIMER=1"}
	for _, v := range additions(&Spec{Workers: 2}, p) {
		if ours(v[0]) {
			outer = append(outer, v[0]+"=outer")
			if !bytes.Contains(page, []byte("`"+v[0]+"`")) {
				t.Errorf("%s is not on the page", v[0])
			}
		}
	}
	s := newHarness(t, 2, "true")
	s.spec.Environ = outer
	a, err := New(s.spec, "test", s.rdzv, discard())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range merge(a.spec.Environ, additions(&a.spec, testPlace(1))) {
		if name, value, _ := strings.Cut(entry, "="); ours(name) && value == "outer" {
			t.Errorf("%s is the outer agent's", name)
		}
	}
	if a.timers == "outer" {
		t.Error("it replaces the outer agent's FIFO")
	}
}

// TestProtectedEnvironment: where MASTER_ADDR is this node's way to the store, workers learn
// the real address, and libraries that need it get it.
func TestProtectedEnvironment(t *testing.T) {
	p := testPlace(0)
	p.StoreAddr, p.AdvertisedAddr = "127.1.2.3", "fd00::1"
	s := &Spec{RunID: "id", Workers: 2}
	env := merge(s.Environ, additions(s, p))
	for _, want := range []string{"MASTER_ADDR=127.1.2.3", "RALLYPOINT_MASTER_ADDR=fd00::1", "DCP_USE_PREFIX_STORE=1", "NEURON_RT_ROOT_COMM_ID=[fd00::1]:62182"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %q", want, env)
		}
	}
	s.Environ = []string{"DCP_USE_PREFIX_STORE=0", "NEURON_RT_ROOT_COMM_ID=x"}
	env = merge(s.Environ, additions(s, p))
	for _, want := range s.Environ {
		if !slices.Contains(env, want) {
			t.Errorf("the user's %s is not in %q", want, env)
		}
	}
}

// TestKeyNowhere: no worker learns where the token is.
func TestKeyNowhere(t *testing.T) {
	s := &Spec{RunID: "id", Workers: 2, Environ: []string{"A=1", "RALLYPOINT_TOKEN_FILE=/secret/key", "PET_RDZV_CONF=is_host=1, token_file=/secret/key,target=2", "PET_RDZV_ID=j"}}
	env := merge(s.Environ, additions(s, testPlace(0)))
	if text := strings.Join(env, "\n"); strings.Contains(text, "secret") || strings.Contains(text, "TOKEN") {
		t.Errorf("the environment is %q", env)
	}
	for _, kept := range []string{"A=1", "PET_RDZV_CONF=is_host=1,target=2", "PET_RDZV_ID=j"} {
		if !slices.Contains(env, kept) {
			t.Errorf("%s is not in %q", kept, env)
		}
	}
}

func TestVirtualRank(t *testing.T) {
	for _, c := range []struct {
		env       []string
		cuda, hip string
	}{
		{nil, "1", "-"},
		{[]string{"CUDA_VISIBLE_DEVICES=3, 5"}, "5", "-"},
		{[]string{"CUDA_VISIBLE_DEVICES="}, "1", "-"},
		{[]string{"CUDA_VISIBLE_DEVICES=3,5", "HIP_VISIBLE_DEVICES=7,8"}, "8", "8"},
		{[]string{"CUDA_VISIBLE_DEVICES=3,5", "HIP_VISIBLE_DEVICES="}, "5", ""},
	} {
		s := &Spec{Workers: 2, Environ: c.env, VirtualRank: true}
		env := merge(s.Environ, additions(s, testPlace(1)))
		value := func(name string) string {
			if v, ok := process.LookupEnv(env, name); ok {
				return v
			}
			return "-"
		}
		if value("LOCAL_RANK") != "0" || value(cudaDevices) != c.cuda || value(hipDevices) != c.hip {
			t.Errorf("%q: local rank %s, devices %s and %s", c.env, value("LOCAL_RANK"), value(cudaDevices), value(hipDevices))
		}
	}
	_, _, err := virtualDevices([]string{"CUDA_VISIBLE_DEVICES=3"}, 2)
	if err == nil || !strings.Contains(err.Error(), "local rank 1") || !strings.Contains(err.Error(), `"3"`) {
		t.Errorf("too few devices: %v", err)
	}
}

func TestEntryPoint(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"py", "-u", "a/train.py", "-x"}, "a/train.py"},
		{[]string{"py", "-u", "-m", "mod"}, "mod"},
		{[]string{"py", "-u"}, ""},
		{[]string{"./tool", "x"}, "./tool"},
	} {
		if got := EntryPoint(c.argv, "py"); got != c.want {
			t.Errorf("%q is %q", c.argv, got)
		}
	}
}
