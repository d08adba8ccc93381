package run

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rallypoint/agent"
)

// configured parses and checks a command line.
func configured(t *testing.T, args string, env ...string) (*config, error) {
	t.Helper()
	e := environ(append([]string{"PATH=" + os.Getenv("PATH"), envInterpreter + "=/py"}, env...))
	o, err := parseOptions(strings.Fields(args), e.lookup, false)
	if err != nil {
		return nil, err
	}
	return configure(o, e)
}

// TestRendezvousKind: how the nodes find each other by what the command line says of them
// (A9-A11, W19).
func TestRendezvousKind(t *testing.T) {
	for _, c := range []struct {
		args     string
		kind     rendezvousKind
		endpoint string
		id       string // "": random
		rank     int
	}{
		{"x", kindStandalone, "", "", -1},
		{"--rdzv-id=j x", kindStandalone, "", "j", -1},
		{"--standalone --rdzv-id=j --rdzv-endpoint=h x", kindStandalone, "", "", -1},
		{"--master-addr=h x", kindStandalone, "", "", -1},
		{"--rdzv-backend=static x", kindStandalone, "", "", -1},
		{"--master-port=7 x", kindStatic, "", "none", 0},
		{"--rdzv-backend=static --nnodes=2 --node-rank=1 --master-addr=h x", kindStatic, "", "none", 1},
		{"--rdzv-backend=static --rdzv-endpoint=h:7 --rdzv-id=j x", kindStatic, "", "j", 0},
		{"--rdzv-backend=static --rdzv-endpoint=static://h:7 --rdzv-id=j x", kindStatic, "", "j", 0},
		{"--rdzv-endpoint=static://h:7 --nnodes=2 --node-rank=1 x", kindStatic, "static://h:7", "none", 1},
		{"--nnodes=2 x", kindDynamic, "127.0.0.1:29500", "none", -1},
		{"--nnodes=2 --master-addr=h --node-rank=0 x", kindDynamic, "h:29500", "none", 0},
		{"--nnodes=2 --master-addr=[::1] --master-port=7 --node-rank=1 x", kindDynamic, "[::1]:7", "none", 1},
		{"--rdzv-endpoint=h x", kindDynamic, "h:29400", "none", -1},
		{"--rdzv-endpoint=h:7 --nnodes=1:4 --rdzv-id=j x", kindDynamic, "h:7", "j", -1},
		{"--rdzv-backend=c10d --rdzv-endpoint=h:7 x", kindDynamic, "h:7", "none", -1},
		{"--rdzv-backend=c10d x", kindDynamic, "localhost:29400", "none", -1},
		{"--rdzv-backend=etcd-v2 --rdzv-endpoint=h x", kindDynamic, "etcd://h:2379", "none", -1},
		{"--rdzv-backend=rallypoint-etcd --rdzv-endpoint=h1:1,h2:2 x", kindDynamic, "etcd://h1:1,h2:2", "none", -1},
		{"--rdzv-endpoint=etcds://u:secret@h/j?min_workers=2&max_workers=3 x", kindDynamic, "etcds://h:2379", "j", -1},
		{"--rdzv-backend=rallypoint --master-addr=h --nnodes=2 x", kindDynamic, "h:29500", "none", -1},
	} {
		got, err := configured(t, c.args)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		m := got.rendezvous
		if m.kind != c.kind || m.params.Endpoint != c.endpoint || m.params.NodeRank != c.rank {
			t.Errorf("%s: %v at %q, rank %d", c.args, m.kind, m.params.Endpoint, m.params.NodeRank)
		}
		if random := len(m.params.RunID) == 36; random != (c.id == "") || !random && m.params.RunID != c.id {
			t.Errorf("%s: run id %q", c.args, m.params.RunID)
		}
	}
}

