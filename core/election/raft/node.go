package raft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"maps"
	"slices"
	"time"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// Times, as parts of the lease: nothing is urgent, since workers run without a control plane, and any other
// silent node is lost after one lease, too.
const (
	beatParts     = 20 // a tick: the leader's word to each voter
	electionTicks = 8  // a voter that has heard the leader within so many ticks votes for nobody else; it campaigns after once to twice as many
	majorityParts = 4  // a leader whom no majority has heard within this part says nothing
	retryTicks    = 3  // a campaign on proof is repeated so often
	snapshotTicks = 5  // a snapshot that was not answered for so long is sent again,
	storedTicks   = 60 // or so long, where it is all that a Storage has
)

// Beat is how often Tick is called, and how often the leader speaks to each voter.
func Beat(lease time.Duration) time.Duration { return lease / beatParts }

// Node is one process's part in the election of a leader, and its copy of what the leaders have proposed: the
// last value, or all that a Storage makes of them. It is not safe for concurrent use.
type Node struct {
	id      Voter
	lease   time.Duration
	storage Storage           // nil: the last value is all
	cluster string            // "": it takes part in none yet
	raw     *etcdraft.RawNode // nil: the same
	log     *log
	lost    bool   // raft refuses to go on with this memory
	stalled *stall // nil: it is not

	heard        time.Duration // when a leader was last heard
	last         Voter         // the other leader that was heard last; 0: none
	began        time.Duration // when the present term was taken
	term         uint64        // of raft
	led          bool
	campaign     time.Duration // when this process campaigned last
	forced       time.Duration // when another did so at the leader's request
	transferring bool          // it hands on, and proposes nothing

	leaders map[uint64]Voter // that were heard, by term; those before the present value are forgotten

	dead map[Voter]bool // proven; what one of them says takes that back

	// Of the leader.
	answered   map[Voter]time.Duration // when each other voter was last heard
	asked      []time.Duration         // when each question was asked that no majority has answered
	first      uint64                  // the number of the first of them
	majorityAt time.Duration           // a majority has heard this leader since
	since      uint64                  // the number of its first entry: what came before is confirmed with that
	wanted     []Voter
	waiting    map[Voter]int // for how many ticks each voter has had a snapshot
	elections  uint64

	out []Message
}

// New makes the part of a process that takes part in no cluster yet. The first message to it makes it a part of
// one. A storage is empty, or Begin follows.
func New(id Voter, lease, now time.Duration, storage Storage) *Node {
	return &Node{id: id, lease: lease, storage: storage, heard: now, began: now, campaign: now - lease, forced: now - lease, leaders: map[uint64]Voter{}, dead: map[Voter]bool{}}
}

// Begin begins a cluster with these voters, this process among them, who know nothing of it yet, and campaigns
// in it for term+1. A single voter leads at once. It begins with what a storage has, else with the value.
func (n *Node) Begin(cluster string, term uint64, voters []Voter, value []byte, now time.Duration) {
	var ids []uint64
	for _, v := range voters {
		ids = append(ids, uint64(v))
	}
	n.join(cluster, snapshot(1, term+1, &raftpb.ConfState{Voters: ids}, value))
	if n.raw != nil {
		n.do(now, n.raw.Campaign)
	}
}

// join makes the process a part of a cluster.
func (n *Node) join(cluster string, begin *raftpb.Snapshot) {
	l, err := newLog(begin, n.storage)
	if err == nil && begin != nil {
		err = l.SetHardState(&raftpb.HardState{Term: new(begin.GetMetadata().GetTerm()), Commit: new(begin.GetMetadata().GetIndex())})
	}
	if err != nil {
		n.lost = true
		return
	}
	l.change.Reset = true
	n.start(cluster, l)
}

// start takes part in a cluster with a log.
func (n *Node) start(cluster string, l *log) {
	raw, err := etcdraft.NewRawNode(&etcdraft.Config{
		ID: uint64(n.id), ElectionTick: electionTicks, HeartbeatTick: electionTicks - 1, Storage: l, Applied: l.applied,
		MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 64, MaxInflightBytes: 4 << 20, CheckQuorum: true, PreVote: true, DisableProposalForwarding: true, StepDownOnRemoval: true,
		Logger: silent,
	})
	if err != nil {
		n.lost = true
		return
	}
	n.cluster, n.raw, n.log, n.stalled = cluster, raw, l, nil
	n.term = raw.BasicStatus().GetTerm()
}

