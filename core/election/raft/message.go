package raft

import (
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Message is a message from one voter to another.
type Message struct {
	Cluster  string
	From, To Voter
	Data     []byte // a message of raft
}

// Receive takes another process's message. It reports false, and drops the message, if no process that follows
// the protocol can have sent it to this one.
func (n *Node) Receive(m Message, now time.Duration) bool {
	if m.To != n.id || m.From == n.id || m.From == 0 || m.Cluster == "" {
		return false
	}
	if n.lost || n.cluster != "" && n.cluster != m.Cluster {
		return true // of other voters; one of the two will learn of the other
	}
	said := &raftpb.Message{}
	if unmarshal(m.Data, said) != nil || said.GetFrom() != uint64(m.From) || said.GetTo() != uint64(m.To) || !n.possible(said) {
		return false
	}
	if n.cluster == "" {
		if n.join(m.Cluster, nil); n.lost {
			return true
		}
	}
	if n.leads() && !n.Voters().Has(m.From) {
		n.inform(said)
		return true // it votes no more, and does not know it
	}
	if string(said.GetContext()) == transfer {
		if now-n.forced < n.lease/majorityParts {
			return true // a process that says the leader has asked it cannot end one term after the other
		}
		n.forced = now
	}
	delete(n.dead, m.From)
	if n.leads() {
		n.answered[m.From] = now
	}
	n.do(now, func() error { return n.raw.Step(said) })
	if n.raw != nil && n.Leader() == m.From {
		switch said.GetType() {
		case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
			n.heard, n.last = now, m.From
		}
	}
	return true
}

// inform tells a process that votes no more, and asks for a vote, that its log is committed: it may have been cut off
// before it heard so of the change by which it votes no more, and raft sends it nothing any more.
func (n *Node) inform(said *raftpb.Message) {
	if said.GetType() == raftpb.MsgPreVote && said.GetLogTerm() == n.term && said.GetIndex() <= n.raw.BasicStatus().GetCommit() {
		_ = n.send(&raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: said.To, To: said.From, Term: new(n.term), Commit: said.Index})
	}
}

// transfer marks the request for a vote of a process that the leader has asked to take over.
const transfer = "CampaignTransfer"

// possible reports whether raft can take a message: it trusts its peers, and gives up where a message cannot be.
func (n *Node) possible(m *raftpb.Message) bool {
	term, last, commit := uint64(0), uint64(0), uint64(0)
	if n.raw != nil {
		term, last, commit = n.term, n.lastIndex(), n.raw.BasicStatus().GetCommit()
	}
	if m.GetTerm() < 1 || m.GetTerm() > maxTerm || last > 0 && m.GetTerm() > term+maxAhead {
		return false
	}
	stale := m.GetTerm() < term // raft ignores it, or answers
	switch m.GetType() {
	case raftpb.MsgHeartbeat:
		return stale || m.GetCommit() <= last
	case raftpb.MsgApp:
		next := m.GetIndex()
		for _, e := range m.GetEntries() {
			if next++; e.GetIndex() != next || e.GetTerm() > m.GetTerm() || e.GetType() == raftpb.EntryConfChange {
				return false
			}
			if had, err := n.termOf(next); next <= commit && err == nil && had != e.GetTerm() && !stale {
				return false // what is committed stays
			}
		}
		return m.GetIndex() < 1<<62
	case raftpb.MsgSnap:
		meta := m.GetSnapshot().GetMetadata()
		conf := meta.GetConfState()
		return meta.GetIndex() > 0 && meta.GetIndex() < 1<<62 && meta.GetTerm() > 0 && meta.GetTerm() <= m.GetTerm() && len(conf.GetLearners())+len(conf.GetLearnersNext()) == 0 &&
			voters(conf).possible()
	case raftpb.MsgAppResp:
		return stale || m.GetIndex() <= last || m.GetReject()
	case raftpb.MsgVote, raftpb.MsgPreVote, raftpb.MsgVoteResp, raftpb.MsgPreVoteResp, raftpb.MsgHeartbeatResp:
		return true
	}
	return false // local, or of what is not used
}

// unmarshal decodes a message of raft, of which unknown fields are none.
func unmarshal(data []byte, into proto.Message) error {
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, into)
}
