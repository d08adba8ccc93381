package stacks

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/agent/question"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// answer answers for a node until ctx ends, as its agent does.
func answer(ctx context.Context, s store.Store, group int, collect func() Node, hear func(Hang)) {
	question.Answer(ctx, s, group, question.Agent{
		Hear: func(_ context.Context, q question.Question) bool {
			h, err := DecodeHang(q.Text)
			if q.Kind == KindHang && err == nil {
				hear(h)
			}
			return q.Kind == KindHang
		},
		Answer: func(context.Context, question.Question) ([]byte, bool) { return collect().Encode(), true },
	})
}

// TestQuestion: two of three nodes answer, and answer again when asked again. Only the small
// questions stay in the store.
func TestQuestion(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	ctx, cancel := context.WithCancel(testkit.Within(t, testkit.Patience))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for node := range 2 {
		wg.Go(func() {
			answer(ctx, s, node, func() Node { return Node{Fold: NewFold([]Group{at(node, "f")})} }, func(Hang) {})
		})
	}
	folds, err := Ask(ctx, s, 2, Now, testkit.Patience)
	testkit.Check(t, err)
	if folds[0] == nil || folds[1] == nil || RankList(folds[1].Groups[0].Ranks) != "1" {
		t.Fatalf("%+v", folds)
	}
	testkit.Equal(t, testkit.Must(s.NumKeys(ctx))(t), 2)
	// Of the third node nothing comes: it is not waited for beyond the limit.
	folds, err = Ask(ctx, lastIsLate{s}, 3, Now, testkit.Patience)
	testkit.Check(t, err)
	if folds[0] == nil || folds[1] == nil || folds[2] != nil {
		t.Fatalf("%+v", folds)
	}
}

// lastIsLate is a store whose waits run out when all keys but the last are there.
type lastIsLate struct{ store.Store }

func (s lastIsLate) Wait(ctx context.Context, keys []string) error {
	if err := s.Store.Wait(ctx, keys[:len(keys)-1]); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	return s.Store.Wait(ctx, keys)
}

