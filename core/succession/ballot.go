package succession

import (
	"maps"
	"slices"
	"time"
)

// Entry is the voters' memory: the one value of the last host that a majority may have accepted,
// and the set of voters. A later entry replaces an earlier one.
type Entry struct {
	Term   uint64 // of the host that wrote it; 0: there is none
	Number uint64 // grows with each entry, over all terms
	Voters Voters
	Value  []byte
}

// after reports whether an entry replaces another one.
func (e Entry) after(f Entry) bool {
	return e.Term > f.Term || e.Term == f.Term && e.Number > f.Number
}

// MessageKind is the kind of a message.
type MessageKind uint8

// The kinds.
const (
	MessageAppend   MessageKind = iota + 1 // the host of a term lives; with Entry, accept it
	MessageAccept                          // the answer: Number was accepted in Term
	MessageAskVote                         // would you vote for me in Term? (Raft's pre-vote, with Pre)
	MessageVote                            // yes
	MessageTermOver                        // no: I have promised Term
)

// Message is a message from one voter to another.
type Message struct {
	Kind     MessageKind
	From, To Voter
	Term     uint64
	Number   uint64 // of MessageAccept; of MessageAskVote: of the sender's entry
	Entered  uint64 // of MessageAskVote: the term of the sender's entry
	Pre      bool   // of MessageAskVote and MessageVote: nothing is promised
	Forced   bool   // of MessageAskVote: the host of the term before has asked the sender to host
	Entry    *Entry // of MessageAppend; nil: the receiver has accepted it

	// A message may be old when it arrives, so that a host dates an answer by its own clock.
	Clock time.Duration // the sender's
	Echo  time.Duration // of MessageAccept: Clock of the message that this answers
}

// maxNumber bounds the numbers that are believed, so that none runs over.
const maxNumber = 1 << 62

// possible reports whether a process that follows the protocol can have said this.
func (m Message) possible() bool {
	if !Believable(m.Term) || m.Number > maxNumber || m.Entered > MaxTerm {
		return false
	}
	if e := m.Entry; e != nil {
		return e.Term == m.Term && e.Number > 0 && e.Number <= maxNumber && e.Voters.possible()
	}
	return true
}

// role is a process's role in its term.
type role uint8

const (
	follower     role = iota
	preCandidate      // it asks for pre-votes
	candidate         // it asks for votes
	leader            // it hosts
)

// Ballot is one process's part in the vote about who hosts, and its copy of the facts that one
// host passes to the next. It is pure: each call gets the time, which must not go back, and
// Messages returns the messages to send. It follows Raft, with one entry instead of a log. Proof
// of death makes an election quick, and is never a part of a majority (docs/decisions/0138).
//
// It is not safe for concurrent use.
type Ballot struct {
	id    Voter
	lease time.Duration
	born  time.Duration
	least int // so many of a fixed list have to agree; 0: there is no list

	role     role
	promised uint64 // the highest term that this process has heard of and taken
	granted  Voter  // whom it has voted for in that term; "": nobody
	accepted Entry
	host     Voter // of the term; "": not known
	last     Voter // the other host that was heard last, of this term or of an earlier one; "": none

	heard  time.Duration // when the host was last heard
	waits  time.Duration // since when it has waited for a host: the same, or when it voted, or woke up
	began  time.Duration // when promised was taken
	stood  time.Duration // when it began to ask, or to stand
	ticked time.Duration // when it was last known to run
	voted  time.Duration // when it voted for another process: one that says the host has asked it cannot end one term after the other
	ended  bool          // the host has ended its connection to this process
	forced bool          // it stands because the host has asked it to
	leaps  bool          // its term leaves out those that the dead may have had

	dead map[Voter]bool // proven; what one of them says takes that back

	// Of a candidate.
	votes map[Voter]bool // those that were granted

	// Of the host.
	peers     map[Voter]peer
	former    map[Voter]bool // they vote no more, and do not know it yet
	since     uint64         // the number from which the voters are as they are
	confirmed uint64         // this host may act on it
	settled   uint64         // the voters may change after it: the same, but in a fixed list the excused do not count as missing
	wish      []Voter
	hands     Voter // it is asked to host
	elections uint64

	out []Message
}

