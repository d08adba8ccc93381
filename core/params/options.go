package params

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/wording"
)

// Defaults of the two keep-alive options, of which a lease is made if either is
// given (docs/spec/rendezvous.md 3.1).
const (
	defaultKeepAliveInterval = 5 * time.Second
	defaultKeepAliveAttempts = 3
	minKeepAliveAttempts     = 2
)

// SetOptions sets parameters from options, the pairs of --rdzv-conf. It accepts those that
// Options lists, all options of torch's dynamic handler, and those of an etcd, which it adds to
// BackendOptions.
//
// An option of another name is never an error: it gets a warning with the name
// that may be meant. A malformed value is ErrInvalid and says the option, its
// value and what is expected; p is then unchanged. Whether the values fit each
// other is Validate's business.
func (p *Params) SetOptions(options map[string]string) (warnings []string, err error) {
	s := optionSetter{Params: *p, keepAlive: keepAlive{interval: defaultKeepAliveInterval, attempts: defaultKeepAliveAttempts}}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		o := findOption(name)
		if o == nil {
			warnings = append(warnings, unknownOption(name))
			continue
		}
		if !o.set(&s, options[name]) {
			return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "option %s=%q: expected %s%s", name, options[name], o.takes, o.such)
		}
	}
	if s.keepAlive.given && !s.leaseGiven {
		if s.keepAlive.interval > rendezvous.MaxTimeout/time.Duration(s.keepAlive.attempts) {
			return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "options keep_alive_interval (%v) and keep_alive_max_attempt (%d): their product is too long",
				s.keepAlive.interval, s.keepAlive.attempts)
		}
		s.LeaseTimeout = s.keepAlive.interval * time.Duration(s.keepAlive.attempts)
	}
	*p = s.Params
	return warnings, nil
}

type optionSetter struct {
	Params
	leaseGiven bool
	keepAlive  keepAlive
}

type keepAlive struct {
	given    bool
	interval time.Duration
	attempts int
}

// Option is an option of --rdzv-conf as help and pages show it. Times are decimal seconds ("0.5").
type Option struct {
	Name    string
	Default string // as it would be given, or in words; "": none
	Takes   string // the values that it takes
	Help    string // names of options and files stand between backquotes
}

// Options returns the options that help and pages list, in their order: those of every
// rendezvous, without those of an etcd and those that have no effect.
func Options() (listed []Option) {
	for _, o := range optionTable {
		if o.help != "" {
			listed = append(listed, Option{o.name, o.fallback, o.takes, o.help})
		}
	}
	return listed
}

// option is a row of the table of options: see Option.
type option struct {
	name, fallback, help string
	value
}

// value is what an option takes. set reports whether the value is right; one that is not changes
// nothing.
type value struct {
	takes string
	such  string // follows takes in an error: examples, or other ways to write it
	set   func(s *optionSetter, text string) bool
}

func findOption(name string) *option {
	i := slices.IndexFunc(optionTable, func(o option) bool { return o.name == name })
	if i < 0 {
		return nil
	}
	return &optionTable[i]
}