// stall is a step of raft that is held up, since the storage could not be flushed.
type stall struct {
	ready etcdraft.Ready
	cause error
}

// Stalled returns why this node takes part in nothing at present; nil: it does.
func (n *Node) Stalled() error {
	if n.stalled == nil {
		return nil
	}
	return n.stalled.cause
}

// Propose gives the voters other values, in order. The result is the number that Committed reaches when a
// majority has them; 0: this process does not lead, or hands on.
func (n *Node) Propose(now time.Duration, values ...[]byte) (number uint64) {
	if !n.leads() || n.transferring {
		return 0
	}
	err := etcdraft.ErrProposalDropped // while the node is stalled
	n.do(now, func() error {
		err = nil
		for _, value := range values {
			err = errors.Join(err, n.raw.Propose(value))
		}
		return err
	})
	if err != nil || n.raw == nil {
		return 0
	}
	return n.lastIndex()
}

// Settle counts what is not known to be committed as applied: a cluster that follows without a majority's word
// begins with all that this process knows.
func (n *Node) Settle() error {
	if n.raw == nil || n.storage == nil {
		return nil
	}
	var values [][]byte
	for _, e := range n.log.unapplied() {
		if isValue(e) {
			values = append(values, e.GetData())
		}
	}
	return n.storage.Save(Change{Apply: values})
}

// SetVoters says who shall vote, this process among them. The change follows by itself, as soon as raft allows it.
func (n *Node) SetVoters(voters []Voter, now time.Duration) {
	if len(voters) == 0 || len(voters) > MaxVoters || !slices.Contains(voters, n.id) || slices.Contains(voters, 0) {
		return
	}
	n.wanted = slices.Clone(voters)
	if n.leads() {
		n.do(now, n.change)
	}
}

// change proposes the voters that SetVoters has named.
func (n *Node) change() error {
	conf := n.log.conf
	if n.wanted == nil || n.transferring || len(conf.GetVotersOutgoing()) > 0 {
		return nil
	}
	c := &raftpb.ConfChangeV2{}
	add := func(kind raftpb.ConfChangeType, id uint64) {
		c.Changes = append(c.Changes, &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(id)})
	}
	for _, v := range n.wanted {
		if !slices.Contains(conf.GetVoters(), uint64(v)) {
			add(raftpb.ConfChangeAddNode, uint64(v))
		}
	}
	for _, id := range conf.GetVoters() {
		if !slices.Contains(n.wanted, Voter(id)) {
			add(raftpb.ConfChangeRemoveNode, id)
		}
	}
	if len(c.Changes) == 0 {
		return nil
	}
	return n.raw.ProposeConfChange(c) // raft drops it while another one is under way
}

// Tick lets time pass: it is called each Beat, and may be late.
func (n *Node) Tick(now time.Duration) {
	if n.raw == nil {
		return
	}
	n.do(now, func() error {
		n.raw.Tick()
		if !n.leads() {
			return nil
		}
		n.ask(now)
		n.repeatSnapshots()
		return n.change()
	})
}

// ask asks the voters whether they still follow this leader, which is also its heartbeat.
func (n *Node) ask(now time.Duration) {
	question := binary.LittleEndian.AppendUint64(nil, n.first+uint64(len(n.asked)))
	n.asked = append(n.asked, now)
	n.raw.ReadIndex(question)
}

// answeredBy notes that a majority has heard the leader since it asked a question.
func (n *Node) answeredBy(question []byte) {
	if len(question) != 8 {
		return
	}
	number := binary.LittleEndian.Uint64(question)
	if number < n.first || number-n.first >= uint64(len(n.asked)) {
		return
	}
	at := number - n.first
	n.majorityAt = max(n.majorityAt, n.asked[at])
	n.asked, n.first = n.asked[at+1:], number+1
}

// repeatSnapshots tells raft that snapshots were lost which nobody has answered: it sends nothing else to
// such a voter.
func (n *Node) repeatSnapshots() {
	n.raw.WithProgress(func(id uint64, _ etcdraft.ProgressType, p tracker.Progress) {
		if p.State != tracker.StateSnapshot {
			delete(n.waiting, Voter(id))
			return
		}
		n.waiting[Voter(id)]++
	})
	patience := snapshotTicks
	if n.storage != nil {
		patience = storedTicks
	}
	for id, ticks := range n.waiting {
		if ticks >= patience {
			n.resend(id)
		}
	}
}