// peer is a host's state of a process that it communicates with.
type peer struct {
	reached uint64        // the number that it has accepted in this term
	heard   time.Duration // when it was last heard; 0: not yet
	sure    time.Duration // after this it has heard this host
}

// NewBallot makes the part of a process that knows nothing and does not vote.
func NewBallot(id Voter, lease time.Duration, now time.Duration) *Ballot {
	return &Ballot{id: id, lease: lease, born: now, heard: now, voted: now - lease, waits: now, began: now, ticked: now, dead: map[Voter]bool{}}
}

// Of makes the voters a fixed list of so many places, in each of which processes may follow one
// another (docs/decisions/0139). A host then decides nothing without a majority of the list,
// however many are proven dead. It comes before anything else.
func (b *Ballot) Of(places int) *Ballot {
	b.least = places/2 + 1
	return b
}

// Young reports whether a process of a fixed list has not run for long enough to accept or to grant
// anything: the one before it in its place, whose memory is lost, may have told another host that
// it hears it.
func (b *Ballot) Young(now time.Duration) bool {
	return b.least > 0 && now-b.born < b.lease*2/5
}

// Found has a process that knows nothing yet of a fixed list stand among those that it can
// reach, itself included: all of them know nothing either. It reports false, and changes nothing,
// if they are no majority of the list, or this process knows of a host.
func (b *Ballot) Found(voters []Voter) bool {
	if b.Founded() || b.least == 0 || len(voters) < b.least || !slices.Contains(voters, b.id) || !(Voters{Incoming: voters}).possible() {
		return false
	}
	if !sameSet(voters, b.accepted.Voters.Incoming) {
		b.rest()
		b.accepted.Voters = Voters{Incoming: slices.Clone(voters)}
	}
	return true
}

// Changing reports whether the voters are being changed, as far as this process knows.
func (b *Ballot) Changing() bool { return b.accepted.Voters.changing() }

// Founded reports whether this process knows an entry of a host.
func (b *Ballot) Founded() bool { return b.accepted.Term > 0 }

// Lead makes the process the host of a term without a vote, as its only voter: it founds the
// group, or the host before is proven dead, and nobody else votes.
func (b *Ballot) Lead(term uint64, now time.Duration) {
	value := b.accepted.Value
	b.accepted = Entry{Term: term, Number: b.accepted.Number, Voters: Voters{Incoming: []Voter{b.id}}, Value: value}
	b.promised, b.granted = term, b.id
	b.lead(now)
}

// Propose gives the voters another value. The result is the number that Confirmed reaches when
// a majority has accepted it; 0: this process does not host, or hands on.
func (b *Ballot) Propose(value []byte, now time.Duration) (number uint64) {
	if b.role != leader || b.hands != "" {
		return 0
	}
	b.write(Entry{Voters: b.accepted.Voters, Value: value}, now)
	return b.accepted.Number
}

// Wish says who shall vote, this process among them. The change takes two entries, of which
// the second follows by itself once the first is accepted.
func (b *Ballot) Wish(voters []Voter, now time.Duration) {
	if (Voters{Incoming: voters}).possible() && slices.Contains(voters, b.id) {
		b.wish = slices.Clone(voters)
		b.change(now)
	}
}

// Tick lets time pass: it is called each Beat, and may be late.
func (b *Ballot) Tick(now time.Duration) {
	late := b.late(now)
	switch {
	case b.role == leader:
		maps.DeleteFunc(b.former, func(id Voter, _ bool) bool { return now-max(b.peers[id].heard, b.began) >= b.lease })
		for _, id := range b.audience() {
			b.speak(id, b.peers[id].reached < b.accepted.Number, now)
		}
		b.change(now)
	case late:
	case b.accepted.Voters.Has(b.id) && now-b.waits >= b.patience():
		b.stand(now)
	}
}