var optionTable = slices.Concat([]option{
	{"join_timeout", "600", "longest wait for a round",
		timeout(func(s *optionSetter) *time.Duration { return &s.JoinTimeout })},
	{"last_call_timeout", "30", "longest wait for more nodes after the minimum has joined (first round)",
		timeout(func(s *optionSetter) *time.Duration { return &s.LastCallTimeout })},
	{"quiet_period", "0", "the first round completes after this time without an arrival; 0: off",
		delay(func(s *optionSetter) *time.Duration { return &s.QuietPeriod })},
	{"target", "0", "the first round completes immediately with this many nodes; 0: the maximum",
		number(func(s *optionSetter) *int { return &s.Target }, 0)},
	{"node_unit", "1", "a round's size is a multiple of this",
		number(func(s *optionSetter) *int { return &s.NodeUnit }, 1)},
	{"reconnect_grace", "1", "a node whose connection broke is lost after this time, or once its process is proven dead",
		delay(func(s *optionSetter) *time.Duration { return &s.ReconnectGrace })},
	{"lease_timeout", "10", "a node that sends nothing for this time is lost",
		timeout(func(s *optionSetter) *time.Duration {
			s.leaseGiven = true
			return &s.LeaseTimeout
		})},
	{"keep_alive_interval", "5", "as for `c10d`: without `lease_timeout`, the lease is this times `keep_alive_max_attempt`",
		timeout(func(s *optionSetter) *time.Duration {
			s.keepAlive.given = true
			return &s.keepAlive.interval
		})},
	{"keep_alive_max_attempt", "3", "the other factor",
		number(func(s *optionSetter) *int {
			s.keepAlive.given = true
			return &s.keepAlive.attempts
		}, minKeepAliveAttempts)},
	{"regroup_timeout", "90", "longest wait for a live member that does not rejoin",
		timeout(func(s *optionSetter) *time.Duration { return &s.RegroupTimeout })},
	{"admit_delay", "1", "quiet time before newcomers are announced to a running group",
		delay(func(s *optionSetter) *time.Duration { return &s.AdmitDelay })},
	{"closed_for", "600", "how long a job that succeeded or was closed by hand stays closed under its id; 0: it can begin again immediately, as a job at its own port can when its last process has ended",
		delay(func(s *optionSetter) *time.Duration { return &s.ClosedFor })},
	{"begin_again", "0", "1: this node starts a finished job again, even before `closed_for` is over",
		flag(func(s *optionSetter, on bool) { s.BeginAgain = on })},
	{"any_command", "0", "1: this node may be a spare of nodes that run another command, such as one with the node's number among its arguments",
		flag(func(s *optionSetter, on bool) { s.AnyCommand = on })},
	{"close_timeout", "30", "longest wait of a host for the others at the end",
		timeout(func(s *optionSetter) *time.Duration { return &s.CloseTimeout })},
	{"read_timeout", "60", "longest wait for one answer",
		timeout(func(s *optionSetter) *time.Duration { return &s.ReadTimeout })},
	{"node_rank", "", "preferred rank of this node, as `PET_NODE_RANK`; torchrun hides its `--node-rank` from plug-ins",
		number(func(s *optionSetter) *int { return &s.NodeRank }, 0)},
	{"node_id", "machine and random suffix", "stable name of this node, such as `gpu-a`: a restart under the same name replaces the old process immediately",
		name(func(s *optionSetter) *string { return &s.NodeID })},
	{"host_name", "the kernel's", "name of this machine in logs and `status`; in `admin drain` and `cordon` it stands for all nodes there. Give containers the name of their machine",
		name(func(s *optionSetter) *string { return &s.HostName })},
	{"segment", "1", "number of consecutive nodes that stay in one topology domain; a round consists of whole segments; as `--segment`",
		number(func(s *optionSetter) *int { return &s.Segment }, 1)},
	{"topology", "", "topology domain of this node, such as its rack, as `--topology`, printable",
		name(func(s *optionSetter) *string { return &s.Topology })},
	{"advertise_addr", "automatic", "address under which workers reach this node, as `--local-addr`",
		advertiseAddr},
	{"store_port", "0", "fixed port of the round store, for firewalls; 0: any. With is_host=1 it may be the endpoint's",
		port},
	{"is_host", "automatic", "1: this node hosts the control plane and listens on all interfaces, unless the endpoint is a loopback address; 0: it neither hosts nor stands by, and accepts a server of any user",
		flag(func(s *optionSetter, on bool) { s.IsHost = &on })},
	{"quorum", "1", "with three or more machines, a majority elects another host when the host stops answering; 0: they wait for it; the same on all nodes",
		flag(func(s *optionSetter, on bool) { s.NoQuorum = !on })},
	{"token_file", "$RALLYPOINT_TOKEN_FILE", "file with the token that all nodes and the control plane share; an error if it would protect nothing",
		path(func(s *optionSetter) *string { return &s.TokenFile })},
	{"store_tls", "1", "0: round stores do not use TLS, even with a token",
		flag(func(s *optionSetter, on bool) { s.PlainStore = !on })},
	{"forward_ports", "", "with a token: more ports of the rank-0 node that workers of other nodes reach at `MASTER_ADDR`: `8547`, `6000-6007`, several separated by colons",
		forwardPorts},
	{"allow_uid", "", "other users whose processes may connect to this job on this machine: ids and ranges separated by colons, `1001:100000-165535`",
		userIDs},
	{"loopback_check", "1", "0: processes of every user may connect, and a control plane of any user is accepted",
		flag(func(s *optionSetter, on bool) { s.LoopbackUsers.Anyone = !on })},
	{"record", "", "record the control plane's history in `PATH.NODE` while this node hosts it",
		path(func(s *optionSetter) *string { return &s.Record })},
}, backendOptions("protocol", "ssl_cert", "ssl_cert_key", "ca_cert", "cert", "key", "cacert", "user", "password", "password_file", "key_prefix", "etcd_prefix", "ttl"), []option{
	// Without effect, but checked. torchrun itself adds the last two.
	{name: "heartbeat_timeout", value: timeout(unused)},
	{name: "heartbeat", value: timeout(unused)},
	{name: "cas_backoff_max_seconds", value: delay(unused)},
	{name: "store_type", value: storeType},
	{name: "timeout", value: ignored},
	{name: "rank", value: ignored},
})

