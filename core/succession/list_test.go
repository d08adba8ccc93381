package succession

import (
	"testing"
	"time"
)

// TestYoungVoter: a process that has just been started in the place of another one keeps what a host
// writes, and tells neither that host nor a candidate anything that counts for 0.4 of a lease.
func TestYoungVoter(t *testing.T) {
	voters := Voters{Incoming: []Voter{"a", "b", "c"}}
	entry := &Entry{Term: 2, Number: 7, Voters: voters, Value: []byte("x")}
	says := func(b *Ballot, kind MessageKind) (n int) {
		for _, m := range b.Messages() {
			if m.Kind == kind {
				n++
			}
		}
		return n
	}
	b := NewBallot("b", simLease, 0).Of(3)
	b.Receive(Message{Kind: MessageAppend, From: "a", To: "b", Term: 2, Entry: entry}, 1)
	if got := b.Accepted(); got.Number != 7 || says(b, MessageAccept) != 0 {
		t.Errorf("it has %+v, and has said so", got)
	}
	b.HostEnded()
	if b.Stand(false, 2) || says(b, MessageAskVote) != 0 {
		t.Error("it stands")
	}
	ask := Message{Kind: MessageAskVote, From: "c", To: "b", Term: 3, Number: 7, Entered: 2}
	if b.Receive(ask, 3); says(b, MessageVote) != 0 {
		t.Error("it votes")
	}
	grown := simLease * 2 / 5
	b.Receive(Message{Kind: MessageAppend, From: "a", To: "b", Term: 2}, grown)
	if says(b, MessageAccept) != 1 {
		t.Error("it does not count when it may")
	}
	b.HostEnded()
	if b.Receive(ask, grown); says(b, MessageVote) != 1 {
		t.Error("it does not vote when it may")
	}
	inJob := NewBallot("b", simLease, 0)
	inJob.Receive(Message{Kind: MessageAppend, From: "a", To: "b", Term: 2, Entry: entry}, 1)
	if says(inJob, MessageAccept) != 1 {
		t.Error("the voter of a job waits, too")
	}
}

// TestMajorityOfAList: a host of a list decides nothing with the dead left out, and has the process
// that follows them vote with the old voters that live.
func TestMajorityOfAList(t *testing.T) {
	a := NewBallot("a", simLease, 0).Of(3)
	if a.Found([]Voter{"a"}) || a.Found([]Voter{"b", "c"}) || !a.Found([]Voter{"a", "b", "c"}) {
		t.Error("who may found")
	}
	now := Beat(simLease)
	for ; a.role != preCandidate && now < simLease; now += Beat(simLease) {
		a.Tick(now)
	}
	a.Receive(Message{Kind: MessageVote, From: "b", To: "a", Term: 1, Pre: true}, now)
	a.Receive(Message{Kind: MessageVote, From: "b", To: "a", Term: 1, Clock: 1}, now)
	if _, leads := a.Hosts(); !leads {
		t.Fatal("it is not elected by two of three")
	}
	number := a.Propose([]byte("x"), now)
	a.Dead("b", now)
	a.Dead("c", now)
	if now += simLease; a.Confirmed() >= number || a.Majority(now) {
		t.Error("a host of three confirms alone, since the others are dead")
	}
	a.Wish([]Voter{"a", "b2", "c"}, now)
	if v := a.Accepted().Voters; !v.Has("b2") || !v.changing() {
		t.Fatalf("%+v", v)
	}
	a.Receive(Message{Kind: MessageAccept, From: "b2", To: "a", Term: 1, Number: a.Accepted().Number, Clock: 1, Echo: now}, now)
	if a.Confirmed() < number || !a.Majority(now) || a.Changing() {
		t.Errorf("with the one that follows, %d of %d is confirmed; voters %+v", a.Confirmed(), number, a.Accepted().Voters)
	}
}

// TestAnswerKeepsAHost: two groups have been founded, since memories were lost. A server that was stopped
// reads what the host of one has sent meanwhile, and answers: that may give this host its majority for a
// quarter of a lease from then on, in which the server follows no other.
func TestAnswerKeepsAHost(t *testing.T) {
	b := NewBallot("b", simLease, 0).Of(3)
	hears := func(from Voter, term uint64, now time.Duration) {
		b.Receive(Message{Kind: MessageAppend, From: from, To: "b", Term: term, Clock: now,
			Entry: &Entry{Term: term, Number: 1, Voters: Voters{Incoming: []Voter{from, "b"}}}}, now)
	}
	hears("a", 1, simLease)
	stopped := 2 * simLease
	hears("a", 1, stopped)
	if hears("c", 9, stopped+1); b.Host() != "a" {
		t.Errorf("it follows %s at once", b.Host())
	}
	if hears("c", 9, stopped+simLease/deposeParts); b.Host() != "c" {
		t.Errorf("it follows %s, who is silent", b.Host())
	}
}

// TestDeadOfALongerList: in a list of five the voters may have been changed without a server that takes all others for
// dead: it is not elected by proof, as one of three is.
func TestDeadOfALongerList(t *testing.T) {
	for places, elected := range map[int]bool{3: true, 5: false} {
		voters := []Voter{"a", "b", "c", "d", "e"}[:places]
		b := NewBallot("b", simLease, 0).Of(places)
		now := simLease
		b.Receive(Message{Kind: MessageAppend, From: "a", To: "b", Term: 1, Entry: &Entry{Term: 1, Number: 1, Voters: Voters{Incoming: voters}}}, now)
		for _, id := range voters {
			b.Dead(id, now)
		}
		b.HostEnded()
		b.Stand(false, now)
		if _, leads := b.Hosts(); leads != elected || b.Majority(now) {
			t.Errorf("of %d: leads %v, majority %v", places, leads, b.Majority(now))
		}
	}
}