// late reports whether this process was stopped: it may not have read yet what it was sent
// meanwhile. It then waits for a host as if it had heard one now.
func (b *Ballot) late(now time.Duration) bool {
	late := now-b.ticked > Beat(b.lease)+b.lease/lateParts
	b.ticked = now
	if late && b.role != leader {
		b.waits, b.ended = now, false
		b.rest()
	}
	return late
}

// patience is how long this voter waits for its silent host before it stands: each voter a beat
// longer than the one before it.
func (b *Ballot) patience() time.Duration {
	place := 0
	for _, id := range b.accepted.Voters.All() {
		if id == b.id {
			break
		}
		if id != b.host {
			place++
		}
	}
	return b.lease/standParts + time.Duration(place)*Beat(b.lease)
}

// Stand makes the process stand now, because the host is proven dead or, if asked, because the
// host wants it to take over. It reports false if this process does not vote.
func (b *Ballot) Stand(asked bool, now time.Duration) bool {
	if !b.accepted.Voters.Has(b.id) || b.role == leader || b.Young(now) {
		return false
	}
	if asked && !b.forced { // or each call would begin another term before the votes of this one come
		b.rest()
		b.forced = true
	}
	b.stand(now)
	return true
}

// HandOn stops this host's writes until KeepOn, so that another voter, which it asks to stand,
// can be elected. It reports false, and changes nothing, if that voter has not accepted
// everything, or a change of voters is under way.
func (b *Ballot) HandOn(to Voter) bool {
	if b.role != leader || b.accepted.Voters.changing() || b.peers[to].reached < b.accepted.Number {
		return false
	}
	b.hands = to
	return true
}

// KeepOn ends HandOn: this host continues.
func (b *Ballot) KeepOn() { b.hands = "" }

// HostEnded notes that the host's side has ended its connection to this process, which grants
// its vote from now on to another one that asks.
func (b *Ballot) HostEnded() { b.ended = true }

// Receive takes another process's message. It reports false, and drops the message, if no process
// that follows the protocol can have sent it to this one.
func (b *Ballot) Receive(m Message, now time.Duration) bool {
	if m.To != b.id || m.From == b.id || !m.possible() {
		return false
	}
	b.late(now)
	if b.least == 0 {
		delete(b.dead, m.From) // a firewall has answered in its name
	}
	switch m.Kind {
	case MessageAppend:
		b.receiveAppend(m, now)
	case MessageAccept:
		if b.role == leader && m.Term == b.promised && m.Number <= b.accepted.Number && b.speaksTo(m.From) {
			p := b.peers[m.From]
			p = peer{max(p.reached, m.Number), now, max(p.sure, min(m.Echo, now))}
			b.peers[m.From] = p
			if p.reached >= b.since {
				delete(b.former, m.From)
			}
			b.settle(now)
		}
	case MessageAskVote:
		b.askedForVote(m, now)
	case MessageVote:
		switch {
		case !b.accepted.Voters.Has(m.From):
		case b.role == preCandidate && m.Pre && m.Term == b.promised+1, b.role == candidate && !m.Pre && m.Term == b.promised:
			b.votes[m.From] = true
			b.settle(now)
		}
	case MessageTermOver:
		if m.Term > b.promised && !b.outsider(m.From, now) && !b.keeps(m.From, now) {
			b.follow(m.Term, "", now)
		}
	}
	return true
}

// keeps reports whether a process of a fixed list follows no other host, whatever its term: it hosts with a
// majority, or counts in that of a host. Another may lead, by what it remembers, servers that are
// gone, in terms that nobody else knows of.
func (b *Ballot) keeps(from Voter, now time.Duration) bool {
	switch {
	case b.least == 0:
		return false
	case b.role == leader:
		return b.Majority(now)
	}
	if b.host == "" || b.host == from || b.ended || b.dead[b.host] {
		return false
	}
	return now-b.heard < b.lease/deposeParts // what it has answered may give that host its majority
}

// outsider reports whether a process does not vote, while this one hosts and has a majority.
func (b *Ballot) outsider(id Voter, now time.Duration) bool {
	return b.Majority(now) && !b.accepted.Voters.Has(id)
}

