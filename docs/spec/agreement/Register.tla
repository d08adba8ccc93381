------------------------------ MODULE Register ------------------------------
(* The lead by a register with compare-and-set (core/election/register).
   A write takes effect some time after it has begun, and its answer may be
   lost. Ages are in halves of a lease, by clocks of one speed. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS Procs, MaxTerm, MaxBeat, MaxRound,
          Firewall,  \* TRUE: the leader may seem dead while it lives
          CAS,       \* a write needs the record that its writer has read
          Wait,      \* silence counts once the beat has stood still for a lease
          Mute,      \* a leader says nothing half a lease after its last write began
          Confirm    \* a leader says only what is in the record

Lease == 2
Half  == 1

None == [term |-> 0, leader |-> "none", beat |-> 0, facts |-> <<0, 0>>]

VARIABLES rec,     \* the register's record; facts are the last round and the term that formed it
          up,      \* [p -> its process runs]
          mode,    \* [p -> "reads", "campaigns", "leads"]
          seen,    \* [p -> the record that it has read or written last]
          still,   \* [p -> for how long its looks have found that record], of a reader
          looked,  \* [p -> age of its last look], of a reader
          held,    \* [p -> age of its last write that was taken, from its begin], of a leader
          formed,  \* [p -> the facts that it proposes], of a leader
          writes,  \* compare-and-sets that are under way, or whose answer was lost
          told,    \* facts that nodes were told
          led      \* <<term, process>> of all leaders

vars == <<rec, up, mode, seen, still, looked, held, formed, writes, told, led>>

Min(a, b) == IF a < b THEN a ELSE b

Init == /\ rec = None
        /\ up = [p \in Procs |-> TRUE]
        /\ mode = [p \in Procs |-> "reads"]
        /\ seen = [p \in Procs |-> None]
        /\ still = [p \in Procs |-> 0]
        /\ looked = [p \in Procs |-> Half + 1]
        /\ held = [p \in Procs |-> 0]
        /\ formed = [p \in Procs |-> <<0, 0>>]
        /\ writes = {} /\ told = {} /\ led = {}

Look(p) ==
  /\ up[p] /\ mode[p] = "reads" /\ (rec # seen[p] \/ looked[p] > 0)
  /\ seen' = [seen EXCEPT ![p] = rec]
  /\ still' = [still EXCEPT ![p] = IF rec = seen[p] /\ looked[p] <= Half
                                   THEN Min(@ + looked[p], Lease) ELSE 0]
  /\ looked' = [looked EXCEPT ![p] = 0]
  /\ UNCHANGED <<rec, up, mode, held, formed, writes, told, led>>

(* Its death is proven by an own connection that it ended, and refused dials. *)
ProvenDead(q) == q \in Procs /\ (Firewall \/ ~up[q])

Vacant(p) == \/ seen[p] = None
             \/ ProvenDead(seen[p].leader)
             \/ ~Wait \/ still[p] >= Lease

Of(p) == {w \in writes : w.by = p}

Campaign(p) ==
  /\ up[p] /\ mode[p] = "reads" /\ looked[p] <= Half /\ Of(p) = {}
  /\ Vacant(p) /\ seen[p].term < MaxTerm
  /\ writes' = writes \cup {[by |-> p, from |-> seen[p], age |-> 0, open |-> TRUE,
       to |-> [term |-> seen[p].term + 1, leader |-> p, beat |-> 1, facts |-> seen[p].facts]]}
  /\ mode' = [mode EXCEPT ![p] = "campaigns"]
  /\ UNCHANGED <<rec, up, seen, still, looked, held, formed, told, led>>

(* The leader writes its beat, and perhaps a round that it has completed, of which its nodes are not told yet.
   One write whose answer is lost may be under way. *)
