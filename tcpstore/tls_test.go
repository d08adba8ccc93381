package tcpstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/eventloop"
	"rallypoint/internal/pack"
	"rallypoint/internal/testkit"
)

const (
	goodKey  = "correct horse battery staple, and more"
	otherKey = "Tr0ub4dor&3 Tr0ub4dor&3 Tr0ub4dor&3"
)

var thisRound = secret.StoreName{Run: "job", Generation: "g1", Round: 7}

func openToken(t testing.TB, keys ...string) *secret.Token {
	t.Helper()
	return testkit.Must(secret.OpenToken(testkit.TokenFile(t, keys...), nil))(t)
}

// newSecureServer starts a server with a token in a round.
func newSecureServer(t testing.TB, opts Options) (*Server, *testkit.Log) {
	t.Helper()
	lines, logger := newLog()
	opts.Logger = logger
	opts.Secure = &Secure{Token: openToken(t, goodKey), Config: testkit.Must(secret.ServerTLS())(t)}
	s := testkit.Must(Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), opts))(t)
	s.BeginRound(nil, thisRound)
	t.Cleanup(func() { s.Close() })
	return s, lines
}

// rawTLS is a connection without a client.
type rawTLS struct {
	*tls.Conn
	below *net.TCPConn
	t     testing.TB
}

// dialTLS opens a connection. Below, if not nil, is what TLS writes to.
func dialTLS(t testing.TB, s *Server, token *secret.Token, below func(net.Conn) net.Conn) rawTLS {
	t.Helper()
	r, err := tryDialTLS(t, s, token, thisRound, below)
	testkit.Check(t, err)
	return r
}

func tryDialTLS(t testing.TB, s *Server, token *secret.Token, name secret.StoreName, below func(net.Conn) net.Conn) (rawTLS, error) {
	t.Helper()
	conn := testkit.Must(net.Dial("tcp", s.Addr().String()))(t).(*net.TCPConn)
	t.Cleanup(func() { conn.Close() })
	under := net.Conn(conn)
	if below != nil {
		under = below(conn)
	}
	secured, err := secret.DialStore(context.Background(), under, token, name, secret.PurposeStore)
	conn.SetDeadline(time.Now().Add(guard))
	return rawTLS{secured, conn, t}, err
}

// dialTLSHello is dialTLS with TCPStore's handshake done.
func dialTLSHello(t testing.TB, s *Server, token *secret.Token) rawTLS {
	t.Helper()
	r := dialTLS(t, s, token, nil)
	r.exchange(hello, hello[6:])
	return r
}

func (r rawTLS) exchange(sent, want []byte) {
	r.t.Helper()
	if !r.tryExchange(sent, want) {
		r.t.FailNow()
	}
}

func (r rawTLS) tryExchange(sent, want []byte) bool {
	r.t.Helper()
	return tryExchange(r.t, r, sent, want)
}

