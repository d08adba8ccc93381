package secret

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/eventloop"
	"rallypoint/internal/testkit"
)

var testName = StoreName{Run: "job", Generation: "g1", Round: 3}

func testToken(t testing.TB, keys ...string) *Token {
	t.Helper()
	return testkit.Must(OpenToken(testkit.TokenFile(t, keys...), nil))(t)
}

// pair is a connection of two sockets, which end with the test.
func pair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	client = testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
	server = testkit.Must(l.Accept())(t)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func only(purpose Purpose) func(Purpose) bool {
	return func(p Purpose) bool { return p == purpose }
}

type opened struct {
	conn *tls.Conn
	err  error
}

// accepting serves one connection, which it closes after an error.
func accepting(t testing.TB, conn net.Conn, token *Token, purpose Purpose, name StoreName) <-chan opened {
	t.Helper()
	config := testkit.Must(ServerTLS())(t)
	done := make(chan opened, 1)
	go func() {
		secured, err := AcceptStore(context.Background(), conn, config, token, only(purpose), func() StoreName { return name })
		if err != nil {
			conn.Close()
		}
		done <- opened{secured, err}
	}()
	return done
}

// TestStoreOpening: both ends have proved the token and agree on the round; data sent
// after the proof arrives.
func TestStoreOpening(t *testing.T) {
	for name, keys := range map[string][2][]string{
		"one token":         {{goodToken}, {goodToken}},
		"the client's old":  {{otherToken, goodToken}, {goodToken}},
		"the server's old":  {{goodToken}, {otherToken, goodToken}},
		"the order differs": {{goodToken, otherToken}, {otherToken, goodToken}},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			done := accepting(t, far, testToken(t, keys[1]...), PurposeStore, testName)
			client, err := DialStore(t.Context(), near, testToken(t, keys[0]...), testName, PurposeStore)
			testkit.Check(t, err)
			server := <-done
			testkit.Check(t, server.err)
			if v := client.ConnectionState(); v.Version != tls.VersionTLS13 || v.CurveID != tls.CurveP256 {
				t.Errorf("TLS %x over %v", v.Version, v.CurveID)
			}
			for _, c := range [][2]*tls.Conn{{client, server.conn}, {server.conn, client}} {
				go io.WriteString(c[0], "hello")
				got := make([]byte, 5)
				if _, err := io.ReadFull(c[1], got); err != nil || string(got) != "hello" {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
}

// TestStoreRecordsAreFull: either end sends records of full size from the first. Those
// that crypto/tls would begin with are a segment each, and cost as much to seal.
func TestStoreRecordsAreFull(t *testing.T) {
	near, far := pair(t)
	done := accepting(t, far, testToken(t, goodToken), PurposeStore, testName)
	client := testkit.Must(DialStore(t.Context(), near, testToken(t, goodToken), testName, PurposeStore))(t)
	server := <-done
	testkit.Check(t, server.err)
	const full, overhead, records = 16 << 10, 1 + 16, 4 // a byte for the kind, and the tag
	for name, way := range map[string]struct {
		from *tls.Conn
		to   net.Conn
	}{"the client": {client, far}, "the server": {server.conn, near}} {
		sent := testkit.Go(func() error { _, err := way.from.Write(make([]byte, records*full)); return err })
		for range records {
			head := make([]byte, eventloop.RecordHead)
			testkit.Must(io.ReadFull(way.to, head))(t)
			if n := eventloop.BodyLen(head); n != full+overhead {
				t.Fatalf("%s sends a record of %d bytes", name, n)
			}
			testkit.Must(io.CopyN(io.Discard, way.to, full+overhead))(t)
		}
		testkit.Check(t, <-sent)
	}
}

// TestStoreRefusals: a stranger gets one sentence, a client with the token the reason.
func TestStoreRefusals(t *testing.T) {
	long := StoreName{Run: strings.Repeat("r", rendezvous.MaxNameLen), Generation: strings.Repeat("g", maxGeneration), Round: 1 << 62}
	for name, test := range map[string]struct {
		key     string
		name    StoreName
		purpose Purpose
		serves  StoreName
		cause   error // at the server
		code    rendezvous.Code
		says    []string // at the client
	}{
		"another token":      {otherToken, testName, PurposeStore, testName, ErrUnproven, rendezvous.CodeAuth, []string{"does not know the token in ", Fingerprint([]byte(otherToken))}},
		"another purpose":    {goodToken, testName, PurposeSide, testName, ErrUnproven, rendezvous.CodeAuth, nil},
		"an older round":     {goodToken, testName, PurposeStore, StoreName{"job", "g1", 4}, ErrOtherRound, rendezvous.CodeRoundOver, []string{`serves round 4 of run "job" (generation g1), not round 3 of run "job" (generation g1)`}},
		"another generation": {goodToken, testName, PurposeStore, StoreName{"job", "g2", 3}, ErrOtherRound, rendezvous.CodeRoundOver, []string{"generation g2", "generation g1"}},
		"another run":        {goodToken, testName, PurposeStore, StoreName{"other", "g1", 3}, ErrOtherRound, rendezvous.CodeRoundOver, []string{`"other"`, `"job"`}},
		"no round":           {goodToken, testName, PurposeStore, StoreName{}, ErrOtherRound, rendezvous.CodeRoundOver, []string{"serves no round, not round 3"}},
		"no round, and none": {goodToken, StoreName{}, PurposeStore, StoreName{}, ErrOtherRound, 0, nil},
		"long names":         {goodToken, testName, PurposeStore, long, ErrOtherRound, rendezvous.CodeRoundOver, []string{long.Run}},
		"escape codes":       {goodToken, testName, PurposeStore, StoreName{"\x1b[2Jx\n", "\x1b", 3}, ErrOtherRound, rendezvous.CodeRoundOver, []string{"\ufffd[2Jx"}},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			serverToken := testToken(t, goodToken)
			done := accepting(t, far, serverToken, PurposeStore, test.serves)
			client, err := DialStore(t.Context(), near, testToken(t, test.key), test.name, test.purpose)
			server := <-done
			if !errors.Is(server.err, test.cause) || server.conn != nil {
				t.Errorf("the server says %v, want %v", server.err, test.cause)
			}
			if test.code == 0 {
				return
			}
			if client != nil || rendezvous.CodeOf(err) != test.code {
				t.Fatalf("%v, want code %d", err, test.code)
			}
			for _, text := range test.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v does not say %q", err, text)
				}
			}
			if strings.ContainsAny(err.Error(), "\x1b\n") {
				t.Errorf("%q would be obeyed by a terminal", err)
			}
			if test.key != goodToken {
				for _, theirs := range []string{serverToken.Path(), Fingerprint([]byte(goodToken)), "g1"} {
					if strings.Contains(err.Error(), theirs) {
						t.Errorf("a stranger is told %q: %v", theirs, err)
					}
				}
			}
		})
	}
}

