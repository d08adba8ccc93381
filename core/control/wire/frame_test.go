package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/training"
	"rallypoint/internal/pack"
)

func newBufio(b []byte) *bufio.Reader { return bufio.NewReaderSize(bytes.NewReader(b), ReadBuffer) }

var sampleRedirect = Redirect{Group: "g", Term: 2, Host: "10.0.0.1:2", Node: "n", Servers: []string{"10.0.0.3:4"}}

// sampleFrames holds every frame, request and result with each field set.
func sampleFrames() []Frame {
	at := time.Unix(1700000000, 5).UTC()
	fail := rendezvous.Errorf(rendezvous.CodeClosed, "closed")
	report := training.Report{Round: 3, Workers: 8, Reporting: 7, Smallest: 41198, Largest: 41200, SinceFirst: 5, SinceChange: 1, SinceSlowest: 4, PerStep: 3, Gap: 2}
	note := rendezvous.MembershipUpdate{Waiting: 2, Closed: true, Reason: "lost: b",
		Stop:      rendezvous.RoundStop{Round: 3, Rank: 1, Leaving: true, Reason: "signal 15", Lost: true},
		Directive: rendezvous.DirectiveNotice{ID: "d1", Kind: rendezvous.DirectiveDrain, Named: true, Text: "drain b", Within: 5}}
	frames := []Frame{
		Hello{
			Version: 1, Features: []string{"f", "g"}, Software: "1.2.3", RunID: "run", Session: "s", Node: "n", Named: true,
			Incarnation: 1 << 63, Label: "host pid 1", InHost: true, Group: "g", Term: 7, Servers: []string{"a:1"}, Machine: "m", HostName: "h", Topology: "rack7", Command: rendezvous.Command{Digest: "0a", Text: "train.py"},
			Policy: rendezvous.Policy{Min: 1, Max: 2, NodeUnit: 3, Target: 4, LastCallTimeout: 5, QuietPeriod: 6,
				RegroupTimeout: 7, AdmitDelay: 8, LeaseTimeout: 9, ReconnectGrace: 10},
			LastRound: rendezvous.LastRound{Generation: "gen", Round: 3, Rank: 1, World: 2, HostRank: -1, Finished: true},
		},
		Welcome{Version: 1, Features: []string{"f"}, Software: "1", Server: "id", SeenAddr: "10.0.0.1", Lease: 5e9,
			Resumed: true, Notice: note, Servers: []string{"b:2"}, Embedded: true, Group: "g", Term: 3, Addr: "10.0.0.2:1", HostNode: "h"},
		Standby{Addr: "10.0.0.1:2", Why: "no"}, Standbys{}, Standbys{List: []StandbyNode{{"n", "l", "10.0.0.1:2", true}, {"m", "k", "[::1]:3", false}}, Invited: true},
		Redirect{}, sampleRedirect, Probed{Yields: true, Round: true, Node: "n", Target: sampleRedirect}, Probed{Err: fail},
		Probe{Software: "1", RunID: "run", Round: true, Node: "n", Target: sampleRedirect,
			Policy: rendezvous.Policy{Min: 1, Max: 2, NodeUnit: 1, LeaseTimeout: 9}},
		Liveness{RunID: "run", Group: "g", Node: "n", Ask: true, State: 3, Term: 1<<64 - 1, Target: sampleRedirect, Voter: "v", Votes: true, Linked: []string{"m"}, Cluster: "e", Last: [2]uint64{3, 1<<64 - 1}},
		Transfer{Group: "g", Term: 4, Addr: "10.0.0.1:2"},
		Vote{Group: "g", Message: raft.Message{Cluster: "e", From: 1, To: 35, Data: []byte{1, 2}}},
		Vote{Group: "g", Message: raft.Message{Cluster: "e", From: raft.VoterAt(5, 1<<63), To: raft.VoterAt(0, 1<<63)}},
		Vote{Group: "g", Message: raft.Message{Cluster: "e", From: 1, To: 35}, Piece: Piece{Number: 3, Whole: 1<<64 - 1, From: 1 << 20}},
		Refuse{fail, "g"}, Notice{note}, Drop{fail}, Beat{}, Beat{Echo: true}, Beat{Training: &report}, Goodbye{}, Unknown{99},
		Admin{Software: "1", Op: AdminOpEvict, RunID: "run", Node: "n", By: "root@h", Reason: "because", Stop: true,
			Directive: Directive{ID: "d1", Nodes: []string{"a", "b"}, Within: 5, For: 6}},
		AdminAnswer{Done: "closed"}, AdminAnswer{Err: fail},
		Unknown{KindChallenge}, Proof{MACs: [][]byte{{1}, {2}}, Purpose: 1}, Proof{MACs: [][]byte{{1}}, Purpose: 1, Run: []byte("run")}, Proof{},
		Progress{rendezvous.Progress{Headline: "1 of 2", Detail: "here: a", Spare: true}},
		Reply{Number: 1}, Reply{Number: 2, Err: fail},
		Reply{Number: 3, Result: rendezvous.Outcome{Generation: "gen", Round: 1 << 40, Rank: 1, World: 2, HostRank: -1,
			StoreAddr: "fe80::1%eth0", StorePort: 65535, Dropped: []string{"c"}}},
		Reply{Number: 4, Result: rendezvous.KeyResult{Values: [][]byte{{}, {1}, nil}, Keys: []string{"k\xff", ""}, Number: -5, Ready: true}},
		Reply{Number: 5, Result: rendezvous.KeyResult{}},
		Reply{Number: 6, Result: rendezvous.Withdrawn{Completed: true, Progress: rendezvous.Progress{Headline: "1 of 2", Detail: "here: a"}}},
	}
	for i, ev := range []rendezvous.Event{
		rendezvous.Join{NodeRank: -1, RankHint: 3, StoreAddr: "a", StorePort: 1},
		rendezvous.Withdraw{Join: 7},
		rendezvous.Leave{Ending: rendezvous.EndFailed, Reason: "because", At: at},
		rendezvous.CloseRun{By: "me", Reason: "because", Stop: true, At: at},
		rendezvous.Finish{}, rendezvous.AwaitPeers{},
		rendezvous.KeyRequest{Round: 3, Op: store.OpCancelWait, Keys: []string{"k", "\x00"}, Values: [][]byte{nil, {2}}, Amount: -9},
		rendezvous.AnnounceStop{Generation: "gen", Round: 3, Leaving: true, Reason: "signal 15"},
	} {
		f, _ := NewRequest(ev, uint64(i+1), uint64(i))
		frames = append(frames, f)
	}
	return frames
}

