package training

import (
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// observed drives a detector as an agent does: it looks every half second.
type observed struct {
	HangDetector
	now time.Time
}

const lookEvery = 500 * time.Millisecond

// quiet passes a time without steps.
func (o *observed) quiet(d time.Duration) {
	for end := o.now.Add(d); o.now.Before(end); {
		o.now = o.now.Add(min(lookEvery, end.Sub(o.now)))
		o.Look(o.now, 0, false)
	}
}

// announced passes a time without steps that was announced.
func (o *observed) announced(d time.Duration) {
	for end := o.now.Add(d); o.now.Before(end); {
		o.now = o.now.Add(lookEvery)
		o.Look(o.now, 0, true)
	}
}

// bursts makes looks that each see so many steps.
func (o *observed) bursts(looks int, made int64, every time.Duration) {
	for range looks {
		o.quiet(every - lookEvery)
		o.now = o.now.Add(lookEvery)
		o.Look(o.now, made, false)
	}
}

// set sets the wall clock, forward or back.
func (o *observed) set(by time.Duration) { o.now = testkit.ShiftWall(o.now, by) }

// steps makes so many, one after each gap.
func (o *observed) steps(n int, gap time.Duration) {
	for range n {
		o.quiet(gap - lookEvery)
		o.now = o.now.Add(lookEvery)
		o.Look(o.now, 1, false)
	}
}

// TestHangDetector: when a job is suspected, and when it is not. limit is what the detector says
// after the story; suspected whether it suspects the job then.
func TestHangDetector(t *testing.T) {
	const s, m = time.Second, time.Minute
	for name, c := range map[string]struct {
		timeout   time.Duration
		story     func(o *observed)
		limit     time.Duration
		suspected bool
	}{
		"no step is ever reported":        {story: func(o *observed) { o.quiet(3 * time.Hour) }},
		"... with a timeout":              {timeout: 20 * s, story: func(o *observed) { o.quiet(time.Hour) }},
		"a rank ended, no step ever":      {story: func(o *observed) { o.Ended = true; o.quiet(10 * m) }, limit: 10 * m, suspected: true},
		"... and another works":           {story: func(o *observed) { o.Ended = true; o.announced(time.Hour); o.quiet(9 * m) }, limit: 10 * m},
		"... it had a timeout":            {timeout: 20 * s, story: func(o *observed) { o.Ended = true; o.quiet(20 * s) }, limit: 20 * s, suspected: true},
		"... in the round before":         {story: func(o *observed) { o.Ended = true; o.Begin(o.now); o.quiet(time.Hour) }},
		"a rank ended after steps":        {story: func(o *observed) { o.steps(9, s); o.Ended = true; o.quiet(m) }, limit: m, suspected: true},
		"the first step takes long":       {story: func(o *observed) { o.quiet(50 * m); o.steps(1, s); o.quiet(29 * m) }, limit: 30 * m},
		"compile in the second":           {story: func(o *observed) { o.steps(2, 25*m); o.quiet(29 * m) }, limit: 30 * m},
		"nothing after the first step":    {story: func(o *observed) { o.steps(1, s); o.quiet(30 * m) }, limit: 30 * m, suspected: true},
		"quick steps":                     {story: func(o *observed) { o.steps(100, s); o.quiet(59 * s) }, limit: m},
		"quick steps, then nothing":       {story: func(o *observed) { o.steps(100, s); o.quiet(m) }, limit: m, suspected: true},
		"slow steps":                      {story: func(o *observed) { o.steps(30, 20*s); o.quiet(199 * s) }, limit: 200 * s},
		"slow steps, then nothing":        {story: func(o *observed) { o.steps(30, 20*s); o.quiet(200 * s) }, limit: 200 * s, suspected: true},
		"an evaluation that was seen":     {story: func(o *observed) { o.steps(9, s); o.steps(1, 59*s); o.steps(90, s); o.quiet(176 * s) }, limit: 177 * s},
		"steps that have become slow":     {story: func(o *observed) { o.steps(90, s); o.steps(20, 30*s); o.quiet(299 * s) }, limit: 300 * s},
		"steps that have become quick":    {story: func(o *observed) { o.steps(90, 10*s); o.steps(20, s); o.quiet(30 * s) }, limit: m},
		"an announced checkpoint":         {story: func(o *observed) { o.steps(9, s); o.announced(time.Hour); o.quiet(59 * s) }, limit: m},
		"... not after it, either":        {story: func(o *observed) { o.steps(9, s); o.quiet(59 * s); o.announced(s); o.quiet(59 * s) }, limit: m},
		"it is no gap either":             {story: func(o *observed) { o.steps(9, s); o.announced(time.Hour); o.steps(1, s); o.quiet(m) }, limit: m, suspected: true},
		"a round's first step":            {story: func(o *observed) { o.steps(9, s); o.Begin(o.now); o.quiet(599 * s) }, limit: 10 * m},
		"a round's first step never":      {story: func(o *observed) { o.steps(9, s); o.Begin(o.now); o.quiet(600 * s) }, limit: 10 * m, suspected: true},
		"a round's first gap":             {story: func(o *observed) { o.steps(9, s); o.Begin(o.now); o.steps(1, s); o.quiet(599 * s) }, limit: 10 * m},
		"a round's first gap is no rule":  {story: func(o *observed) { o.steps(9, s); o.Begin(o.now); o.steps(1, s); o.steps(2, 500*s); o.quiet(m) }, limit: 1500 * s},
		"... its second one is":           {story: func(o *observed) { o.steps(9, s); o.Begin(o.now); o.steps(1, s); o.steps(1, 500*s); o.quiet(59 * s) }, limit: m},
		"few steps, all quick":            {story: func(o *observed) { o.quiet(20 * s); o.steps(1, s); o.bursts(1, 10, lookEvery); o.quiet(m) }, limit: m, suspected: true},
		"few steps, seen at once":         {story: func(o *observed) { o.quiet(20 * s); o.bursts(1, 5, lookEvery); o.quiet(m) }, limit: m, suspected: true},
		"two steps, seen at once":         {story: func(o *observed) { o.quiet(20 * s); o.bursts(1, 2, lookEvery); o.quiet(29 * m) }, limit: 30 * m},
		"a step of two optimizers":        {story: func(o *observed) { o.bursts(1, 2, lookEvery); o.quiet(29 * m) }, limit: 30 * m},
		"... and the gap after the first": {story: func(o *observed) { o.bursts(1, 2, lookEvery); o.bursts(1, 2, 5*m); o.bursts(9, 2, s); o.quiet(59 * s) }, limit: m},
		"steps in units of samples":       {story: func(o *observed) { o.steps(1, s); o.bursts(1, 64, m); o.bursts(1, 64, m); o.quiet(5 * m) }, limit: 10 * m},
		"few steps of a later round": {story: func(o *observed) {
			o.steps(9, s)
			o.Begin(o.now)
			o.quiet(20 * s)
			o.bursts(1, 5, lookEvery)
			o.quiet(m)
		}, limit: m, suspected: true},
		"the time between rounds": {story: func(o *observed) { o.steps(9, s); o.now = o.now.Add(time.Hour); o.Begin(o.now); o.steps(3, s) }, limit: m},
		"a suspended machine": {story: func(o *observed) {
			o.steps(9, s)
			o.now = o.now.Add(9 * time.Hour)
			o.Look(o.now, 0, false)
			o.quiet(59 * s)
		}, limit: m},
		"an agent that was starved": {story: func(o *observed) { o.steps(9, s); o.quiet(59 * s); starved(o, 10, 20*s) }, limit: m},
		"a clock that goes back":    {story: func(o *observed) { o.steps(9, s); o.now = o.now.Add(-time.Hour); o.quiet(59 * s) }, limit: m},
		"the wall clock is set": {story: func(o *observed) {
			o.steps(9, s)
			for range 59 {
				o.set(2 * s)
				o.quiet(s)
			}
		}, limit: m},
		"... in a hang":                 {story: func(o *observed) { o.steps(9, s); o.quiet(30 * s); o.set(-24 * time.Hour); o.quiet(30 * s) }, limit: m, suspected: true},
		"... between steps":             {story: func(o *observed) { o.steps(9, s); o.quiet(s); o.set(24 * time.Hour); o.steps(9, s); o.quiet(m) }, limit: m, suspected: true},
		"a timeout":                     {timeout: 20 * s, story: func(o *observed) { o.steps(3, 30*s); o.quiet(19 * s) }, limit: 20 * s},
		"a timeout, then nothing":       {timeout: 20 * s, story: func(o *observed) { o.steps(2, s); o.quiet(20 * s) }, limit: 20 * s, suspected: true},
		"a timeout, the first gap":      {timeout: 20 * s, story: func(o *observed) { o.steps(1, s); o.quiet(599 * s) }, limit: 10 * m},
		"a long timeout, the first gap": {timeout: time.Hour, story: func(o *observed) { o.steps(1, s); o.quiet(601 * s) }, limit: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			o := &observed{now: testkit.NewClock().Now()}
			o.Timeout = c.timeout
			o.Begin(o.now)
			c.story(o)
			limit := o.Limit()
			if suspected := limit > 0 && o.Silent() >= limit; limit != c.limit || suspected != c.suspected {
				t.Errorf("limit %v, suspected %v after %v of silence; want %v, %v", limit, suspected, o.Silent(), c.limit, c.suspected)
			}
			want := max(0, c.limit-o.Silent())
			if often := c.timeout / 20; often > 0 && (want == 0 || want > often) {
				want = often
			}
			if again := o.LookAgain(); again != want {
				t.Errorf("looks again after %v, want %v", again, want)
			}
		})
	}
}

// starved passes looks that come late each time, and none of which is silence for sure.
func starved(o *observed, looks int, late time.Duration) {
	for range looks {
		o.now = o.now.Add(late)
		o.Look(o.now, 0, false)
	}
}
