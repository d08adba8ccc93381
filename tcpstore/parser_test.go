package tcpstore

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"rallypoint/core/store"
)

// feed gives b to p in pieces as r delivers them and returns what was parsed, as
// text, and how it ended.
func feed(p *parser, b []byte, piece int) (requests []string, err *refusal) {
	for len(b) > 0 {
		space := p.space()
		n := copy(space[:min(len(space), piece)], b)
		p.received(n)
		b = b[n:]
		for {
			req, err := p.next()
			if err != nil {
				return requests, err
			}
			if req == nil {
				break
			}
			requests = append(requests, fmt.Sprintf("%s %q %q %q %d %q %q",
				req.op, req.key, req.expected, req.value, req.number, req.keys, req.values))
		}
	}
	return requests, nil
}

// one of each request, and what the parser makes of them.
var (
	allRequests = bytes.Join([][]byte{
		appendHello(nil),
		msg(opSet, "k", "v"),
		msg(opCompareSet, "k", "old", "new"),
		msg(opGet, "k"),
		msg(opAdd, "k", -7),
		msg(opCheck, 2, "a", "b"),
		msg(opWait, 0),
		msg(opNumKeys),
		msg(opDelete, "k"),
		msg(opAppend, "k", ""),
		msg(opMultiGet, 1, ""),
		msg(opMultiSet, 2, "a", "1", "b", "2"),
		msg(opCancelWait),
		appendPing(nil, 0xffffffff),
		msg(opQueuePush, "q", "item"),
		msg(opQueuePop, "q"),
		msg(opQueueLen, "q"),
		msg(opListKeys),
		msg(opBarrier, "b", 3),
	}, nil)
	allParsed = []string{
		`SET "k" "" "v" 0 [] []`,
		`COMPARE_SET "k" "old" "new" 0 [] []`,
		`GET "k" "" "" 0 [] []`,
		`ADD "k" "" "" -7 [] []`,
		`CHECK "" "" "" 0 ["a" "b"] []`,
		`WAIT "" "" "" 0 [] []`,
		`GETNUMKEYS "" "" "" 0 [] []`,
		`DELETE_KEY "k" "" "" 0 [] []`,
		`APPEND "k" "" "" 0 [] []`,
		`MULTI_GET "" "" "" 0 [""] []`,
		`MULTI_SET "" "" "" 0 ["a" "b"] ["1" "2"]`,
		`CANCEL_WAIT "" "" "" 0 [] []`,
		`PING "" "" "" 4294967295 [] []`,
		`QUEUE_PUSH "q" "" "item" 0 [] []`,
		`QUEUE_POP "q" "" "" 0 [] []`,
		`QUEUE_LEN "q" "" "" 0 [] []`,
		`LIST_KEYS "" "" "" 0 [] []`,
		`BARRIER "b" "" "" 3 [] []`,
	}
)

func TestParserAnySplit(t *testing.T) {
	for _, piece := range []int{1, 2, 3, 7, 64, len(allRequests)} {
		var p parser
		got, err := feed(&p, allRequests, piece)
		if err != nil || strings.Join(got, "\n") != strings.Join(allParsed, "\n") {
			t.Errorf("pieces of %d: %v\n%s", piece, err, strings.Join(got, "\n"))
		}
		if p.partial() {
			t.Error("something is left")
		}
	}
}

// feedMoved is feed, but after each piece another parser continues.
func feedMoved(b []byte, piece int) (requests []string, err *refusal) {
	p, spare := &parser{}, &parser{}
	for part := range slices.Chunk(b, piece) {
		got, err := feed(p, part, piece)
		requests = append(requests, got...)
		if err != nil {
			return requests, err
		}
		p.moveTo(spare)
		p, spare = spare, p
	}
	return requests, nil
}

func TestParserMoves(t *testing.T) {
	for _, piece := range []int{1, 2, 3, 7, 64, len(allRequests)} {
		got, err := feedMoved(allRequests, piece)
		if err != nil || strings.Join(got, "\n") != strings.Join(allParsed, "\n") {
			t.Errorf("pieces of %d: %v\n%s", piece, err, strings.Join(got, "\n"))
		}
	}
}

