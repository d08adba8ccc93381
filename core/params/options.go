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

// SetOptions sets what options says; options are the pairs of --rdzv-conf. All
// options of torch's dynamic handler are taken, and ours:
//
//	join_timeout        one next rendezvous; 600
//	last_call_timeout   longest wait for more nodes once the minimum is met; 30
//	close_timeout       closing, and awaiting the others at the end; 30
//	read_timeout        one request, and connecting outside a join; 60
//	lease_timeout       a node unheard of for so long is lost; 10
//	keep_alive_interval, keep_alive_max_attempt
//	                    their product is lease_timeout if that is not given; 5, 3
//	reconnect_grace     a node whose connection broke is lost after so long; 1
//	regroup_timeout     longest wait for a live member that does not rejoin; 90
//	admit_delay         quiet time before waiting newcomers are announced; 1
//	quiet_period        the first round completes after so long without an arrival; 0 (off)
//	closed_for          a run that succeeded or was closed by hand stays closed for so long; 600
//	begin_again         begins a run again that has ended, before closed_for is over; 0
//	target              the first round completes at once with so many nodes; 0 (the maximum)
//	node_unit           a round's size is a multiple of it; 1
//	node_rank           preferred rank
//	node_id             stable name of this node
//	host_name           name of this machine; the kernel's
//	advertise_addr      host under which workers reach this node's round store
//	store_port          fixed port of the round store; 0 (any)
//	is_host             this node hosts the control plane (true) or does not (false)
//	token_file          file with the token that the control plane and its nodes share
//	store_tls           round stores speak TLS if there is a token; 1
//	allow_uid           further users whose processes may connect on this machine
//	loopback_check      0: processes of every user may connect on this machine; 1
//	forward_ports       further ports of the rank-0 node that workers of other nodes reach
//	record              begins the name of the file for the history of a control plane here
//
// and those of an etcd, which join BackendOptions: protocol, ssl_cert,
// ssl_cert_key, ca_cert (or cert, key, cacert), user, password, password_file,
// key_prefix (or etcd_prefix), ttl.
//
// Times are decimal seconds ("0.5"). Without effect, but checked, are
// heartbeat_timeout with its other spelling heartbeat, cas_backoff_max_seconds
// and store_type, which must be tcp; timeout and rank, which torchrun adds by
// itself, are not looked at.
//
// An option of another name is never an error: it gets a warning with the name
// that may be meant. A malformed value is ErrInvalid and says the option, its
// value and what is expected; p is then unchanged. Whether the values fit each
// other is Validate's business.
func (p *Params) SetOptions(options map[string]string) (warnings []string, err error) {
	s := optionSetter{p: *p, keepAlive: keepAlive{interval: defaultKeepAliveInterval, attempts: defaultKeepAliveAttempts}}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		set, known := optionTable[name]
		if !known {
			warnings = append(warnings, unknownOption(name))
			continue
		}
		if expected := set(&s, options[name]); expected != "" {
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

// optionTable holds for each option how it is set. A setter returns what it
// expects of the value, "" if the value is right.
var optionTable = map[string]func(s *optionSetter, value string) (expected string){
	"join_timeout":      timeout(func(p *Params) *time.Duration { return &p.JoinTimeout }),
	"last_call_timeout": timeout(func(p *Params) *time.Duration { return &p.LastCallTimeout }),
	"close_timeout":     timeout(func(p *Params) *time.Duration { return &p.CloseTimeout }),
	"read_timeout":      timeout(func(p *Params) *time.Duration { return &p.ReadTimeout }),
	"regroup_timeout":   timeout(func(p *Params) *time.Duration { return &p.RegroupTimeout }),
	"reconnect_grace":   delay(func(p *Params) *time.Duration { return &p.ReconnectGrace }),
	"admit_delay":       delay(func(p *Params) *time.Duration { return &p.AdmitDelay }),
	"closed_for":        delay(func(p *Params) *time.Duration { return &p.ClosedFor }),
	"quiet_period":      delay(func(p *Params) *time.Duration { return &p.QuietPeriod }),

	"lease_timeout": func(s *optionSetter, value string) string {
		s.leaseGiven = true
		return setSeconds(&s.p.LeaseTimeout, value, true)
	},
	"keep_alive_interval": func(s *optionSetter, value string) string {
		s.keepAlive.given = true
		return setSeconds(&s.keepAlive.interval, value, true)
	},
	"keep_alive_max_attempt": func(s *optionSetter, value string) string {
		s.keepAlive.given = true
		return setInt(&s.keepAlive.attempts, value, minKeepAliveAttempts)
	},

	"target":     number(func(p *Params) *int { return &p.Target }, 0),
	"node_unit":  number(func(p *Params) *int { return &p.NodeUnit }, 1),
	"node_rank":  number(func(p *Params) *int { return &p.NodeRank }, 0),
	"store_port": setStorePort,

	"node_id":        name(func(p *Params) *string { return &p.NodeID }),
	"host_name":      name(func(p *Params) *string { return &p.HostName }),
	"advertise_addr": setAdvertiseAddr,
	"begin_again":    flag(func(p *Params, on bool) { p.BeginAgain = on }),
	"is_host":        flag(func(p *Params, on bool) { p.IsHost = &on }),
	"token_file":     path(func(p *Params) *string { return &p.TokenFile }),
	"store_tls":      flag(func(p *Params, on bool) { p.PlainStore = !on }),
	"forward_ports":  setForwardPorts,
	"allow_uid":      setAllowUID,
	"loopback_check": flag(func(p *Params, on bool) { p.LoopbackUsers.Anyone = !on }),
	"record":         path(func(p *Params) *string { return &p.Record }),

	"protocol":     backendOption("protocol"),
	"ssl_cert":     backendOption("ssl_cert"),
	"ssl_cert_key": backendOption("ssl_cert_key"),
	"ca_cert":      backendOption("ca_cert"),
	"cert":         backendOption("cert"),
	"key":          backendOption("key"),
	"cacert":       backendOption("cacert"),
	"user":         backendOption("user"),
	"password":     backendOption("password"),

	"password_file": backendOption("password_file"),

	"key_prefix":  backendOption("key_prefix"),
	"etcd_prefix": backendOption("etcd_prefix"),
	"ttl":         backendOption("ttl"),

	"heartbeat_timeout":       timeout(unused),
	"heartbeat":               timeout(unused),
	"cas_backoff_max_seconds": delay(unused),
	"store_type":              checkStoreType,
	"timeout":                 ignored,
	"rank":                    ignored,
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
	for _, option := range slices.Sorted(maps.Keys(optionTable)) {
		if d := wording.Distance(name, option); d < nearest {
			best, nearest = option, d
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

// SetEnvironment takes what the environment says of this node's rank and of the
// token file. getenv is os.Getenv or of its kind.
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

// parseRank returns -1 and what is expected if text is no rank below limit; a
// limit of 0 is none.
func parseRank(text string, limit int) (rank int, expected string) {
	rank = -1
	expected = setInt(&rank, text, 0)
	if expected == "" && limit > 0 && rank >= limit {
		return -1, fmt.Sprintf("a rank below the maximum number of nodes (%d)", limit)
	}
	return rank, expected
}