func TestFramesRoundTrip(t *testing.T) {
	var stream []byte
	for _, f := range sampleFrames() {
		stream = AppendFrame(stream, f)
	}
	r := FrameReader{In: newBufio(stream)}
	for _, want := range sampleFrames() {
		got, err := r.NextFrame(MaxFrame)
		if err != nil {
			t.Fatalf("%T: %v", want, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

// TestRequestBecomesEvent checks that the number, watermark and session reach the
// machine.
func TestRequestBecomesEvent(t *testing.T) {
	want := rendezvous.Request{Session: "s", Number: 5, Acked: 4}
	for _, f := range sampleFrames() {
		r, ok := f.(Request)
		if !ok {
			continue
		}
		r.Number, r.Acked = 5, 4
		got := reflect.ValueOf(r.Stamped("s")).FieldByName("Request").Interface()
		if got != want {
			t.Errorf("%T: %+v, want %+v", r.Event, got, want)
		}
	}
}

// TestOlderAndNewerPeers cuts the last fields off each frame, and adds unknown
// ones: both must be understood.
func TestOlderAndNewerPeers(t *testing.T) {
	older := []byte{0x92, byte(KindHello), 1} // a hello of its first field only
	f, err := parseFrame(older)
	if err != nil {
		t.Fatal(err)
	}
	if h := f.(Hello); h.Version != 1 || h.RunID != "" || h.LastRound.HostRank != -1 {
		t.Errorf("got %+v", h)
	}
	f, err = parseFrame([]byte{0x95, byte(KindRequest), 1, 0, byte(rendezvous.OpJoin), 0x90})
	if err != nil {
		t.Fatal(err)
	}
	if j := f.(Request).Event.(rendezvous.Join); j.NodeRank != -1 || j.RankHint != -1 {
		t.Errorf("got %+v", j)
	}
	for _, want := range sampleFrames() {
		body := AppendFrame(nil, want)[frameHead:]
		if body[0]&0xf0 != 0x90 || body[0]&0x0f > 14 {
			continue // no short list
		}
		newer := append([]byte{body[0] + 1}, body[1:]...)
		newer = append(newer, 0x81, 0xa1, 'k', 0x92, 1, 0xc4, 1, 0) // {"k": [1, bytes]}
		got, err := parseFrame(newer)
		if err != nil {
			t.Errorf("%T with a further field: %v", want, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	// A further field in a nested list, before fields that are known.
	newer := pack.Append(nil, func(p *packer) {
		head(p, KindNotice, 1)
		p.List(10)
		p.Int(1)
		p.Bool(true)
		p.Text("why")
		p.None()
		p.None()
		p.None()
		p.None()
		p.None()
		p.None()
		p.Texts([]string{"new"})
		p.None()
	})
	got, err := parseFrame(newer)
	if err != nil || !reflect.DeepEqual(got.(Notice).Notice, rendezvous.MembershipUpdate{Waiting: 1, Closed: true, Reason: "why"}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestMalformedFrames(t *testing.T) {
	deep := append([]byte{0x92, byte(KindNotice), 0x94, 1, 0xc3, 0xa0}, bytes.Repeat([]byte{0x91}, 1<<20)...)
	tests := map[string][]byte{
		"empty":              {},
		"no list":            {0x01},
		"empty list":         {0x90},
		"text as kind":       {0x91, 0xa1, 'x'},
		"cut off":            {0x93, byte(KindProgress), 0xa5, 'a'},
		"text too long":      append([]byte{0x94, byte(KindHello), 1, 0x90, 0xda, 0x02, 0x01}, make([]byte, 513)...),
		"declared text":      {0x92, byte(KindProgress), 0xdb, 0xff, 0xff, 0xff, 0xff},
		"declared list":      {0x93, byte(KindHello), 1, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"number as text":     {0x92, byte(KindProgress), 1},
		"request number 0":   {0x95, byte(KindRequest), 0, 0, byte(rendezvous.OpFinish), 0x90},
		"nested too deep":    deep,
		"unknown result":     {0x96, byte(KindReply), 1, 0, 0xc0, 9, 0x90},
		"extension as field": {0x92, byte(KindProgress), 0xd4, 1, 1},
	}
	for name, body := range tests {
		f, err := parseFrame(body)
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %+v, %v", name, f, err)
		}
	}
}

func TestTextsAreCut(t *testing.T) {
	long := strings.Repeat("é", maxText)
	f, err := parseFrame(AppendFrame(nil, Drop{&rendezvous.Error{Code: 1, Text: long + "\xff"}})[frameHead:])
	if err != nil {
		t.Fatal(err)
	}
	if got := f.(Drop).Err.Text; len(got) != maxText || !strings.HasPrefix(long, got) {
		t.Errorf("%d bytes", len(got))
	}
	if got := pack.CutText("a\xffb", 10); got != "a\uFFFDb" {
		t.Errorf("got %q", got)
	}
}

func TestOversizedRequestsAreRefusedHere(t *testing.T) {
	for name, k := range map[string]rendezvous.KeyRequest{
		"keys":   {Keys: make([]string, maxKeys+1)},
		"a key":  {Keys: []string{strings.Repeat("k", maxKey+1)}},
		"values": {Values: [][]byte{make([]byte, MaxFrame)}},
	} {
		f, _ := NewRequest(k, 1, 0)
		err := f.CheckSize()
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if err.Code != rendezvous.CodeTooLarge {
			t.Errorf("%s: code %d, want %d: %v", name, err.Code, rendezvous.CodeTooLarge, err)
		}
	}
	largest := rendezvous.KeyRequest{Values: [][]byte{make([]byte, MaxFrame-300)}}
	f, _ := NewRequest(largest, 1<<60, 1<<60)
	if err := f.CheckSize(); err != nil {
		t.Error(err)
	}
	if n := len(AppendFrame(nil, f)) - frameHead; n > MaxFrame {
		t.Errorf("a request that was let through has %d bytes", n)
	}
}

// TestHugeLengthCostsNoMemory declares large frames and sends little of them.
func TestHugeLengthCostsNoMemory(t *testing.T) {
	body := append(binary.LittleEndian.AppendUint32(nil, MaxFrame), make([]byte, 100)...)
	r := FrameReader{In: newBufio(body)}
	if _, err := r.next(MaxFrame); err == nil {
		t.Fatal("half a frame was taken for one")
	}
	if cap(r.body) > 4*FirstChunk {
		t.Errorf("%d bytes of memory for a frame of which 100 bytes came", cap(r.body))
	}
}

// FuzzFrame decodes anything; what it accepts must survive another round trip.
func FuzzFrame(f *testing.F) {
	for _, fr := range sampleFrames() {
		f.Add(AppendFrame(nil, fr)[frameHead:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		first, err := parseFrame(body)
		if err != nil {
			return
		}
		if r, ok := first.(Request); ok && r.Event == nil {
			return
		}
		second, err := parseFrame(AppendFrame(nil, first)[frameHead:])
		if err != nil {
			t.Fatalf("%+v: %v", first, err)
		}
		third, err := parseFrame(AppendFrame(nil, second)[frameHead:])
		if err != nil || !reflect.DeepEqual(second, third) {
			t.Fatalf("%+v became %+v, %v", second, third, err)
		}
	})
}

// BenchmarkBeat is what a server spends on reading a heartbeat, without a report and with one.
func BenchmarkBeat(b *testing.B) {
	report := training.Report{
		Round: 3, Workers: 8, Reporting: 8, Smallest: 41198, Largest: 41200, SinceFirst: time.Hour, SinceChange: time.Second,
		SinceSlowest: 2 * time.Second, PerStep: 3 * time.Second, Gap: time.Minute,
	}
	for name, f := range map[string]Frame{"bare": Beat{}, "report": Beat{Training: &report}} {
		body := AppendFrame(nil, f)[frameHead:]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := parseFrame(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFrames is what it costs to write and to read one of each frame.
func BenchmarkFrames(b *testing.B) {
	frames := sampleFrames()
	var bodies [][]byte
	for _, f := range frames {
		bodies = append(bodies, AppendFrame(nil, f)[frameHead:])
	}
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		buf := make([]byte, 0, MaxProofFrame)
		for b.Loop() {
			for _, f := range frames {
				buf = AppendFrame(buf[:0], f)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, body := range bodies {
				if _, err := parseFrame(body); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// TestLongFramesAreReserved: memory for a long frame is reserved as it comes in, and given back
// when it was read, or will not be.
func TestLongFramesAreReserved(t *testing.T) {
	long := AppendFrame(nil, Request{Number: 1, Op: rendezvous.OpKey, Event: rendezvous.KeyRequest{Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, 1<<20)}}})
	short := AppendFrame(nil, Beat{})
	held, most, limit := 0, 0, MaxFrame
	read := func(b []byte) (err error) {
		r := FrameReader{In: bufio.NewReader(bytes.NewReader(b)), Reserve: func(by int) error {
			if held+by > limit {
				return errors.New("no room")
			}
			held += by
			most = max(most, held)
			return nil
		}}
		for err == nil {
			_, err = r.NextFrame(MaxFrame)
			if err == nil && held != 0 {
				t.Errorf("%d bytes are reserved for a frame that was read", held)
			}
		}
		r.Release()
		if held != 0 {
			t.Errorf("%d bytes are reserved in the end", held)
		}
		return err
	}
	if err := read(short); err != io.EOF || most != 0 {
		t.Errorf("a short frame: %v, %d bytes", err, most)
	}
	if err := read(append(long, short...)); err != io.EOF || most != len(long)-frameHead {
		t.Errorf("a long frame of %d bytes: %v, %d bytes", len(long), err, most)
	}
	if err := read(long[:1<<19]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half of a frame: %v", err)
	}
	limit = 1 << 19
	if err := read(long); err == nil || err.Error() != "no room" {
		t.Errorf("without room: %v", err)
	}
}
