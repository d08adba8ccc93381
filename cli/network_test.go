package cli

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// network is a number of machines, each in a network namespace of its own, and a router
// between them that drops or refuses packets. Nothing of the machine's own network is
// touched. What the router does is said by policy routing alone, which every iproute2 has;
// only reject needs nft.
type network struct {
	t    *testing.T
	name string
}

// The ranges of the ports from which a machine connects, at first and later. None holds a port of testkit.FreePort:
// a standby that finds its port taken by a connection of its own listens at another, where no test looks.
const (
	earlyPorts = "30000-34999"
	latePorts  = "35000-39999"
	allPorts   = "1-65534" // as many as a rule can name
)

// newNetwork makes a network, or ends the test as missing() does where that is not allowed.
func newNetwork(t *testing.T, machines int) *network {
	t.Helper()
	n := &network{t: t, name: fmt.Sprintf("rptest%08x", rand.Uint32())}
	if err := n.build(machines); err != nil {
		missing(t, "no network namespaces: %v", err)
	}
	return n
}

func (n *network) build(machines int) error {
	if err := n.addNamespace(0); err != nil {
		return err
	}
	steps := []string{
		"ip link set lo up",
		"echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
		// What the router refuses it takes for its own (rejects); first come its other rules.
		"ip rule add pref 900 lookup local && ip rule del pref 0",
	}
	for m := 1; m <= machines; m++ {
		if err := n.addNamespace(m); err != nil {
			return err
		}
		steps = append(steps,
			fmt.Sprintf("ip link add port%d type veth peer name eth0 netns %s", m, n.namespace(m)),
			fmt.Sprintf("ip address add 10.77.%d.254/24 dev port%d && ip address add fd77:%d::fe/64 dev port%d nodad && ip link set port%d up", m, m, m, m, m),
			fmt.Sprintf("ip rule add pref 800 to %s lookup main", address(m)),
			fmt.Sprintf("ip route add local %s dev lo table local", address(m)), // what it refuses, it refuses in the machine's name
			fmt.Sprintf("ip route add local %s dev lo table 100", address(m)))
	}
	for _, step := range steps {
		if err := n.shell(0, step); err != nil {
			return err
		}
	}
	for m := 1; m <= machines; m++ {
		err := n.shell(m, fmt.Sprintf("ip link set lo up && ip address add %s/24 dev eth0 && ip address add %s/64 dev eth0 nodad && ip link set eth0 up &&"+
			" ip route add default via 10.77.%d.254 && ip -6 route add default via fd77:%d::fe", address(m), address6(m), m, m))
		if err != nil {
			return err
		}
		if err := n.connectFrom(m, earlyPorts); err != nil {
			return err
		}
	}
	return nil
}

// connectFrom makes a machine connect from a range of ports from now on.
func (n *network) connectFrom(machine int, ports string) error {
	return n.shell(machine, "echo "+strings.Replace(ports, "-", " ", 1)+" > /proc/sys/net/ipv4/ip_local_port_range")
}

// addNamespace makes one that is gone with the test; 0 is the router's.
func (n *network) addNamespace(machine int) error {
	if out, err := exec.Command("ip", "netns", "add", n.namespace(machine)).CombinedOutput(); err != nil {
		return fmt.Errorf("ip netns add: %w: %s", err, out)
	}
	n.t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "delete", n.namespace(machine)).CombinedOutput(); err != nil {
			n.t.Errorf("ip netns delete: %v: %s", err, out)
		}
	})
	return nil
}

func (n *network) namespace(machine int) string { return n.name + "-" + strconv.Itoa(machine) }

func address(machine int) string { return fmt.Sprintf("10.77.%d.1", machine) }

func address6(machine int) string { return fmt.Sprintf("fd77:%d::1", machine) }

// shell runs a command line in a machine's network.
func (n *network) shell(machine int, line string) error {
	if out, err := n.on(machine, exec.Command("sh", "-c", line)).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}

