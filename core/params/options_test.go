package params

import (
	"errors"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
)

// optionsCase is options and what they change.
type optionsCase struct {
	options map[string]string
	change  func(*Params)
}

func TestSetOptions(t *testing.T) {
	yes, no := true, false
	s := time.Second
	wantOptions(t, []optionsCase{
		{nil, func(*Params) {}},
		{map[string]string{"join_timeout": "7"}, func(p *Params) { p.JoinTimeout = 7 * s }},
		{map[string]string{"join_timeout": "0.5"}, func(p *Params) { p.JoinTimeout = s / 2 }},
		{map[string]string{"join_timeout": " 1e3 "}, func(p *Params) { p.JoinTimeout = 1000 * s }},
		{map[string]string{"last_call_timeout": "1.25"}, func(p *Params) { p.LastCallTimeout = 1250 * time.Millisecond }},
		{map[string]string{"close_timeout": "+3"}, func(p *Params) { p.CloseTimeout = 3 * s }},
		{map[string]string{"read_timeout": "003"}, func(p *Params) { p.ReadTimeout = 3 * s }},
		{map[string]string{"regroup_timeout": ".1"}, func(p *Params) { p.RegroupTimeout = s / 10 }},
		{map[string]string{"reconnect_grace": "0"}, func(p *Params) { p.ReconnectGrace = 0 }},
		{map[string]string{"admit_delay": "0.0"}, func(p *Params) { p.AdmitDelay = 0 }},
		{map[string]string{"quiet_period": "5"}, func(p *Params) { p.QuietPeriod = 5 * s }},
		{map[string]string{"target": "3"}, func(p *Params) { p.Target = 3 }},
		{map[string]string{"node_unit": "2"}, func(p *Params) { p.NodeUnit = 2 }},
		{map[string]string{"node_rank": "0"}, func(p *Params) { p.NodeRank = 0 }},
		{map[string]string{"node_id": " n1 "}, func(p *Params) { p.NodeID = "n1" }},
		{map[string]string{"segment": "8"}, func(p *Params) { p.Segment = 8 }},
		{map[string]string{"topology": " rack=7 "}, func(p *Params) { p.Topology = "rack=7" }},
		{map[string]string{"advertise_addr": "10.0.0.1"}, func(p *Params) { p.AdvertiseAddr = "10.0.0.1" }},
		{map[string]string{"advertise_addr": "[fe80::1%eth0]"}, func(p *Params) { p.AdvertiseAddr = "fe80::1%eth0" }},
		{map[string]string{"advertise_addr": "host0.example.com"}, func(p *Params) { p.AdvertiseAddr = "host0.example.com" }},
		{map[string]string{"store_port": "29501"}, func(p *Params) { p.StorePort = 29501 }},
		{map[string]string{"store_tls": "0"}, func(p *Params) { p.PlainStore = true }},
		{map[string]string{"store_tls": "1"}, func(p *Params) { p.PlainStore = false }},
		{map[string]string{"forward_ports": "8547"}, func(p *Params) { p.ForwardPorts = []int{8547} }},
		{map[string]string{"forward_ports": "65534-65535: 1"}, func(p *Params) { p.ForwardPorts = []int{65534, 65535, 1} }},
		{map[string]string{"allow_uid": "7"}, func(p *Params) { p.LoopbackUsers.Also = []UIDRange{{7, 7}} }},
		{map[string]string{"allow_uid": " 0:100000-165535"}, func(p *Params) { p.LoopbackUsers.Also = []UIDRange{{0, 0}, {100000, 165535}} }},
		{map[string]string{"loopback_check": "0"}, func(p *Params) { p.LoopbackUsers.Anyone = true }},
		{map[string]string{"loopback_check": "1"}, func(*Params) {}},
		{map[string]string{"record": "/tmp/history"}, func(p *Params) { p.Record = "/tmp/history" }},
		{map[string]string{"is_host": "1"}, func(p *Params) { p.IsHost = &yes }},
		{map[string]string{"is_host": "TRUE"}, func(p *Params) { p.IsHost = &yes }},
		{map[string]string{"is_host": "y"}, func(p *Params) { p.IsHost = &yes }},
		{map[string]string{"is_host": "No"}, func(p *Params) { p.IsHost = &no }},
		{map[string]string{"is_host": "f"}, func(p *Params) { p.IsHost = &no }},

		// Taken without effect.
		{map[string]string{"timeout": "900", "rank": "x"}, func(*Params) {}},
		{map[string]string{"heartbeat": "7", "heartbeat_timeout": "7"}, func(*Params) {}},
		{map[string]string{"cas_backoff_max_seconds": "0.0"}, func(*Params) {}},
		{map[string]string{"store_type": " TCP "}, func(*Params) {}},
	})
}

