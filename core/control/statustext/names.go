package statustext

import (
	"cmp"

	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
)

// Names are the names of a status's nodes in texts, by id.
type Names map[string]string

// NamesOf returns the names of the nodes of runs.
func NamesOf(runs []control.RunStatus) Names {
	called := Names{}
	for i := range runs {
		for n := range runs[i].AllNodes() {
			called[n.Node] = n.Name
		}
	}
	return called
}

// Of returns a node's name: of one that has left, its machine's, unless a present node has that
// name.
func (n Names) Of(id string) string {
	if name, known := n[id]; known {
		return cmp.Or(name, id)
	}
	machine := rendezvous.MachineOf(id)
	for other := range n {
		if machine != id && rendezvous.MachineOf(other) == machine {
			return id
		}
	}
	return machine
}

func (n Names) all(ids []string) []string {
	called := make([]string, 0, len(ids))
	for _, id := range ids {
		called = append(called, n.Of(id))
	}
	return called
}