func (b *Ballot) receiveAppend(m Message, now time.Duration) {
	if m.Term < b.promised {
		b.send(Message{Kind: MessageTermOver, To: m.From, Term: b.promised})
		return
	}
	if m.Term == b.promised && b.host != "" && b.host != m.From {
		return // a term has one host
	}
	if m.Term > b.promised && (b.keeps(m.From, now) || !b.follow(m.Term, m.From, now)) {
		return
	}
	b.host, b.last, b.heard, b.waits, b.ended = m.From, m.From, now, now, false
	b.rest()
	if m.Entry != nil && m.Entry.after(b.accepted) {
		b.accepted = *m.Entry
	}
	if b.Young(now) {
		return
	}
	answer := Message{Kind: MessageAccept, To: m.From, Term: m.Term, Echo: m.Clock}
	if b.accepted.Term == m.Term {
		answer.Number = b.accepted.Number
	}
	b.send(answer)
}

// askedForVote grants a vote to a process whose entry is not older than the own one, unless
// this one has heard the host lately: no host is deposed that a majority hears.
func (b *Ballot) askedForVote(m Message, now time.Duration) {
	theirs := Entry{Term: m.Entered, Number: m.Number}
	hears := b.role == leader && b.hasMajority(now, b.lease/deposeParts) ||
		b.role != leader && now-b.waits < b.lease*2/5 && !b.ended
	asked := m.Forced && now-b.voted >= b.lease/deposeParts
	free := m.Term == b.promised && !m.Pre && b.host == "" && (b.granted == "" || b.granted == m.From)
	switch {
	case b.outsider(m.From, now): // it votes no more, and does not know it
		b.speak(m.From, true, now)
	case m.Term <= b.promised && !free:
		b.send(Message{Kind: MessageTermOver, To: m.From, Term: b.promised})
	case b.Young(now), b.accepted.after(theirs), hears && !asked && !(free && b.granted == m.From):
	case m.Pre:
		b.send(Message{Kind: MessageVote, To: m.From, Term: m.Term, Pre: true})
	case free || b.follow(m.Term, "", now):
		b.rest()
		b.granted, b.waits, b.voted, b.ended = m.From, now, now, false
		b.send(Message{Kind: MessageVote, To: m.From, Term: m.Term})
	}
}

// follow takes a later term. A host's term that has just begun is not ended by the next, so that
// a process that makes terms up cannot keep the others from having a host; that of a host
// whose vote is the only one is not ended at all.
func (b *Ballot) follow(term uint64, host Voter, now time.Duration) bool {
	if b.role == leader && b.hands == "" && (now-b.began < b.lease/deposeParts || b.alone()) {
		return false
	}
	if b.role == leader {
		b.waits = now // it has heard itself until now
	}
	b.promised, b.granted, b.host, b.began = term, "", host, now
	b.role, b.forced = follower, false
	return true
}

// rest ends a candidacy.
func (b *Ballot) rest() {
	if b.role == preCandidate || b.role == candidate {
		b.role = follower
	}
	b.forced = false
}

// stand asks for pre-votes, or repeats requests that were not answered.
func (b *Ballot) stand(now time.Duration) {
	if b.role != follower && now-b.stood >= b.lease/deposeParts {
		b.rest() // the vote was split, answers were lost, or are too old
	}
	if b.role == follower {
		b.role, b.stood, b.votes = preCandidate, now, map[Voter]bool{b.id: true}
	}
	if b.role == preCandidate && b.forced && Believable(b.promised+1) {
		b.campaign(b.promised+1, now) // a word of the host that is under way would end the asking
	} else {
		b.canvass()
	}
	b.settle(now)
}

// canvass asks all voters that have not answered.
func (b *Ballot) canvass() {
	m := Message{Kind: MessageAskVote, Term: b.promised, Number: b.accepted.Number, Entered: b.accepted.Term, Pre: b.role == preCandidate, Forced: b.forced}
	if m.Pre {
		m.Term++
	}
	for _, id := range b.accepted.Voters.All() {
		if !b.votes[id] && Believable(m.Term) {
			m.To = id
			b.send(m)
		}
	}
}