// TestLeaseOptions: a lease of its own, or of the keep-alive options.
func TestLeaseOptions(t *testing.T) {
	s := time.Second
	wantOptions(t, []optionsCase{
		{map[string]string{"lease_timeout": "4"}, func(p *Params) { p.LeaseTimeout = 4 * s }},
		{map[string]string{"keep_alive_interval": "2"}, func(p *Params) { p.LeaseTimeout = 6 * s }},
		{map[string]string{"keep_alive_max_attempt": "4"}, func(p *Params) { p.LeaseTimeout = 20 * s }},
		{map[string]string{"keep_alive_interval": "0.5", "keep_alive_max_attempt": "2"}, func(p *Params) { p.LeaseTimeout = s }},
		{map[string]string{"keep_alive_interval": "2", "lease_timeout": "7"}, func(p *Params) { p.LeaseTimeout = 7 * s }},
	})
}

func wantOptions(t *testing.T, cases []optionsCase) {
	t.Helper()
	for _, c := range cases {
		got, want := Default(), Default()
		c.change(&want)
		warnings, err := got.SetOptions(c.options)
		if err != nil || len(warnings) != 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %+v, warnings %q, %v; want %+v", c.options, got, warnings, err, want)
		}
	}
}

func TestSetOptionsRefuses(t *testing.T) {
	timeouts := []string{"", " ", "9999999999", "0", "-1", "-0", "nan", "inf", "+Inf", "0x10", "0x1p3", "1_0", "1s", "1,5", "1e99", "1e-12", "3155692600", "١"}
	delays := []string{"", "-1", "9999999999", "nan", "inf", "0x10", "1 s"}
	numbers := []string{"", "-1", "1.0", "0x10", "a", "99999999999", "1 2"}
	for _, c := range []struct {
		options []string
		values  []string
		expects string
	}{
		{[]string{"join_timeout", "last_call_timeout", "close_timeout", "read_timeout", "regroup_timeout", "lease_timeout",
			"keep_alive_interval", "heartbeat", "heartbeat_timeout"}, timeouts, "seconds greater than 0, at most " + mostSeconds},
		{[]string{"reconnect_grace", "admit_delay", "quiet_period", "cas_backoff_max_seconds"}, delays, "seconds, 0 or more, at most " + mostSeconds},
		{[]string{"target", "node_rank"}, numbers, "a whole number, 0 or more"},
		{[]string{"node_unit", "segment"}, append(numbers, "0"), "a whole number, 1 or more"},
		{[]string{"keep_alive_max_attempt"}, append(numbers, "0", "1"), "a whole number, 2 or more"},
		{[]string{"store_port"}, append(numbers, "65536"), "a port number"},
		{[]string{"record"}, []string{"", "a\x00b"}, "the path of a file"},
		{[]string{"store_tls"}, []string{"", "off", "2"}, "1 or 0, or true"},
		{[]string{"forward_ports"}, []string{"", "0", "0-3", "3-2", "65536", "65530-65540", "1,2", "-1", "x", "1-65", "1-64:65", "1:"}, "ports from 1 to 65535"},
		{[]string{"allow_uid"}, []string{"", "ten", "-1", "1-", "2-1", "1,2", "4294967295", "99999999999", "1.0", strings.Repeat("1:", 64) + "1"}, "user ids such as"},
		{[]string{"is_host", "loopback_check"}, []string{"", " true", "on", "off", "2", "-1", "1.0"}, "1 or 0, or true"},
		{[]string{"node_id", "topology"}, []string{"", " ", strings.Repeat("x", rendezvous.MaxNameLen+1)}, "a name"},
		{[]string{"advertise_addr"}, []string{"", "0.0.0.0", "::", "host0:1", "10.0.0.1:1", "a b", "[::]"}, "a host name or an address"},
		{[]string{"store_type"}, []string{"file", ""}, "tcp"},
	} {
		for _, option := range c.options {
			for _, value := range c.values {
				p := Default()
				_, err := p.SetOptions(map[string]string{option: value, "node_id": cmpOr(option == "node_id", value, "n1")})
				if !errors.Is(err, rendezvous.ErrInvalid) {
					t.Errorf("%s=%q: got %v, %+v", option, value, err, p)
					continue
				}
				for _, says := range []string{option, "expected " + c.expects} {
					if !strings.Contains(err.Error(), says) {
						t.Errorf("%s=%q: the error does not say %q: %v", option, value, says, err)
					}
				}
				if !reflect.DeepEqual(p, Default()) {
					t.Errorf("%s=%q: the parameters have changed: %+v", option, value, p)
				}
			}
		}
	}
}

