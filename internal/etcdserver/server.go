// Package etcdserver starts a local etcd, for tests and for jobs of one node.
package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/etcdclient"
)

// envBinary names the etcd to start, as for torch.
const envBinary = "TORCHELASTIC_ETCD_BINARY_PATH"

// How a server is stopped and started.
const (
	stopTimeout       = 5 * time.Second
	readyPollInterval = 20 * time.Millisecond
)

// Config says which etcd to start, and how.
type Config struct {
	// Binary is the etcd to start; "" lets FindBinary look for it.
	Binary string

	// DataDir is where it keeps its data, which is made if it is missing and stays.
	// "" is a fresh temporary directory, which goes with the server.
	DataDir string

	// Output gets its output; nil discards it.
	Output io.Writer

	// Retries is how often a start that failed is tried again.
	Retries int

	// Args are further arguments.
	Args []string
}

// Server is a local etcd of one member: for tests, and for jobs of one node. It
// listens on a free port of 127.0.0.1 and ends with this process, even if that is
// killed.
type Server struct {
	port    int
	process *Process
	scratch string // the directory to remove, "" if there is none
	stop    sync.Once
}

// FindBinary finds an etcd: what TORCHELASTIC_ETCD_BINARY_PATH names, else beside if that is a
// file, else etcd in PATH (docs/spec/rendezvous.md R100). getenv is os.Getenv or similar.
func FindBinary(beside string, getenv func(string) string) (string, error) {
	named := getenv(envBinary)
	for _, path := range []string{named, beside} {
		if info, err := os.Stat(path); path != "" && err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	for _, folder := range filepath.SplitList(getenv("PATH")) {
		path := filepath.Join(folder, "etcd")
		if info, err := os.Stat(path); folder != "" && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	looked := "in PATH"
	if beside != "" {
		looked = "at " + beside + " nor " + looked
	}
	if named != "" {
		looked = "at " + named + " (" + envBinary + ") nor " + looked
	}
	return "", rendezvous.Errorf(rendezvous.CodeInvalid,
		"there is no etcd %s; install it (Debian's package is etcd-server), or name it with %s", looked, envBinary)
}

// Start starts an etcd and waits until it answers. ctx limits each try. An error has the end of
// the etcd's output.
func Start(ctx context.Context, config Config) (*Server, error) {
	binary := config.Binary
	if binary == "" {
		var err error
		if binary, err = FindBinary("", os.Getenv); err != nil {
			return nil, err
		}
	}
	s := &Server{}
	folder := config.DataDir
	if folder == "" {
		var err error
		if folder, err = os.MkdirTemp("", "rallypoint-etcd-"); err != nil {
			return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "a data directory for etcd: %v", err)
		}
		s.scratch = folder
	}
	var err error
	for try := 0; try <= config.Retries; try++ {
		// Each try has its own folder, since that of a failed one is unusable.
		if err = s.start(ctx, binary, filepath.Join(folder, strconv.Itoa(try)), &config); err == nil {
			return s, nil
		}
		if ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			break
		}
	}
	s.removeScratch()
	code := rendezvous.CodeConnection
	if ctx.Err() != nil {
		code = rendezvous.CodeTimeout
	}
	return nil, fmt.Errorf("%w%w", rendezvous.Errorf(code, "starting %s: ", binary), err)
}

func (s *Server) start(ctx context.Context, binary, folder string, config *Config) error {
	clients, err := HoldPort()
	if err != nil {
		return err
	}
	defer clients.Release()
	peers, err := HoldPort()
	if err != nil {
		return err
	}
	defer peers.Release()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	clientURL, peerURL := LocalURL(clients.Number), LocalURL(peers.Number)
	args := append([]string{
		"--name", "local", "--data-dir", folder,
		"--listen-client-urls", clientURL, "--advertise-client-urls", clientURL,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL,
		"--initial-cluster", "local=" + peerURL,
		"--auto-compaction-mode", "revision", "--auto-compaction-retention", "10000",
	}, config.Args...)
	if s.process, err = StartProcess(binary, args, config.Output); err != nil {
		return err
	}
	s.port = clients.Number
	if err := s.awaitReady(ctx); err != nil {
		s.process.Stop(0)
		return err
	}
	return nil
}

// awaitReady waits until the server answers a read that a leader has confirmed.
func (s *Server) awaitReady(ctx context.Context) error {
	c, err := etcdclient.New(etcdclient.Config{Endpoints: []string{s.Endpoint()}})
	if err != nil {
		return err
	}
	defer c.Close()
	t := time.NewTicker(readyPollInterval)
	defer t.Stop()
	for {
		err := c.Attempt(ctx, etcdclient.FirstAttempt, func(ctx context.Context) error {
			_, err := c.Etcd.Get(ctx, "\x00", clientv3.WithCountOnly())
			return err
		})
		if err == nil {
			return nil
		}
		select {
		case <-s.process.exited:
			return s.process.failure()
		case <-ctx.Done():
			return fmt.Errorf("it does not answer (%w); the end of its output:\n%s", err, s.process.Output)
		case <-t.C:
		}
	}
}

// Port returns the port for clients.
func (s *Server) Port() int { return s.port }

// Endpoint returns the address for clients, as host:port.
func (s *Server) Endpoint() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Exited returns a channel that is closed when the etcd has ended.
func (s *Server) Exited() <-chan struct{} { return s.process.exited }

// Signal sends the etcd a signal.
func (s *Server) Signal(sig syscall.Signal) { s.process.Signal(sig) }

// Stop ends the etcd, waits for it and removes its temporary directory; stopping
// again does nothing.
func (s *Server) Stop() {
	s.stop.Do(func() {
		s.process.Stop(stopTimeout)
		s.removeScratch()
	})
}

func (s *Server) removeScratch() {
	if s.scratch != "" {
		_ = os.RemoveAll(s.scratch)
	}
}

// LocalURL is the address of an etcd at a port of 127.0.0.1.
func LocalURL(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }
