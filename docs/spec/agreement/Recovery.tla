------------------------------ MODULE Recovery ------------------------------
(* Who leads a job whose nodes meet at a node's port: a majority of three
   voters, proof alone where one node votes, and recovery where no majority is
   left (core/control/standby). Raft is one step here: what a leader tells has
   a majority. Ages are in quarters of a lease. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS Procs,
          Machines,  \* 3: three voters; 2: the leader alone votes
          MaxFaults, MaxRound,
          Firewall,  \* TRUE: refusals may come from a firewall, in the name of processes that live
          Reset,     \* TRUE: the network may end a connection towards the leader before it is silent
          Gap,       \* the first round of a new cluster jumps
          Heard,     \* only who heard a leader shortly before the first voter went, or since, begins a cluster
          Silence,   \* TRUE: silence counts as death
          Alone,     \* TRUE: with three voters, too, proof alone decides
          Torn,      \* TRUE: a connection that silence has ended proves nothing
          Changing   \* who has agreed to a change of voters reckons that the leader has made it

Lease   == 4
Quarter == 1
Half    == 2
Keep    == 3  \* a node's kernel ends a connection on which nothing arrives
Jump    == 2  \* stands for 1000

VARIABLES up,      \* [p -> its process runs]
          side,    \* [p -> on which side of a partition its machine is]
          walled,  \* machines in whose name, and towards which, a firewall refuses
          cluster, \* [p -> the cluster that it follows or leads: 0, or who began it]
          term,    \* [p -> the last term of cluster 0 that it knows]
          leads,   \* [p -> it leads its cluster]
          votes,   \* [p -> it is a voter of cluster 0; who has left that is none any more]
          single,  \* [p -> of cluster 0 it knows that the leader alone votes]
          agreed,  \* [p -> it has agreed to that, and has not heard that it is so]
          round,   \* [p -> the last round that it knows]
          anew,    \* [p -> its next round jumps]
          age,     \* [p -> since it heard its leader; of a leader, a majority]
          lost,    \* [p -> the leader has taken it for lost]
          dead,    \* [p -> those that it has found gone, and not reached since]
          first,   \* [p -> a voter went: "no", "ok" (it had heard the leader, or has since), "late"]
          since,   \* [p -> how long no leader could be elected]
          told,    \* <<number, cluster, term>> of all rounds
          ended,   \* the job has ended
          again,   \* a cluster was begun after that
          faults

vars == <<up, side, walled, cluster, term, leads, votes, single, agreed, round, anew, age, lost, dead, first, since, told, ended, again, faults>>

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
Others(p) == Procs \ {p}

Init == \E l \in Procs :
        /\ up = [p \in Procs |-> TRUE]
        /\ side = [p \in Procs |-> 0] /\ walled = {}
        /\ cluster = [p \in Procs |-> 0] /\ term = [p \in Procs |-> 1]
        /\ leads = [p \in Procs |-> p = l]
        /\ single = [p \in Procs |-> Machines = 2] /\ agreed = [p \in Procs |-> FALSE] /\ votes = [p \in Procs |-> TRUE]
        /\ round = [p \in Procs |-> 1] /\ anew = [p \in Procs |-> FALSE]
        /\ age = [p \in Procs |-> 0] /\ lost = [p \in Procs |-> FALSE]
        /\ dead = [p \in Procs |-> {}] /\ first = [p \in Procs |-> "no"] /\ since = [p \in Procs |-> 0]
        /\ told = {<<1, 0, 1>>} /\ ended = FALSE /\ again = FALSE /\ faults = 0

Connected(p, q) == up[p] /\ up[q] /\ side[p] = side[q] /\ {p, q} \cap walled = {}

(* At q's address connections are refused, as p sees it. *)
Refused(p, q) == \/ (side[p] = side[q] /\ ~up[q])
                 \/ {p, q} \cap walled # {}
                 \/ (Silence /\ ~Connected(p, q))

Leader(p, q) == leads[q] /\ cluster[q] = cluster[p] /\ (cluster[q] = 0 => term[q] >= term[p])
HearsLeader(p) == \E q \in Procs : Leader(p, q) /\ Connected(p, q)

Voter(p) == cluster[p] = 0 /\ votes[p] /\ ~single[p]

(* q takes part in what a leader or a candidate p of cluster 0 asks of voters. *)
Agrees(p, q) == q = p \/ (Connected(p, q) /\ cluster[q] = 0 /\ votes[q] /\ term[q] <= term[p])
Majority(s) == 2 * Cardinality(s) > Cardinality(Procs)
HasMajority(p) == single[p] \/ cluster[p] # 0 \/ Majority({q \in Procs : Agrees(p, q)})
Speaks(p) == up[p] /\ leads[p] /\ (single[p] \/ cluster[p] # 0 \/ age[p] <= Quarter)

(* Raft: a voter grants its vote if it has not heard the leader for 0.4 of a lease, or the leader's side has
   ended the connection, and if the candidate knows what it knows. *)
Grants(p, q) == /\ Agrees(p, q) /\ Voter(q) /\ ~agreed[q] /\ round[q] <= round[p]
                /\ \/ age[q] >= Half
                   \/ \A l \in Procs : leads[l] /\ cluster[l] = 0 => l # q /\ Refused(q, l)
Elect(p) ==
  /\ up[p] /\ Voter(p) /\ ~leads[p]
  /\ LET q == {v \in Procs : Grants(p, v)}
         t == term[p] + 1
     IN /\ Majority(q)
        /\ \A v \in q : term[v] < t
        /\ term' = [v \in Procs |-> IF v \in q THEN t ELSE term[v]]
        /\ leads' = [v \in Procs |-> IF v \in q THEN v = p ELSE leads[v]]
        /\ age' = [v \in Procs |-> IF v \in q THEN 0 ELSE age[v]]
        /\ lost' = [v \in Procs |-> Reset /\ v \notin q]
  /\ UNCHANGED <<up, side, walled, cluster, votes, single, agreed, round, anew, dead, first, since, told, ended, again, faults>>

(* Of three voters one is gone, or silent for a lease: two are no majority when one is silent, so the leader
   votes alone, by a decision of both. The other one hears later that it is so. *)
Shrink(p) ==
  /\ up[p] /\ leads[p] /\ Voter(p)
  /\ \E q \in Others(p) :
       /\ Connected(p, q) /\ Agrees(p, q) /\ Voter(q)
       /\ \A r \in Procs \ {p, q} : Refused(p, r) \/ lost[r]
       /\ single' = [single EXCEPT ![p] = TRUE] /\ agreed' = [agreed EXCEPT ![q] = TRUE]
       /\ term' = [term EXCEPT ![q] = term[p]]
       /\ leads' = [leads EXCEPT ![q] = FALSE]
       /\ age' = [age EXCEPT ![q] = 0] /\ lost' = [lost EXCEPT ![q] = FALSE]
       /\ round' = [round EXCEPT ![q] = Max(round[p], @)]
  /\ UNCHANGED <<up, side, walled, cluster, votes, anew, dead, first, since, told, ended, again, faults>>

Learn(q) ==
  /\ up[q] /\ agreed[q] /\ \E p \in Others(q) : Leader(q, p) /\ single[p] /\ Connected(p, q)
  /\ single' = [single EXCEPT ![q] = TRUE] /\ agreed' = [agreed EXCEPT ![q] = FALSE]
  /\ UNCHANGED <<up, side, walled, cluster, term, leads, votes, round, anew, age, lost, dead, first, since, told, ended, again, faults>>

(* Where the leader votes alone, a node takes over that has proof: its connection was ended by the leader's side,
   and the leader's address refuses. *)
TakeOver(p) ==
  /\ up[p] /\ ~leads[p] /\ (~Voter(p) \/ Alone)
  /\ Torn => age[p] < Keep
  /\ \E l \in Others(p) : Leader(p, l) /\ Refused(p, l)
  /\ IF Alone /\ Voter(p)
     THEN term' = [term EXCEPT ![p] = @ + 1] /\ UNCHANGED <<cluster, votes, anew>>
     ELSE cluster' = [cluster EXCEPT ![p] = p] /\ votes' = [votes EXCEPT ![p] = FALSE] /\ anew' = [anew EXCEPT ![p] = TRUE]
          /\ UNCHANGED term
  /\ leads' = [leads EXCEPT ![p] = TRUE]
  /\ age' = [age EXCEPT ![p] = 0]
  /\ again' = (again \/ ended)
  /\ UNCHANGED <<up, side, walled, single, agreed, round, lost, dead, first, since, told, ended, faults>>

(* Recovery: all other voters are gone for half a lease. Patience is longer in places, which is no rule of safety. *)
Begin(p) ==
  /\ up[p] /\ Voter(p) /\ since[p] >= Half /\ (first[p] = "ok" \/ ~Heard)
  /\ cluster' = [cluster EXCEPT ![p] = p] /\ votes' = [votes EXCEPT ![p] = FALSE]
  /\ leads' = [leads EXCEPT ![p] = TRUE]
  /\ anew' = [anew EXCEPT ![p] = TRUE]
  /\ age' = [age EXCEPT ![p] = 0]
  /\ again' = (again \/ ended)
  /\ UNCHANGED <<up, side, walled, term, single, agreed, round, lost, dead, first, since, told, ended, faults>>

(* The leader completes a round, a majority has it, and nodes are told. *)
Tell(p) ==
  /\ Speaks(p) /\ HasMajority(p) /\ ~ended
  /\ LET n == IF anew[p] /\ Gap THEN (round[p] \div Jump + 1) * Jump + 1 ELSE round[p] + 1
         hear == {q \in Procs : q = p \/ (IF cluster[p] = 0 THEN Agrees(p, q) ELSE cluster[q] = cluster[p] /\ Connected(p, q))}
     IN /\ n <= MaxRound
        /\ ~anew[p] => n # Jump + 1  \* no run of rounds reaches the next jump
        /\ round' = [q \in Procs |-> IF q \in hear THEN Max(n, round[q]) ELSE round[q]]
        /\ term' = [q \in Procs |-> IF q \in hear /\ cluster[p] = 0 THEN term[p] ELSE term[q]]
        /\ leads' = [q \in Procs |-> leads[q] /\ (q \notin hear \/ q = p)]
        /\ anew' = [anew EXCEPT ![p] = FALSE]
        /\ told' = told \cup {<<n, cluster[p], IF cluster[p] = 0 THEN term[p] ELSE 0>>}
  /\ UNCHANGED <<up, side, walled, cluster, votes, single, agreed, age, lost, dead, first, since, ended, again, faults>>

(* q finds the leader p of another cluster, or of a later term, and joins it with what it knows. *)
Join(q, p) ==
  /\ Connected(p, q) /\ leads[p] /\ p # q
  /\ (cluster[q] # cluster[p] \/ term[q] < term[p])
  /\ (leads[q] => (cluster[q] # 0 \/ term[q] < term[p]))
  /\ cluster' = [cluster EXCEPT ![q] = cluster[p]]
  /\ term' = [term EXCEPT ![q] = Max(@, term[p])]
  /\ leads' = [leads EXCEPT ![q] = FALSE]
  /\ votes' = [votes EXCEPT ![q] = @ /\ cluster[p] = 0] /\ single' = [single EXCEPT ![q] = single[p]] /\ agreed' = [agreed EXCEPT ![q] = FALSE]
  /\ anew' = [anew EXCEPT ![q] = FALSE]
  /\ round' = [round EXCEPT ![q] = Max(@, round[p]), ![p] = Max(@, round[q])]
  /\ age' = [age EXCEPT ![q] = 0] /\ lost' = [lost EXCEPT ![q] = FALSE]
  /\ first' = [first EXCEPT ![q] = "no"] /\ since' = [since EXCEPT ![q] = 0]
  /\ UNCHANGED <<up, side, walled, dead, told, ended, again, faults>>

(* The workers of all members that live have succeeded; these nodes exit. *)
End(p) ==
  /\ Speaks(p) /\ HasMajority(p) /\ ~ended
  /\ LET hear == {q \in Procs : q = p \/ (Connected(p, q) /\ cluster[q] = cluster[p])}
     IN /\ (\A q \in Procs \ hear : lost[q] \/ Refused(p, q))
        /\ up' = [q \in Procs |-> up[q] /\ q \notin hear]
        /\ leads' = [q \in Procs |-> leads[q]]
  /\ ended' = TRUE
  /\ UNCHANGED <<side, walled, cluster, term, votes, single, agreed, round, anew, age, lost, dead, first, since, told, again, faults>>

Fault == faults < MaxFaults /\ faults' = faults + 1

Kill(p) == /\ Fault /\ up[p] /\ up' = [up EXCEPT ![p] = FALSE]
           /\ UNCHANGED <<side, walled, cluster, term, leads, votes, single, agreed, round, anew, age, lost, dead, first, since, told, ended, again>>
Cut(p) ==  /\ Fault /\ side' = [side EXCEPT ![p] = 1 - @]
           /\ UNCHANGED <<up, walled, cluster, term, leads, votes, single, agreed, round, anew, age, lost, dead, first, since, told, ended, again>>
Wall(p) == /\ Firewall /\ Fault /\ walled' = IF p \in walled THEN walled \ {p} ELSE walled \cup {p}
           /\ UNCHANGED <<up, side, cluster, term, leads, votes, single, agreed, round, anew, age, lost, dead, first, since, told, ended, again>>
(* The leader's side sees p's connection end, and waits for a moment. *)
Break(p) == /\ Reset /\ Fault /\ side' = [side EXCEPT ![p] = 1 - @] /\ lost' = [lost EXCEPT ![p] = TRUE]
            /\ UNCHANGED <<up, walled, cluster, term, leads, votes, single, agreed, round, anew, age, dead, first, since, told, ended, again>>

(* Time passes. A leader of cluster 0 is heard by all that it reaches, and ends the lead of an earlier term.
   Who hears no leader and reaches one has joined it before. *)
Tick ==
  /\ \A q \in Procs : up[q] /\ ~leads[q] /\ ~HearsLeader(q) => ~\E p \in Procs : leads[p] /\ Connected(p, q)
  /\ LET over(q)  == {l \in Procs : leads[l] /\ cluster[l] = 0 /\ q # l /\ cluster[q] = 0 /\ Connected(l, q) /\ term[q] < term[l]}
         above(q) == {term[l] : l \in over(q)}
         newest(q) == IF above(q) = {} THEN term[q] ELSE CHOOSE t \in above(q) : \A u \in above(q) : u <= t
         hears(p) == over(p) # {} \/ (IF leads[p] THEN HasMajority(p) ELSE HearsLeader(p))
         older(p) == IF up[p] /\ ~hears(p) THEN Min(age[p] + 1, Lease) ELSE 0
         gone(p)  == {q \in Others(p) : Refused(p, q) \/ (q \in dead[p] /\ ~Connected(p, q))}
         needed(p) == gone(p) # {} /\ ~(Changing /\ agreed[p] /\ \E q \in Others(p) \ gone(p) : single[q])
     IN
        /\ age' = [p \in Procs |-> older(p)]
        /\ term' = [p \in Procs |-> newest(p)]
        /\ leads' = [p \in Procs |-> leads[p] /\ over(p) = {}]
        /\ lost' = [p \in Procs |-> ~leads[p] /\ ~hears(p) /\ (lost[p] \/ older(p) >= Lease)]
        /\ dead' = [p \in Procs |-> IF up[p] THEN gone(p) ELSE {}]
        /\ first' = [p \in Procs |-> IF ~up[p] \/ ~Voter(p) \/ ~needed(p) THEN "no"
                                     ELSE IF first[p] = "ok" \/ (first[p] = "no" /\ older(p) <= Half) \/ older(p) = 0
                                     THEN "ok" ELSE "late"]
        /\ since' = [p \in Procs |-> IF up[p] /\ Voter(p) /\ gone(p) = Others(p) THEN Min(since[p] + 1, Half) ELSE 0]
        /\ UNCHANGED <<up, side, walled, cluster, votes, single, agreed, round, anew, told, ended, again, faults>>

Next == \/ \E p \in Procs : \/ Elect(p) \/ Shrink(p) \/ Learn(p) \/ TakeOver(p) \/ Begin(p) \/ Tell(p) \/ End(p)
                            \/ Kill(p) \/ Cut(p) \/ Wall(p) \/ Break(p)
        \/ \E p, q \in Procs : Join(q, p)
        \/ Tick

Spec == Init /\ [][Next]_vars

(* Two rounds share a number only after the jumps of two clusters. *)
OneNumberARound == \A a, b \in told : a[1] = b[1] /\ a # b => a[1] > Jump
OneSpeaks == Firewall \/ \A p, q \in Procs : Speaks(p) /\ Speaks(q) => p = q
EndedStaysEnded == Firewall \/ ~again

Symmetry == Permutations(Procs)
=============================================================================
