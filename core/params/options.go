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
	s := optionSetter{p: *p, keepAlive: keepAlive{interval: defaultKeepAliveInterval, attempts: defaultKeepAliveAttempts}}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		o := findOption(name)
		if o == nil {
			warnings = append(warnings, unknownOption(name))
			continue
		}
		if expected := o.set(&s, options[name]); expected != "" {
			return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "option %s=%q: expected %s", name, options[name], expected)
		}
	}
	if s.keepAlive.given && !s.leaseGiven {
		if s.keepAlive.interval > rendezvous.MaxTimeout/time.Duration(s.keepAlive.attempts) {
			return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "options keep_alive_interval (%v) and keep_alive_max_attempt (%d): their product is too long",
				s.keepAlive.interval, s.keepAlive.attempts)
		}
		s.p.LeaseTimeout = s.keepAlive.interval * time.Duration(s.keepAlive.attempts)
	}
	*p = s.p
	return warnings, nil
}

// optionSetter collects the options of one SetOptions.
type optionSetter struct {
	p          Params
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
	Help    string // names of options and files stand between backquotes
}

// Options returns the options that help and pages list, in their order: those of every
// rendezvous, without those of an etcd and those that have no effect.
func Options() (listed []Option) {
	for _, o := range optionTable {
		if o.Help != "" {
			listed = append(listed, o.Option)
		}
	}
	return listed
}

// option is an option and how it is set. A setter returns what it expects of the value, "" if
// the value is right.
type option struct {
	Option
	set func(s *optionSetter, value string) (expected string)
}

func findOption(name string) *option {
	i := slices.IndexFunc(optionTable, func(o option) bool { return o.Name == name })
	if i < 0 {
		return nil
	}
	return &optionTable[i]
}

