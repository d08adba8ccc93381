package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/control/discovery"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// standbys are the nodes, beside the first host and the crowd, that can host.
const standbys = 2

// lost are what the death of a host, or its silence, costs, in seconds from its signal.
type lost struct {
	Nodes  int     `json:"nodes"`
	Lease  float64 `json:"lease_s"`
	Served float64 `json:"served_s"`   // until the next host has welcomed the last node
	Round  float64 `json:"round_s"`    // until the last node has its place in the next round
	CPU    float64 `json:"cpu_s"`      // of this process until then
	Host   float64 `json:"host_cpu_s"` // of those that stand by, one of which is the next host
}

// lose has n nodes whose control plane is in the process of another one, which gets a signal: it is
// killed, or stopped for good. That one, and those that stand by, are processes of their own.
func lose(ctx context.Context, addr string, n int, how os.Signal) error {
	runID := runOf("lose", n)
	hosts := make([]*exec.Cmd, 0, 1+standbys)
	defer func() {
		for _, host := range hosts {
			_ = host.Process.Kill()
			_ = host.Wait()
		}
	}()
	for range cap(hosts) {
		host, err := startHost(addr, n, runID)
		if host != nil {
			hosts = append(hosts, host)
		}
		if err != nil {
			return err
		}
	}
	seen := make([]*witness, n)
	s, err := gather(ctx, addr, n, runID, func(i int, p *params.Params) member.Observer {
		p.Min, p.Max = n+standbys, n+standbys+1
		seen[i] = &witness{told: make(chan struct{})}
		return seen[i]
	})
	if err != nil {
		return err
	}
	defer s.leave()
	places, _, err := s.place(ctx)
	if err != nil {
		return err
	}
	for _, w := range seen {
		w.follow(places[0].Generation)
	}
	time.Sleep(3 * time.Second) // the standbys connect to each other, and are chosen as voters
	cpu, hostCPU, began := cpuTime(), cpuOf(hosts[1:]), time.Now()
	if err := hosts[0].Process.Signal(how); err != nil {
		return err
	}
	if err := each(n, func(i int) error {
		select {
		case <-seen[i].told:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("node %d was not served: %w", i, ctx.Err())
		}
	}); err != nil {
		return err
	}
	served := time.Since(began)
	if _, _, err := s.place(ctx); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(lost{n, params.Default().LeaseTimeout.Seconds(), served.Seconds(), time.Since(began).Seconds(), cpuTime() - cpu, cpuOf(hosts[1:]) - hostCPU})
}

func cpuOf(processes []*exec.Cmd) (seconds float64) {
	for _, process := range processes {
		seconds += cpuTimeOf(process.Process.Pid)
	}
	return seconds
}

// meetAt sets where the control plane of a node is.
func meetAt(p *params.Params, addr string) {
	var err error
	if p.Servers, err = params.ParseServers(addr, params.DefaultPort); err != nil {
		panic(err)
	}
	p.Endpoint = addr
}

// startHost starts a node that can host, in a process of its own, and waits until it is
// connected.
func startHost(addr string, n int, runID string) (*exec.Cmd, error) {
	c := exec.Command(os.Args[0], "host", addr, strconv.Itoa(n), runID)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // should this process be killed
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	return c, err
}

// beHost is a node that can host, until it is killed.
func beHost(ctx context.Context, addr string, n int, runID string) error {
	w := &witness{told: make(chan struct{})}
	p := params.Default()
	p.RunID, p.Min, p.Max = runID, n+standbys, n+standbys+1
	meetAt(&p, addr)
	c := client.New(p, w, nil, func(cfg discovery.HostConfig, listeners ...net.Listener) discovery.Host {
		return control.Start(control.Config{RunID: cfg.Params.RunID, Fixed: cfg.Fixed, Log: cfg.Log, Group: cfg.Group, Node: &cfg.Params}, listeners...)
	})
	if err := c.Connect(ctx); err != nil {
		return err
	}
	fmt.Println("connected")
	for {
		places, _, err := swarm{c}.place(ctx)
		if err != nil {
			return err
		}
		w.follow(places[0].Generation)
		select {
		case <-w.told:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// witness is an observer that tells when another control plane than that of a generation
// serves its node.
type witness struct {
	mu         sync.Mutex
	generation string // ""; it does not tell
	told       chan struct{}
}

func (w *witness) follow(generation string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.generation = generation
	select {
	case <-w.told:
		w.told = make(chan struct{})
	default:
	}
}

func (w *witness) Updated(u rendezvous.MembershipUpdate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.generation != "" && u.Facts.Generation != w.generation {
		w.generation = ""
		close(w.told)
	}
}

func (*witness) Progressed(rendezvous.Progress) {}
func (*witness) Dropped(*rendezvous.Error)      {}
func (*witness) ConnectionChanged(error)        {}