func cmpOr(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

func TestKeepAliveProductIsBounded(t *testing.T) {
	p := Default()
	_, err := p.SetOptions(map[string]string{"keep_alive_interval": "300000000", "keep_alive_max_attempt": "2000000000"})
	if !errors.Is(err, rendezvous.ErrInvalid) {
		t.Errorf("got %v, %v", p.LeaseTimeout, err)
	}
}

func TestUnknownOptionsAreWarnedOf(t *testing.T) {
	for option, near := range map[string]string{
		"join_timout":                        "join_timeout",
		"join-timeout":                       "join_timeout",
		"Join_Timeout":                       "join_timeout",
		"leasetimeout":                       "lease_timeout",
		"keep_alive_max_attempts":            "keep_alive_max_attempt",
		"noderank":                           "node_rank",
		"ishost":                             "is_host",
		"xyz":                                "",
		"use_libuv":                          "",
		"":                                   "",
		strings.Repeat("join_timeout", 1000): "",
	} {
		p := Default()
		warnings, err := p.SetOptions(map[string]string{option: "1"})
		if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "unknown option") || len(warnings[0]) > 300 {
			t.Errorf("%.40q: %q, %v", option, warnings, err)
			continue
		}
		if hint := strings.Contains(warnings[0], "did you mean"); hint != (near != "") || !strings.Contains(warnings[0], near) {
			t.Errorf("%.40q: %q; want it to name %q", option, warnings[0], near)
		}
	}
}

func TestEveryOptionHasItsNearestName(t *testing.T) {
	for _, o := range optionTable {
		if near := nearestOption(o.name + "x"); near != o.name {
			t.Errorf("%sx: did you mean %q", o.name, near)
		}
	}
}

// A default that help and pages show is what a node that does not give the option has.
func TestDefaultsOfOptions(t *testing.T) {
	number := regexp.MustCompile(`^\d+$`)
	shown := 0
	for _, o := range Options() {
		if o.Takes == "" {
			t.Errorf("%s does not say what it takes", o.Name)
		}
		if !number.MatchString(o.Default) {
			continue
		}
		p := Default()
		if _, err := p.SetOptions(map[string]string{o.Name: o.Default}); err != nil {
			t.Errorf("%s=%s: %v", o.Name, o.Default, err)
		}
		want := Default()
		if strings.HasPrefix(o.Name, "keep_alive") {
			want.LeaseTimeout = defaultKeepAliveInterval * defaultKeepAliveAttempts
		}
		if !reflect.DeepEqual(p, want) {
			t.Errorf("%s=%s changes what is the default", o.Name, o.Default)
		}
		shown++
	}
	if shown < 15 {
		t.Errorf("%d options have a number as their default", shown)
	}
}

