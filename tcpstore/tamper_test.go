package tcpstore

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// held is a connection of which a machine in the middle holds what is written, once it begins to.
type held struct {
	net.Conn
	holds bool
	sent  bytes.Buffer
}

func (h *held) Write(b []byte) (int, error) {
	if h.holds {
		return h.sent.Write(b)
	}
	return h.Conn.Write(b)
}

// TestRecordsTampered: of a session whose records a machine in the middle drops, swaps or repeats,
// or among which it puts others, nothing is carried out after the first that is not as it was sent.
func TestRecordsTampered(t *testing.T) {
	plain := func(kind byte, body string) []byte {
		return append([]byte{kind, 3, 3, 0, byte(len(body))}, body...)
	}
	b := newBesetServer(t)
	deletes := uint64(0)
	for i, attack := range []struct {
		name  string
		order func(r [][]byte) [][]byte
		done  uint64
	}{
		{"dropped", func(r [][]byte) [][]byte { return [][]byte{r[0], r[2]} }, 1},
		{"swapped", func(r [][]byte) [][]byte { return [][]byte{r[1], r[0], r[2]} }, 0},
		{"repeated", func(r [][]byte) [][]byte { return [][]byte{r[0], r[0], r[1]} }, 1},
		{"another's data", func(r [][]byte) [][]byte { return [][]byte{r[0], plain(23, "SET"), r[1]} }, 1},
		{"another's end", func(r [][]byte) [][]byte { return [][]byte{r[0], plain(21, "\x01\x00"), r[1]} }, 1},
		{"another's hello", func(r [][]byte) [][]byte { return [][]byte{r[0], plain(22, "\x01\x00\x00\x00"), r[1]} }, 1},
	} {
		var middle *held
		r := dialTLS(t, b.Server, b.token, func(c net.Conn) net.Conn {
			middle = &held{Conn: c}
			return middle
		})
		r.exchange(hello, hello[6:])
		middle.holds = true
		var records [][]byte
		for range 3 {
			testkit.Must(r.Write(msg(opDelete, "/tampered")))(t)
			records = append(records, bytes.Clone(middle.sent.Bytes()))
			middle.sent.Reset()
		}
		for _, record := range attack.order(records) {
			r.below.Write(record)
		}
		wantClosed(t, r.below)
		b.awaitRefused(t, reasonRecord, uint64(i+1))
		deletes += attack.done
		if n := b.Stats().Ops["DELETE_KEY"]; n != deletes {
			t.Errorf("%s: %d requests were carried out, not %d", attack.name, n, deletes)
		}
	}
}

// TestKeysOfOtherRuns: at a store whose nodes have the token of their run, neither the token of
// another run of the same control plane opens anything, nor one made of both; nor does a proof that is
// for another kind of server, to which a machine in the middle leads who has the right token.
func TestKeysOfOtherRuns(t *testing.T) {
	own := string(testkit.Must(secret.RunKey([]byte(goodKey), "job"))(t))
	foreign := string(testkit.Must(secret.RunKey([]byte(goodKey), "other"))(t))
	for name, keys := range map[string][2]string{ // of the store, of who comes
		"another run's":           {own, foreign},
		"its sum, our name":       {own, strings.TrimSuffix(foreign, ":other") + ":job"},
		"our sum, its name":       {own, strings.TrimSuffix(own, ":job") + ":other"},
		"a run's at the server's": {goodKey, own},
		"the server's at a run's": {own, goodKey},
	} {
		lines, logger := newLog()
		s := testkit.Must(Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), Options{
			Logger: logger, Secure: &Secure{openToken(t, keys[0]), testkit.Must(secret.ServerTLS())(t)},
		}))(t)
		s.BeginRound(nil, thisRound)
		_, err := tryDialTLS(t, s, openToken(t, keys[1]), thisRound, nil)
		if rendezvous.CodeOf(err) != rendezvous.CodeAuth || strings.Contains(err.Error(), "g1") {
			t.Errorf("%s: %v", name, err)
		}
		r := dialHandshake(t, s)
		r.Write(append(proofOf(t, r.Conn, keys[1], thisRound), planting...))
		wantClosed(t, r)
		testkit.Eventually(t, "both are refused", func() bool { return s.Stats().Refused["authentication"] == 2 })
		if ops := s.Stats().Ops["VALIDATE"]; ops != 0 || len(wireKeys(s)) != 0 {
			t.Errorf("%s: %d have got to the engine, %q", name, ops, wireKeys(s))
		}
		if got := lines.String(); strings.Contains(got, keys[0]) || strings.Contains(got, keys[1]) {
			t.Errorf("%s: the log has a key: %s", name, got)
		}
		s.Close()
	}
	b := newBesetServer(t)
	for i, purpose := range []secret.Purpose{secret.PurposeControl, secret.PurposeSide} {
		conn := testkit.Must(net.Dial("tcp", b.Addr().String()))(t)
		_, err := secret.DialStore(context.Background(), conn, b.token, thisRound, purpose)
		if rendezvous.CodeOf(err) != rendezvous.CodeAuth {
			t.Errorf("for the purpose %d: %v", purpose, err)
		}
		conn.Close()
		b.awaitRefused(t, reasonAuth, uint64(i+1))
	}
}
