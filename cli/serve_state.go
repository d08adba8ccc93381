package cli

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"rallypoint/core/control"
	"rallypoint/core/control/journal"
)

// serveState says where `serve` keeps its state, for how long, and how much of it.
type serveState struct {
	dir         string
	record      string
	forgetAfter time.Duration
	quota       control.Quota
}

func (s *serveState) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.dir, "data-dir", "", "`DIRECTORY` in which jobs survive a restart; created if missing; empty: memory only")
	flags.StringVar(&s.record, "record", "", "append every event of every job to `FILE`, for \"rallypoint-audit\" and reports of defects: about 20 us of CPU and 1 KB per event, at most 1 GiB; readable by its owner only")
	flags.DurationVar(&s.forgetAfter, "forget-after", control.DefaultForgetAfter, "`TIME` after which a job without nodes is forgotten, such as 90s or 12h")
	s.quota = control.DefaultQuota
	flags.IntVar(&s.quota.Nodes, "max-nodes", s.quota.Nodes, "most `NODES` of one job, including waiting ones")
	flags.IntVar(&s.quota.Connections, "max-connections", s.quota.Connections, "most `CONNECTIONS` of one job's nodes")
	flags.IntVar(&s.quota.Keys, "max-keys", s.quota.Keys, "most `KEYS` of one job's agents in one round")
	flags.Int64Var(&s.quota.KeyBytes, "max-key-bytes", s.quota.KeyBytes, "most `BYTES` of the keys that --max-keys counts, and their values")
	flags.Int64Var(&s.quota.Bytes, "max-bytes", s.quota.Bytes, "most `BYTES` kept for one job: nodes, keys, waits, unacknowledged and unsent answers")
	flags.Int64Var(&s.quota.TotalBytes, "max-total-bytes", s.quota.TotalBytes, "most `BYTES` kept for all jobs: above it, jobs with more than an equal share are refused")
	flags.IntVar(&s.quota.RunsPerAddress, "max-runs-per-address", s.quota.RunsPerAddress, "most `JOBS` started by nodes of one address (IPv6: one /64) and not yet forgotten")
}

func (s *serveState) check() error {
	return cmp.Or(
		positive("--forget-after", s.forgetAfter),
		positive("--max-nodes", s.quota.Nodes), positive("--max-connections", s.quota.Connections),
		positive("--max-keys", s.quota.Keys), positive("--max-key-bytes", s.quota.KeyBytes), positive("--max-bytes", s.quota.Bytes),
		positive("--max-total-bytes", s.quota.TotalBytes), positive("--max-runs-per-address", s.quota.RunsPerAddress),
	)
}

// open opens the data directory of a server without peers, if one was asked for.
func (s *serveState) open() (*control.Data, error) {
	if s.dir == "" {
		return nil, nil
	}
	data, err := control.OpenData(s.dir, journal.Options{})
	if err != nil {
		return nil, failure{err}
	}
	owner, err := data.Owner()
	if err == nil && owner != "" {
		err = fmt.Errorf("data file %s was written by the server %s: give the same --peers, or another --data-dir", data.Path(), owner)
	}
	if err != nil {
		return nil, failure{errors.Join(err, data.Close())}
	}
	return data, nil
}

// openRecording opens the file of --record, nil without that option.
func (s *serveState) openRecording(log *slog.Logger) (*control.TraceFile, error) {
	if s.record == "" {
		return nil, nil
	}
	recording, err := control.OpenTraceFile(s.record, log)
	if err != nil {
		return nil, failed("--record: %w", err)
	}
	return recording, nil
}