func (n *Node) resend(to Voter) {
	delete(n.waiting, to)
	n.raw.ReportSnapshot(uint64(to), etcdraft.SnapshotFailure)
}

// Fresh reports whether nothing was proposed yet in this cluster, as far as this process knows.
func (n *Node) Fresh() bool {
	first, err := n.log.FirstIndex()
	if err != nil || first > 2 { // what came before is not known any more
		return false
	}
	last, _ := n.log.last()
	entries, err := n.log.Entries(first, last+1, 1<<62)
	return last < first || err == nil && !slices.ContainsFunc(entries, isValue)
}

// Parted notes that the connection to another voter has ended: a snapshot that was on its way is lost.
func (n *Node) Parted(id Voter, now time.Duration) {
	if _, waits := n.waiting[id]; waits && n.leads() {
		n.do(now, func() error { n.resend(id); return nil })
	}
}

// Sent notes that a part of a snapshot has reached a voter, which is not to be sent again yet.
func (n *Node) Sent(to Voter) {
	if _, waits := n.waiting[to]; waits {
		n.waiting[to] = 0
	}
}

// Campaign makes the process campaign now, because the leader is proven dead, unless it has just done so. It
// reports false if this process does not vote.
func (n *Node) Campaign(now time.Duration) bool {
	return n.campaignBy(now, func(etcdraft.BasicStatus) error { return errors.Join(n.raw.ForgetLeader(), n.raw.Campaign()) })
}

// TakeOver is Campaign because the leader has asked this process to lead: nobody waits for that one.
func (n *Node) TakeOver(now time.Duration) bool {
	return n.campaignBy(now, func(s etcdraft.BasicStatus) error {
		return n.raw.Step(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: new(s.Lead), To: new(uint64(n.id)), Term: new(s.GetTerm())})
	})
}

func (n *Node) campaignBy(now time.Duration, campaign func(etcdraft.BasicStatus) error) bool {
	if !n.Votes() || n.leads() {
		return false
	}
	if s := n.raw.BasicStatus(); now-n.campaign >= retryTicks*Beat(n.lease) || s.RaftState == etcdraft.StateFollower {
		n.campaign = now
		n.do(now, func() error { return campaign(s) })
	}
	return true
}

// BeginTransfer stops this leader's proposals until EndTransfer, so that another voter, which it asks to take over, can be
// elected. It reports false, and changes nothing, if that voter does not have everything, or a change of
// voters is under way.
func (n *Node) BeginTransfer(to Voter) bool {
	if !n.leads() || len(n.log.conf.GetVotersOutgoing()) > 0 {
		return false
	}
	s := n.raw.Status()
	if p, votes := s.Progress[uint64(to)]; !votes || p.Match < s.Progress[uint64(n.id)].Match {
		return false
	}
	n.transferring = true
	return true
}

// EndTransfer ends BeginTransfer: this leader continues.
func (n *Node) EndTransfer() { n.transferring = false }

// LeaderEnded notes that the leader's side has ended its connection to this process, which votes for
// another one that asks from now on, unless it hears the leader again.
func (n *Node) LeaderEnded(now time.Duration) {
	if n.raw != nil && !n.leads() {
		n.do(now, n.raw.ForgetLeader)
	}
}

// Dead notes that a voter's process is proven dead, or has said that it votes no more, until it is heard again.
func (n *Node) Dead(id Voter, now time.Duration) {
	if id == n.id || id == 0 || n.dead[id] || !n.Voters().Has(id) {
		return
	}
	maps.DeleteFunc(n.dead, func(id Voter, _ bool) bool { return !n.Voters().Has(id) })
	n.dead[id] = true
	if n.Leader() == id {
		n.LeaderEnded(now)
	}
}

// ProvenDead reports whether a voter was noted as dead.
func (n *Node) ProvenDead(id Voter) bool { return n.dead[id] }

func (n *Node) lastIndex() uint64 {
	last, _ := n.log.last()
	return last
}

func (n *Node) termOf(index uint64) (uint64, error) {
	if n.log == nil {
		return 0, etcdraft.ErrUnavailable
	}
	return n.log.Term(index)
}