// mostSeconds is rendezvous.MaxTimeout, ten years.
var mostSeconds = strconv.Itoa(int(rendezvous.MaxTimeout / time.Second))

func timeout(field func(*optionSetter) *time.Duration) value {
	return value{"seconds greater than 0, at most " + mostSeconds, ", such as 30 or 0.5", func(s *optionSetter, text string) bool {
		return setSeconds(field(s), text, 1)
	}}
}

func delay(field func(*optionSetter) *time.Duration) value {
	return value{"seconds, 0 or more, at most " + mostSeconds, ", such as 30 or 0.5", func(s *optionSetter, text string) bool {
		return setSeconds(field(s), text, 0)
	}}
}

func number(field func(*optionSetter) *int, least int) value {
	return value{wholeNumber(least), "", func(s *optionSetter, text string) bool {
		return setInt(field(s), text, least, math.MaxInt32)
	}}
}

func wholeNumber(least int) string { return fmt.Sprintf("a whole number, %d or more", least) }

// backendOptions are those of an etcd, which checks them itself.
func backendOptions(names ...string) (rows []option) {
	for _, name := range names {
		rows = append(rows, option{name: name, value: value{set: func(s *optionSetter, text string) bool {
			options := maps.Clone(s.BackendOptions)
			if options == nil {
				options = make(map[string]string)
			}
			options[name] = text
			s.BackendOptions = options
			return true
		}}})
	}
	return rows
}

func flag(set func(*optionSetter, bool)) value {
	return value{"1 or 0", ", or true, t, yes, y, false, f, no or n", func(s *optionSetter, text string) bool {
		on, ok := parseBool(text)
		if ok {
			set(s, on)
		}
		return ok
	}}
}

func path(field func(*optionSetter) *string) value {
	return value{"the path of a file", "", func(s *optionSetter, text string) bool {
		if text == "" || strings.ContainsRune(text, 0) {
			return false
		}
		*field(s) = text
		return true
	}}
}

func name(field func(*optionSetter) *string) value {
	return value{fmt.Sprintf("a name of 1 to %d bytes", rendezvous.MaxNameLen), "", func(s *optionSetter, text string) bool {
		text = strings.TrimSpace(text)
		if text == "" || len(text) > rendezvous.MaxNameLen {
			return false
		}
		*field(s) = text
		return true
	}}
}