// on makes a command run in a machine's network; its process is the command's.
func (n *network) on(machine int, c *exec.Cmd) *exec.Cmd {
	enter, err := exec.LookPath("nsenter")
	if err != nil {
		missing(n.t, "%v", err)
	}
	c.Args = append([]string{enter, "--net=/run/netns/" + n.namespace(machine), c.Path}, c.Args[1:]...)
	c.Path = enter
	return c
}

// cut makes the router drop what two machines send each other; 0 is any machine.
func (n *network) cut(a, b int) {
	n.drop(a, b)
	n.drop(b, a)
}

// drop makes the router drop what one machine sends another; 0 is any machine.
func (n *network) drop(from, to int) {
	n.rule("pref 100 " + selector("from", from) + selector("to", to) + "blackhole")
}

// refuse makes the router answer for a machine's port that it is closed, to packets from
// another one (0: from any), if they come from these ports.
func (n *network) refuse(from, to, port int, ports string) {
	n.rule(fmt.Sprintf("pref 100 %s%sipproto tcp dport %d sport %s lookup 100", selector("from", from), selector("to", to), port, ports))
}

func selector(word string, machine int) string {
	if machine == 0 {
		return ""
	}
	return word + " " + address(machine) + " "
}

func (n *network) rule(rule string) {
	n.t.Helper()
	if err := n.shell(0, "ip rule add "+rule); err != nil {
		n.t.Fatal(err)
	}
}

// mend undoes what cut and refuse have done.
func (n *network) mend() {
	n.t.Helper()
	if err := n.shell(0, "while ip rule del pref 100 2> /dev/null; do :; done"); err != nil {
		n.t.Fatal(err)
	}
}

// rejectBy is nft's word for a way to reject: a reset of the connection, or ICMP that says that nothing listens at
// the port, or that the machine cannot be reached.
func rejectBy(how string) string {
	return map[string]string{
		"reset": "ip protocol tcp reject with tcp reset", "icmp": "reject with icmp type port-unreachable", "icmp-host": "reject with icmp type host-unreachable",
	}[how]
}

// reject makes a machine's firewall reject what it sends (out), what is sent to it (in), or both.
func (n *network) reject(machine int, way, how string) {
	n.t.Helper()
	with := rejectBy(how)
	rules := "add table ip rptest\n"
	for _, chain := range []string{"in", "out"} {
		if way == chain || way == "both" {
			rules += fmt.Sprintf("add chain ip rptest %s { type filter hook %sput priority 0 ; }\nadd rule ip rptest %s %sifname != \"lo\" %s\n", chain, chain, chain, chain[:1], with)
		}
	}
	n.nft(machine, rules)
}

// split makes the router reject what some machines and all others send each other; accept(0) undoes it.
func (n *network) split(how string, some ...int) {
	n.t.Helper()
	var side []string
	for _, m := range some {
		side = append(side, address(m))
	}
	these := "{ " + strings.Join(side, ", ") + " }"
	rules := "add table ip rptest\nadd chain ip rptest between { type filter hook forward priority 0 ; }\n"
	for _, way := range []string{"saddr %s ip daddr != %s", "saddr != %s ip daddr %s"} {
		rules += fmt.Sprintf("add rule ip rptest between ip "+way+" %s\n", these, these, rejectBy(how))
	}
	n.nft(0, rules)
}

func (n *network) nft(machine int, rules string) {
	n.t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		missing(n.t, "no nft, which nftables has")
	}
	if err := n.shell(machine, "nft -f - <<'END'\n"+rules+"END\n"); err != nil {
		n.t.Fatal(err)
	}
}

// accept undoes reject.
func (n *network) accept(machine int) {
	n.t.Helper()
	if err := n.shell(machine, "nft delete table ip rptest"); err != nil {
		n.t.Fatal(err)
	}
}