func TestConfigure(t *testing.T) {
	c, err := configured(t, "--nproc-per-node=12 -r 0:1,11:2 --signals-to-handle=SIGTERM,bogus,SIGKILL,,SIGUSR1 --rdzv-conf=join_timeout=5,unknown=1,allow_uid=7 "+
		"--rdzv-endpoint=h --monitor-interval=2 -m mod a", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=8", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=p")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(c.spec.Argv, " "); got != "/py -u -m mod a" || c.name != "mod" {
		t.Errorf("command %q, name %q", got, c.name)
	}
	if c.spec.ShutdownTimeout != 9*time.Second || c.spec.ExitBarrierTimeout != 8*time.Second || c.spec.MonitorInterval != 2*time.Second ||
		c.rendezvous.params.JoinTimeout != 5*time.Second || !c.spec.LoopbackUsers.Includes(7) || c.spec.Logs.PrefixTemplate != "p" {
		t.Errorf("%+v %+v", c.spec, c.rendezvous)
	}
	if len(c.signals) != 2 || len(c.warnings) != 3 { // two signals, one option
		t.Errorf("signals %v, warnings %q", c.signals, c.warnings)
	}
	if !slices.Contains(c.spec.Environ, "OMP_NUM_THREADS=1") || slices.Contains(c.spec.Environ, envInterpreter+"=/py") {
		t.Errorf("environment %q", c.spec.Environ)
	}
	c, err = configured(t, "--shutdown-timeout=0 --exit-barrier-timeout=0 x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9", "PYTHON_EXEC=/other", "OMP_NUM_THREADS=")
	if err != nil || c.spec.ShutdownTimeout != 0 || c.spec.ExitBarrierTimeout != 0 || c.spec.Argv[0] != "/other" {
		t.Errorf("%v %+v", err, c)
	}
}

func TestTopologyOption(t *testing.T) {
	for args, want := range map[string]string{
		"x":                         "",
		"--topology=rack7 x":        "rack7",
		"--rdzv-conf=topology=r7 x": "r7",
		"--topology=rack7 --rdzv-conf=topology=r8 x": "rack7",
		"--topology= --rdzv-conf=topology=r8 x":      "r8",
	} {
		c, err := configured(t, "--rdzv-endpoint=127.0.0.1:1 --nnodes=1:2 "+args)
		if err != nil || c.rendezvous.params.Topology != want {
			t.Errorf("%s: %v, topology %q, want %q", args, err, c.rendezvous.params.Topology, want)
		}
	}
}

