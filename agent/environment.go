package agent

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"rallypoint/agent/logs"
	"rallypoint/agent/macro"
	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/agent/stacks"
	"rallypoint/agent/watchdog"
	"rallypoint/core/params"
	"rallypoint/core/world"
)

// envMasterAddr names the variable that holds the address that the rank-0 node advertises,
// which other nodes and other jobs can use, whatever MASTER_ADDR is on this node.
const envMasterAddr = "RALLYPOINT_MASTER_ADDR"

// envRestarts names a variable that every agent gives to its workers, torch's too.
const envRestarts = "TORCHELASTIC_RESTART_COUNT"

// ownFiles name the files that an agent makes for one worker, and the FIFO of its own. A worker that
// is an agent itself does not pass them on: see withoutOuter. All that workers get is in
// docs/environment.md; python/rallypoint/handler.py has this list for torchrun's agent.
var ownFiles = []string{progress.EnvFile, progress.EnvDirective, world.EnvFile, stacks.EnvFile, watchdog.EnvFile}

// withoutOuter removes from an agent's environment the files of the agent whose worker it is. The FIFO
// of timers may be the user's choice in a process that is no worker.
func withoutOuter(environ []string) []string {
	_, worker := process.LookupEnv(environ, envRestarts)
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(ownFiles, name) && (worker || name != watchdog.EnvFile)
	})
}

// place is one worker's place in its round, as its environment describes it.
type place struct {
	*assignment
	local     int
	restarts  int
	errorFile string
	files     map[string]string // the paths of ownFiles; "": there is none
}

// additions are the variables that a worker gets in addition to its own; the last one of a name
// counts.
func additions(s *Spec, p place) [][2]string {
	set := [][2]string{
		{"RANK", strconv.Itoa(p.ranks.base + p.local)},
		{"LOCAL_RANK", strconv.Itoa(p.local)},
		{"GROUP_RANK", strconv.Itoa(p.group)},
		{"ROLE_RANK", strconv.Itoa(p.ranks.roleBase + p.local)},
		{"ROLE_NAME", s.Role},
		{"LOCAL_WORLD_SIZE", strconv.Itoa(s.Workers)},
		{"WORLD_SIZE", strconv.Itoa(p.ranks.world)},
		{"GROUP_WORLD_SIZE", strconv.Itoa(p.groups)},
		{"ROLE_WORLD_SIZE", strconv.Itoa(p.ranks.roleWorld)},
		{"MASTER_ADDR", p.StoreAddr},
		{"MASTER_PORT", strconv.Itoa(p.StorePort)},
		{envRestarts, strconv.Itoa(p.restarts)},
		{"TORCHELASTIC_MAX_RESTARTS", strconv.Itoa(s.MaxRestarts)},
		{"TORCHELASTIC_RUN_ID", s.RunID},
		{"TORCHELASTIC_USE_AGENT_STORE", "True"},
		{logs.EnvErrorFile, p.errorFile},
		{"RALLYPOINT_ROUND", strconv.FormatUint(p.Round, 10)},
		{"RALLYPOINT_GENERATION", p.Generation},
		{envMasterAddr, cmp.Or(p.AdvertisedAddr, p.StoreAddr)},
	}
	if _, given := process.LookupEnv(s.Environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING"); !given {
		set = append(set, [2]string{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"})
	}
	set = append(set, protectedDefaults(s.Environ, p)...)
	for _, name := range ownFiles {
		if path := p.files[name]; path != "" {
			set = append(set, [2]string{name, path})
		}
	}
	if s.VirtualRank {
		source, devices, _ := virtualDevices(s.Environ, s.Workers) // Validate saw its error
		set = append(set, [2]string{"LOCAL_RANK", "0"}, [2]string{cudaDevices, devices[p.local]})
		if source == hipDevices {
			set = append(set, [2]string{hipDevices, devices[p.local]})
		}
	}
	return set
}

// protectedDefaults are the variables that libraries need when MASTER_ADDR is a loopback
// address of each node, unless the user has set them.
func protectedDefaults(environ []string, p place) (set [][2]string) {
	if p.AdvertisedAddr == "" || p.AdvertisedAddr == p.StoreAddr {
		return nil
	}
	for _, v := range [][2]string{
		// Else torch's process for asynchronous checkpoints opens a store at a random port.
		{"DCP_USE_PREFIX_STORE", "1"},
		// What AWS Neuron makes of MASTER_ADDR, with its own port.
		{"NEURON_RT_ROOT_COMM_ID", net.JoinHostPort(p.AdvertisedAddr, "62182")},
	} {
		if _, given := process.LookupEnv(environ, v[0]); !given {
			set = append(set, v)
		}
	}
	return set
}

// envConf is torchrun's variable for --rdzv-conf.
const envConf = "PET_RDZV_CONF"

// merge adds variables to an environment. It takes the path of the token's file out of that: neither
// workers nor their children need it.
func merge(environ []string, set [][2]string) []string {
	has := func(set [][2]string, name string) bool {
		return slices.ContainsFunc(set, func(v [2]string) bool { return v[0] == name })
	}
	env := make([]string, 0, len(environ)+len(set))
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if name == envConf {
			options := slices.DeleteFunc(strings.Split(value, ","), func(option string) bool {
				key, _, _ := strings.Cut(option, "=")
				return strings.TrimSpace(key) == "token_file"
			})
			entry = name + "=" + strings.Join(options, ",")
		}
		if name != params.EnvTokenFile && !has(set, name) {
			env = append(env, entry)
		}
	}
	for i, v := range set {
		if !has(set[i+1:], v[0]) {
			env = append(env, v[0]+"="+v[1])
		}
	}
	return env
}

const (
	cudaDevices = "CUDA_VISIBLE_DEVICES"
	hipDevices  = "HIP_VISIBLE_DEVICES"
)

// virtualDevices returns each worker's device, and the variable that says which
// there are, "" if none does.
func virtualDevices(env []string, workers int) (source string, devices []string, err error) {
	for _, name := range []string{hipDevices, cudaDevices} {
		value, given := process.LookupEnv(env, name)
		if !given || value == "" {
			continue
		}
		for device := range strings.SplitSeq(value, ",") {
			devices = append(devices, strings.TrimSpace(device))
		}
		if workers > len(devices) {
			return "", nil, fmt.Errorf("local rank %d has no device: %s is %q", len(devices), name, value)
		}
		return name, devices, nil
	}
	for i := range workers {
		devices = append(devices, strconv.Itoa(i))
	}
	return "", devices, nil
}

// arguments are the worker's command with its macros replaced.
func arguments(s *Spec, local int) []string {
	argv := slices.Clone(s.Argv)
	if s.NoMacros {
		return argv
	}
	values := map[string]string{"local_rank": strconv.Itoa(local)}
	for i := range argv[1:] {
		argv[i+1] = macro.Substitute(argv[i+1], values)
	}
	return argv
}