// settle acts on the counted votes.
func (b *Ballot) settle(now time.Duration) {
	switch b.role {
	case preCandidate, candidate:
		alone := !b.won(nobody)
		switch {
		case !b.won(b.excused):
		case b.role == candidate && (b.leaps || !alone):
			b.elections++
			b.lead(now)
		case alone && Believable(b.promised+b.deadTerms()):
			b.campaign(b.promised+b.deadTerms(), now)
			b.leaps = true
			b.settle(now)
		case !alone && Believable(b.promised+1):
			b.campaign(b.promised+1, now)
			b.settle(now)
		}
	case leader:
		reached := func(id Voter) uint64 { return b.peers[id].reached }
		if n := b.accepted.Voters.agreed(reached, b.excused); n >= b.since {
			b.settled = max(b.settled, min(n, b.accepted.Number))
		}
		if n := b.decided(reached); n >= b.since {
			b.confirmed = max(b.confirmed, min(n, b.accepted.Number))
		}
		b.change(now)
	}
}

// deadTerms is how many terms a process goes up that leads a fixed list without a majority, since the others
// are excused. While they lived, each may have led in the same way, with fewer dead, and have won
// elections before and after.
func (b *Ballot) deadTerms() (terms uint64) {
	for _, id := range b.accepted.Voters.All() {
		if b.excused(id) {
			terms += termsOfOne
		}
	}
	return terms
}

// campaign stands for election in a term.
func (b *Ballot) campaign(term uint64, now time.Duration) {
	b.role, b.votes, b.leaps = candidate, map[Voter]bool{b.id: true}, false
	b.promised, b.granted, b.host, b.began, b.stood = term, b.id, "", now, now
	b.canvass()
}

func nobody(Voter) bool { return false }

// won reports whether enough voters have granted their vote.
func (b *Ballot) won(excused func(Voter) bool) bool {
	granted := func(id Voter) uint64 {
		if b.votes[id] {
			return 1
		}
		return 0
	}
	if b.least > 0 && !b.Founded() { // who founds needs those that live: others may found without it
		return reachedBy(b.accepted.Voters.Incoming, granted, b.least) > 0
	}
	return b.accepted.Voters.agreed(granted, excused) > 0
}

// lead begins to host: it writes the accepted entry once more, in its own term, and so
// learns when a majority has it.
func (b *Ballot) lead(now time.Duration) {
	b.peers, b.former, b.wish = map[Voter]peer{}, map[Voter]bool{}, nil
	for id := range b.votes {
		b.peers[id] = peer{heard: now, sure: b.began}
	}
	b.role, b.host, b.began, b.ended, b.forced = leader, b.id, now, false, false
	b.votes, b.hands = nil, ""
	b.confirmed, b.settled = 0, 0
	b.since = b.accepted.Number + 1
	b.write(b.accepted, now)
}

// write replaces the entry.
func (b *Ballot) write(e Entry, now time.Duration) {
	e.Term, e.Number = b.promised, b.accepted.Number+1
	b.accepted = e
	own := b.peers[b.id]
	own.reached = e.Number
	b.peers[b.id] = own
	for _, id := range b.audience() {
		b.speak(id, true, now)
	}
	b.settle(now)
}

// change takes the next step towards the voters that are wished for, if the one before is
// confirmed.
func (b *Ballot) change(now time.Duration) {
	v := b.accepted.Voters
	switch {
	case b.role != leader || b.hands != "" || b.settled < b.since:
	case v.changing():
		maps.DeleteFunc(b.former, func(id Voter, _ bool) bool { return slices.Contains(v.Incoming, id) })
		for _, id := range v.Outgoing {
			if !slices.Contains(v.Incoming, id) && !b.dead[id] {
				b.former[id] = true
			}
		}
		b.since = b.accepted.Number + 1
		b.write(Entry{Voters: Voters{Incoming: v.Incoming}, Value: b.accepted.Value}, now)
		maps.DeleteFunc(b.peers, func(id Voter, _ peer) bool { return !b.speaksTo(id) })
	case b.wish != nil && !sameSet(b.wish, v.Incoming):
		b.since = b.accepted.Number + 1
		b.write(Entry{Voters: Voters{Incoming: slices.Clone(b.wish), Outgoing: v.Incoming}, Value: b.accepted.Value}, now)
	}
}