// sizesAroundBuffers are the lengths of a value around what any buffer or record holds.
func sizesAroundBuffers() (sizes []int) {
	around := func(n, each int) {
		for i := -each; i <= each; i++ {
			if n+i > 0 && n+i <= 200<<10 {
				sizes = append(sizes, n+i)
			}
		}
	}
	around(20, 19)
	for _, n := range []int{minRead, leastBuffer, 2 * leastBuffer, firstBuffer, smallReply, 8 << 10, shareFrom, eventloop.MaxRecord, 2 * shareFrom, 3 * shareFrom, tlsRead, tlsWrite + shareFrom, keptBuffer, keptBuffer + tlsRead} {
		around(n, 2)
		for _, head := range []int{8, 16, 22, 26, 34} { // of requests, replies and records
			around(n-head, 1)
		}
	}
	around(200<<10, 2)
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// TestRecordsAcrossBuffers: requests and replies of each length arrive, however TLS and the
// network have cut them; none waits for more than was sent.
func TestRecordsAcrossBuffers(t *testing.T) {
	s, lines := newSecureServer(t, Options{})
	token := openToken(t, goodKey)
	value := make([]byte, 200<<10)
	for i := range value {
		value[i] = byte(i * 7 >> 3)
	}
	var all sync.WaitGroup
	for name, cut := range map[string]struct {
		records []int // lengths of the writes, which are records of TLS
		network []int
		most    int // of a value
	}{
		"whole":                 {[]int{1 << 20}, nil, 1 << 20},
		"records of 1":          {[]int{1}, nil, 600},
		"records of any length": {[]int{1, 16 << 10, 3, 900, 16<<10 - 1, 4096, 17}, nil, 1 << 20},
		"full records":          {[]int{16 << 10}, []int{eventloop.RecordHead + eventloop.MaxRecord}, 1 << 20},
		"bytes":                 {[]int{1 << 20}, []int{1}, 600},
		"segments":              {[]int{1 << 20}, []int{1448}, 1 << 20},
		"cut anywhere":          {[]int{16 << 10, 5, 12345}, []int{1, 4, 5, 6, 16<<10 + 22, 333, 60000}, 1 << 20},
	} {
		r := dialTLS(t, s, token, func(c net.Conn) net.Conn {
			if cut.network == nil {
				return c
			}
			return &testkit.Pieces{Conn: c, Of: cut.network}
		})
		r.exchange(hello, hello[6:])
		all.Go(func() {
			for i, size := range sizesAroundBuffers() {
				if size > cut.most {
					break
				}
				r.below.SetDeadline(time.Now().Add(guard))
				v := string(value[len(value)-size:])
				request := append(msg(opSet, "/"+name, v), msg(opGet, "/"+name)...)
				go func() {
					for next := i; len(request) > 0; next++ {
						n := min(cut.records[next%len(cut.records)], len(request))
						r.Write(request[:n])
						request = request[n:]
					}
				}()
				if !r.tryExchange(nil, msg(0, v)[1:]) {
					t.Errorf("%s: a value of %d bytes", name, size)
					return
				}
			}
		})
	}
	all.Wait()
	if len(lines.With("WARN")) > 0 {
		t.Error("a client was refused")
	}
}

// TestTLSLongPipeline: requests that fill several reads, and whose replies fill several
// writes, are all answered without anything more arriving.
func TestTLSLongPipeline(t *testing.T) {
	s, _ := newSecureServer(t, Options{})
	r := dialTLSHello(t, s, openToken(t, goodKey))
	value := strings.Repeat("v", 100)
	r.exchange(append(msg(opSet, "/k", value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	const gets = 30000
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		r.Write(bytes.Repeat(msg(opGet, "/k"), gets))
	}()
	r.exchange(nil, bytes.Repeat(msg(0, value)[1:], gets))
	<-sent
}

// proofOf is a node's proof by a connection whose handshake is done.
func proofOf(t testing.TB, conn *tls.Conn, key string, name secret.StoreName) []byte {
	t.Helper()
	packed := pack.Append(nil, func(p *pack.Packer) {
		p.List(3)
		p.Text(name.Run)
		p.Text(name.Generation)
		p.Uint(name.Round)
	})
	said := secret.Preamble{High: 1, Low: 1, Token: true}.Bytes()
	tr := secret.Transcript{Purpose: secret.PurposeStore, Said: said, Exporter: testkit.Must(secret.Exporter(conn))(t), Name: packed}
	body := pack.Append(nil, secret.Proof{MACs: tr.Prove(secret.OfNode, [][]byte{[]byte(key)}), Purpose: tr.Purpose, Name: packed}.Pack)
	return append(binary.LittleEndian.AppendUint32(said, uint32(len(body))), body...)
}

// dialHandshake makes the TLS handshake alone.
func dialHandshake(t testing.TB, s *Server) rawTLS {
	t.Helper()
	conn := testkit.Must(net.Dial("tcp", s.Addr().String()))(t).(*net.TCPConn)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(guard))
	r := rawTLS{tls.Client(conn, secret.ClientTLS()), conn, t}
	testkit.Check(t, r.Handshake())
	return r
}

// TestTLSFirstRequestWithProof: a request in one record with the proof is answered, though
// it makes no event.
func TestTLSFirstRequestWithProof(t *testing.T) {
	s, _ := newSecureServer(t, Options{})
	for range 20 {
		r := dialHandshake(t, s)
		said := proofOf(t, r.Conn, goodKey, thisRound)
		testkit.Must(r.Write(append(said, hello...)))(t)
		answer := make([]byte, len(said)) // as long: a preamble, a MAC and a name
		testkit.Must(io.ReadFull(r, answer))(t)
		r.exchange(nil, hello[6:])
	}
}

// TestTLSHalfClose: a client that has ended its stream gets all replies, and is closed.
func TestTLSHalfClose(t *testing.T) {
	s, lines := newSecureServer(t, Options{})
	token := openToken(t, goodKey)
	for name, end := range map[string]func(rawTLS) error{
		"by TLS":  func(r rawTLS) error { return r.CloseWrite() },
		"by TCP":  func(r rawTLS) error { return r.below.CloseWrite() },
		"by both": func(r rawTLS) error { return errors.Join(r.CloseWrite(), r.below.CloseWrite()) },
	} {
		t.Run(name, func(t *testing.T) {
			r := dialTLSHello(t, s, token)
			value := strings.Repeat("v", 100<<10)
			const gets = 20
			testkit.Must(r.Write(append(msg(opSet, "/k", value), bytes.Repeat(msg(opGet, "/k"), gets)...)))(t)
			testkit.Check(t, end(r))
			for range gets {
				r.exchange(nil, msg(0, value)[1:])
			}
			if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("%d bytes, %v, want the end", n, err)
			}
		})
	}
	if len(lines.With("WARN")) > 0 {
		t.Error("a client was refused")
	}
	t.Run("inside a record", func(t *testing.T) {
		var cut *testkit.Pieces
		r := dialTLS(t, s, token, func(c net.Conn) net.Conn { cut = &testkit.Pieces{Conn: c, Of: []int{1 << 20}}; return cut })
		r.exchange(hello, hello[6:])
		cut.Conn = halfWriter{cut.Conn.(*net.TCPConn)}
		testkit.Must(r.Write(appendPing(nil, 1)))(t)
		testkit.Check(t, r.below.CloseWrite())
		if line := lines.Next(t); !strings.Contains(line, "inside a TLS record") || !strings.Contains(line, "reason=truncated") {
			t.Errorf("the line is %s", line)
		}
	})
}

// halfWriter loses the end of each write.
type halfWriter struct{ *net.TCPConn }

func (h halfWriter) Write(b []byte) (int, error) {
	_, err := h.TCPConn.Write(b[:len(b)/2])
	return len(b), err
}

// TestTLSSlowReaders: peers that pipeline and do not read are not served on, hold few records,
// share large values and hold up no others; when they read they get all their replies.
func TestTLSSlowReaders(t *testing.T) {
	s, lines := newSecureServer(t, Options{})
	token := openToken(t, goodKey)
	good := dialTLSHello(t, s, token)
	value := strings.Repeat("v", 2<<20) // the replies of a peer are twice what its socket may hold
	good.exchange(append(msg(opSet, "/k", value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	const gets = 4
	var slow []rawTLS
	for range 10 {
		r := dialTLSHello(t, s, token)
		r.below.SetReadBuffer(64 << 10)
		slow = append(slow, r)
	}
	before := heapInUse()
	for i, r := range slow {
		r.exchange(bytes.Repeat(msg(opGet, "/k"), gets), nil)
		if i%2 == 0 {
			testkit.Check(t, r.CloseWrite())
		}
	}
	for i := range 100 {
		good.exchange(appendPing(nil, uint32(i)), []byte{byte(i), 0, 0, 0})
	}
	if n := (heapInUse() - before) / int64(len(slow)); n > 256<<10 {
		t.Errorf("%d bytes wait for each peer that does not read", n)
	}
	for i, r := range slow {
		reply := msg(0, value)[1:]
		for range gets {
			r.exchange(nil, reply)
		}
		if i%2 == 0 {
			if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("%d bytes, %v, want the end", n, err)
			}
		}
	}
	if len(lines.With("WARN")) > 0 {
		t.Error("a client was refused")
	}
	heldNothing(t, s)
}

// heldNothing wants no loop to count anything as unsent.
func heldNothing(t *testing.T, s *Server) {
	t.Helper()
	s.Close()
	for _, l := range s.loops {
		if l.budget.held != 0 || len(l.budget.shared) != 0 {
			t.Errorf("%d bytes are held of nothing, %d values", l.budget.held, len(l.budget.shared))
		}
	}
}

// TestTLSSlowReaderCut: records that wait for a peer that does not read count, and it is
// closed when others need the memory.
func TestTLSSlowReaderCut(t *testing.T) {
	s, _ := newSecureServer(t, Options{MaxUnsentSum: 1 << 20, SlowAfter: time.Nanosecond})
	token := openToken(t, goodKey)
	good, slow := dialTLSHello(t, s, token), dialTLSHello(t, s, token)
	slow.below.SetReadBuffer(4 << 10)
	value := strings.Repeat("v", 8<<20)
	good.exchange(append(msg(opSet, "/k", value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	sent := s.Stats().BytesOut
	slow.exchange(msg(opGet, "/k"), nil)
	testkit.Eventually(t, "the reply has begun", func() bool { return s.Stats().BytesOut > sent+1000 })
	good.exchange(msg(opGet, "/k"), msg(0, value)[1:])
	if n := s.Stats().Refused["slow_reader"]; n != 1 {
		t.Errorf("%d slow readers were closed", n)
	}
	heldNothing(t, s)
}

// TestTLSNarrowSocket: replies arrive whole, however little the socket takes at a time.
func TestTLSNarrowSocket(t *testing.T) {
	inner := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	_, logger := newLog()
	s := Serve(narrow{inner}, store.NewEngine(store.Limits{}), Options{
		Logger: logger, Secure: &Secure{openToken(t, goodKey), testkit.Must(secret.ServerTLS())(t)},
	})
	defer s.Close()
	s.BeginRound(nil, thisRound)
	r := dialTLSHello(t, s, openToken(t, goodKey))
	for _, size := range []int{1000, shareFrom - 1, shareFrom, 50 << 10, tlsWrite, tlsWrite + 1, 300 << 10} {
		value := strings.Repeat("v", size)
		r.exchange(append(msg(opSet, "/k", value), bytes.Repeat(msg(opGet, "/k"), 5)...), nil)
		r.exchange(nil, bytes.Repeat(msg(0, value)[1:], 5))
	}
	heldNothing(t, s)
}

// TestTLSReplyWaitsForSlowReader: replies that others cause meanwhile come after the unsent ones.
func TestTLSReplyWaitsForSlowReader(t *testing.T) {
	s, _ := newSecureServer(t, Options{})
	token := openToken(t, goodKey)
	good, slow := dialTLSHello(t, s, token), dialTLSHello(t, s, token)
	value := strings.Repeat("v", MaxValueBytes)
	good.exchange(append(msg(opSet, "/k", value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	sent := s.Stats().BytesOut
	slow.exchange(append(msg(opWait, 1, "/x"), msg(opGet, "/k")...), nil)
	testkit.Eventually(t, "the reply has begun", func() bool { return s.Stats().BytesOut > sent+1000 })
	good.exchange(append(msg(opSet, "/x", ""), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	slow.exchange(nil, msg(0, value)[1:])
	slow.exchange(nil, []byte{0})
}

// TestTLSManyConnections: each of many does some of everything, on several loops, and in the
// end they wait for each other.
func TestTLSManyConnections(t *testing.T) {
	eachLoops(t, func(t *testing.T, loops int) {
		const n = 100
		s, lines := newSecureServer(t, Options{Loops: loops})
		token := openToken(t, goodKey)
		large := strings.Repeat("v", 100<<10)
		var wg sync.WaitGroup
		for i := range n {
			r := dialTLSHello(t, s, token)
			wg.Go(func() {
				key := fmt.Sprint("/key/", i)
				r.tryExchange(append(msg(opSet, key, "value"), msg(opGet, key)...), msg(0, "value")[1:])
				r.tryExchange(msg(opCompareSet, key, "value", "other"), msg(0, "other")[1:])
				r.tryExchange(bytes.Repeat(msg(opCheck, 1, key), 10), make([]byte, 10))
				r.tryExchange(msg(opMultiGet, 2, key, "/none"), msg(0, "other", "")[1:])
				if i%10 == 0 {
					r.tryExchange(append(msg(opSet, key, large), msg(opGet, key)...), msg(0, large)[1:])
				}
				r.tryExchange(msg(opBarrier, "/all", n), []byte{0})
			})
		}
		wg.Wait()
		if stats := s.Stats(); stats.Keys != n+1 || stats.Connections != n || stats.Accepted != n {
			t.Errorf("%+v", stats)
		}
		if len(lines.With("WARN")) > 0 {
			t.Error("a client was refused")
		}
	})
}

// TestTLSConnectionIsSmall: what a silent connection costs the server, apart from the
// kernel's memory and the client's half, which is about as large and counted here, too.
func TestTLSConnectionIsSmall(t *testing.T) {
	const n = 200
	s, _ := newSecureServer(t, Options{})
	token := openToken(t, goodKey)
	dialTLSHello(t, s, token)
	var others []rawTLS
	before := heapInUse()
	for range n {
		r := dialTLSHello(t, s, token)
		r.exchange(append(msg(opSet, "/k", "value"), msg(opGet, "/k")...), msg(0, "value")[1:])
		others = append(others, r)
	}
	each := (heapInUse() - before) / n
	t.Logf("%d bytes for both ends of a connection", each)
	if each > 12<<10 {
		t.Errorf("%d bytes for both ends of a connection", each)
	}
	runtime.KeepAlive(others)
}
