package run

import (
	"cmp"
	"net"
	"strconv"
	"strings"

	"rallypoint/backend"
	"rallypoint/core/params"
	"rallypoint/internal/uuid"
)

type rendezvousKind int

const (
	kindStandalone rendezvousKind = iota // this node is the job
	kindDynamic                          // at the endpoint: a control plane, or a log
	kindStatic                           // fixed nodes, torch's static backend
)

// String is the name of the backend in events.
func (r rendezvousKind) String() string {
	switch r {
	case kindDynamic:
		return "rallypoint"
	case kindStatic:
		return "static"
	}
	return "standalone"
}

type rendezvousConfig struct {
	kind   rendezvousKind
	params params.Params
	place  backend.Place // none of a standalone job
}

const defaultMasterPort = 29500

func (c *config) setNodes(o *options, env environ) error {
	m := &c.rendezvous
	m.params = params.Default()
	p := &m.params
	var err error
	if p.Min, p.Max, err = parseNodes(o.nnodes); err != nil {
		return err
	}
	conf, err := parseConf(o.conf)
	if err != nil {
		return err
	}
	p.RunID, p.LocalAddr, p.TokenFile = o.id, o.localAddr, cmp.Or(o.tokenFile, conf["token_file"])
	if err := c.setSecurity(env, conf); err != nil {
		return err
	}
	if m.kind, err = c.chooseKind(o, p.Max); err != nil {
		return err
	}
	if o.segment < 1 {
		return usagef("argument --segment: it is %d, it must be at least 1", o.segment)
	}
	switch m.kind {
	case kindStandalone:
		err = c.setStandalone(o)
	case kindStatic:
		err = c.setStatic(o, env)
	default:
		err = c.setDynamic(o, env, conf)
	}
	if err == nil && o.segment > 1 && m.kind != kindDynamic {
		err = usagef("argument --segment: the ranks of a %v job are not given by topology; use --rdzv-endpoint=HOST:PORT, a directory or an etcd", m.kind)
	}
	return err
}

// setSecurity sets for each kind of job which users of this machine may connect.
func (c *config) setSecurity(env environ, conf map[string]string) error {
	p := &c.rendezvous.params
	p.Security = env.get(params.EnvSecurity)
	users := map[string]string{}
	for _, name := range []string{"allow_uid", "loopback_check"} {
		if value, ok := conf[name]; ok {
			users[name] = value
		}
	}
	if _, err := p.SetOptions(users); err != nil {
		return usagef("argument --rdzv-conf: %v", err)
	}
	return nil
}

// chooseKind decides by the named backend, else by the given endpoint.
func (c *config) chooseKind(o *options, most int) (rendezvousKind, error) {
	placed := o.endpoint != "" || o.given["master-port"]
	if o.standalone || o.backend == "static" && !placed && most == 1 {
		return kindStandalone, nil
	}
	if !o.given["rdzv-backend"] {
		if o.endpoint == "" && most == 1 {
			return kindStatic, nil
		}
		return kindDynamic, nil
	}
	own, err := backend.Canonical(o.backend)
	if err != nil {
		return 0, usagef("argument --rdzv-backend: %v", err)
	}
	if own == backend.NameStatic {
		return kindStatic, nil
	}
	switch o.backend {
	case "c10d":
		c.notes = append(c.notes, "the backend c10d is answered by rallypoint: all nodes of the job must be started by rallypoint")
	case "etcd", "etcd-v2":
		c.notes = append(c.notes, "the backend "+o.backend+" is answered by rallypoint, in etcd's v3 API: all nodes of the job must be started by rallypoint")
	}
	return kindDynamic, nil
}

func (c *config) setStandalone(o *options) error {
	p := &c.rendezvous.params
	if err := p.RefuseToken("a standalone job"); err != nil {
		return usagef("%v", err)
	}
	if p.Min > 1 {
		return usagef("argument --nnodes: a standalone job has one node, but at least %d are asked for", p.Min)
	}
	if o.standalone && (o.given["rdzv-id"] || o.given["rdzv-endpoint"] || o.given["rdzv-backend"]) {
		c.warnings = append(c.warnings, "--standalone ignores --rdzv-id, --rdzv-backend and --rdzv-endpoint")
	}
	if o.standalone || !o.given["rdzv-id"] { // else the user's is kept
		p.RunID = uuid.New()
	}
	c.notes = append(c.notes, "standalone: one node, run id "+p.RunID)
	return nil
}