// TestStoreStrangerLearnsNothing: all that is sent to a peer that has not proven itself is
// the preamble and one frame, the same whatever it has sent.
func TestStoreStrangerLearnsNothing(t *testing.T) {
	near, far := pair(t)
	done := accepting(t, far, testToken(t, goodToken), PurposeStore, testName)
	client := tls.Client(near, ClientTLS())
	said := appendFrame(Preamble{1, 1, true}.Bytes(), Proof{MACs: [][]byte{make([]byte, 32)}, Purpose: PurposeStore, Name: testName.pack()}.Pack)
	testkit.Must(client.Write(said))(t)
	got, _ := io.ReadAll(client)
	if want := appendFrame(Preamble{1, 1, true}.Bytes(), packRefusal); !bytes.Equal(got, want) {
		t.Errorf("a stranger is told %q, want %q", got, want)
	}
	if err := (<-done).err; !errors.Is(err, ErrUnproven) {
		t.Error(err)
	}
}

// TestStoreImpostor: a client believes no server that does not know the token.
func TestStoreImpostor(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(exporter []byte) []byte
		says   string
	}{
		"no MAC": {func([]byte) []byte {
			return appendFrame(Preamble{1, 1, true}.Bytes(), Proof{Purpose: PurposeStore, Name: testName.pack()}.Pack)
		}, "does not know the token"},
		"the client's own MAC": {func(exporter []byte) []byte {
			said := Preamble{1, 1, true}.Bytes()
			tr := Transcript{Purpose: PurposeStore, Said: append(said, said...), Exporter: exporter, Name: testName.pack()}
			return appendFrame(said, Proof{tr.Prove(OfNode, [][]byte{[]byte(goodToken)}), PurposeStore, tr.Name}.Pack)
		}, "does not know the token"},
		"of another purpose": {func(exporter []byte) []byte {
			said := Preamble{1, 1, true}.Bytes()
			tr := Transcript{Purpose: PurposeControl, Said: append(said, said...), Exporter: exporter, Name: testName.pack()}
			return appendFrame(said, Proof{tr.Prove(OfServer, [][]byte{[]byte(goodToken)}), PurposeControl, tr.Name}.Pack)
		}, "does not know the token"},
		"a name that is not proven": {func(exporter []byte) []byte {
			said := Preamble{1, 1, true}.Bytes()
			tr := Transcript{Purpose: PurposeStore, Said: append(said, said...), Exporter: exporter, Name: StoreName{Run: "x"}.pack()}
			return appendFrame(said, Proof{tr.Prove(OfServer, [][]byte{[]byte(goodToken)}), PurposeStore, testName.pack()}.Pack)
		}, "does not know the token"},
		"a refusal with words": {func([]byte) []byte {
			return appendFrame(Preamble{1, 1, true}.Bytes(), packRefusal)
		}, "does not know the token"},
		"a frame too large": {func([]byte) []byte { return append(Preamble{1, 1, true}.Bytes(), 1, 4, 0, 0) }, "a frame of 1025 bytes where 1024 are allowed"},
		"another frame":     {func([]byte) []byte { return append(Preamble{1, 1, true}.Bytes(), 2, 0, 0, 0, 0x91, 5) }, "a frame of kind 5 in place of a proof"},
		"no preamble":       {func([]byte) []byte { return make([]byte, 8) }, "is no Rallypoint round store"},
		"the end":           {func([]byte) []byte { return nil }, "is no Rallypoint round store"},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			config := testkit.Must(ServerTLS())(t)
			done := testkit.Go(func() error {
				defer far.Close()
				server := tls.Server(far, config)
				if err := server.Handshake(); err != nil {
					return err
				}
				server.Read(make([]byte, 1<<10)) // the proof
				exporter, err := Exporter(server)
				server.Write(test.answer(exporter))
				server.CloseWrite()
				return err
			})
			conn, err := DialStore(t.Context(), near, testToken(t, goodToken), testName, PurposeStore)
			if conn != nil || err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
			near.Close()
			testkit.Check(t, <-done)
		})
	}
}

