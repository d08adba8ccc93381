// Package conformance holds the recorded history of a run, its events and what the
// control plane did at each, against the twelve guarantees of docs/design.md.
//
// A [Checker] keeps its own account of the run, drawn from the history and the text
// of the guarantees alone: it shares no code with the machine that it checks. The
// property tests, the tests of faults and `rallypoint-audit` all use it.
//
// How each guarantee is checked, at the event where it could be broken:
//
//  1. A completed round has the number after the highest one that was completed
//     or reported, and a session sees its rounds in growing order. A report changes
//     nothing else of a round that was completed here, or adopted and is whole. A join that is
//     repeated before its answer was acknowledged gets the same answer again; no
//     request gets two answers. A withdrawal says "completed" exactly if the join
//     had been answered; a member that withdrew counts as lost from then on.
//
//  2. The outcomes of the event that completes a round carry the ranks 0..n-1, n
//     of them, with n within min and max and a multiple of the unit.
//
//  3. All outcomes of a round are equal but for the rank, and stay so however often
//     they are delivered; the store is the one that the node of rank 0 announced.
//
//  4. An outcome answers a pending join of a live node and nothing else; who gets
//     none waits on, and a place that is free is not kept from it. Keys of a round
//     are for its members only. A join is refused for a reason of guarantee 8 or 9
//     alone, or because its node is kept out, which has no rank, or would be a spare of
//     another job: at its own event, or at that of the round that leaves it. A node is out by its
//     own word only while that leaves min, and no more of them than an eighth of max, or one.
//
//  5. A first round is completed by an event after which it was due (full, or at
//     least min and the last call or the quiet period run out, and no hold), never
//     with a participant inside its grace, and never later than that event. While
//     min is met the timer of the last call runs, for the time the policy says.
//
//  6. The same for a regroup: every live member has joined, or regroup_timeout has
//     run out and the outcome names who is missing; members come before others.
//     No node is dropped without a lease, a grace, a person or a successor, and no
//     lease ends sooner than half of it after its node was last heard of, unless the
//     node had just come back.
//
//  7. After each event every live node was last told what it should know: that it
//     has to regroup if a member is lost or rejoining, or if newcomers would make
//     the round larger and admit_delay has run out, or a scale makes room for them, or that the stop of its round is
//     announced, by whom and why; nothing otherwise.
//
//  8. After the first finish no round is completed and a member that joins is
//     refused, naming who finished. When every live member has finished no node
//     waits at the exit barrier. When all that finished are gone the run is closed.
//
//  9. A run is closed by what closes it and by nothing else: the update of every node
//     says so at once, no join is pending, and a join is refused, naming by whom
//     and why, after a success as not needed. A run that succeeded or was closed by hand stays
//     closed until the timer that it armed then, of the policy's closed_for, has fired: only
//     a node that asks for it, or an administrator, begins it again. A node that was never
//     part of it finds any other closed run without nodes open.
//
//  10. Ranks are what the rule gives for the joins' preferences, old ranks, hints
//     and order; and a machine fed with the same events does the same (see
//     [Checker.Replay]).
//
//  11. Every error has a text that names the run or round it is about, and says
//     for a refusal by whom, why or over what; sums that only add have made count
//     each addition once, and a repeated request changes nothing.
//
//  12. After each event all live nodes were last told of the same directive, one that
//     stands, and of none if none does; members of the running round, and no others, are
//     asked about it. Nodes learn a step once all running members have reported. It is the
//     largest step that they reported, and a directive has only one in a round, whichever
//     control plane announces it. What a directive asks for comes at its deadline or when
//     all members of a whole round have saved, and not before: the nodes that it drains are
//     given up and refused until that is over, the run is closed to be queued again, or
//     rounds have another size. A host tells its successor what stands, what has ended,
//     what was agreed, and who is drained.
//
// A history continues with another host ([Checker.TookOver]): the guarantees are held across
// a takeover. Terms grow. Each host names as the host before the one that told the facts with
// which it begins; one that was elected begins with those of the last host that has told nodes
// anything (1). The numbers and generations of all rounds stay known (1). The next host begins
// with facts that the one before has told (9), and after every event each live node was last
// told the facts that such a host would need (7, 9). Of the round that continues the dead
// host's member is lost or has finished, and the others are waited for: as long as the policy
// says, no longer than one is missing, and not without an end (5, 6).
package conformance
