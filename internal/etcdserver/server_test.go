package etcdserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/etcdstore"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/testkit"
)

// playParent starts an etcd, says which, and waits to be killed.
func playParent() int {
	s, err := Start(context.Background(), Config{Binary: os.Getenv(envTestBinary)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s.process.cmd.Process.Pid, s.scratch)
	select {}
}

func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	binary := testBinary(t)
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), roleVariable+"=parent", envTestBinary+"="+binary)
	out := testkit.Must(parent.StdoutPipe())(t)
	parent.Stderr = os.Stderr
	testkit.Check(t, parent.Start())
	line := testkit.Must(bufio.NewReader(out).ReadString('\n'))(t)
	fields := strings.Fields(line)
	pid := testkit.Must(strconv.Atoi(fields[0]))(t)
	t.Cleanup(func() { _ = os.RemoveAll(fields[1]) })
	testkit.Check(t, syscall.Kill(pid, 0))
	testkit.Check(t, parent.Process.Kill())
	_ = parent.Wait()
	for ctx := testkit.Within(t, 20*time.Second); alive(pid); {
		if ctx.Err() != nil {
			t.Fatal("the etcd outlives its parent")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// alive reports whether a process runs; one that no parent has waited for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestServerStopRemovesItsData(t *testing.T) {
	s, err := Start(testkit.Within(t, time.Minute), Config{Binary: testBinary(t)})
	testkit.Check(t, err)
	if _, err := os.Stat(s.scratch); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s.Stop()
	if _, err := os.Stat(s.scratch); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", s.Endpoint()); err == nil {
		conn.Close()
		t.Fatal("something still listens")
	}
}

func TestServerKeepsAGivenDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	config := Config{Binary: testBinary(t), DataDir: dir}
	for i := range 2 {
		s, err := Start(testkit.Within(t, time.Minute), config)
		testkit.Check(t, err)
		kv := testkit.Must(etcdstore.Open(testkit.Within(t, time.Minute), etcdclient.Config{Endpoints: []string{s.Endpoint()}, Prefix: "/p"}))(t)
		testkit.Equal(t, testkit.Must(kv.Add(testkit.Within(t, time.Minute), "n", 1))(t), int64(i+1))
		testkit.Check(t, kv.Close())
		s.Stop()
	}
}

func TestServerThatFailsShowsItsOutput(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "etcd")
	testkit.Check(t, os.WriteFile(script, []byte("#!/bin/sh\necho out of luck >&2\nexit 3\n"), 0o755))
	_, err := Start(testkit.Within(t, time.Minute), Config{Binary: script, Retries: 1})
	if err == nil || !strings.Contains(err.Error(), "out of luck") || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatal(err)
	}
	testkit.Check(t, os.WriteFile(script, []byte("#!/bin/sh\necho thinking\nexec sleep 1000\n"), 0o755))
	_, err = Start(testkit.Within(t, time.Second), Config{Binary: script})
	if err == nil || !strings.Contains(err.Error(), "thinking") || !strings.Contains(err.Error(), "does not answer") {
		t.Fatal(err)
	}
	_, err = Start(testkit.Within(t, time.Minute), Config{Binary: script + ".missing", Retries: 3})
	if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestFindBinary(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		testkit.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Check(t, os.WriteFile(path, nil, 0o755))
		return path
	}
	named, beside, inPath := file("a/named"), file("b/etcd"), file("c/etcd")
	t.Setenv("PATH", filepath.Dir(inPath))
	t.Setenv(envBinary, named)
	testkit.Equal(t, testkit.Must(FindBinary(beside, os.Getenv))(t), named)
	t.Setenv(envBinary, named+".missing")
	testkit.Equal(t, testkit.Must(FindBinary(beside, os.Getenv))(t), beside)
	testkit.Equal(t, testkit.Must(FindBinary(dir, os.Getenv))(t), inPath) // a directory is no binary
	t.Setenv("PATH", dir)
	_, err := FindBinary("", os.Getenv)
	if err == nil || !strings.Contains(err.Error(), named) || !strings.Contains(err.Error(), "etcd-server") {
		t.Fatal(err)
	}
}

// A held port is no other process's, until a program asks for just this one.
func TestHeldPort(t *testing.T) {
	p := testkit.Must(HoldPort())(t)
	defer p.Release()
	seen := map[int]bool{}
	for range 200 {
		other := testkit.Must(HoldPort())(t)
		defer other.Release()
		if seen[other.Number] || other.Number == p.Number {
			t.Fatal("a held port was given out again")
		}
		seen[other.Number] = true
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.Number))
	testkit.Check(t, err)
	testkit.Check(t, l.Close())
}
