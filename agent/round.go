package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/world"
	"rallypoint/internal/background"
)

// announcedStop is the announced stop of this node's round; its Round is 0 if none is
// known.
func (n *node) announcedStop() rendezvous.RoundStop {
	return n.rdzv.Stopped(n.assignment.Round)
}

// lossSeen reports whether a node of the round is known to be lost. It is called after a failure
// of this node, whose own announcement also makes nodes wait.
func (n *node) lossSeen() bool {
	if n.rdzv.NodesWaiting() == 0 {
		return false
	}
	if s := n.announcedStop(); s.Round != 0 {
		return s.Lost
	}
	return true
}

// othersAreEnough reports whether the nodes of the round would be enough without this one.
func (n *node) othersAreEnough() bool {
	least := n.rdzv.MinNodes()
	return least > 0 && n.assignment.groups > least
}

// announceAsked tells the other nodes that a worker of this one asks for another round.
func (n *node) announceAsked(reason string) {
	ctx, cancel := n.untilImpatient(announcePatience)
	defer cancel()
	if err := n.rdzv.AnnounceStop(ctx, rendezvous.AnnounceStop{Round: n.assignment.Round, Reason: reason}); err != nil {
		n.log.Info("the other nodes could not be told yet: " + reason + ": " + err.Error())
	}
}

// publishFailure publishes a failure to the other nodes.
func (n *node) publishFailure(f *failure.Failure) {
	ctx, cancel := n.untilImpatient(n.spec.ReportTimeout)
	defer cancel()
	s := n.announcedStop()
	first := s.Round != 0 && !s.Leaving && s.Rank == n.assignment.group
	if err := f.Publish(ctx, n.assignment.keys, n.assignment.Round, n.assignment.group, first); err != nil {
		n.log.Warn("cannot tell the other nodes of the failure: " + err.Error())
	}
}

// readPeers reads the failures that the nodes of the round published.
func (n *node) readPeers() {
	if n.assignment.groups < 2 {
		return
	}
	ctx, cancel := n.untilImpatient(n.spec.ReportTimeout)
	defer cancel()
	n.awaitCulprit(ctx)
	published := failure.ReadPublished(ctx, n.assignment.keys, n.assignment.Round)
	if s := n.announcedStop(); s.Round != 0 && !s.Leaving {
		published = failure.CulpritFirst(published, s.Rank)
	}
	if published != nil {
		n.assignment.peers = published
	}
}

// recordPatience bounds how long a node waits, with its workers stopped, for the report of
// the failure that another node has announced and may not live to write.
const recordPatience = 2 * time.Second