func TestParserRefuses(t *testing.T) {
	long, huge := strings.Repeat("x", MaxKeyBytes+1), uint64(1)<<63
	for name, c := range map[string]struct {
		sent   []byte
		reason Reason
	}{
		"http":                {[]byte("GET / HTTP/1.1\r\n"), reasonDialect},
		"torch 2.0 add":       {[]byte{3}, reasonDialect},
		"set as validate":     {msg(0, "k", "v"), reasonDialect},
		"magic":               {[]byte{0, 0xce, 0xf7, 0x85, 0x3d}, reasonDialect},
		"second validate":     {append(appendHello(nil), appendHello(nil)...), reasonOpcode},
		"opcode":              {append(appendHello(nil), numOpcodes), reasonOpcode},
		"last opcode":         {append(appendHello(nil), 0xff), reasonOpcode},
		"key":                 {append(appendHello(nil), msg(opGet, long)...), reasonTooLarge},
		"key length":          {append(appendHello(nil), msg(opSet, huge)...), reasonTooLarge},
		"value length":        {append(appendHello(nil), msg(opSet, "k", MaxValueBytes+1)...), reasonTooLarge},
		"negative length":     {append(appendHello(nil), msg(opSet, "k", -1)...), reasonTooLarge},
		"expected length":     {append(appendHello(nil), msg(opCompareSet, "k", huge)...), reasonTooLarge},
		"key count":           {append(appendHello(nil), msg(opWait, MaxKeys+1)...), reasonTooLarge},
		"pair count":          {append(appendHello(nil), msg(opMultiSet, huge)...), reasonTooLarge},
		"key in a list":       {append(appendHello(nil), msg(opCheck, 1, MaxKeyBytes+1)...), reasonTooLarge},
		"key of a pair":       {append(appendHello(nil), msg(opMultiSet, 1, MaxKeyBytes+1)...), reasonTooLarge},
		"value of a pair":     {append(appendHello(nil), msg(opMultiSet, 1, "k", MaxValueBytes+1)...), reasonTooLarge},
		"key of second pair":  {append(appendHello(nil), msg(opMultiSet, 2, "k", "v", MaxKeyBytes+1)...), reasonTooLarge},
		"queue length prefix": {append(appendHello(nil), msg(opQueuePush, huge)...), reasonTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			for _, piece := range []int{1, len(c.sent)} {
				var p parser
				if _, err := feed(&p, c.sent, piece); err == nil || err.reason != c.reason {
					t.Errorf("in pieces of %d: %v", piece, err)
				}
				if _, err := p.next(); err == nil {
					t.Error("the parser goes on after an error")
				}
				if cap(p.buf) > 8*firstBuffer {
					t.Errorf("%d bytes are held for %d", cap(p.buf), len(c.sent))
				}
			}
		})
	}
}

func TestParserLimitsAreInclusive(t *testing.T) {
	var p parser
	key, value := strings.Repeat("k", MaxKeyBytes), strings.Repeat("v", MaxValueBytes)
	got, err := feed(&p, append(appendHello(nil), msg(opSet, key, value)...), 64<<10)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d requests, %v", len(got), err)
	}
	many := msg(opCheck, MaxKeys)
	for range MaxKeys {
		many = appendText(many, "")
	}
	if got, err := feed(&p, many, 64<<10); err != nil || len(got) != 1 {
		t.Fatalf("%d requests, %v", len(got), err)
	}
	p.space()
	if cap(p.buf) > keptBuffer || cap(p.spans) > 2*keptFields {
		t.Errorf("an idle parser keeps %d bytes and %d spans", cap(p.buf), cap(p.spans))
	}
}

// TestParserBoundsRequest: values that are small enough one by one are refused
// when together they exceed the bound of a request.
func TestParserBoundsRequest(t *testing.T) {
	p := newPeer(store.NewEngine(store.Limits{}), sessionConfig{})
	p.send(append(hello, msg(opMultiSet, 100)...))
	pair := msg(opSet, "k", strings.Repeat("v", MaxValueBytes))[1:]
	for i := range 100 {
		if _, err := p.send(pair); err != nil {
			if err.reason != reasonTooLarge || i*MaxValueBytes > MaxRequestBytes || (i+1)*MaxValueBytes < MaxRequestBytes {
				t.Errorf("after %d pairs: %v", i, err)
			}
			return
		}
	}
	t.Error("not refused")
}

// TestParserGrowsWithData: a declared length claims no memory.
func TestParserGrowsWithData(t *testing.T) {
	var p parser
	feed(&p, append(appendHello(nil), msg(opSet, "k", MaxValueBytes)...), 64)
	if cap(p.buf) > 2*firstBuffer {
		t.Errorf("%d bytes are held for a header", cap(p.buf))
	}
	feed(&p, make([]byte, 100<<10), 4<<10)
	if cap(p.buf) > 400<<10 {
		t.Errorf("%d bytes are held for 100 KiB", cap(p.buf))
	}
}

func TestParserDoesNotAllocate(t *testing.T) {
	e := store.NewEngine(store.Limits{})
	p := newPeer(e, sessionConfig{})
	batch := append(msg(opSet, "key", "value"), msg(opGet, "key")...)
	p.send(append(hello, batch...))
	spare := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		p.session.parser.received(copy(p.session.parser.space(), batch))
		p.session.process(pauseUnsent)
		spare = p.takeOut(spare)
	}); n > 0 {
		t.Errorf("%v allocations for SET and GET", n)
	}
}