// do lets raft act, and carries out what comes of it. A memory with which raft cannot go on is given up.
func (n *Node) do(now time.Duration, act func() error) {
	defer func() {
		if recover() != nil {
			n.raw, n.lost = nil, true
		}
	}()
	if n.stalled != nil {
		if n.stalled.cause = n.log.storage.Flush(); n.stalled.cause != nil {
			return
		}
		rd := n.stalled.ready
		if n.stalled = nil; n.finish(rd) != nil {
			n.raw, n.lost = nil, true
			return
		}
	}
	_ = act() // a proposal that raft drops is repeated
	for n.raw.HasReady() {
		if err := n.carryOut(n.raw.Ready()); err != nil {
			n.raw, n.lost = nil, true
			return
		}
		if n.stalled != nil {
			break
		}
	}
	s := n.raw.BasicStatus()
	if s.GetTerm() != n.term {
		n.term, n.began = s.GetTerm(), now
	}
	if lead := Voter(s.Lead); lead != 0 && n.leaders[n.term] == 0 {
		_, written := n.log.latest()
		maps.DeleteFunc(n.leaders, func(term uint64, _ Voter) bool { return term < written })
		n.leaders[n.term] = lead
	}
	leads := s.RaftState == etcdraft.StateLeader
	if leads && !n.led {
		n.asked, n.first, n.majorityAt = nil, n.first+uint64(len(n.asked)), now-n.lease
		n.answered, n.waiting, n.transferring, n.wanted = map[Voter]time.Duration{}, map[Voter]int{}, false, nil
		if !n.alone() {
			n.elections++
		}
		n.led, n.since = true, n.lastIndex()
		n.do(now, func() error { n.ask(now); return nil })
	}
	if n.led && !leads {
		n.heard, n.transferring = now, false
	}
	n.led = leads
}

func (n *Node) carryOut(rd etcdraft.Ready) error {
	l := n.log
	if !etcdraft.IsEmptySnap(rd.Snapshot) {
		if err := l.restore(rd.Snapshot); err != nil {
			return err
		}
		l.change.Reset, l.change.Replace, l.change.Snapshot = true, true, rd.Snapshot.GetData()
	}
	if err := errors.Join(l.Append(rd.Entries), l.keep(rd.Entries)); err != nil {
		return err
	}
	if !etcdraft.IsEmptyHardState(rd.HardState) {
		if err := l.SetHardState(rd.HardState); err != nil {
			return err
		}
	}
	for _, e := range rd.CommittedEntries {
		change, err := l.apply(e)
		if err != nil {
			return err
		}
		if change != nil {
			l.conf = n.raw.ApplyConfChange(change)
			// A single voter that adds others has thereby left the former set, which had nobody else: nothing is
			// decided by it any more. If it were kept, the others could elect nobody should that voter die now.
			if len(l.conf.GetVotersOutgoing()) == 1 {
				l.conf = n.raw.ApplyConfChange(&raftpb.ConfChangeV2{})
			}
		}
	}
	if l.durable() && (!etcdraft.IsEmptySnap(rd.Snapshot) || !etcdraft.IsEmptyHardState(rd.HardState) || len(rd.CommittedEntries) > 0 || l.change.Keep > 0) {
		record, err := n.Record()
		if err != nil {
			return err
		}
		l.change.Record = record
	}
	if err := l.save(); err != nil {
		return err
	}
	if l.durable() && (rd.MustSync || !etcdraft.IsEmptySnap(rd.Snapshot)) {
		if err := l.storage.Flush(); err != nil {
			n.stalled = &stall{rd, err}
			return nil
		}
	}
	return n.finish(rd)
}

// finish sends what a step of raft says, once its storage has what that follows from.
func (n *Node) finish(rd etcdraft.Ready) error {
	for _, r := range rd.ReadStates {
		n.answeredBy(r.RequestCtx)
	}
	for _, m := range rd.Messages {
		if err := n.send(m); err != nil {
			return err
		}
	}
	n.raw.Advance(rd)
	return n.log.compact()
}

func (n *Node) send(m *raftpb.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	n.out = append(n.out, Message{Cluster: n.cluster, From: n.id, To: Voter(m.GetTo()), Data: data})
	return nil
}

// Messages takes the messages to send.
func (n *Node) Messages() []Message {
	out := n.out
	n.out = nil
	return out
}

func (n *Node) leads() bool {
	return n.raw != nil && n.raw.BasicStatus().RaftState == etcdraft.StateLeader
}

// Leads reports whether this process leads, and the term that it is in.
func (n *Node) Leads() (term uint64, leads bool) { return max(n.term, 1) - 1, n.leads() }

// Leader returns the leader of this term; 0: it is not known, or not heard any more.
func (n *Node) Leader() Voter {
	if n.raw == nil {
		return 0
	}
	return Voter(n.raw.BasicStatus().Lead)
}