var optionTable = []option{
	{Option{"join_timeout", "600", "longest wait for a round"},
		timeout(func(p *Params) *time.Duration { return &p.JoinTimeout })},
	{Option{"last_call_timeout", "30", "longest wait for more nodes after the minimum has joined (first round)"},
		timeout(func(p *Params) *time.Duration { return &p.LastCallTimeout })},
	{Option{"quiet_period", "0", "the first round completes after this time without an arrival; 0: off"},
		delay(func(p *Params) *time.Duration { return &p.QuietPeriod })},
	{Option{"target", "0", "the first round completes immediately with this many nodes; 0: the maximum"},
		number(func(p *Params) *int { return &p.Target }, 0)},
	{Option{"node_unit", "1", "a round's size is a multiple of this"},
		number(func(p *Params) *int { return &p.NodeUnit }, 1)},
	{Option{"reconnect_grace", "1", "a node whose connection broke is lost after this time, or once its process is proven dead"},
		delay(func(p *Params) *time.Duration { return &p.ReconnectGrace })},
	{Option{"lease_timeout", "10", "a node that sends nothing for this time is lost"},
		func(s *optionSetter, value string) string {
			s.leaseGiven = true
			return setSeconds(&s.p.LeaseTimeout, value, true)
		}},
	{Option{"keep_alive_interval", "5", "as for `c10d`: without `lease_timeout`, the lease is this times `keep_alive_max_attempt`"},
		func(s *optionSetter, value string) string {
			s.keepAlive.given = true
			return setSeconds(&s.keepAlive.interval, value, true)
		}},
	{Option{"keep_alive_max_attempt", "3", "the other factor"},
		func(s *optionSetter, value string) string {
			s.keepAlive.given = true
			return setInt(&s.keepAlive.attempts, value, minKeepAliveAttempts)
		}},
	{Option{"regroup_timeout", "90", "longest wait for a live member that does not rejoin"},
		timeout(func(p *Params) *time.Duration { return &p.RegroupTimeout })},
	{Option{"admit_delay", "1", "quiet time before newcomers are announced to a running group"},
		delay(func(p *Params) *time.Duration { return &p.AdmitDelay })},
	{Option{"closed_for", "600", "how long a job that succeeded or was closed by hand stays closed under its id; 0: it can begin again immediately"},
		delay(func(p *Params) *time.Duration { return &p.ClosedFor })},
	{Option{"begin_again", "0", "1: this node starts a finished job again, even before `closed_for` is over"},
		flag(func(p *Params, on bool) { p.BeginAgain = on })},
	{Option{"close_timeout", "30", "longest wait of a host for the others at the end"},
		timeout(func(p *Params) *time.Duration { return &p.CloseTimeout })},
	{Option{"read_timeout", "60", "longest wait for one answer"},
		timeout(func(p *Params) *time.Duration { return &p.ReadTimeout })},
	{Option{"node_rank", "", "preferred rank of this node, as `PET_NODE_RANK`; torchrun hides its `--node-rank` from plug-ins"},
		number(func(p *Params) *int { return &p.NodeRank }, 0)},
	{Option{"node_id", "machine and random suffix", "stable name of this node, such as `gpu-a`: a restart under the same name replaces the old process immediately"},
		name(func(p *Params) *string { return &p.NodeID })},
	{Option{"host_name", "the kernel's", "name of this machine in logs and `status`; in `admin drain` and `cordon` it stands for all nodes there. Give containers the name of their machine"},
		name(func(p *Params) *string { return &p.HostName })},
	{Option{"segment", "1", "number of consecutive nodes that stay in one topology domain; a round consists of whole segments; as `--segment`"},
		number(func(p *Params) *int { return &p.Segment }, 1)},
	{Option{"topology", "", "topology domain of this node, such as its rack, as `--topology`: printable, at most 512 bytes"},
		name(func(p *Params) *string { return &p.Topology })},
	{Option{"advertise_addr", "automatic", "address under which workers reach this node, as `--local-addr`"},
		setAdvertiseAddr},
	{Option{"store_port", "0", "fixed port of the round store, for firewalls; 0: any. With is_host=1 it may be the endpoint's"},
		setStorePort},
	{Option{"is_host", "automatic", "1: this node hosts the control plane and listens on all interfaces, unless the endpoint is a loopback address; 0: it neither hosts nor stands by, and accepts a server of any user"},
		flag(func(p *Params, on bool) { p.IsHost = &on })},
	{Option{"quorum", "1", "with three or more machines, a majority elects another host when the host stops answering; 0: they wait for it; the same on all nodes"},
		flag(func(p *Params, on bool) { p.NoQuorum = !on })},
	{Option{"token_file", "$RALLYPOINT_TOKEN_FILE", "file with the token that all nodes and the control plane share; an error if it would protect nothing"},
		path(func(p *Params) *string { return &p.TokenFile })},
	{Option{"store_tls", "1", "0: round stores do not use TLS, even with a token"},
		flag(func(p *Params, on bool) { p.PlainStore = !on })},
	{Option{"forward_ports", "", "with a token: more ports of the rank-0 node that workers of other nodes reach at `MASTER_ADDR`: `8547`, `6000-6007`, several separated by colons"},
		setForwardPorts},
	{Option{"allow_uid", "", "other users whose processes may connect to this job on this machine: ids and ranges separated by colons, `1001:100000-165535`"},
		setAllowUID},
	{Option{"loopback_check", "1", "0: processes of every user may connect, and a control plane of any user is accepted"},
		flag(func(p *Params, on bool) { p.LoopbackUsers.Anyone = !on })},
	{Option{"record", "", "for tests: record the control plane's history in `PATH.NODE` while this node hosts it"},
		path(func(p *Params) *string { return &p.Record })},

	// Of an etcd.
	{Option{Name: "protocol"}, backendOption("protocol")},
	{Option{Name: "ssl_cert"}, backendOption("ssl_cert")},
	{Option{Name: "ssl_cert_key"}, backendOption("ssl_cert_key")},
	{Option{Name: "ca_cert"}, backendOption("ca_cert")},
	{Option{Name: "cert"}, backendOption("cert")},
	{Option{Name: "key"}, backendOption("key")},
	{Option{Name: "cacert"}, backendOption("cacert")},
	{Option{Name: "user"}, backendOption("user")},
	{Option{Name: "password"}, backendOption("password")},
	{Option{Name: "password_file"}, backendOption("password_file")},
	{Option{Name: "key_prefix"}, backendOption("key_prefix")},
	{Option{Name: "etcd_prefix"}, backendOption("etcd_prefix")},
	{Option{Name: "ttl"}, backendOption("ttl")},

	// Without effect, but checked. torchrun itself adds the last two.
	{Option{Name: "heartbeat_timeout"}, timeout(unused)},
	{Option{Name: "heartbeat"}, timeout(unused)},
	{Option{Name: "cas_backoff_max_seconds"}, delay(unused)},
	{Option{Name: "store_type"}, checkStoreType},
	{Option{Name: "timeout"}, ignored},
	{Option{Name: "rank"}, ignored},
}

func timeout(field func(*Params) *time.Duration) func(*optionSetter, string) string {
	return func(s *optionSetter, value string) string { return setSeconds(field(&s.p), value, true) }
}

func delay(field func(*Params) *time.Duration) func(*optionSetter, string) string {
	return func(s *optionSetter, value string) string { return setSeconds(field(&s.p), value, false) }
}

func number(field func(*Params) *int, least int) func(*optionSetter, string) string {
	return func(s *optionSetter, value string) string { return setInt(field(&s.p), value, least) }
}

