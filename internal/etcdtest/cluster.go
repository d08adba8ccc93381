package etcdtest

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

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdserver"
	"rallypoint/internal/testkit"
)

// cluster is an etcd of three members, each a process of its own.
type cluster struct {
	members []*Member
}

type Member struct {
	name     string
	endpoint string
	args     []string
	Process  *etcdserver.Process
	client   *etcdclient.Client
}

// NewCluster starts a cluster that ends with the test.
func NewCluster(t testing.TB) *cluster {
	t.Helper()
	binary := Binary(t)
	c := &cluster{}
	var held []*etcdserver.HeldPort
	var peers []string
	for i := range 3 {
		client, peer := testkit.Must(etcdserver.HoldPort())(t), testkit.Must(etcdserver.HoldPort())(t)
		held = append(held, client, peer)
		name := fmt.Sprint("m", i)
		peers = append(peers, name+"="+etcdserver.LocalURL(peer.Number))
		c.members = append(c.members, &Member{
			name: name, endpoint: net.JoinHostPort("127.0.0.1", strconv.Itoa(client.Number)),
			args: []string{
				"--name", name, "--data-dir", t.TempDir(), "--unsafe-no-fsync",
				"--listen-client-urls", etcdserver.LocalURL(client.Number), "--advertise-client-urls", etcdserver.LocalURL(client.Number),
				"--listen-peer-urls", etcdserver.LocalURL(peer.Number), "--initial-advertise-peer-urls", etcdserver.LocalURL(peer.Number),
				"--heartbeat-interval", "50", "--election-timeout", "500",
			},
		})
	}
	var starting sync.WaitGroup
	for _, m := range c.members {
		m.args = append(m.args, "--initial-cluster", strings.Join(peers, ","))
		m.client = testkit.Must(etcdclient.New(etcdclient.Config{Endpoints: []string{m.endpoint}}))(t)
		starting.Go(func() { m.Start(t, binary) })
	}
	starting.Wait()
	for _, p := range held {
		p.Release()
	}
	t.Cleanup(func() {
		for _, m := range c.members {
			m.client.Close()
			m.Process.Stop(0)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return c
}

func (m *Member) Start(t testing.TB, binary string) {
	p, err := etcdserver.StartProcess(binary, m.args, nil)
	if err != nil {
		t.Error(err)
		return
	}
	m.Process = p
	if _, err := m.client.Get(testkit.Within(t, 30*time.Second), "starting", "x"); err != nil {
		t.Errorf("%v\n%s", err, p.Output)
	}
}

// Config is a configuration for the cluster that begins at the given member.
func (c *cluster) Config() etcdclient.Config {
	config := etcdclient.Config{Prefix: "/test", Timeout: 30 * time.Second}
	for _, m := range c.members {
		config.Endpoints = append(config.Endpoints, m.endpoint)
	}
	return config
}

func (c *cluster) status(t testing.TB) map[*Member]*clientv3.StatusResponse {
	t.Helper()
	all := make(map[*Member]*clientv3.StatusResponse)
	for _, m := range c.members {
		_ = m.client.Attempt(testkit.Within(t, 10*time.Second), time.Second, func(ctx context.Context) error {
			s, err := m.client.Etcd.Status(ctx, m.endpoint)
			if err == nil {
				all[m] = s
			}
			return err
		})
	}
	return all
}

func (c *cluster) Leader(t testing.TB) *Member {
	t.Helper()
	for ctx := testkit.Within(t, 20*time.Second); ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for m, s := range c.status(t) {
			if s.Leader != 0 && s.Leader == s.Header.MemberId {
				return m
			}
		}
	}
	t.Fatal("the cluster has no leader")
	return nil
}

// MoveLeader lets another member lead.
func (c *cluster) MoveLeader(t testing.TB) {
	t.Helper()
	leader := c.Leader(t)
	for m, s := range c.status(t) {
		if m != leader {
			testkit.Check(t, leader.client.Call(testkit.Within(t, 20*time.Second), "moving the leader", func(ctx context.Context) error {
				_, err := leader.client.Etcd.MoveLeader(ctx, s.Header.MemberId)
				return err
			}))
			return
		}
	}
}

// Kill ends a member without a word.
func (m *Member) Kill() { m.Process.Signal(syscall.SIGKILL); <-m.Process.Ended }