// TestAnswersOfStrangers: a worker that writes into the store cannot make more of it than an
// answer may be, nor write on a terminal.
func TestAnswersOfStrangers(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":         "x",
		"too long":        `{"groups":[{"ranks":[1],"state":"` + strings.Repeat("x", maxAnswer) + `"}]}`,
		"too many groups": `{"groups":[` + strings.Repeat(`{"ranks":[1]},`, maxGroups) + `{"ranks":[1]}]}`,
		"no ranks":        `{"groups":[{"ranks":[]}]}`,
		"a negative rank": `{"groups":[{"ranks":[-1]}]}`,
		"many threads":    `{"groups":[{"ranks":[1],"threads":[` + strings.Repeat(`{},`, 99) + `{}]}]}`,
		"cut ranks":       `{"groups":[],"ranks_cut":[99999999999]}`,
	} {
		if f, err := decode([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
	f, err := decode([]byte(`{"groups":[{"ranks":[1],"source":"\u001b[2J","threads":[{"frames":[{"file":"\u001b]0;x","line":-4,"function":"a\nb"}]}]}]}`))
	if err != nil || strings.ContainsAny(f.Text(), "\x1b") || f.Groups[0].Threads[0].Frames[0] != (Frame{"\uFFFD]0;x", 0, "a b"}) {
		t.Errorf("%v %q", err, f.Text())
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"groups":[{"ranks":[1],"threads":[{"main":true,"frames":[{"file":"a.py","line":3,"function":"f"}]}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		fold, err := decode(text)
		if err != nil {
			return
		}
		joined := Join([]Fold{fold.Fold, fold.Fold})
		if strings.ContainsRune(joined.Text(), '\x1b') || len(joined.Suspects()) > joined.Ranks() {
			t.Fatal(joined)
		}
	})
}

// TestTell: what one node tells all others hear, between questions that are answered as before;
// one node of a round tells.
func TestTell(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	ctx, cancel := context.WithCancel(testkit.Within(t, testkit.Patience))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	heard := make(chan Hang, 8)
	for node := range 2 {
		wg.Go(func() {
			answer(ctx, s, node, func() Node { return Node{Fold: NewFold([]Group{at(node, "f")}), Host: "h"} }, func(h Hang) { heard <- h })
		})
	}
	for _, of := range []int{1, 2} {
		for _, group := range []int{of, 3, of} {
			judge, err := Judge(ctx, s, 7, group)
			testkit.Check(t, err)
			if judge != (group == of) {
				t.Errorf("node %d of %d: %v", group, of, judge)
			}
		}
		testkit.Check(t, Resign(ctx, s, 7))
	}
	for range 2 {
		nodes, err := Ask(ctx, s, 2, Now, testkit.Patience)
		testkit.Check(t, err)
		told := newHang(time.Minute, nodes, nil, false, false)
		for _, h := range []Hang{told, Resumed()} {
			testkit.Check(t, Tell(ctx, s, h))
			for range 2 {
				if got := <-heard; got.Text != h.Text || got.Silent != h.Silent || got.Restart != -1 || len(got.Groups) != len(h.Groups) {
					t.Errorf("heard %+v, told %+v", got, h)
				}
			}
		}
	}
}

// TestStood: of the nodes of a round that want to know where the workers stood the first finds it out,
// and all have what it has found; a node without an answer is named, and without a stack nothing is
// said.
func TestStood(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	ctx := testkit.Within(t, testkit.Patience)
	nodes := []*Node{nil, {Fold: NewFold([]Group{waiting(4), frames(5, "train.py:load")}), Host: "b"}}
	finds := make(chan struct{}, 3)
	want := NewStood(31*time.Second, nodes)
	for _, group := range []int{1, 0, 2} {
		h, err := Stood(ctx, s, 7, group, func() Hang { finds <- struct{}{}; return want })
		testkit.Check(t, err)
		testkit.Equal(t, h.Text, "no step for 31 s: node 0 does not answer; rank 4 (b) waits in all_reduce, called in train.py:41 step; rank 5 (b) is at train.py:40 load")
		testkit.Equal(t, len(h.Groups), 2)
	}
	testkit.Equal(t, len(finds), 1)
	for _, unknown := range [][]*Node{{nil, nil}, {{Fold: NewFold([]Group{{Ranks: []int{1}, State: "sleeping", Source: SourceKernel}})}}} {
		testkit.Equal(t, NewStood(time.Minute, unknown).Text, "")
	}
	limited, cancel := context.WithCancel(ctx)
	cancel()
	testkit.Must(claim(ctx, s, keyOf(keyFinder, 8), 1))(t)
	if _, err := Stood(limited, s, 8, 0, func() Hang { return want }); err == nil {
		t.Error("a node that does not find out has something")
	}
}

// TestHangsOfStrangers: a worker cannot have an agent say what a terminal obeys, nor more than
// a sentence.
func TestHangsOfStrangers(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":         "x",
		"too long":        `{"suspects":[],"text":"` + strings.Repeat("x", maxHang) + `"}`,
		"no suspects":     `{"text":"x"}`,
		"a negative rank": `{"suspects":[-1]}`,
		"no ranks":        `{"suspects":[],"groups":[{"ranks":[]}]}`,
		"a negative time": `{"suspects":[],"silent":-1}`,
	} {
		if h, err := DecodeHang([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, h)
		}
	}
	h, err := DecodeHang([]byte(`{"suspects":[1],"text":"\u001b[2J` + strings.Repeat("x", 999) + `"}`))
	if err != nil || len(h.Text) > maxSentence || strings.Contains(h.Text, "\x1b") {
		t.Errorf("%v %q", err, h.Text)
	}
}