var port = value{fmt.Sprintf("a port number, 0 to %d", math.MaxUint16), "", func(s *optionSetter, text string) bool {
	return setInt(&s.StorePort, text, 0, math.MaxUint16)
}}

var advertiseAddr = value{"a host name or an address", " of this node, without a port and not a wildcard", func(s *optionSetter, text string) bool {
	host := strings.TrimSpace(text)
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	addr, err := netip.ParseAddr(host)
	isAddr := err == nil
	if !validHost(host) || len(host) > rendezvous.MaxNameLen || !isAddr && strings.Contains(host, ":") || isAddr && addr.IsUnspecified() {
		return false
	}
	s.AdvertiseAddr = host
	return true
}}

// maxForwardPorts bounds the option forward_ports: each is a listener on every node.
const maxForwardPorts = 64

// forwardPorts are ports and ranges of them with colons in between.
var forwardPorts = value{
	fmt.Sprintf("ports from 1 to %d, at most %d", math.MaxUint16, maxForwardPorts), ", such as 8547, 6000-6007 or 8547:6000",
	func(s *optionSetter, text string) bool {
		var ports []int
		for part := range strings.SplitSeq(text, ":") {
			first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
			if !isRange {
				last = first
			}
			from, err1 := strconv.ParseUint(first, 10, 16)
			to, err2 := strconv.ParseUint(last, 10, 16)
			if err1 != nil || err2 != nil || from == 0 || to < from || int(to-from) >= maxForwardPorts-len(ports) {
				return false
			}
			for port := from; port <= to; port++ {
				ports = append(ports, int(port))
			}
		}
		s.ForwardPorts = ports
		return true
	},
}

var userIDs = value{"user ids", " such as 1000, 100000-165535 or 1000:1001", func(s *optionSetter, text string) bool {
	list, ok := parseUIDs(text)
	if ok {
		s.LoopbackUsers.Also = list
	}
	return ok
}}

var storeType = value{
	"tcp", ", the only store type of this backend; nodes that share a directory give the endpoint file:///DIRECTORY",
	func(_ *optionSetter, text string) bool { return strings.EqualFold(strings.TrimSpace(text), "tcp") },
}

var ignored = value{set: func(*optionSetter, string) bool { return true }}

// unused takes a duration that is only checked.
func unused(*optionSetter) *time.Duration { return new(time.Duration) }

// setSeconds sets d from decimal seconds of at least that many nanoseconds.
func setSeconds(d *time.Duration, text string, least float64) bool {
	text = strings.TrimSpace(text)
	seconds, err := strconv.ParseFloat(text, 64)
	decimal := strings.Trim(text, "0123456789.eE+-") == "" // not hex, not inf, not nan
	nanoseconds := math.Round(seconds * float64(time.Second))
	if err != nil || !decimal || strings.HasPrefix(text, "-") || nanoseconds < least || nanoseconds > float64(rendezvous.MaxTimeout) {
		return false
	}
	*d = time.Duration(nanoseconds)
	return true
}

func setInt(n *int, text string, least, most int) bool {
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
	if err != nil || v < int64(least) || v > int64(most) {
		return false
	}
	*n = int(v)
	return true
}

// parseBool takes the words of docs/spec/rendezvous.md R3, in any case and not
// trimmed.
func parseBool(text string) (value, ok bool) {
	switch strings.ToLower(text) {
	case "1", "true", "t", "yes", "y":
		return true, true
	case "0", "false", "f", "no", "n":
		return false, true
	}
	return false, false
}

func unknownOption(name string) string {
	text := fmt.Sprintf("unknown option %.80q is ignored", name)
	if near := nearestOption(name); near != "" {
		return text + fmt.Sprintf("; did you mean %q?", near)
	}
	return text
}

