------------------------------- MODULE Fence -------------------------------
(* Who replaces a checkpoint has loaded or written the present one
   (core/fence). The steps are those of Open and Commit; a process may stop
   between any two. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS Procs, MaxVersion,
          Cut,        \* TRUE: the server of the files may give the lock of a process to another one
          Check,      \* a write is refused unless its writer has the present version
          Locked,     \* opening takes the lock
          Ordered,    \* the record is replaced before the data
          Exclusive   \* who replaces the record first removes those that others are about to put in its place

None   == 0
Nobody == "nobody"

VARIABLES record,  \* the version in the record
          data,    \* the version of the data in place
          lock,    \* who has the lock, as its server knows
          step,    \* [p -> its next step]
          held,    \* [p -> the version that it may replace]
          loaded,  \* [p -> the version of the data that it has loaded or written]
          own,     \* [p -> the version that it writes]
          base,    \* [p -> the version that its temporary is to replace; Gone: it has none]
          fresh,   \* processes whose record is about to take the record's place
          next,    \* the next version
          lost     \* data were replaced by a process that had not loaded them

vars == <<record, data, lock, step, held, loaded, own, base, fresh, next, lost>>

Gone == -1

Init == /\ record = None /\ data = None /\ lock = Nobody /\ next = 1 /\ lost = FALSE /\ fresh = {}
        /\ step = [p \in Procs |-> "open"]
        /\ held = [p \in Procs |-> None] /\ loaded = [p \in Procs |-> None]
        /\ own = [p \in Procs |-> None] /\ base = [p \in Procs |-> Gone]

Go(p, to) == step' = [step EXCEPT ![p] = to]
Take(p)   == lock = Nobody /\ lock' = p
Unlock(p) == lock' = IF lock = p THEN Nobody ELSE lock

(* Who has the lock removes what others have left: records that are not in place, and
   temporaries that are to replace another version than the one that it has read. *)
Sweep(p) == /\ fresh' = {}
            /\ base' = [q \in Procs |-> IF base[q] = held[p] THEN base[q] ELSE Gone]

Open(p) ==
  /\ step[p] = "open" /\ (IF Locked THEN Take(p) ELSE UNCHANGED lock)
  /\ held' = [held EXCEPT ![p] = record]
  /\ Go(p, "opened")
  /\ UNCHANGED <<record, data, loaded, own, base, fresh, next, lost>>

Opened(p) ==
  /\ step[p] = "opened" /\ (IF Locked THEN Sweep(p) ELSE UNCHANGED <<fresh, base>>) /\ Unlock(p) /\ Go(p, "load")
  /\ UNCHANGED <<record, data, held, loaded, own, next, lost>>

Load(p) ==
  /\ step[p] = "load" /\ Go(p, "prepare")
  /\ loaded' = [loaded EXCEPT ![p] = data]
  /\ UNCHANGED <<record, data, lock, held, own, base, fresh, next, lost>>

(* It writes the next version's data under a temporary name. *)
Prepare(p) ==
  /\ step[p] = "prepare" /\ next <= MaxVersion /\ Go(p, "begin")
  /\ own' = [own EXCEPT ![p] = next] /\ next' = next + 1
  /\ base' = [base EXCEPT ![p] = held[p]]
  /\ UNCHANGED <<record, data, lock, held, loaded, fresh, lost>>

May(p) == held[p] = record \/ ~Check

Refused(p) == Unlock(p) /\ Go(p, "prepare") /\ base' = [base EXCEPT ![p] = Gone] /\ fresh' = fresh \ {p}

(* Commit, under the lock: *)
Begin(p) ==
  /\ step[p] = "begin" /\ Take(p)
  /\ Go(p, IF May(p) THEN "sweep" ELSE "refuse")
  /\ UNCHANGED <<record, data, held, loaded, own, base, fresh, next, lost>>

Refuse(p) ==
  /\ step[p] = "refuse" /\ Refused(p)
  /\ UNCHANGED <<record, data, held, loaded, own, next, lost>>

Swept(p) ==
  /\ step[p] = "sweep" /\ Sweep(p) /\ Go(p, IF ~Ordered THEN "replace" ELSE IF Exclusive THEN "create" ELSE "advance")
  /\ UNCHANGED <<record, data, lock, held, loaded, own, next, lost>>

Create(p) ==
  /\ step[p] = "create" /\ fresh' = fresh \cup {p} /\ Go(p, "exclude")
  /\ UNCHANGED <<record, data, lock, held, loaded, own, base, next, lost>>

Exclude(p) ==
  /\ step[p] = "exclude" /\ fresh' = fresh \cap {p} /\ Go(p, "check")
  /\ UNCHANGED <<record, data, lock, held, loaded, own, base, next, lost>>

Again(p) ==
  /\ step[p] = "check" /\ Go(p, IF May(p) THEN "advance" ELSE "refuse")
  /\ UNCHANGED <<record, data, lock, held, loaded, own, base, fresh, next, lost>>

Advance(p) ==
  /\ step[p] = "advance"
  /\ IF Exclusive /\ Ordered /\ p \notin fresh
     THEN Refused(p) /\ UNCHANGED <<record, held>>
     ELSE /\ record' = own[p] /\ held' = [held EXCEPT ![p] = own[p]] /\ fresh' = fresh \ {p}
          /\ Go(p, IF Ordered THEN "replace" ELSE "end")
          /\ UNCHANGED <<lock, base>>
  /\ UNCHANGED <<data, loaded, own, next, lost>>

Replace(p) ==
  /\ step[p] = "replace"
  /\ IF base[p] = Gone
     THEN Refused(p) /\ UNCHANGED <<data, loaded, lost>>
     ELSE /\ lost' = (lost \/ loaded[p] # data)
          /\ data' = own[p] /\ loaded' = [loaded EXCEPT ![p] = own[p]]
          /\ base' = [base EXCEPT ![p] = Gone]
          /\ Go(p, IF Ordered THEN "end" ELSE "advance")
          /\ UNCHANGED <<lock, fresh>>
  /\ UNCHANGED <<record, held, own, next>>

End(p) ==
  /\ step[p] = "end" /\ Sweep(p) /\ Unlock(p) /\ Go(p, "prepare")
  /\ UNCHANGED <<record, data, held, loaded, own, next, lost>>

(* A process stops; what it has done stays, and another one starts in its place. *)
Stop(p) ==
  /\ step[p] # "open" /\ Go(p, "open") /\ Unlock(p)
  /\ held' = [held EXCEPT ![p] = None] /\ loaded' = [loaded EXCEPT ![p] = None] /\ own' = [own EXCEPT ![p] = None]
  /\ base' = [base EXCEPT ![p] = Gone] /\ fresh' = fresh \ {p}  \* nobody will put them in place
  /\ UNCHANGED <<record, data, next, lost>>

Lose(p) ==
  /\ Cut /\ lock = p /\ lock' = Nobody
  /\ UNCHANGED <<record, data, step, held, loaded, own, base, fresh, next, lost>>

Next == \E p \in Procs :
  \/ Open(p) \/ Opened(p) \/ Load(p) \/ Prepare(p)
  \/ Begin(p) \/ Refuse(p) \/ Swept(p) \/ Create(p) \/ Exclude(p) \/ Again(p) \/ Advance(p) \/ Replace(p) \/ End(p)
  \/ Stop(p) \/ Lose(p)

Spec == Init /\ [][Next]_vars

Lineage == ~lost

Symmetry == Permutations(Procs)
=============================================================================