func TestSetEnvironment(t *testing.T) {
	for _, c := range []struct {
		name       string
		env        map[string]string
		rank, hint int
		warnings   int
	}{
		{"nothing", nil, -1, -1, 0},
		{"torchrun's variable", map[string]string{"PET_NODE_RANK": "2"}, 2, -1, 0},
		{"no number", map[string]string{"PET_NODE_RANK": "two"}, -1, -1, 1},
		{"negative", map[string]string{"PET_NODE_RANK": "-1"}, -1, -1, 1},
		{"too high", map[string]string{"PET_NODE_RANK": "4"}, -1, -1, 1},
		{"Slurm", map[string]string{"SLURM_NODEID": "3"}, -1, 3, 0},
		{"both", map[string]string{"SLURM_NODEID": "3", "PET_NODE_RANK": "1"}, 1, 3, 0},
		{"AWS Batch", map[string]string{"AWS_BATCH_JOB_NODE_INDEX": "1"}, -1, 1, 0},
		{"Kubernetes", map[string]string{"JOB_COMPLETION_INDEX": "0"}, -1, 0, 0},
		{"Open MPI, one a node", map[string]string{"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, -1, 2, 0},
		{"Open MPI, two a node", map[string]string{"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, -1, -1, 0},
		{"Open MPI, not told", map[string]string{"OMPI_COMM_WORLD_RANK": "2"}, -1, -1, 0},
		{"Hydra, one a node", map[string]string{"PMI_RANK": "2", "MPI_LOCALNRANKS": "1"}, -1, 2, 0},
		{"Hydra, not told", map[string]string{"PMI_RANK": "2"}, -1, -1, 0},
		{"the first counts", map[string]string{"JOB_COMPLETION_INDEX": "7", "SLURM_NODEID": "1"}, -1, 1, 0},
		{"a bad one is passed over", map[string]string{"SLURM_NODEID": "x", "JOB_COMPLETION_INDEX": "7"}, -1, 7, 1},
		{"a hint above the maximum", map[string]string{"SLURM_NODEID": "99"}, -1, 99, 0},
	} {
		p := Default()
		p.Min, p.Max = 1, 4
		warnings := p.SetEnvironment(func(name string) string { return c.env[name] })
		if p.NodeRank != c.rank || p.RankHint != c.hint || len(warnings) != c.warnings {
			t.Errorf("%s: rank %d, hint %d, warnings %q; want %d, %d, %d", c.name, p.NodeRank, p.RankHint, warnings, c.rank, c.hint, c.warnings)
		}
		if err := p.Validate(); err != nil && !strings.Contains(err.Error(), "run id") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestEnvironmentDoesNotOverruleOptions(t *testing.T) {
	p := Default()
	p.NodeRank, p.RankHint = 0, 1
	env := map[string]string{"PET_NODE_RANK": "5", "SLURM_NODEID": "6"}
	if warnings := p.SetEnvironment(func(name string) string { return env[name] }); len(warnings) != 0 || p.NodeRank != 0 || p.RankHint != 1 {
		t.Errorf("rank %d, hint %d, %q", p.NodeRank, p.RankHint, warnings)
	}
}

// TestNamesCanBeShown, or are refused.
func TestNamesCanBeShown(t *testing.T) {
	for option, set := range map[string]func(p *Params){
		"node_id":   func(p *Params) { p.NodeID = "a\nb" },
		"host_name": func(p *Params) { p.HostName = "\x1b[2J" },
		"topology":  func(p *Params) { p.Topology = "rack\u202e7" },
	} {
		p := Default()
		p.Min, p.Max, p.RunID = 1, 1, "job"
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		set(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: %v", option, err)
		}
	}
}

// TestSegmentsNeedATopology, and no preferred rank.
func TestSegmentsNeedATopology(t *testing.T) {
	for says, set := range map[string]func(p *Params){
		"":                     func(p *Params) { p.Topology = "rack7" },
		"by --topology":        func(*Params) {},
		"node_rank is 0, but ": func(p *Params) { p.Topology, p.NodeRank = "rack7", 0 },
	} {
		p := Default()
		p.Min, p.Max, p.RunID, p.Segment = 4, 8, "job", 4
		set(&p)
		if err := p.Validate(); says == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

func TestDrawnNodeID(t *testing.T) {
	for machine, want := range map[string]string{
		"gpu-a":                     `^gpu-a-[A-Z2-7]{8}$`,
		"gpu-a.rack1.example":       `^gpu-a\.rack1\.example-[A-Z2-7]{8}$`,
		"":                          `^node-[A-Z2-7]{8}$`,
		"a\x1b[2J":                  `^node-[A-Z2-7]{8}$`,
		strings.Repeat("long", 100): `^node-[A-Z2-7]{8}$`,
	} {
		if id := drawNodeID(machine); !regexp.MustCompile(want).MatchString(id) {
			t.Errorf("machine %q: id %q, want %s", machine, id, want)
		}
		if a, b := drawNodeID(machine), drawNodeID(machine); a == b {
			t.Errorf("machine %q: two nodes are called %s", machine, a)
		}
	}
}
