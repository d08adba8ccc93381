package client

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"rallypoint/core/control"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestAdminRefusesWhatNoFrameHolds at once: a control plane would take it for malformed and
// close the connection, which looks as if it could not be reached.
func TestAdminRefusesWhatNoFrameHolds(t *testing.T) {
	for text, nodes := range map[string][]string{
		"has more than 512 bytes":                 {"n0", strings.Repeat("n", wire.MaxName+1)},
		"a drain names 1 to 1024 nodes, not 1025": make([]string, rendezvous.MaxDirectiveNodes+1),
	} {
		_, err := Ask(t.Context(), "127.0.0.1:1", nil, "job", rendezvous.Direct{ID: "d", Kind: rendezvous.DirectiveDrain, Nodes: nodes, By: "carol", Reason: "why"})
		if rendezvous.CodeOf(err) != rendezvous.CodeInvalid || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

// redirecting answers each request by the same redirect, and counts them.
func redirecting(t *testing.T, to func(own string) wire.Redirect) (addr string, asked *atomic.Int64) {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	asked = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			answer := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes()
			_, _ = conn.Write(wire.AppendFrame(answer, to(l.Addr().String())))
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String(), asked
}

// TestAdminIsNotSentAround: a redirect that leads nowhere, or back, ends a request, with an
// error that says where the control plane was said to be.
func TestAdminIsNotSentAround(t *testing.T) {
	for host, want := range map[string]string{
		"self":         "points back",
		"nowhere":      "is no address",
		"0.0.0.0:80":   "is no address",
		"127.0.0.1:0":  "is no address",
		"224.0.0.1:80": "is no address",
	} {
		addr, asked := redirecting(t, func(own string) wire.Redirect {
			to := wire.Redirect{Group: "g", Term: 2, Host: host, Node: "n1"}
			if host == "self" {
				to.Host = own
			}
			return to
		})
		_, err := Ask(t.Context(), addr, nil, "job", rendezvous.Evict{Node: "n0", By: "carol", Reason: "why"})
		if rendezvous.CodeOf(err) != rendezvous.CodeConnection || !strings.Contains(err.Error(), want) || asked.Load() != 1 {
			t.Errorf("%q: %v after %d requests", host, err, asked.Load())
		}
	}
	last, _ := redirecting(t, func(string) wire.Redirect { return wire.Redirect{Group: "g", Term: 2} })
	for range wire.MaxRedirects + 1 { // each leads to the one before
		to := last
		last, _ = redirecting(t, func(string) wire.Redirect { return wire.Redirect{Group: "g", Term: 2, Host: to, Node: "n1"} })
	}
	_, err := Ask(t.Context(), last, nil, "job", rendezvous.Evict{Node: "n0", By: "carol", Reason: "why"})
	if rendezvous.CodeOf(err) != rendezvous.CodeConnection || !strings.Contains(err.Error(), "servers have sent it on") {
		t.Errorf("%v", err)
	}
}

// TestAdminAsksAgain: while the server does not know who hosts, or names one that says nothing or has ended, it is
// asked again until it names one that answers.
func TestAdminAsksAgain(t *testing.T) {
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	for name, host := range map[string]string{"unknown": "", "silent": silent.Addr().String(), "ended": fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))} {
		t.Run(name, func(t *testing.T) {
			hosts := startServer(t, control.Config{})
			var asked atomic.Int64
			addr, _ := redirecting(t, func(string) wire.Redirect {
				if asked.Add(1) == 1 {
					return wire.Redirect{Group: "g", Term: 1, Host: host, Node: "n0"}
				}
				return wire.Redirect{Group: "g", Term: 2, Host: hosts, Node: "n1"}
			})
			_, err := Ask(controltest.Context(t), addr, nil, "no such run", rendezvous.CloseRun{By: "carol", Reason: "why"})
			controltest.WantCode(t, err, rendezvous.CodeInvalid, "no such run")
			limited, cancel := context.WithCancel(t.Context())
			addr, asking := redirecting(t, func(string) wire.Redirect {
				if asked.Add(1) > 4 {
					cancel()
				}
				return wire.Redirect{Group: "g", Term: 1, Host: host, Node: "n0"}
			})
			_, err = Ask(limited, addr, nil, "job", rendezvous.CloseRun{By: "carol", Reason: "why"})
			if rendezvous.CodeOf(err) != rendezvous.CodeConnection || asking.Load() < 2 {
				t.Errorf("%v after %d requests", err, asking.Load())
			}
		})
	}
}

// TestRedirectToLoopback: a server on another machine that names a loopback address means its
// own.
func TestRedirectToLoopback(t *testing.T) {
	to := wire.Redirect{Host: "127.0.0.1:5", Node: "n1"}
	if wrong := leadsNowhere([]string{"10.0.0.1:29400"}, &wire.Redirected{To: to}); !strings.Contains(wrong, "of its own machine") {
		t.Errorf("%q", wrong)
	}
	for _, from := range []string{"127.0.0.1:29400", "[::1]:29400", "localhost:29400"} {
		if wrong := leadsNowhere([]string{from}, &wire.Redirected{To: to}); wrong != "" {
			t.Errorf("%s: %q", from, wrong)
		}
	}
}

// TestAdminTellsAMalformedAnswer from none, which an older release gives.
func TestAdminTellsAMalformedAnswer(t *testing.T) {
	for answer, want := range map[string]string{"": "an older release does not know this request", "\x00\x00\x00\x03\xff\xff\xff": "malformed data"} {
		l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		served := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				_, err = conn.Write(append(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes(), answer...))
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}
			served <- err
		}()
		_, err := Ask(t.Context(), l.Addr().String(), nil, "job", rendezvous.Evict{Node: "n0", By: "carol", Reason: "why"})
		testkit.Check(t, <-served)
		l.Close()
		if rendezvous.CodeOf(err) != rendezvous.CodeConnection || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "older") != (answer == "") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