// audience are the processes that the host speaks to.
func (b *Ballot) audience() []Voter {
	all := b.accepted.Voters.All()
	for _, id := range slices.Sorted(maps.Keys(b.former)) {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return slices.DeleteFunc(all, func(id Voter) bool { return id == b.id })
}

func (b *Ballot) speak(to Voter, whole bool, now time.Duration) {
	m := Message{Kind: MessageAppend, To: to, Term: b.promised, Clock: now}
	if whole {
		e := b.accepted
		m.Entry = &e
	}
	b.send(m)
}

func (b *Ballot) send(m Message) {
	m.From = b.id
	b.out = append(b.out, m)
}

// Messages takes the messages to send.
func (b *Ballot) Messages() []Message {
	out := b.out
	b.out = nil
	return out
}

// hasMajority reports whether enough voters have heard this host within a time.
func (b *Ballot) hasMajority(now, within time.Duration) bool {
	heard := func(id Voter) uint64 {
		p, ok := b.peers[id]
		if id == b.id || ok && now-p.sure <= within {
			return 1
		}
		return 0
	}
	return b.decided(heard) > 0
}

// decided returns the largest number that enough voters have reached for a host to act on it. Of a
// fixed list the excused count as missing, but among those that are being replaced.
func (b *Ballot) decided(reached func(Voter) uint64) uint64 {
	v := b.accepted.Voters
	n := reachedBy(v.Incoming, reached, b.least)
	if v.changing() {
		n = min(n, agreedIn(v.Outgoing, reached, b.excused))
	}
	return n
}

// Hosts reports whether this process hosts, and in which term.
func (b *Ballot) Hosts() (term uint64, hosts bool) { return b.promised, b.role == leader }

// alone reports whether this process is the only voter.
func (b *Ballot) alone() bool {
	return b.accepted.Voters.Has(b.id) && !b.Votes()
}

// Votes reports whether this process is one of several that vote.
func (b *Ballot) Votes() bool {
	v := b.accepted.Voters
	return v.Has(b.id) && (len(v.Incoming) > 1 || v.changing())
}

// Confirmed returns the number up to which a majority has accepted what this host has
// proposed; what it proposed before it was deposed counts no more.
func (b *Ballot) Confirmed() uint64 {
	if b.role != leader {
		return 0
	}
	return b.confirmed
}

// Accepted returns the last entry that this process knows.
func (b *Ballot) Accepted() Entry { return b.accepted }

// Began returns when the present term was taken.
func (b *Ballot) Began() time.Duration { return b.began }

// Host returns the host of this term; "": it is not known.
func (b *Ballot) Host() Voter { return b.host }

// Resign ends the hosting of a process that has met another host, of another kind of proof.
func (b *Ballot) Resign(now time.Duration) {
	if b.role == leader {
		b.role, b.host, b.waits = follower, "", now
	}
}

// Heard returns when the host of an earlier term, or of this one, was last heard.
func (b *Ballot) Heard() time.Duration { return b.heard }

// HeardLast returns the last host, other than this process, from which a message came; "" if
// there was none.
func (b *Ballot) HeardLast() Voter { return b.last }

// Majority reports whether this host may judge and speak: enough voters have heard it within a
// quarter of a lease, and so elect no other yet.
func (b *Ballot) Majority(now time.Duration) bool {
	return b.role == leader && (b.alone() || b.hasMajority(now, b.lease/deposeParts))
}

// Answered returns when each other voter was last heard by this host.
func (b *Ballot) Answered() map[Voter]time.Duration {
	answered := map[Voter]time.Duration{}
	for id, p := range b.peers {
		if id != b.id && p.heard > 0 {
			answered[id] = p.heard
		}
	}
	return answered
}

// Elections is how many this process has won.
func (b *Ballot) Elections() uint64 { return b.elections }
