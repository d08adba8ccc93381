package params

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"rallypoint/core/rendezvous"
)

// EnvSecurity names the variable that decides about a job of several machines without a token: ""
// warns, SecurityRequire refuses it.
const (
	EnvSecurity     = "RALLYPOINT_SECURITY"
	SecurityRequire = "require"
)

// LoopbackUsers says which users' processes may connect to the loopback listeners of a job. The
// zero value admits the user of this process.
type LoopbackUsers struct {
	Also   []UIDRange // further users
	Anyone bool       // no check
}

// UIDRange is the user ids from First to Last, both included.
type UIDRange struct{ First, Last uint32 }

// Includes reports whether uid is one of the further users.
func (l LoopbackUsers) Includes(uid uint32) bool {
	return slices.ContainsFunc(l.Also, func(r UIDRange) bool { return r.First <= uid && uid <= r.Last })
}

// maxUIDRanges bounds the option allow_uid.
const maxUIDRanges = 64

// parseUIDs reads user ids and ranges of them: 1000, 100000-165535, or several with a
// colon between them. The highest number stands for no user.
func parseUIDs(text string) (list []UIDRange, ok bool) {
	parts := strings.Split(text, ":")
	if len(parts) > maxUIDRanges {
		return nil, false
	}
	for _, part := range parts {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 32)
		if err != nil {
			return nil, false
		}
		to, err := strconv.ParseUint(last, 10, 32)
		if err != nil || to < from || to == math.MaxUint32 {
			return nil, false
		}
		list = append(list, UIDRange{uint32(from), uint32(to)})
	}
	return list, true
}

// OneMachine reports whether all that belongs to the job runs on this machine: it has one
// node, or its nodes meet at loopback addresses or names.
func (p *Params) OneMachine() bool {
	return p.Max <= 1 || p.Servers.Loopback() || p.LoopbackRegister
}

// CheckSecurity returns a warning for the log if a job of several machines is not protected, or
// an error with RALLYPOINT_SECURITY=require. place is the endpoint, and hosted tells whether a
// control plane listens there.
func (p *Params) CheckSecurity(place string, hosted bool) (warning string, err error) {
	if p.Security != "" && p.Security != SecurityRequire {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "environment variable %s=%.80q: expected %q, or nothing", EnvSecurity, p.Security, SecurityRequire)
	}
	one := p.OneMachine()
	if p.TokenFile != "" && !p.PlainStore || p.TokenFile == "" && one {
		return "", nil
	}
	switch {
	case p.TokenFile != "":
		warning = "store_tls=0: whoever reaches the round store's port, or its packets, can end the job"
	case hosted:
		warning = "no token: whoever reaches the job's ports can join or end it; `rallypoint token new` makes one"
	default:
		warning = "no token: whoever reaches a round store's port can end the job; `rallypoint token new` makes one"
	}
	if p.Security == SecurityRequire && !one {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "run %q (up to %d nodes, rendezvous at %s): %s; %s; %s=%s makes that an error", p.RunID, p.Max, place, warning, giveToken, EnvSecurity, SecurityRequire)
	}
	return warning, nil
}

// giveToken says what to do about a job without a token.
const giveToken = "give all nodes a token file (`rallypoint token new FILE`, then token_file, --token-file or " + EnvTokenFile + ")"
