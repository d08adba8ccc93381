package stacks

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// clockTick is by how much a file system's clock may be behind.
const clockTick = 10 * time.Millisecond

// FlightRecord is the file in which torch's Flight Recorder has kept what a rank's process group did
// last, as when a collective of NCCL's ran into its timeout; "" if there is none since that time.
// getenv reads the environment with which the rank was started.
func FlightRecord(getenv func(name string) string, rank int, since time.Time) string {
	since = since.Add(-clockTick)
	for _, prefix := range flightPrefixes(getenv) {
		path := prefix + strconv.Itoa(rank)
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && int(st.Uid) == os.Geteuid() && !time.Unix(st.Mtim.Unix()).Before(since) {
			return path
		}
	}
	return ""
}

// flightPrefixes are what torch puts in front of the rank: what the user has named, else its default,
// which was another one before torch 2.9.
func flightPrefixes(getenv func(name string) string) []string {
	if named := cmp.Or(getenv("TORCH_FR_DUMP_TEMP_FILE"), getenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")); named != "" {
		return []string{named}
	}
	cache := cmp.Or(getenv("XDG_CACHE_HOME"), filepath.Join(cmp.Or(getenv("HOME"), "/tmp"), ".cache"))
	return []string{filepath.Join(cache, "torch", "comm_lib_trace_rank_"), "/tmp/nccl_trace_rank_"}
}
