package conformance_test

import (
	"fmt"

	"rallypoint/conformance"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// Example checks the history of a machine that is driven here. [conformance.Read]
// checks one that `rallypoint serve --record FILE` has written.
func Example() {
	machine := rendezvous.New(rendezvous.Config{RunID: "job", Generation: "g", Uptime: -1})
	policy := params.Default().Policy
	policy.Min, policy.Max = 1, 1

	var audit conformance.Audit
	audit.Add(trace.Record{Run: "job", Seconds: 1, State: machine.Snapshot()})
	for i, event := range []rendezvous.Event{
		rendezvous.Hello{Session: "s", Node: "a", Policy: policy, SeenAddr: "10.0.0.1", LastRound: rendezvous.LastRound{HostRank: -1}},
		rendezvous.Join{
			Request:  rendezvous.Request{Session: "s", Number: 1},
			NodeRank: -1, RankHint: -1, StoreAddr: "10.0.0.1", StorePort: 29500,
		},
	} {
		audit.Add(trace.Record{
			Run: "job", Number: uint64(i + 1), Seconds: 1, Event: event, Effects: machine.Apply(event),
		})
	}
	fmt.Print(&audit)
	// Output: run job: 2 events, 1 rounds: all guarantees hold
}