func backendOption(name string) func(*optionSetter, string) string {
	return func(s *optionSetter, value string) string {
		options := maps.Clone(s.p.BackendOptions)
		if options == nil {
			options = make(map[string]string)
		}
		options[name] = value
		s.p.BackendOptions = options
		return ""
	}
}

func flag(set func(*Params, bool)) func(*optionSetter, string) string {
	return func(s *optionSetter, value string) string {
		on, ok := parseBool(value)
		if !ok {
			return "1, true, t, yes or y, or 0, false, f, no or n"
		}
		set(&s.p, on)
		return ""
	}
}

func path(field func(*Params) *string) func(*optionSetter, string) string {
	return func(s *optionSetter, value string) string {
		if value == "" || strings.ContainsRune(value, 0) {
			return "the path of a file"
		}
		*field(&s.p) = value
		return ""
	}
}

func ignored(*optionSetter, string) string { return "" }

// unused takes a duration that is only checked.
func unused(*Params) *time.Duration { return new(time.Duration) }

// setSeconds sets d from decimal seconds.
func setSeconds(d *time.Duration, value string, positive bool) (expected string) {
	text := strings.TrimSpace(value)
	seconds, err := strconv.ParseFloat(text, 64)
	decimal := strings.Trim(text, "0123456789.eE+-") == "" // not hex, not inf, not nan
	nanoseconds := math.Round(seconds * float64(time.Second))
	switch {
	case err != nil || !decimal || strings.HasPrefix(text, "-") || nanoseconds > float64(rendezvous.MaxTimeout):
	case positive && nanoseconds < 1:
	default:
		*d = time.Duration(nanoseconds)
		return ""
	}
	if positive {
		return "seconds greater than 0, such as 30 or 0.5"
	}
	return "seconds, 0 or more, such as 30 or 0.5"
}

// setInt sets n from a decimal number.
func setInt(n *int, value string, least int) (expected string) {
	v, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
	if err != nil || v < int64(least) {
		return fmt.Sprintf("a whole number, %d or more", least)
	}
	*n = int(v)
	return ""
}

func setStorePort(s *optionSetter, value string) (expected string) {
	var port int
	if setInt(&port, value, 0) != "" || port > math.MaxUint16 {
		return fmt.Sprintf("a port number, 0 to %d", math.MaxUint16)
	}
	s.p.StorePort = port
	return ""
}

func name(field func(*Params) *string) func(*optionSetter, string) string {
	return func(s *optionSetter, value string) string {
		text := strings.TrimSpace(value)
		if text == "" || len(text) > rendezvous.MaxNameLen {
			return fmt.Sprintf("a name of 1 to %d bytes", rendezvous.MaxNameLen)
		}
		*field(&s.p) = text
		return ""
	}
}

func setAdvertiseAddr(s *optionSetter, value string) (expected string) {
	host := strings.TrimSpace(value)
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	addr, err := netip.ParseAddr(host)
	isAddr := err == nil
	if !validHost(host) || len(host) > rendezvous.MaxNameLen || !isAddr && strings.Contains(host, ":") || isAddr && addr.IsUnspecified() {
		return "a host name or an address of this node, without a port and not a wildcard"
	}
	s.p.AdvertiseAddr = host
	return ""
}

// maxForwardPorts bounds the option forward_ports: each is a listener on every node.
const maxForwardPorts = 64

// setForwardPorts reads ports and ranges of them with colons in between.
func setForwardPorts(s *optionSetter, value string) (expected string) {
	expected = fmt.Sprintf("ports from 1 to %d, at most %d, such as 8547, 6000-6007 or 8547:6000", math.MaxUint16, maxForwardPorts)
	var ports []int
	for part := range strings.SplitSeq(value, ":") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from == 0 || to < from || int(to-from) >= maxForwardPorts-len(ports) {
			return expected
		}
		for port := from; port <= to; port++ {
			ports = append(ports, int(port))
		}
	}
	s.p.ForwardPorts = ports
	return ""
}

func setAllowUID(s *optionSetter, value string) (expected string) {
	list, ok := parseUIDs(value)
	if !ok {
		return "user ids such as 1000, 100000-165535 or 1000:1001"
	}
	s.p.LoopbackUsers.Also = list
	return ""
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

func checkStoreType(_ *optionSetter, value string) (expected string) {
	if strings.EqualFold(strings.TrimSpace(value), "tcp") {
		return ""
	}
	return "tcp, the only store type of this backend; nodes that share a directory give the endpoint file:///DIRECTORY"
}

// unknownOption is the warning about an unknown option.
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
		if d := wording.Distance(name, o.Name); d < nearest {
			best, nearest = o.Name, d
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
	expected = setInt(&rank, text, 0)
	if expected == "" && limit > 0 && rank >= limit {
		return -1, fmt.Sprintf("a rank below the maximum number of nodes (%d)", limit)
	}
	return rank, expected
}
