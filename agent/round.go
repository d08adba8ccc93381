package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/world"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
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
	if s := n.announcedStop(); s.Round != 0 && !s.Leaving && s.Rank != n.assignment.group {
		limited, cancel := context.WithTimeout(ctx, recordPatience)
		_ = failure.AwaitPublished(limited, n.assignment.keys, s.Round, s.Rank)
		cancel()
	}
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

// Keys of the liveness barrier: an agent that wants to know whether all others are alive
// writes the first; each agent then adds itself to the second, and the last of
// them writes the third.
const (
	barrierKey         = "rallypoint/roll_call"
	arrivalsKey        = barrierKey + "/present"
	barrierCompleteKey = barrierKey + "/complete"
)

// AnswerBarriers answers the liveness barriers of a round with that many nodes and these keys, until
// stop, which may be called again. An Agent does so itself; this is for nodes with another agent, such
// as torch's. Without its answers, a node whose workers have failed waits as long as it takes to declare
// any lost node lost.
func AnswerBarriers(keys store.Store, groups int) (stop func()) {
	if groups < 2 {
		return func() {}
	}
	return background.Run(context.Background(), func(ctx context.Context) {
		if keys.Wait(ctx, []string{barrierKey}) != nil {
			return
		}
		if n, err := keys.Add(ctx, arrivalsKey, 1); err == nil && n >= int64(groups) {
			_ = keys.Set(ctx, barrierCompleteKey, []byte("1"))
		}
	})
}

// lostNode waits for the cause of a failure that the budget does not cover: it
// reports whether a node was lost, so that the failure followed from that. It
// waits at most LostNodeTimeout, and not at all if this node is alone.
func (n *node) lostNode() bool {
	if n.assignment.groups < 2 {
		return false
	}
	ctx, cancel := n.untilInterrupt(max(n.spec.LostNodeTimeout, 1))
	defer cancel()
	keys, arrived := n.assignment.keys, make(chan struct{})
	defer background.Run(ctx, func(ctx context.Context) {
		if keys.Set(ctx, barrierKey, []byte("1")) == nil && keys.Wait(ctx, []string{barrierCompleteKey}) == nil {
			close(arrived)
		}
	})()
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
	var ended []byte // how the other members have ended
	var err error
	if wait {
		ended, err = n.assignment.meet(ctx, rendezvous.ExitBarrierCount, rendezvous.ExitBarrierLast)
	} else {
		err = n.rdzv.Finish(ctx)
	}
	if stop := n.interrupted(); stop != nil {
		return stop
	}
	switch {
	case err != nil:
		n.log.Warn("the exit barrier ends without the other nodes; the workers of this node succeeded: " + err.Error())
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

// The agent tries to reach the round's store from this node once its workers have run for
// reachAfter: reachTries times, reachPatience each. It keeps the connection open for reachHold,
// because a store that checks the user of its clients may check late, and counts a connection
// that is closed by then as a stranger's.
const (
	reachAfter    = 5 * time.Second
	reachPatience = 5 * time.Second
	reachTries    = 2
	reachHold     = 5 * time.Second
)

// watchStore checks, some seconds after the workers were started, whether this node can reach the
// round's store, and logs a warning if not, since workers that cannot connect print nothing for
// minutes. The returned function ends that. It does not check a store that workers reach through
// a loopback address of this machine: the forwarder there logs failures.
//
// One failed try says nothing: in a process that was stopped (SIGSTOP) meanwhile it may come before
// the news that the round and its store are over.
func (n *node) watchStore() (stop func()) {
	if s := n.assignment; s.AdvertisedAddr != "" && s.AdvertisedAddr != s.StoreAddr {
		return func() {}
	}
	return background.Run(context.Background(), func(ctx context.Context) {
		where := n.assignment.StoreEndpoint()
		var took time.Duration
		for tries := 1; ; tries++ {
			if !backoff.Sleep(ctx, n.reachAfter) {
				return
			}
			began := time.Now()
			conn, err := n.dialStore(ctx, where)
			took += time.Since(began)
			switch {
			case err == nil:
				keepOpen(ctx, conn, reachHold)
				return
			case ctx.Err() != nil:
				return
			case tries == reachTries:
				n.log.Warn(fmt.Sprintf("the workers' store at %s (MASTER_ADDR and MASTER_PORT) cannot be reached from this node, tried %d times for %v: %v; "+
					"workers that use it hang until they time out. Its address is what the node of rank 0 announces: give advertise_addr= or --local-addr there, "+
					"an address under which the others reach it, and store_port= if a firewall is between them", where, tries, took.Round(time.Millisecond), err))
				return
			}
		}
	})
}

// dialStore connects as workers do.
func dialStore(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: reachPatience}
	dialer.SetMultipathTCP(false)
	return dialer.DialContext(ctx, "tcp", address)
}

// keepOpen closes a connection after a time, or when the peer closes it or ctx ends.
func keepOpen(ctx context.Context, conn net.Conn, limit time.Duration) {
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer unhook()
	_ = conn.SetDeadline(time.Now().Add(limit))
	_, _ = conn.Read(make([]byte, 1))
	_ = conn.Close()
}