// awaitCulprit waits until the node that announced the stop has published its failure.
func (n *node) awaitCulprit(ctx context.Context) {
	s := n.announcedStop()
	if s.Round == 0 || s.Leaving || s.Rank == n.assignment.group {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	_ = failure.AwaitPublished(ctx, n.assignment.keys, s.Round, s.Rank)
}

// Keys of the liveness barrier: an agent that wants to know whether all others are alive
// writes the first; each agent then adds itself to the second, and the last of
// them writes the third.
const (
	barrierKey         = "rallypoint/roll_call"
	arrivalsKey        = barrierKey + "/present"
	barrierCompleteKey = barrierKey + "/complete"
)

// Arrivals answers the liveness barriers of a round while its workers run. A nil Arrivals
// does nothing.
type Arrivals struct{ stop func() }

// AnswerBarriers answers the liveness barriers of a round with that many nodes and these keys,
// until Stop. An Agent does so itself; this is for nodes with another agent, such as torch's.
// Without its answers, a node whose workers have failed waits as long as it takes to declare any
// lost node lost.
func AnswerBarriers(keys store.Store, groups int) *Arrivals {
	if groups < 2 {
		return nil
	}
	return &Arrivals{background.Run(context.Background(), func(ctx context.Context) {
		if keys.Wait(ctx, []string{barrierKey}) != nil {
			return
		}
		if n, err := keys.Add(ctx, arrivalsKey, 1); err == nil && n >= int64(groups) {
			_ = keys.Set(ctx, barrierCompleteKey, []byte("1"))
		}
	})}
}

// Stop ends the answers.
func (a *Arrivals) Stop() {
	if a != nil {
		a.stop()
	}
}

// openBarrier asks all agents of the round to arrive; all is closed once they have. stop ends it.
func (n *node) openBarrier(ctx context.Context) (all <-chan struct{}, stop func()) {
	keys, arrived := n.assignment.keys, make(chan struct{})
	return arrived, background.Run(ctx, func(ctx context.Context) {
		if keys.Set(ctx, barrierKey, []byte("1")) == nil && keys.Wait(ctx, []string{barrierCompleteKey}) == nil {
			close(arrived)
		}
	})
}

func (n *node) lostNode() bool {
	if n.assignment.groups < 2 {
		return false
	}
	ctx, cancel := n.untilInterrupt(max(n.spec.LostNodeTimeout, 1))
	defer cancel()
	arrived, stop := n.openBarrier(ctx)
	defer stop()
	for !n.rdzv.Closed() && !n.lossSeen() {
		select {
		case <-n.rdzv.Changed():
			continue
		case <-arrived:
		case <-ctx.Done():
		}
		break
	}
	return n.lossSeen() && !n.rdzv.Closed()
}

// exitBarrier reports to the other agents that this node's workers succeeded and waits
// for them. Nothing but a signal makes it fail.
func (n *node) exitBarrier() error {
	n.publish(telemetry.Finishing{})
	limit, wait := cmp.Or(n.spec.ExitBarrierTimeout, n.spec.ReportTimeout), n.spec.ExitBarrierTimeout > 0
	if n.assignment.groups > 1 && wait {
		slow := time.AfterFunc(quickBarrier, func() {
			n.log.Info(fmt.Sprintf("the workers of this node succeeded; waiting for the other nodes, at most %v", limit))
		})
		defer slow.Stop()
	}
	ctx, cancel := n.untilInterrupt(limit)
	defer cancel()
	ended, err := n.awaitExitBarrier(ctx, wait)
	if stop := n.interrupted(); stop != nil {
		return stop
	}
	switch {
	case err != nil:
		n.log.Error("Error waiting on exit barrier. The workers of this node succeeded: " + err.Error())
	case n.requeued(nil) != nil:
	case n.rdzv.Closed() && n.rdzv.NodesWaiting() > 0:
		n.log.Error(succeededBut + n.rdzv.Reason())
	case strings.HasPrefix(string(ended), rendezvous.ExitBarrierLost): // nobody has closed it yet
		n.log.Error(succeededBut + string(ended))
	}
	return nil
}

const succeededBut = "The workers of this node succeeded, but the run failed: "

// quickBarrier is how long the exit barrier takes without a word.
const quickBarrier = time.Second

// awaitExitBarrier returns what its last key has: how the other members have ended.
func (n *node) awaitExitBarrier(ctx context.Context, wait bool) (ended []byte, err error) {
	if !wait {
		return nil, n.rdzv.Finish(ctx)
	}
	return n.assignment.meet(ctx, rendezvous.ExitBarrierCount, rendezvous.ExitBarrierLast)
}

// awaitIdle waits until all agents of the round know that it is not to be: the first that
// ends the run would make it a failure of a peer for the others.
func (n *node) awaitIdle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, n.spec.ReportTimeout)
	defer cancel()
	_, err := n.assignment.meet(ctx, idleKey, idleAllKey)
	if err != nil && !errors.Is(err, rendezvous.ErrRoundOver) {
		n.log.Debug("not all nodes have confirmed that they stop for lack of progress: " + err.Error())
	}
}

// world is the place of a worker in the round.
func (n *node) world(local int) world.World {
	s := n.assignment
	w := world.World{
		Round: s.Round, Rank: s.ranks.base + local, Size: s.ranks.world, LocalRank: local, LocalSize: n.spec.Workers, Node: s.group, Nodes: s.groups,
		Carried: s.ranks.carried, StoreAddr: s.StoreAddr, StorePort: s.StorePort, Generation: s.Generation,
	}
	if n.spec.VirtualRank {
		w.LocalRank = 0
	}
	return w
}