Write(p) ==
  /\ up[p] /\ mode[p] = "leads" /\ Cardinality(Of(p)) < 2
  /\ LET beat == seen[p].beat + Cardinality(Of(p)) + 1
         r == formed[p][1] + 1
     IN /\ beat <= MaxBeat
        /\ formed' \in {formed} \cup (IF r <= MaxRound THEN {[formed EXCEPT ![p] = <<r, seen[p].term>>]} ELSE {})
        /\ writes' = writes \cup {[by |-> p, from |-> seen[p], age |-> 0, open |-> TRUE,
             to |-> [seen[p] EXCEPT !.beat = beat, !.facts = formed'[p]]]}
  /\ UNCHANGED <<rec, up, mode, seen, still, looked, held, told, led>>

(* p learns that the register holds r, and that it holds it since one of its own writes, of that age. *)
Own(p, r, age) ==
  /\ mode' = [mode EXCEPT ![p] = "leads"]
  /\ seen' = [seen EXCEPT ![p] = r]
  /\ held' = [held EXCEPT ![p] = age]
  /\ formed' = [formed EXCEPT ![p] = IF mode[p] = "campaigns" THEN r.facts ELSE @]
  /\ led' = led \cup {<<r.term, p>>}
  /\ still' = [still EXCEPT ![p] = 0] /\ looked' = [looked EXCEPT ![p] = 0]

Foreign(p, r) ==
  /\ mode' = [mode EXCEPT ![p] = "reads"]
  /\ seen' = [seen EXCEPT ![p] = r]
  /\ held' = [held EXCEPT ![p] = 0] /\ formed' = [formed EXCEPT ![p] = <<0, 0>>]
  /\ still' = [still EXCEPT ![p] = 0] /\ looked' = [looked EXCEPT ![p] = 0]
  /\ led' = led

(* The register takes a write, or refuses it; the writer hears of it, or not. *)
Effect(w, heard) ==
  LET p == w.by
      taken == w.from = rec \/ ~CAS
      now == IF taken THEN w.to ELSE rec
      own == {v \in Of(p) : v.to = now}
  IN /\ w.open
     /\ rec' = now
     /\ IF heard /\ up[p] /\ mode[p] # "reads"
        THEN \/ own # {} /\ \E v \in own : Own(p, now, v.age) /\ writes' = {u \in writes : u.by # p \/ (u.open /\ u # v /\ u # w)}
             \/ own = {} /\ now.leader # p /\ Foreign(p, now) /\ writes' = {u \in writes : u.by # p \/ (u.open /\ u # w)}
             \/ own = {} /\ now.leader = p /\ writes' = writes \ {w} /\ UNCHANGED <<mode, seen, still, looked, held, formed, led>>
        ELSE /\ writes' = (writes \ {w}) \cup (IF up[p] /\ mode[p] # "reads" THEN {[w EXCEPT !.open = FALSE]} ELSE {})
             /\ UNCHANGED <<mode, seen, still, looked, held, formed, led>>
     /\ UNCHANGED <<up, told>>

(* A candidate that was not answered looks whom the register holds. *)
Recheck(p) ==
  /\ up[p] /\ mode[p] = "campaigns" /\ \A w \in Of(p) : ~w.open
  /\ \/ \E w \in Of(p) : w.to = rec /\ Own(p, rec, w.age)
     \/ (\A w \in Of(p) : w.to # rec) /\ Foreign(p, rec)
  /\ writes' = writes \ Of(p)
  /\ UNCHANGED <<rec, up, told>>

Leads(p) == up[p] /\ mode[p] = "leads"
MaySay(p) == Leads(p) /\ (held[p] <= Half \/ ~Mute)

Say(p) ==
  /\ MaySay(p)
  /\ LET f == IF Confirm THEN seen[p].facts ELSE formed[p]
     IN f[1] > 0 /\ f \notin told /\ told' = told \cup {f}
  /\ UNCHANGED <<rec, up, mode, seen, still, looked, held, formed, writes, led>>

(* A process dies. What it has sent may still arrive. *)
Die(p) ==
  /\ up[p]
  /\ up' = [up EXCEPT ![p] = FALSE]
  /\ mode' = [mode EXCEPT ![p] = "reads"] /\ seen' = [seen EXCEPT ![p] = None]
  /\ still' = [still EXCEPT ![p] = 0] /\ looked' = [looked EXCEPT ![p] = Half + 1]
  /\ held' = [held EXCEPT ![p] = 0] /\ formed' = [formed EXCEPT ![p] = <<0, 0>>]
  /\ writes' = {w \in writes : w.by # p \/ w.open}
  /\ UNCHANGED <<rec, told, led>>

Tick ==
  /\ still' = still
  /\ looked' = [p \in Procs |-> IF up[p] /\ mode[p] = "reads" THEN Min(looked[p] + 1, Half + 1) ELSE looked[p]]
  /\ held' = [p \in Procs |-> IF Leads(p) THEN Min(held[p] + 1, Half + 1) ELSE held[p]]
  /\ writes' = {[w EXCEPT !.age = Min(@ + 1, Half + 1)] : w \in writes}
  /\ UNCHANGED <<rec, up, mode, seen, formed, told, led>>

Next == \/ \E p \in Procs : Look(p) \/ Campaign(p) \/ Write(p) \/ Recheck(p) \/ Say(p) \/ Die(p)
        \/ \E w \in writes, heard \in BOOLEAN : Effect(w, heard)
        \/ Tick

Spec == Init /\ [][Next]_vars

OneLeaderATerm == \A a, b \in led : a[1] = b[1] => a = b
ToldIsKept == \A f \in told : f[1] < rec.facts[1] \/ f = rec.facts
OneNumberARound == \A f, g \in told : f[1] = g[1] => f = g
OneSpeaks == Firewall \/ \A p, q \in Procs : MaySay(p) /\ MaySay(q) => p = q

Symmetry == Permutations(Procs)
=============================================================================