// Cluster names the cluster that this process takes part in; "": none yet.
func (n *Node) Cluster() string { return n.cluster }

// Lost reports whether this memory is of no use any more. The process then needs another one.
func (n *Node) Lost() bool { return n.lost }

// Founded reports whether this process knows the voters of its cluster.
func (n *Node) Founded() bool { return n.raw != nil && len(n.log.conf.GetVoters()) > 0 }

// Value returns the last value that this process knows, and its position among all that were ever proposed in
// the cluster. The next leader may have another one.
func (n *Node) Value() (value []byte, term, number uint64) {
	if n.raw == nil {
		return nil, 0, 0
	}
	number, term = n.log.last()
	value, _ = n.log.latest()
	return value, term, number
}

// Author returns the leader that has proposed the present value; 0: it is not known.
func (n *Node) Author() Voter {
	if n.raw == nil {
		return 0
	}
	_, written := n.log.latest()
	return n.leaders[written]
}

// Voters returns those who vote, as far as this process knows.
func (n *Node) Voters() Voters {
	if n.raw == nil {
		return Voters{}
	}
	return voters(n.log.conf)
}

// configs are the voters that this process knows, and those after each change that it has in its log: the leader is the
// first to know that one is committed.
func (n *Node) configs() []Voters {
	if n.raw == nil {
		return nil
	}
	list := []Voters{voters(n.log.conf)}
	for _, e := range n.log.unapplied() {
		c := &raftpb.ConfChangeV2{}
		if e.GetType() == raftpb.EntryConfChangeV2 && unmarshal(e.GetData(), c) == nil {
			list = append(list, list[len(list)-1].after(c))
		}
	}
	return list
}

// MayVote returns all that may vote by now, as far as this process can tell: also those whom a change adds.
func (n *Node) MayVote() []Voter {
	var all Voters
	for _, v := range n.configs() {
		all.Incoming = append(all.Incoming, v.All()...)
	}
	return all.All()
}

// MayDecide reports whether these processes may be a majority by now, as far as this process can tell.
func (n *Node) MayDecide(of []Voter) bool {
	return slices.ContainsFunc(n.configs(), func(v Voters) bool { return v.Majority(of) })
}

// alone reports whether this process is the only voter.
func (n *Node) alone() bool {
	v := n.Voters()
	return len(v.Incoming) == 1 && v.Incoming[0] == n.id && len(v.Outgoing) == 0
}

// Votes reports whether this process is one of several that vote.
func (n *Node) Votes() bool { return n.Voters().Has(n.id) && !n.alone() }

// Committed returns the number up to which a majority has what this leader has proposed; 0: it is not known of
// anything yet.
func (n *Node) Committed() uint64 {
	if !n.leads() {
		return 0
	}
	if commit := n.raw.BasicStatus().GetCommit(); commit >= n.since {
		return commit
	}
	return 0
}

// Majority reports whether this leader may judge and speak: enough voters have heard it within a quarter of a
// lease, and so elect no other yet.
func (n *Node) Majority(now time.Duration) bool {
	return n.leads() && (n.alone() || now-n.majorityAt <= n.lease/majorityParts)
}

// HeardByMajority returns since when a majority has heard this leader.
func (n *Node) HeardByMajority(now time.Duration) time.Duration {
	if n.alone() {
		return now
	}
	return n.majorityAt
}

// Answered returns when each other voter was last heard by this leader.
func (n *Node) Answered() map[Voter]time.Duration { return maps.Clone(n.answered) }

// Began returns when the present term was taken.
func (n *Node) Began() time.Duration { return n.began }

// Heard returns when a leader, of this term or an earlier one, was last heard; this process may have been it.
func (n *Node) Heard() time.Duration { return n.heard }

// HeardLast returns the last leader, other than this process, from which a message came; 0: there was none.
func (n *Node) HeardLast() Voter { return n.last }

// Elections is how many this process has won.
func (n *Node) Elections() uint64 { return n.elections }

// silence drops raft's log lines: what matters of them the users of this package tell. What is fatal to raft is a
// panic, which do recovers from.
type silence struct{ *etcdraft.DefaultLogger }

var silent = silence{&etcdraft.DefaultLogger{Logger: stdlog.New(io.Discard, "", 0)}}

func (silence) Fatal(v ...any)                 { panic(fmt.Sprint(v...)) }
func (silence) Fatalf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