func (c *config) setDynamic(o *options, env environ, conf map[string]string) error {
	m := &c.rendezvous
	p := &m.params
	if o.given["node-rank"] {
		if o.nodeRank < 0 || o.nodeRank >= p.Max {
			return usagef("argument --node-rank: it is %d, it must be 0 or more and below the maximum number of nodes (%d)", o.nodeRank, p.Max)
		}
		p.NodeRank = o.nodeRank
	}
	p.Endpoint = o.endpoint
	byMaster := p.Endpoint == "" && (!o.given["rdzv-backend"] || o.given["master-addr"] || o.given["master-port"])
	if byMaster {
		p.Endpoint = net.JoinHostPort(trimBrackets(o.masterAddr), strconv.Itoa(o.port()))
	}
	name := ""
	if o.given["rdzv-backend"] {
		name = o.backend
	}
	var err error
	if p.Endpoint, conf, err = backend.Resolve(name, p.Endpoint, conf); err != nil {
		return usagef("argument --rdzv-endpoint: %v", err)
	}
	warnings, err := p.SetOptions(conf)
	if err != nil {
		return usagef("argument --rdzv-conf: %v", err)
	}
	if o.tokenFile != "" {
		p.TokenFile = o.tokenFile
	}
	p.Topology = cmp.Or(o.topology, p.Topology)
	if o.given["segment"] {
		p.Segment = o.segment
	}
	c.warnings = append(c.warnings, warnings...)
	if seconds, ok := conf["timeout"]; ok && conf["join_timeout"] == "" && strings.HasPrefix(o.backend, "etcd") { // as the reference's older etcd handler does
		if _, err := p.SetOptions(map[string]string{"join_timeout": seconds}); err != nil {
			return usagef("argument --rdzv-conf: timeout: %v", err)
		}
	}
	if m.place, err = backend.At(p.Endpoint); err == nil {
		err = m.place.Complete(p)
	}
	if err != nil {
		return usagef("argument --rdzv-endpoint: %v", err)
	}
	if backend.Name(p.Endpoint) == backend.SchemeStatic {
		m.kind = kindStatic
	}
	if o.endpoint == "" && !o.given["master-addr"] && p.Max > 1 && p.Servers.Loopback() {
		c.warnings = append(c.warnings, "no --rdzv-endpoint: the nodes meet at "+p.Endpoint+", which other machines cannot reach; for nodes elsewhere, give all nodes the same --rdzv-endpoint=HOST:PORT")
	}
	if byMaster && p.StorePort == 0 { // MASTER_PORT is the port that the line names, as under torchrun's static backend
		p.StorePort, p.StoreWithHost = o.port(), true
	}
	c.warnings = append(c.warnings, p.SetEnvironment(env.get)...)
	if err := p.Validate(); err != nil {
		return usagef("%v", err)
	}
	return nil
}

func (c *config) setStatic(o *options, env environ) error {
	m := &c.rendezvous
	if m.params.TokenFile == "" && (m.params.Max > 1 || o.endpoint != "") {
		m.params.TokenFile = env.get(params.EnvTokenFile)
	}
	if m.params.Min != m.params.Max {
		return usagef("argument --nnodes: the static backend has a fixed number of nodes, not a range (%s)", o.nnodes)
	}
	if o.nodeRank < 0 || o.nodeRank >= m.params.Max {
		return usagef("argument --node-rank: it is %d, it must be 0 or more and below the number of nodes (%d)", o.nodeRank, m.params.Max)
	}
	m.params.NodeRank = o.nodeRank
	endpoint, given := o.endpoint, "argument --rdzv-endpoint: "
	if endpoint == "" {
		port := o.port()
		if port < 0 || port > 65535 {
			return usagef("argument --master-port: it is %d, it must be between 0 and 65535", port)
		}
		endpoint, given = net.JoinHostPort(trimBrackets(o.masterAddr), strconv.Itoa(port)), ""
	}
	endpoint, _, err := backend.Resolve(backend.NameStatic, endpoint, nil)
	if err == nil {
		m.place, err = backend.At(endpoint)
	}
	if err != nil {
		return usagef("%s%v", given, err)
	}
	return nil
}

func (o *options) port() int {
	if o.masterPort == unsetNumber {
		return defaultMasterPort
	}
	return o.masterPort
}

func trimBrackets(host string) string {
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		return host[1 : n-1]
	}
	return host
}