// TestStoreDowngrade: neither end says anything to a peer that does not speak TLS 1.3.
func TestStoreDowngrade(t *testing.T) {
	old := testkit.Must(ServerTLS())(t)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for name, test := range map[string]struct {
		answer func(net.Conn)
		says   string
	}{
		"a plain TCPStore": {func(c net.Conn) { c.Read(make([]byte, 1)) }, "closed the connection in the TLS handshake: it is no Rallypoint round store with a token"},
		"a web server":     {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }, "answers TLS with 4854545"},
		"TLS 1.2":          {func(c net.Conn) { tls.Server(c, old).Handshake() }, "protocol version"},
		"our own, plain":   {func(c net.Conn) { c.Write(Preamble{High: 1, Low: 1}.Bytes()) }, "the round store at "},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			done := testkit.Go(func() error { test.answer(far); return far.(*net.TCPConn).CloseWrite() })
			_, err := DialStore(t.Context(), near, testToken(t, goodToken), testName, PurposeStore)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
			<-done
			near.Close()
			if rest, _ := io.ReadAll(far); bytes.Contains(rest, Magic[:]) {
				t.Errorf("it has said % x", rest)
			}
		})
	}
}

// TestStoreOpeningEnds: a silent peer costs the time that the caller gives, at either end.
func TestStoreOpeningEnds(t *testing.T) {
	near, far := pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := DialStore(ctx, near, testToken(t, goodToken), testName, PurposeStore); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not open the connection within") {
		t.Error(err)
	}
	_, err := AcceptStore(ctx, far, testkit.Must(ServerTLS())(t), testToken(t, goodToken), only(PurposeStore), func() StoreName { return testName })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := DialStore(t.Context(), near, nil, StoreName{Generation: strings.Repeat("g", maxGeneration+1)}, PurposeStore); !errors.Is(err, rendezvous.ErrInvalid) {
		t.Error(err)
	}
}

// FuzzStoreOpening decodes what comes before a proof.
func FuzzStoreOpening(f *testing.F) {
	mac := bytes.Repeat([]byte{7}, 32)
	f.Add(appendFrame(Preamble{1, 1, true}.Bytes(), Proof{[][]byte{mac, mac}, PurposeStore, testName.pack()}.Pack))
	f.Add(appendFrame(Preamble{1, 1, true}.Bytes(), packRefusal))
	f.Add([]byte{0xd5, 'R', 'P', 'T', 1, 1, 1, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, said []byte) {
		r := bytes.NewReader(said)
		if _, err := readPreamble(r); err != nil {
			return
		}
		proof, _, err := readFrame(r)
		if err != nil {
			return
		}
		if len(proof.MACs) > maxTokens {
			t.Errorf("%d MACs", len(proof.MACs))
		}
		name, err := parseStoreName(proof.Name)
		if err != nil {
			return
		}
		if len(name.Run) > rendezvous.MaxNameLen || len(name.Generation) > maxGeneration || strings.ContainsAny(name.String(), "\x1b\n") {
			t.Errorf("a name of %d and %d bytes, %q", len(name.Run), len(name.Generation), name)
		}
		if again, err := parseStoreName(name.pack()); err != nil || again != name {
			t.Errorf("%v became %v, %v", name, again, err)
		}
	})
}