// TestSegmentOption takes --segment, and refuses what does not fit it before anything starts.
func TestSegmentOption(t *testing.T) {
	const elastic = "--rdzv-endpoint=127.0.0.1:1 --nnodes=4:8 --topology=rack7 "
	for args, want := range map[string]int{"": 1, "--segment=4": 4, "--rdzv-conf=segment=2": 2, "--segment=4 --rdzv-conf=segment=2": 4} {
		c, err := configured(t, elastic+args+" x")
		if err != nil || c.rendezvous.params.Segment != want {
			t.Errorf("%s: %v, segment %d, want %d", args, err, c.rendezvous.params.Segment, want)
		}
	}
	for args, says := range map[string]string{
		elastic + "--segment=0 x":                                            "argument --segment: it is 0, it must be at least 1",
		elastic + "--segment=3 x":                                            "must be multiples of segment (3)",
		elastic + "--segment=2 --rdzv-conf=target=5 x":                       "target (5) must be a multiple of segment (2): change target or --segment",
		elastic + "--segment=4 --rdzv-conf=node_unit=2 x":                    "node_unit (2) must be a multiple of segment (4)",
		elastic + "--segment=4 --node-rank=0 x":                              "leave out either --node-rank",
		"--rdzv-endpoint=127.0.0.1:1 --nnodes=4:8 --segment=4 x":             "give this one its topology domain by --topology",
		"--standalone --segment=2 x":                                         "the ranks of a standalone job are not given by topology",
		"--rdzv-backend=static --nnodes=2 --segment=2 --topology=rack7 x":    "the ranks of a static job are not given by topology",
		"--rdzv-endpoint=static://h:7 --nnodes=2 --segment=2 --topology=r x": "the ranks of a static job are not given by topology",
		"--rdzv-endpoint=127.0.0.1:1 --nnodes=4:8 --topology=\x1b[2J x":      "topology is",
		"--rdzv-endpoint=127.0.0.1:1 --nnodes=4:8 --rdzv-conf=topology= x":   "topology",
	} {
		if _, err := configured(t, args); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
}

// TestConfigureRefuses wrong command lines in one line that names what is wrong.
func TestConfigureRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, what := range map[string]string{
		"":                                                 "there is nothing to run: name the script",
		"--nnodes=0 x":                                     "--nnodes",
		"--nnodes=2:1 x":                                   "--nnodes",
		"--nnodes=a x":                                     `"a"`,
		"--nnodes=1:2:3 x":                                 `"1:2:3"`,
		"--nnodes=2 --standalone x":                        "one node",
		"--nproc-per-node=0 x":                             "at least 1",
		"--nproc-per-node=-2 x":                            "at least 1",
		"--nproc-per-node=xyz x":                           "Unsupported nproc_per_node value: xyz; give a number",
		"--max-restarts=-1 x":                              "--max-restarts",
		"--max-restarts=-1/6h x":                           "--max-restarts",
		"--max-restarts=1001/6h x":                         "at most 1000",
		"--max-no-progress=-1 x":                           "--max-no-progress",
		"--hang-timeout=0 x":                               "--hang-timeout: \"0\" must be auto, off",
		"--hang-timeout=nan x":                             "--hang-timeout",
		"--on-hang=kill x":                                 "--on-hang",
		"--monitor-interval=0 x":                           "--monitor-interval",
		"--monitor-interval=nan x":                         "--monitor-interval",
		"--shutdown-timeout=-1 x":                          "--shutdown-timeout",
		"--exit-barrier-timeout=-1 x":                      "--exit-barrier-timeout",
		"-r 4 x":                                           `"4"`,
		"-t 0:1, x":                                        `"0:1,"`,
		"-r 1:1 x":                                         "local rank 1",
		"--local-ranks-filter=0,a x":                       "--local_ranks_filter=0,1,2",
		"--ranks-filter=0,a x":                             "--ranks-filter",
		"--ranks-filter=-1 x":                              "--ranks-filter",
		"--fold-logs --keep-daemons x":                     "--fold-logs",
		"--rdzv-endpoint=h --rdzv-conf=a x":                "option 'a'",
		"--rdzv-endpoint=h --rdzv-conf==1 x":               "format",
		"--rdzv-conf=a x":                                  "option 'a'",
		"--rdzv-endpoint=h:x x":                            "--rdzv-endpoint",
		"--rdzv-endpoint=h --node-rank=1 x":                "--node-rank",
		"--rdzv-backend=static --nnodes=1:2 x":             "fixed number",
		"--rdzv-backend=static --nnodes=2 --node-rank=2 x": "--node-rank",
		"--rdzv-backend=etcd --rdzv-endpoint=http://h x":   "etcd://HOST",
		"--rdzv-endpoint=etcd://h/j?max_workers=0 x":       "1 or more",
		"--rdzv-id=k --rdzv-endpoint=etcd://h/j x":         "the run id is j",
		"--rdzv-endpoint=etcd://h --rdzv-conf=user=u --rdzv-endpoint=etcd:// x": "lacks a host",
		"--rdzv-backend=zzz x":                      `"zzz"`,
		"--nproc-per-node=xpu x":                    "Xpu is not available: torch of /py sees none; give a number",
		"--numa-binding=node x":                     "--numa-binding",
		"--no-python -m x":                          "--module",
		"--log-dir=" + file + " x":                  "--log-dir",
		"--master-port=99999 x":                     "--master-port",
		"--virtual-local-rank --nproc-per-node=2 x": "CUDA_VISIBLE_DEVICES",
		"--rdzv-id= --rdzv-endpoint=h x":            "run id",
	} {
		_, err := configured(t, args, "CUDA_VISIBLE_DEVICES=0")
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, expected %q", args, err, what)
		}
	}
}