// nearestOption returns the option whose name is most like name; "" if none is.
func nearestOption(name string) string {
	if len(name) > 2*len("cas_backoff_max_seconds") {
		return ""
	}
	name = strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	best, nearest := "", max(2, len(name)/3)+1
	for _, o := range optionTable {
		if d := wording.Distance(name, o.name); d < nearest {
			best, nearest = o.name, d
		}
	}
	return best
}

// EnvNodeRank is torchrun's variable for --node-rank. Stock torchrun hides the
// flag from plug-ins, but not the variable.
const EnvNodeRank = "PET_NODE_RANK"

// EnvTokenFile names the token file where no option does.
const EnvTokenFile = "RALLYPOINT_TOKEN_FILE"

// rankHints are the variables by which schedulers number the nodes of a job, in
// the order in which they are asked. A launcher that numbers processes counts
// only where it says that it started one process on this node.
var rankHints = []struct {
	variable string
	alone    string // variable that must be "1": processes of the job on this node
}{
	{"SLURM_NODEID", ""},                                   // Slurm: number of the node in the job step
	{"AWS_BATCH_JOB_NODE_INDEX", ""},                       // AWS Batch: node of a multi-node parallel job
	{"JOB_COMPLETION_INDEX", ""},                           // Kubernetes: pod of an indexed Job, also in a JobSet
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}, // Open MPI
	{"PMI_RANK", "MPI_LOCALNRANKS"},                        // Hydra: MPICH, Intel MPI
}

// SetEnvironment takes this node's rank and the token file from the environment. getenv is
// os.Getenv or similar.
//
// PET_NODE_RANK is taken as NodeRank if that is not set. The first of these that
// is set is taken as RankHint, if that is not set: SLURM_NODEID,
// AWS_BATCH_JOB_NODE_INDEX, JOB_COMPLETION_INDEX, OMPI_COMM_WORLD_RANK (if
// OMPI_COMM_WORLD_LOCAL_SIZE is 1), PMI_RANK (if MPI_LOCALNRANKS is 1). A hint
// that is wrong does no harm: it counts only if no other node has it
// (docs/design.md, guarantee 10).
//
// RALLYPOINT_SECURITY is taken as Security.
//
// RALLYPOINT_TOKEN_FILE is taken as TokenFile if that is not set and there is an
// endpoint: without one a job has one node, and no peer to prove anything to.
//
// A value that is no rank is ignored with a warning. Call it after SetOptions and
// after Endpoint and Max are set: a rank that is not below Max is none.
func (p *Params) SetEnvironment(getenv func(string) string) (warnings []string) {
	if p.NodeRank < 0 {
		if text := getenv(EnvNodeRank); text != "" {
			rank, expected := parseRank(text, p.Max)
			if expected != "" {
				warnings = append(warnings, fmt.Sprintf("environment variable %s=%.80q is ignored: expected %s", EnvNodeRank, text, expected))
			}
			p.NodeRank = rank
		}
	}
	if p.TokenFile == "" && p.Endpoint != "" {
		p.TokenFile = getenv(EnvTokenFile)
	}
	p.Security = getenv(EnvSecurity)
	if p.RankHint >= 0 {
		return warnings
	}
	for _, hint := range rankHints {
		text := getenv(hint.variable)
		if text == "" || hint.alone != "" && strings.TrimSpace(getenv(hint.alone)) != "1" {
			continue
		}
		rank, expected := parseRank(text, 0)
		if expected != "" {
			warnings = append(warnings, fmt.Sprintf("environment variable %s=%.80q is ignored: expected %s", hint.variable, text, expected))
			continue
		}
		p.RankHint = rank
		break
	}
	return warnings
}

// parseRank returns -1 and a description of what it expects if text is no rank below
// limit. A limit of 0 means none.
func parseRank(text string, limit int) (rank int, expected string) {
	rank = -1
	switch {
	case !setInt(&rank, text, 0, math.MaxInt32):
		expected = wholeNumber(0)
	case limit > 0 && rank >= limit:
		return -1, fmt.Sprintf("a rank below the maximum number of nodes (%d)", limit)
	}
	return rank, expected
}
