package rendezvous

import (
	"fmt"
	"strings"
)

// MaxNameLen bounds run ids, node ids, session ids, addresses and reasons, in
// bytes. Longer ones are refused (names) or cut (reasons).
const MaxNameLen = 512

// SessionID names one process's life with the control plane. It is drawn at
// random by the node and outlives its connections.
type SessionID string

// maxNames bounds how many nodes a text or a progress report names, so that
// neither grows with the size of the job.
const maxNames = 8

// nodeSuffix is the length of what NodeID appends to a machine's name, without the dash: 40 bits, so
// that ten thousand containers of one name hardly ever share an id.
const nodeSuffix = 8

// NodeID returns an id for a node on a machine, of that name and random letters: several nodes
// run on one machine, and containers of many machines may share one name.
func NodeID(machine, random string) string { return machine + "-" + random[:nodeSuffix] }

// MachineOf returns the machine's name of an id that NodeID made, and any other id as it is.
func MachineOf(id string) string {
	at := len(id) - nodeSuffix - 1
	if at < 1 || id[at] != '-' || strings.Trim(id[at+1:], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return id
	}
	return id[:at]
}

// names knows the nodes that texts name: live ones, and members of the last round.
type names struct {
	nodes    map[string]int // by id: 1 for a live node, 1 for a member
	machines map[string]int // how many of these nodes each machine has
}

func newNames() *names { return &names{map[string]int{}, map[string]int{}} }

func (ns *names) add(id string) {
	if ns.nodes[id]++; ns.nodes[id] == 1 {
		ns.machines[MachineOf(id)]++
	}
}

func (ns *names) drop(id string) {
	change(ns.nodes, id, -1)
	if ns.nodes[id] == 0 {
		change(ns.machines, MachineOf(id), -1)
	}
}

// of is what texts call a node: by its machine's name, and by its id where another node shares
// that machine.
func (ns *names) of(id string) string {
	machine := MachineOf(id)
	if others := ns.machines[machine] - min(ns.nodes[id], 1); machine == id || others > 0 {
		return id
	}
	return machine
}

// ofSome lists the names of the first of these nodes, and how many more there are.
func (ns *names) ofSome(nodes []*node) string {
	var list []string
	for _, n := range nodes[:min(len(nodes), maxNames)] {
		list = append(list, ns.of(n.id))
	}
	return nameSome(list, len(nodes))
}

func nameSome(names []string, all int) string {
	if more := all - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