// TestMisspelledVariables: a variable that nearly names an option is told, and one of ours that says neither yes nor
// no is refused.
func TestMisspelledVariables(t *testing.T) {
	c, err := configured(t, "x", "PET_NNODE=2", "PET_NNODES=1", "PET_NPROC_PERNODE=8", "PET_SHOP=1", "PET_HELP=1", "NNODE=2")
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, w := range c.warnings {
		if strings.Contains(w, "PET_") {
			said = append(said, w)
		}
	}
	want := []string{
		"the environment variable PET_NNODE is no option's; did you mean PET_NNODES?",
		"the environment variable PET_NPROC_PERNODE is no option's; did you mean PET_NPROC_PER_NODE?",
	}
	if !slices.Equal(said, want) {
		t.Errorf("%q", said)
	}
	for _, name := range []string{"RALLYPOINT_WARM", "RALLYPOINT_AUTO_PROGRESS"} {
		if _, err := configured(t, "x", name+"=true"); err == nil || err.Error() != `environment variable `+name+`: "true" is neither 1 nor 0` {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestIdleOptions: an option that has no effect beside the others is told.
func TestIdleOptions(t *testing.T) {
	for args, want := range map[string]string{
		"--preload=torch x":                   "--preload has no effect without --warm",
		"--warm --preload=torch x":            "",
		"--hang-timeout=off --on-hang=stacks": "--on-hang has no effect with --hang-timeout=off",
		"--hang-timeout=9 --on-hang=stacks":   "",
		"--check-timeout=9 x":                 "--check-timeout has no effect without --check",
		"--check=true --check-timeout=9 x":    "",
		"--duplicate-stderr-filters=a x":      "--duplicate-stderr-filters has no effect without --tee",
		"-t 3 --duplicate-stdout-filters=a x": "",
	} {
		c, err := configured(t, strings.TrimSuffix(args, " x")+" x")
		if err != nil {
			t.Fatal(err)
		}
		said := slices.DeleteFunc(c.warnings, func(w string) bool { return !strings.Contains(w, "no effect") })
		if got := strings.Join(said, "\n"); got != want {
			t.Errorf("%s: %q", args, got)
		}
	}
}

func TestParseConf(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                           {},
		" \t ":                       {},
		"a=b":                        {"a": "b"},
		" a = b , c=d ":              {"a": "b", "c": "d"},
		"a=b=c,path=/x/y?z=1":        {"a": "b=c", "path": "/x/y?z=1"},
		"join_timeout=5, timeout=-1": {"join_timeout": "5", "timeout": "-1"},
		"a=1,a=2":                    {"a": "2"},
	} {
		if got, err := parseConf(text); err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for text, what := range map[string]string{
		"=": "format", "=b": "format", "a=b,": "format", ",a=b": "format", " , ": "format", "a=b,=": "format", "a=b, =c": "format",
		"a": "option 'a'", "a=": "option 'a'", "b=c,a": "option 'a'", "a= ,b=c": "option 'a'",
	} {
		if got, err := parseConf(text); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %v, %v; expected %q", text, got, err, what)
		}
	}
}

func TestCPUQuota(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n", "x/cpu.max": "bad\n", "group": "0::/a/b\n", "other": "0::/x\n", "old": "1:cpu:/a\n"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if quota, ok := cpuQuota(filepath.Join(root, "group"), root); !ok || quota != 1.5 {
		t.Errorf("quota %v, %v", quota, ok)
	}
	for _, name := range []string{"other", "old", "missing"} {
		if quota, ok := cpuQuota(filepath.Join(root, name), root); ok {
			t.Errorf("%s: quota %v", name, quota)
		}
	}
}

// TestHangOptions: the flag goes before the variable, and each says what it does not know.
func TestHangOptions(t *testing.T) {
	for _, c := range []struct {
		args, env string
		timeout   time.Duration
		onHang    agent.OnHang
	}{
		{"x", "", 0, agent.HangReport},
		{"--hang-timeout=auto x", "RALLYPOINT_HANG_TIMEOUT=9", 0, agent.HangReport},
		{"--hang-timeout=0.5 --on-hang=restart x", "RALLYPOINT_ON_HANG=stacks", 500 * time.Millisecond, agent.HangRestart},
		{"--hang-timeout=off x", "RALLYPOINT_ON_HANG=stacks", agent.HangOff, agent.HangStacks},
		{"x", "RALLYPOINT_HANG_TIMEOUT=90", 90 * time.Second, agent.HangReport},
	} {
		got, err := configured(t, c.args, c.env)
		if err != nil || got.spec.HangTimeout != c.timeout || got.spec.OnHang != c.onHang {
			t.Errorf("%s, %s: %v", c.args, c.env, err)
		}
	}
	for _, env := range []string{"RALLYPOINT_HANG_TIMEOUT=-1", "RALLYPOINT_HANG_TIMEOUT=1m", "RALLYPOINT_ON_HANG=off"} {
		if _, err := configured(t, "x", env); err == nil || !strings.Contains(err.Error(), env[:strings.Index(env, "=")]) {
			t.Errorf("%s: %v", env, err)
		}
	}
}

// TestCheckEvery refuses a period without a check to run, or without a node to take this one's place.
func TestCheckEvery(t *testing.T) {
	const elastic = "--rdzv-endpoint=127.0.0.1:1 --nnodes=1:2 --check=true "
	c, err := configured(t, elastic+"--check-every=60 --check-away=2d x.py")
	if err != nil || c.spec.CheckEvery != time.Minute || c.spec.CheckAway != 48*time.Hour {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := configured(t, elastic+"x.py"); err != nil || c.spec.CheckEvery != 0 || c.spec.CheckAway != time.Hour {
		t.Errorf("%+v, %v", c, err)
	}
	for options, want := range map[string]string{
		elastic + "--check-every=-1":                                                  "argument --check-every: it is -1, it must not be negative",
		elastic + "--check-away=0s":                                                   "argument --check-away: \"0s\" must be a time",
		elastic + "--check-away=31d":                                                  "at most 720h0m0s",
		elastic + "--check-away=often":                                                "such as 30m, 6h or 2d",
		"--rdzv-endpoint=127.0.0.1:1 --nnodes=1:2 --check-every=1":                    "argument --check-every: there is nothing to run; name a command by --check",
		"--standalone --check=true --check-every=1":                                   "leaves a standalone job",
		"--rdzv-backend=static --nnodes=2 --node-rank=0 --check=true --check-every=1": "leaves a static job; use",
	} {
		if _, err := configured(t, options+" x.py"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", options, err)
		}
	}
}

// TestOnFailure: an unknown policy, or one without a node to take this one's place, is refused before
// anything starts.
func TestOnFailure(t *testing.T) {
	const elastic = "--rdzv-endpoint=127.0.0.1:1 --nnodes=1:2 --on-failure="
	for text, want := range map[string]agent.LeaveRule{
		"restart": {}, "leave": {Failures: 2, Window: time.Hour}, "leave:1": {Failures: 1, Window: time.Hour},
		"leave:3/6h": {Failures: 3, Window: 6 * time.Hour}, "leave:1/2d": {Failures: 1, Window: 48 * time.Hour},
	} {
		c, err := configured(t, elastic+text+" x.py")
		if err != nil || c.spec.Leave != want {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	for _, text := range []string{"", "stay", "restart:1", "leave:", "leave:0", "leave:-1", "leave:x", "leave:2/", "leave:2/0s", "leave:2/31d", "leave/1h", "leave:2/1h/3"} {
		if _, err := configured(t, elastic+text+" x.py"); err == nil || !strings.Contains(err.Error(), "argument --on-failure: ") || !strings.Contains(err.Error(), "such as leave:2/1h") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := configured(t, elastic+"keep x.py"); err == nil || !strings.Contains(err.Error(), "argument --on-failure: keep takes a fixed number of nodes, such as 2, not 1:2: with a range") {
		t.Errorf("keep with a range: %v", err)
	}
	if c, err := configured(t, elastic+"keep --nnodes=2 x.py"); err != nil || !c.spec.Keep || c.spec.Leave != (agent.LeaveRule{}) {
		t.Errorf("keep: %+v, %v", c, err)
	}
	for text, want := range map[string]time.Duration{"regroup": 30 * time.Second, "regroup:5s": 5 * time.Second, "regroup:2m": 2 * time.Minute} {
		for _, options := range []string{elastic, "--standalone --on-failure="} {
			if c, err := configured(t, options+text+" x.py"); err != nil || !c.spec.Regroup || c.spec.RegroupGrace != want {
				t.Errorf("%s: %+v, %v", text, c, err)
			}
		}
	}
	for _, text := range []string{"regroup:", "regroup:0s", "regroup:x", "regroup:5s/2"} {
		if _, err := configured(t, elastic+text+" x.py"); err == nil || !strings.Contains(err.Error(), "such as regroup:30s") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := configured(t, "--rdzv-backend=static --nnodes=2 --node-rank=0 --on-failure=regroup x.py"); err == nil || !strings.Contains(err.Error(), "so their workers cannot regroup; use HOST:PORT") {
		t.Errorf("regroup of a static job: %v", err)
	}
	for kind, options := range map[string]string{"standalone": "--standalone", "static": "--rdzv-backend=static --nnodes=2 --node-rank=0"} {
		if _, err := configured(t, options+" --on-failure=leave x.py"); err == nil || !strings.Contains(err.Error(), "leaves a "+kind+" job; use") {
			t.Errorf("%s: %v", kind, err)
		}
		if _, err := configured(t, options+" --on-failure=keep x.py"); err == nil || !strings.Contains(err.Error(), "the nodes of a "+kind+" job do not notice when another is lost") {
			t.Errorf("keep, %s: %v", kind, err)
		}
	}
}

// TestNoEndpoint: nodes of several machines would wait for each other at their own loopback.
func TestNoEndpoint(t *testing.T) {
	for args, want := range map[string]string{
		"--nnodes=2 x": "meet at 127.0.0.1:29500", "--nnodes=2 --rdzv-backend=c10d x": "meet at localhost:29400", "--nnodes=2 --master-port=3 x": "meet at 127.0.0.1:3",
		"--nnodes=2 --rdzv-endpoint=localhost x": "", "--nnodes=2 --master-addr=127.0.0.1 x": "", "x": "",
	} {
		c, err := configured(t, args)
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Join(c.warnings, "\n"); strings.Contains(said, "no --rdzv-endpoint") != (want != "") || !strings.Contains(said, want) {
			t.Errorf("%s: %q", args, said)
		}
	}
}

// TestNoRestarts of an elastic job are worth a note: many expect that elastic means restarted.
func TestNoRestarts(t *testing.T) {
	for args, want := range map[string]bool{
		"--nnodes=1:2 --rdzv-endpoint=h x": true, "--nnodes=2 --rdzv-endpoint=h x": false, "--nnodes=1:2 --max-restarts=1 --rdzv-endpoint=h x": false, "x": false,
	} {
		c, err := configured(t, args)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(c.notes, "\n"), "the first worker that fails ends the job"); got != want {
			t.Errorf("%s: %q", args, c.notes)
		}
	}
}
