package etcdstore

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// cluster is an etcd of three members, each a process of its own.
type cluster struct {
	members []*clusterMember
}

type clusterMember struct {
	name     string
	endpoint string
	args     []string
	process  *process
	client   *client
}

// aCluster starts a cluster that ends with the test.
func aCluster(t testing.TB) *cluster {
	t.Helper()
	binary := testBinary(t)
	c := &cluster{}
	var held []*heldPort
	var peers []string
	for i := range 3 {
		client, peer := must(holdPort())(t), must(holdPort())(t)
		held = append(held, client, peer)
		name := fmt.Sprint("m", i)
		peers = append(peers, name+"="+localURL(peer.number))
		c.members = append(c.members, &clusterMember{
			name: name, endpoint: net.JoinHostPort("127.0.0.1", strconv.Itoa(client.number)),
			args: []string{
				"--name", name, "--data-dir", t.TempDir(), "--unsafe-no-fsync",
				"--listen-client-urls", localURL(client.number), "--advertise-client-urls", localURL(client.number),
				"--listen-peer-urls", localURL(peer.number), "--initial-advertise-peer-urls", localURL(peer.number),
				"--heartbeat-interval", "50", "--election-timeout", "500",
			},
		})
	}
	var starting sync.WaitGroup
	for _, m := range c.members {
		m.args = append(m.args, "--initial-cluster", strings.Join(peers, ","))
		m.client = must(newClient(Config{Endpoints: []string{m.endpoint}}))(t)
		starting.Go(func() { m.start(t, binary) })
	}
	starting.Wait()
	for _, p := range held {
		p.release()
	}
	t.Cleanup(func() {
		for _, m := range c.members {
			m.client.close()
			m.process.stop(0)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return c
}

func (m *clusterMember) start(t testing.TB, binary string) {
	p, err := startProcess(binary, m.args, nil)
	if err != nil {
		t.Error(err)
		return
	}
	m.process = p
	if _, err := m.client.get(within(t, 30*time.Second), "starting", rangeRequest{key: "x"}); err != nil {
		t.Errorf("%v\n%s", err, p.tail)
	}
}

// config is a configuration for the cluster that begins at the given member.
func (c *cluster) config() Config {
	config := Config{Prefix: "/test", Timeout: 30 * time.Second}
	for _, m := range c.members {
		config.Endpoints = append(config.Endpoints, m.endpoint)
	}
	return config
}

// status asks each member that answers for its own.
func (c *cluster) status(t testing.TB) map[*clusterMember]*clientv3.StatusResponse {
	t.Helper()
	all := make(map[*clusterMember]*clientv3.StatusResponse)
	for _, m := range c.members {
		_ = m.client.attempt(within(t, 10*time.Second), time.Second, func(ctx context.Context) error {
			s, err := m.client.etcd.Status(ctx, m.endpoint)
			if err == nil {
				all[m] = s
			}
			return err
		})
	}
	return all
}

func (c *cluster) leader(t testing.TB) *clusterMember {
	t.Helper()
	for ctx := within(t, 20*time.Second); ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for m, s := range c.status(t) {
			if s.Leader != 0 && s.Leader == s.Header.MemberId {
				return m
			}
		}
	}
	t.Fatal("the cluster has no leader")
	return nil
}

// moveLeader lets another member lead.
func (c *cluster) moveLeader(t testing.TB) {
	t.Helper()
	leader := c.leader(t)
	for m, s := range c.status(t) {
		if m != leader {
			check(t, leader.client.call(within(t, 20*time.Second), "moving the leader", func(ctx context.Context) error {
				_, err := leader.client.etcd.MoveLeader(ctx, s.Header.MemberId)
				return err
			}))
			return
		}
	}
}

// kill ends a member without a word.
func (m *clusterMember) kill() { m.process.signal(syscall.SIGKILL); <-m.process.ended }

// A store goes on, and applies everything once, while the leader changes, a member
// is stopped, and a member is killed.
func TestStoreSurvivesTheClustersTroubles(t *testing.T) {
	t.Parallel()
	c := aCluster(t)
	config := c.config()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	var all sync.WaitGroup
	const clients = 3
	counts := make([]int64, clients)
	texts := make([]int, clients)
	done := make(chan struct{})
	for i := range clients {
		s := mustOpen(t, config)
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := s.Add(ctx, "sum", 1); err != nil {
					t.Error(err)
					return
				}
				counts[i]++
				if err := s.Append(ctx, fmt.Sprint("text", i), []byte("x")); err != nil {
					t.Error(err)
					return
				}
				texts[i]++
				key := fmt.Sprint("new ", i, counts[i])
				if err := s.Set(ctx, key, []byte("v")); err != nil {
					t.Error(err)
					return
				}
				if existed, err := s.Delete(ctx, key); err != nil || !existed {
					t.Error("deleted", existed, err)
					return
				}
			}
		})
	}
	waiter := mustOpen(t, config)
	waited := make(chan error, 1)
	go func() { waited <- waiter.Wait(ctx, []string{"the end"}) }()
	for range 2 {
		c.moveLeader(t)
	}
	stopped := c.leader(t)
	stopped.process.signal(syscall.SIGSTOP)
	c.leader(t)
	stopped.process.signal(syscall.SIGCONT)
	c.leader(t).kill()
	c.leader(t)
	close(done)
	all.Wait()
	s := mustOpen(t, config)
	check(t, s.Set(ctx, "the end", nil))
	check(t, <-waited)
	sum := int64(0)
	for i := range clients {
		sum += counts[i]
		if n := len(must(s.Get(ctx, fmt.Sprint("text", i)))(t)); n != texts[i] || n == 0 {
			t.Errorf("%d appends gave %d", texts[i], n)
		}
	}
	equal(t, must(s.Add(ctx, "sum", 0))(t), sum)
}
