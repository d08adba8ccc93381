package tcpstore

import (
	"bytes"
	"strings"
	"testing"

	"rallypoint/core/store"
)

func newHelloPeer(t *testing.T, config sessionConfig) *testPeer {
	t.Helper()
	p := newPeer(store.NewEngine(store.Limits{}), config)
	p.expect(t, "hello", hello, hello[6:], "steps")
	return p
}

// join adds another session on the engine of p.
func (p *testPeer) join(t *testing.T) *testPeer {
	t.Helper()
	other := newPeer(p.session.engine, *p.session.config)
	other.expect(t, "hello", hello, hello[6:], "steps")
	return other
}

func TestWaitIsAnsweredByOtherSession(t *testing.T) {
	a := newHelloPeer(t, sessionConfig{})
	b := a.join(t)
	woken := 0
	a.session.woken = func() { woken++ }
	a.expect(t, "wait", msg(opWait, 2, "/x", "/y"), nil, "steps")
	a.expect(t, "overtaken by", appendPing(nil, 7), []byte{7, 0, 0, 0}, "steps")
	b.expect(t, "set x", msg(opSet, "/x", ""), nil, "steps")
	b.expect(t, "set y", msg(opAppend, "/y", ""), nil, "steps")
	if out := a.takeOut(nil); woken != 1 || !bytes.Equal(out, []byte{0}) {
		t.Errorf("woken %d times, out %x", woken, out)
	}
}

func TestSeveralWaits(t *testing.T) {
	a := newHelloPeer(t, sessionConfig{})
	b := a.join(t)
	a.expect(t, "waits", append(msg(opWait, 1, "/x"), msg(opBarrier, "/b", 2)...), nil, "steps")
	a.expect(t, "third", msg(opWait, 1, "/z"), nil, "steps")
	b.expect(t, "barrier", msg(opBarrier, "/b", 2), []byte{0}, "steps")
	b.expect(t, "set", msg(opSet, "/x", ""), nil, "steps")
	// Two are over; the third is cancelled, with one answer for all.
	a.expect(t, "cancel", []byte{byte(opCancelWait)}, []byte{0, 0, 1}, "steps")
	a.expect(t, "cancel nothing", []byte{byte(opCancelWait)}, []byte{1}, "steps")
	b.expect(t, "set", msg(opSet, "/z", ""), nil, "steps")
	if out := a.takeOut(nil); len(out) > 0 || a.session.engine.NumWaiters() != 0 {
		t.Errorf("out %x, %d waiters", out, a.session.engine.NumWaiters())
	}
}

func TestCloseWithdrawsWaits(t *testing.T) {
	a := newHelloPeer(t, sessionConfig{})
	a.expect(t, "wait", append(msg(opWait, 2, "/x", "/y"), msg(opWait, 1, "/x")...), nil, "steps")
	a.session.close()
	b := a.join(t)
	b.expect(t, "set", msg(opSet, "/x", ""), nil, "steps")
	if n := a.session.engine.NumWaiters(); n != 0 || len(a.session.out) > 0 {
		t.Errorf("%d waiters, out %x", n, a.session.out)
	}
}

func TestPendingWaitsAreBounded(t *testing.T) {
	p := newHelloPeer(t, sessionConfig{})
	key := strings.Repeat("k", MaxKeyBytes)
	wait := msg(opWait, 1, key)
	for i := range MaxKeys {
		if _, err := p.send(wait); err != nil {
			if err.reason != reasonWaits || i < MaxRequestBytes/MaxKeyBytes {
				t.Errorf("after %d waits: %v", i, err)
			}
			p.session.close()
			if n := p.session.engine.NumWaiters(); n != 0 {
				t.Errorf("%d waiters are left", n)
			}
			return
		}
	}
	t.Error("not refused")
}

// TestPendingWaitsAreCountedBack: waits that are over do not count for ever.
func TestPendingWaitsAreCountedBack(t *testing.T) {
	p := newHelloPeer(t, sessionConfig{})
	for range 3 {
		p.expect(t, "wait", msg(opWait, 1, "/x"), nil, "steps")
		p.expect(t, "cancel", []byte{byte(opCancelWait)}, []byte{1}, "steps")
		p.expect(t, "wait, set", append(msg(opWait, 1, "/x"), msg(opSet, "/x", "")...), []byte{0}, "steps")
		p.expect(t, "delete", msg(opDelete, "/x"), msg(1, 1)[1:], "steps")
	}
	if p.session.waitingKeys != 0 || p.session.waitingBytes != 0 || p.session.pending != nil {
		t.Errorf("%d keys and %d bytes are counted", p.session.waitingKeys, p.session.waitingBytes)
	}
}

func TestEngineErrorsRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		sent   []byte
		reason Reason
	}{
		"add":      {msg(opAdd, "/t", 1), reasonNumber},
		"barrier":  {msg(opBarrier, "/t", 1), reasonNumber},
		"set":      {msg(opSet, "/t", strings.Repeat("x", 100)), reasonQuota},
		"append":   {msg(opAppend, "/t", strings.Repeat("x", 100)), reasonQuota},
		"multiset": {msg(opMultiSet, 1, "/u", strings.Repeat("x", 100)), reasonQuota},
		"push":     {msg(opQueuePush, "/q", strings.Repeat("x", 100)), reasonQuota},
		"cas":      {msg(opCompareSet, "/t", "text", strings.Repeat("x", 100)), reasonQuota},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(store.NewEngine(store.Limits{MaxBytes: 50}), sessionConfig{})
			p.send(append(hello, msg(opSet, "/t", "text")...))
			if _, err := p.send(c.sent); err == nil || err.reason != c.reason {
				t.Errorf("got %v", err)
			}
			if v, _ := p.session.engine.Get("/t"); string(v) != "text" {
				t.Errorf("the value is %q", v)
			}
		})
	}
}

// TestRepliesAreBounded: the bound is checked before a reply is made, for each
// operation with a reply.
func TestRepliesAreBounded(t *testing.T) {
	for name, sent := range map[string][]byte{
		"get":       msg(opGet, "/big"),
		"multi_get": msg(opMultiGet, 3, "/small", "/small", "/big"),
		"cas":       msg(opCompareSet, "/big", "x", "y"),
		"list_keys": bytes.Repeat(msg(opListKeys), 10),
		"num_keys":  bytes.Repeat(msg(opNumKeys), 20),
		"ping":      bytes.Repeat(appendPing(nil, 1), 50),
		"check":     bytes.Repeat(msg(opCheck, 0), 200),
		"queue_pop": msg(opQueuePop, "/queue"),
	} {
		t.Run(name, func(t *testing.T) {
			e := store.NewEngine(store.Limits{})
			e.Set("/big", make([]byte, 200))
			e.Set("/small", []byte("s"))
			e.QueuePush("/queue", make([]byte, 200))
			p := newPeer(e, sessionConfig{maxUnsent: 100})
			p.send(hello)
			if out, err := p.send(sent); err == nil || err.reason != reasonUnsent || len(out) > 100 {
				t.Errorf("got %v with %d bytes", err, len(out))
			}
		})
	}
}

func TestProcessPauses(t *testing.T) {
	p := newHelloPeer(t, sessionConfig{})
	batch := bytes.Repeat(appendPing(nil, 1), 10)
	p.session.parser.received(copy(p.session.parser.space(), batch))
	if drained, err := p.session.process(20); drained || err != nil || len(p.session.out) != 20 {
		t.Errorf("%v, %v, %d bytes", drained, err, len(p.session.out))
	}
	p.takeOut(nil)
	if drained, err := p.session.process(1000); !drained || err != nil || len(p.session.out) != 20 {
		t.Errorf("%v, %v, %d bytes", drained, err, len(p.session.out))
	}
}

func TestNormalizeAttemptKey(t *testing.T) {
	for key, want := range map[string]string{
		"//worker/attempt_0/x":               "//worker/attempt_0/x",
		"//worker/attempt_3/default_pg/0//y": "//worker/attempt_0/default_pg/0//y",
		"//worker/attempt_1234/":             "//worker/attempt_0/",
		"/worker/attempt_12/x":               "/worker/attempt_0/x",
		"//worker/attempt_/x":                "//worker/attempt_/x",
		"//worker/attempt_3":                 "//worker/attempt_3",
		"//worker/attempt_3x/y":              "//worker/attempt_3x/y",
		"//worker/attempt_-1/y":              "//worker/attempt_-1/y",
		"///worker/attempt_3/x":              "///worker/attempt_3/x",
		"/a/worker/attempt_3/x":              "/a/worker/attempt_3/x",
		"worker/attempt_3/x":                 "worker/attempt_3/x",
		"/worker/x":                          "/worker/x",
		"":                                   "",
		"init/":                              "init/",
	} {
		if got := normalizeAttemptKey([]byte(key)); string(got) != want {
			t.Errorf("%q became %q, want %q", key, got, want)
		}
	}
}

func TestFoldedKeysMeet(t *testing.T) {
	a := newHelloPeer(t, sessionConfig{normalizeAttemptKeys: true})
	b := a.join(t)
	a.expect(t, "wait", msg(opWait, 2, "//worker/attempt_10/x", "//worker/attempt_2/y"), nil, "steps")
	b.expect(t, "multi_set", msg(opMultiSet, 2, "//worker/attempt_1/x", "1", "//worker/attempt_0/y", "2"), nil, "steps")
	a.expect(t, "multi_get", msg(opMultiGet, 2, "//worker/attempt_10/x", "//worker/attempt_10/y"),
		append([]byte{0}, msg(0, "1", "2")[1:]...), "steps")
	a.expect(t, "add", msg(opAdd, "//worker/attempt_7/n", 1), msg(0, 1)[1:], "steps")
	b.expect(t, "add", msg(opAdd, "//worker/attempt_77/n", 1), msg(0, 2)[1:], "steps")

	c := newHelloPeer(t, sessionConfig{})
	c.expect(t, "set", msg(opSet, "//worker/attempt_5/x", ""), nil, "steps")
	if keys := c.session.engine.Keys(); keys[0] != "//worker/attempt_5/x" {
		t.Errorf("normalized without the option: %q", keys)
	}
}
